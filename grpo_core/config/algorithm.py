"""The algorithm's part of a config: from rewards to the gradient. docs/losses/ has what each choice computes.

What estimators and losses read is declared in their folders; which choices go together is in `config.conflicts`. Loads
no torch.
"""

from collections.abc import Mapping
from typing import Annotated, Literal, Self, get_args

from pydantic import Field, model_validator

from grpo_core.advantages.base import Signal
from grpo_core.advantages.settings import AdvantageSettings
from grpo_core.config.conflicts import refusal
from grpo_core.losses.settings import LossSettings
from grpo_core.specs.fields import Count, NotNegative, Part, Positive

Aggregation = Literal["sequence_mean", "token_mean", "local_token_mean", "constant", "sequence_sum", "sequence_total"]
Denominator = Literal["all", "informative"]
KLEstimator = Literal["k1", "k2", "k3", "k3_plus"]
KLTarget = Literal["reference", "old"]
KLPlace = Literal["loss", "reward"]
SignalGate = Literal["success", "reward"]


class KLConfig(Part):
    coef: NotNegative = Field(default=0.0, title="KL weight β")
    """β, weight of the KL penalty. DeepSeekMath used 0.04, R1 0.001, DAPO and Dr. GRPO 0. At 0 no reference model is
    loaded."""
    estimator: KLEstimator = Field(default="k3", title="KL estimator")
    """How the divergence is estimated per token (Schulman 2020): k1 unbiased, k2 half square, k3 unbiased and never
    negative, k3_plus k3's value with k2's gradient, which is that of the divergence."""
    target: KLTarget = Field(default="reference", title="KL target")
    """Which policy the penalty pulls back to: the frozen reference, or the old policy that sampled."""
    place: KLPlace = Field(default="loss", title="KL penalty goes into")
    """loss: added per token to the loss (GRPO). reward: subtracted from each completion's reward before advantages
    (PPO, RLOO, REINFORCE++); take estimator k1 there, the only one whose policy gradient is that of the divergence."""
    controller: Literal["fixed", "adaptive"] = Field(default="fixed", title="KL controller")
    """adaptive moves β towards `target_nats` (after Ziegler et al. 2019, section 2.2); fixed leaves it."""
    target_nats: Positive = Field(default=6.0, title="Adaptive KL aims at, nats per completion")
    """KL per completion, in nats, that the adaptive controller aims at."""
    horizon: Count = Field(default=10_000, title="Adaptive KL horizon, completions")
    """Completions over which the adaptive controller would change β by its error once; more is slower."""


class ReferenceConfig(Part):
    refresh: Literal["never", "replace", "average"] = Field(default="never", title="Reference refresh")
    """Whether the reference follows the policy: replace copies the policy into it every so many steps, average moves
    it by `weight` towards the policy."""
    every: Count = Field(default=400, title="Refresh every, steps")
    """Steps between two refreshes. R1 replaced its reference every 400 updates, 25 steps of its 16 mini-batches."""
    weight: Annotated[float, Field(gt=0, le=1, title="Weight of the policy in the average")] = 0.6
    """Share of the policy in the new reference, with refresh: average."""


class CorrectionConfig(Part):
    mode: Literal["none", "token_truncate", "sequence_mask"] = Field(
        default="token_truncate", title="Sampler correction"
    )
    """What is done about a sampler whose probabilities differ from the trainer's: token_truncate weighs each token by
    their ratio, at most `cap`; sequence_mask leaves out completions whose mean ratio is outside `low` to `high`."""
    cap: Positive = Field(default=2.0, title="Largest weight of a token")
    """Largest weight of a token with token_truncate."""
    low: Positive = Field(default=0.99, title="Smallest mean ratio")
    """Smallest geometric mean of a completion's ratios with sequence_mask."""
    high: Positive = Field(default=1.01, title="Largest mean ratio")
    """Largest one."""
    stale: Literal["ratio", "weight"] = Field(default="ratio", title="Completions of an earlier policy")
    """For completions that an earlier policy sampled (engine.one_step_off, dynamic sampling's surplus). ratio: the
    loss's ratio is to the policy that sampled them, so its clip holds back what has moved since (PPO). weight: it is to
    the policy before the update, as for all others, and what has moved since is weighed by token_truncate (decoupled
    PPO)."""


class DynamicSamplingConfig(Part):
    enabled: bool = Field(default=False, title="Dynamic sampling")
    """Draw further problems for groups without a signal (`algorithm.signal_gate`), until the step is full of groups
    with one (DAPO, section 3.2)."""
    max_batches: Count = Field(default=10, title="Batches for one step, at most")
    """Most batches of problems sampled for one step; then the step is trained on what it has."""


class OverlongConfig(Part):
    mask_truncated: bool = Field(default=False, title="Leave truncated completions out")
    """Leave completions that reached the length limit out of the loss (DAPO's overlong filtering)."""
    buffer_tokens: Count | None = Field(default=None, title="Soft overlong punishment, last tokens")
    """Soft overlong punishment: over the last so many tokens before the limit the reward falls linearly by `penalty`.
    DAPO used 4,096 of 20,480. Empty: none."""
    penalty: Positive = Field(default=1.0, title="Overlong penalty at the limit")
    """What a completion at the limit loses. DAPO used 1."""


class AlgorithmConfig(LossSettings, AdvantageSettings):
    off_policy_threshold: Positive | None = Field(default=None, title="Off-policy mask, nats per token")
    """Leave out completions with a negative advantage whose mean log-probability fell by more than this since they
    were sampled (DeepSeek-V3.2). Empty: none."""
    top_entropy_share: Annotated[float, Field(gt=0, le=1, title="Share of tokens with the highest entropy")] = 1.0
    """Only this share of tokens, those with the highest entropy, gives a policy gradient; 0.2 in "Beyond the 80/20
    rule". 1 takes all."""
    entropy_coef: NotNegative = Field(default=0.0, title="Entropy bonus")
    """Weight of the entropy bonus: the mean entropy of the policy is added to what is maximised."""
    aggregation: Aggregation = Field(default="token_mean", title="Loss aggregation")
    """sequence_mean: mean over tokens, then over completions (GRPO). token_mean: mean over all tokens of the
    optimiser step (DAPO). local_token_mean: mean over the tokens of `local_batch` completions, then over those batches
    (BNPO). constant: sum over tokens divided by completions times a constant (Dr. GRPO). sequence_sum: sum over
    tokens, mean over completions (LUSPO). sequence_total: mean over tokens, sum over completions."""
    aggregation_constant: Count | None = Field(default=None, title="Constant of Dr. GRPO, tokens")
    """The constant, in tokens, that Dr. GRPO divides by. Needed with aggregation constant, refused otherwise."""
    local_batch: Count | None = Field(default=None, title="Local batch of BNPO, completions")
    """Completions of one local batch, in the order of sampling. Needed with aggregation local_token_mean, refused
    otherwise."""
    denominator: Denominator = Field(default="all", title="Groups in the denominator")
    """all: groups without a signal count in the denominators, so they make the step smaller. informative: only groups
    with a signal do."""
    signal_gate: SignalGate = Field(default="success", title="What must vary in a group")
    """What must vary in a group for it to carry a signal. success: the value of the component that means right
    (reward.success). Where it does not, only shaping moves the reward, and dividing by the spread of that little gives
    full advantages for no success at all: phantom advantages, which are set to 0. It is the default because nothing
    else changes: with one component, or one that grades what it judges, it is the same as reward. reward: the weighted
    sum, overlong punishment included, as TRL and most papers compare it."""
    kl: KLConfig = KLConfig()
    """Penalty for leaving another policy."""
    reference: ReferenceConfig = ReferenceConfig()
    """Whether that policy, when it is the reference, is updated."""
    correction: CorrectionConfig = CorrectionConfig()
    """Correction between the sampler's probabilities and the trainer's."""
    inner_iterations: Count = Field(default=1, title="Inner iterations μ")
    """μ, passes over one sampled batch."""
    mini_batches: Count = Field(default=1, title="Mini-batches")
    """Parts, of whole groups, that one sampled batch is cut into; each part is one optimiser update. R1 used 16, GSPO
    4. With one part and μ 1 the ratio is 1 and clipping never acts."""
    dynamic_sampling: DynamicSamplingConfig = DynamicSamplingConfig()
    """Whether groups without a signal are replaced."""
    overlong: OverlongConfig = OverlongConfig()
    """What happens to completions at the length limit."""

    @model_validator(mode="after")
    def _choices_fit(self) -> Self:
        if (conflict := refusal(self)) is not None:
            raise conflict
        return self

    # ------------------------------------------------------------------ derived

    @property
    def updates_per_batch(self) -> int:
        """Optimiser updates on one sampled batch. At 1 the old policy is the current one."""
        return self.inner_iterations * self.mini_batches

    @property
    def needs_reference(self) -> bool:
        return self.kl.coef > 0 and self.kl.target == "reference"

    @property
    def weighs_stale(self) -> bool:
        """Completions of an earlier policy are weighed, and not held by the loss's own ratio, which it may not have."""
        return self.correction.stale == "weight" or self.loss_spec.ratio == "none"

    @property
    def gates_by_success(self) -> bool:
        """A group in which only shaping varies is not learned from. Estimators that compare with the whole step or with
        a critic learn from groups in which nothing varies, so there is nothing to gate."""
        return self.signal_gate == "success" and self.estimator.compared_with == "group"

    def learns_from(self, signal: Signal) -> bool:
        """Whether a group counts as one that carries a signal: dynamic sampling, metrics and the words
        at the end all count by it."""
        return signal == "mixed" or (signal == "phantom" and not self.gates_by_success)

    def carried(self, sums: Mapping[str, float]) -> int:
        """Groups that carried a signal, of sums by signal as an outcome has them (groups_mixed …)."""
        signals: tuple[Signal, ...] = get_args(Signal)
        return int(sum(sums.get(f"groups_{signal}", 0) for signal in signals if self.learns_from(signal)))

    @property
    def zero_advantage_is_inert(self) -> bool:
        """A completion whose advantage is 0 has no gradient: no KL term and no entropy bonus in the loss. (A critic
        learns from it all the same.)"""
        in_loss = self.kl.coef > 0 and self.kl.place == "loss"
        return not in_loss and self.entropy_coef == 0 and not self.estimator.critic
