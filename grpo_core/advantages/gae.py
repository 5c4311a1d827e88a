"""gae: a learned critic predicts the return before each token (PPO), and how that critic learns."""

from typing import Annotated

from pydantic import Field

from grpo_core.advantages.base import AdvantageSettings, Estimate, Estimator, Scaling, StepScores, Tensor
from grpo_core.advantages.compare import Groups, standardised
from grpo_core.specs.fields import Part, Positive, Share


class CriticConfig(Part):
    lr: Positive = Field(default=1e-6, title="Critic's learning rate")
    """Learning rate of the critic's AdamW, constant. The critic starts as the base model with a value head."""
    gamma: Annotated[float, Field(gt=0, le=1, title="Discount γ")] = 1.0
    """Discount per token."""
    gae_lambda: Share = Field(default=0.95, title="GAE λ")
    """λ of generalised advantage estimation: 1 is Monte Carlo, 0 one-step."""
    value_clip: Positive = Field(default=0.2, title="Value clip range")
    """A new value further than this from the old one gives no lower loss."""


def gae_advantages(scores: StepScores, groups: Groups, settings: AdvantageSettings) -> Estimate:
    """Advantages and returns of each token:

    δ_t = reward_t + γ·V_{t+1} − V_t,   A_t = δ_t + γλ·A_{t+1},   return_t = A_t + V_t

    reward_t is −penalty_t, and at the last token the completion's reward is added; V_t is the critic's value before
    token t, and 0 after the last one, also of a completion that was cut off.

    scale  batch_std: advantages are then (A − mean) / (std + eps) over all tokens of the batch; returns stay as they
           are. none: not.

    Source: generalised advantage estimation, Schulman et al. 2015, arXiv 1506.02438, section 3. Unscored samples have
    advantage 0 and their own values as returns, so that nothing is learned from them.
    """
    import torch

    rewards_PG, scored_PG, penalties = scores.rewards_PG.double(), groups.scored_PG, scores.token_penalties
    gamma, gae_lambda = settings.critic.gamma, settings.critic.gae_lambda
    advantages: list[list[Tensor]] = []
    returns: list[list[Tensor]] = []
    for p, row in enumerate(scores.given("values")):
        advantages.append([])
        returns.append([])
        for g, values_T in enumerate(row):
            values_T = values_T.to(torch.float64)
            if bool(scored_PG[p, g]):
                rewards_T = torch.zeros_like(values_T)
                if penalties is not None:
                    rewards_T -= penalties[p][g].to(torch.float64)
                rewards_T[-1] += rewards_PG[p, g]
                advantages_T = _gae(rewards_T, values_T, gamma, gae_lambda)
            else:
                advantages_T = torch.zeros_like(values_T)
            advantages[-1].append(advantages_T)
            returns[-1].append(advantages_T + values_T)
    indices = scored_PG.nonzero().tolist()
    if settings.scale == "batch_std" and indices:
        tokens_N = torch.cat([advantages[p][g] for p, g in indices])
        whiten = standardised(tokens_N, ddof=settings.std_ddof, eps=settings.advantage_eps)
        for p, g in indices:
            advantages[p][g] = whiten(advantages[p][g])
    return Estimate(tokens=advantages, returns=returns)


def _gae(rewards_T: Tensor, values_T: Tensor, gamma: float, gae_lambda: float) -> Tensor:
    import torch

    next_T = torch.cat([values_T[1:], values_T.new_zeros(1)])
    running, backwards = 0.0, []
    for delta in reversed((rewards_T + gamma * next_T - values_T).tolist()):
        running = delta + gamma * gae_lambda * running
        backwards.append(running)
    return torch.tensor(backwards[::-1], dtype=torch.float64)


def value_loss(values_N: Tensor, old_values_N: Tensor, returns_N: Tensor, value_clip: float) -> Tensor:
    """½ · max((v − R)², (clip(v, v_old − c, v_old + c) − R)²) for each token; shape N. c is `value_clip`.

    A value that moved further than c from the old one earns no lower loss for it, and no gradient where the clipped
    term is the larger. Source: OpenAI baselines, `ppo2/model.py`; named as an addition of the code to the PPO paper in
    Engstrom et al. 2020, "Implementation Matters in Deep Policy Gradients", arXiv 2005.12729.
    """
    clipped_N = old_values_N + (values_N - old_values_N).clamp(-value_clip, value_clip)
    return 0.5 * (values_N - returns_N).square().maximum((clipped_N - returns_N).square())


_WORDS = "generalised advantage estimation with a learned critic, γ {gamma}, λ {gae_lambda}"
_HELP = "PPO: a learned critic next to the policy, one more model in memory"

SPEC = Estimator(
    "gae",
    ("PPO", "Proximal Policy Optimization (PPO) with a learned critic"),
    "critic",
    source="arXiv 1506.02438, section 3",
    help="a learned critic (PPO)",
    scales={
        "batch_std": Scaling(
            "critic and GAE, whitened{std} (PPO)",
            "PPO",
            f"{_HELP}; its advantages are divided by their {{std}} over all tokens of the step.",
            f"{_WORDS}, minus their mean and divided by their {{std}} + {{eps}} over all tokens of the step",
            "(GAE_t − mean) / (std + {eps}) over all tokens of the step, "
            "GAE_t = δ_t + {gamma}·{gae_lambda}·GAE_{{t+1}}, δ_t = r_t + {gamma}·V_{{t+1}} − V_t",
        ),
        "none": Scaling(
            "critic and GAE, not whitened (PPO)",
            "PPO",
            f"{_HELP}.",
            f"{_WORDS}, not divided",
            "δ_t + {gamma}·{gae_lambda}·A_{{t+1}}, δ_t = r_t + {gamma}·V_{{t+1}} − V_t",
            usual=False,
        ),
    },
    compute=gae_advantages,
    beyond_stored="the critic's value V_t before each token; r_t is 0 but at the last token, which has the reward",
    equal_rewards="The critic's advantages are not 0 for them, so they are learned from.",
    zero_when_equal="never",
    settings=("critic",),
    per_token="always",
    critic=True,
)
