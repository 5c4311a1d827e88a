"""Configs of supervised fine-tuning: `sft` on given conversations, `distill` on what a larger model answered. Loads no
torch."""

from typing import TYPE_CHECKING, Annotated, ClassVar, Literal, Self

from pydantic import Field, model_validator

from grpo_core.config.algorithm import AlgorithmConfig
from grpo_core.config.evaluation import LOSS, EvalConfig
from grpo_core.config.evaluation_conflicts import heldout_refusal
from grpo_core.config.optim import AdamwConfig
from grpo_core.config.prompt import PromptConfig
from grpo_core.config.reward import RewardConfig
from grpo_core.config.run import CheckpointConfig, EngineConfig, ModelConfig, SamplingConfig
from grpo_core.config.stage import Kind, RunName, StageConfig
from grpo_core.errors import Conflict
from grpo_core.specs.fields import Count, CountOrZero, HubSplit, Positive

MAXIMUM_LIKELIHOOD = AlgorithmConfig.model_validate(
    {
        "advantage": "reinforce",
        "scale": "none",
        "loss": "reinforce",
        "aggregation": "token_mean",
        "kl": {"coef": 0.0},
        "correction": {"mode": "none"},
    }
)
"""Fine-tuning as the update does it: the policy gradient of given answers, each with advantage 1, and the mean over
answer tokens, which is their cross-entropy. Source: DeepSeekMath (arXiv 2402.03300), section 5.2.1, where the gradient
coefficient of SFT is 1."""
MANY_EPOCHS = 10
"""Rows that are learned more often are learned by heart rather than from."""


class ConversationsConfig(PromptConfig):
    path: Annotated[str, Field(min_length=1)]
    """File with conversations: JSON lines, a JSON list, CSV (each also in gzip) or Parquet. A row holds `messages`, or
    `prompt` and `completion`. A relative path starts at the config file's folder. With `hub`: id of a dataset on the
    Hugging Face Hub."""
    hub: HubSplit | None = None
    """Commit and split of a dataset on the Hub; with it, no file of this name is looked at."""
    more: tuple[Annotated[str, Field(min_length=1)], ...] = Field(default=(), title="Further files")
    """Further files with conversations, read after `path` as one dataset with it."""
    limit: Count | None = Field(default=None, title="First conversations only")
    """Use only the first so many conversations; empty means all."""
    max_tokens: Count = Field(default=1024, title="Max tokens of a conversation")
    """Longest conversation that is taken, answers included."""
    long: Literal["error", "drop"] = Field(default="error", title="Longer conversations")
    """What to do with a longer conversation: stop and name it, or drop it and count it. None is cut: an answer without
    its end teaches the model not to end."""
    turns: Literal["all", "last"] = Field(default="all", title="Answers learned from")
    """all: every turn of the assistant. last: only the last one of each conversation."""
    holdout: CountOrZero = Field(default=0, title="Conversations split off for the held-out loss")
    """Conversations set apart from the file (by seed, never trained on), whose loss is measured."""
    heldout_path: str | None = Field(default=None, title="Held-out conversations")
    """File with conversations whose loss is measured. Empty: `holdout` of the training file."""

    @property
    def has_heldout(self) -> bool:
        return self.heldout_path is not None or self.holdout > 0

    @model_validator(mode="after")
    def _answers_are_given(self) -> Self:
        if self.prefill:
            raise Conflict(
                "prefill_with_given_answers",
                "answers are given whole, so there is nothing for prefill to begin; leave it out",
                field="prefill",
            )
        if self.heldout_path is not None and self.holdout:
            raise Conflict(
                "two_heldout_sets", "give heldout_path or holdout, not both: one set is measured", field="holdout"
            )
        return self


class BatchOptimConfig(AdamwConfig):
    steps: Count = Field(default=100, title="Steps")
    """Updates, each on one batch. The run's length."""
    lr: Positive = Field(default=2e-5, title="Learning rate")
    """Peak learning rate of AdamW. 1e-5 to 5e-5 is usual for all weights, ten times that for LoRA."""
    batch_size: Count = Field(default=32, title="Batch size")
    """Rows of one step: conversations, or pairs. An epoch is rows ÷ batch size steps."""


class BatchConfig(StageConfig):
    """Of what learns from the rows of a file, a batch in each step."""

    if TYPE_CHECKING:  # a field of each kind, at its own place in the config
        optim: BatchOptimConfig

    @property
    def steps(self) -> int:
        return self.optim.steps

    @property
    def algorithm(self) -> AlgorithmConfig:
        """Of the update that all kinds share; it has no ratio, no penalty and no critic."""
        return MAXIMUM_LIKELIHOOD

    @property
    def sampling(self) -> SamplingConfig:
        """Of evaluations; nothing else is sampled."""
        return SamplingConfig()


class SftConfig(BatchConfig):
    """Of supervised fine-tuning."""

    kind: ClassVar[Kind] = "sft"

    name: RunName = "sft"
    """What people call the run."""
    preset: str | None = None
    """Paper whose settings apply wherever a field is not given; differences from it are shown and recorded."""
    model: ModelConfig
    """The model that is fine-tuned."""
    data: ConversationsConfig
    """Conversations to learn from."""
    optim: BatchOptimConfig = BatchOptimConfig()
    """The optimiser and the length of the run."""
    engine: EngineConfig = EngineConfig()
    """Where and in what portions the work is done."""
    eval: EvalConfig = EvalConfig(before=False, after=False)
    """Held-out problems and suites, before, while and after training. Problems need `eval.reward`. The held-out loss is
    measured before and after training whatever stands here, and while training whenever the others are."""
    checkpoints: CheckpointConfig = CheckpointConfig()
    """Which weights are kept."""
    seed: Annotated[int, Field(ge=0, lt=2**32)] = 0
    """Start of every random choice of the run."""

    @model_validator(mode="after")
    def _parts_fit(self) -> Self:
        if not (self.eval.has_something or self.data.has_heldout) and (self.eval.before or self.eval.after):
            raise Conflict(
                "nothing_to_evaluate_on",
                "nothing to evaluate on: give data.holdout, eval.path or eval.suites, or switch eval.before and "
                "eval.after off",
                field="data.holdout",
            )
        if self.eval.holdout:
            raise Conflict(
                "holdout_of_conversations",
                "conversations are no problems that a verifier could judge; give a file of problems in eval.path, or "
                "data.holdout for the held-out loss",
                field="eval.holdout",
            )
        if self.eval.path is not None and self.eval.reward is None:
            raise Conflict(
                "heldout_without_verifier",
                "held-out problems need a verifier to judge them, and this run has no reward: give eval.reward",
                field="eval.reward",
            )
        if self.checkpoints.best_by == LOSS and not self.data.has_heldout:
            raise Conflict(
                "loss_without_heldout",
                "checkpoints.best_by loss needs held-out conversations: give data.holdout or data.heldout_path",
                field="checkpoints.best_by",
            )
        if any(suite.name == LOSS for suite in self.eval.suites):
            raise Conflict("suite_named_loss", f"the name {LOSS!r} is taken by the held-out loss; give another")
        if (conflict := heldout_refusal(self.eval, self.best_by, has_loss=self.data.has_heldout)) is not None:
            raise conflict
        return self

    # ------------------------------------------------------------------ derived

    @property
    def longest_sequence(self) -> int:
        """Tokens of one text."""
        return self.data.max_tokens

    @property
    def eval_max_completion_tokens(self) -> int:
        return self.eval.max_completion_tokens or self.sampling.max_completion_tokens

    @property
    def best_by(self) -> str:
        """What decides the best checkpoint, and early stopping: `loss` of the held-out conversations, or a suite that
        is evaluated while training. Without either no checkpoint is the best."""
        better = (name for name in self.eval.during_suites if self.eval.higher_is(name) == "better")
        return self.checkpoints.best_by or (LOSS if self.data.has_heldout else next(better, LOSS))

    @property
    def heldout_reward(self) -> RewardConfig | None:
        """What held-out problems are judged by."""
        return self.eval.reward


class DistillConfig(SftConfig):
    """Of fine-tuning a small model on a large one's samples. `data.path` is a dataset that a run of kind `sample`
    wrote: who answered is read from it, and a file without that is refused."""

    kind: ClassVar[Kind] = "distill"

    name: RunName = "distill"
    """What people call the run."""
