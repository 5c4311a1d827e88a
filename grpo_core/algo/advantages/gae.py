"""gae: a learned critic says what was to be expected before each token (PPO), and how that critic learns."""

from collections.abc import Sequence

import torch
from torch import Tensor

from grpo_core.algo.advantages.compare import standardised
from grpo_core.config.algorithm import Scale


def gae_advantages(
    rewards_PG: Tensor,
    scored_PG: Tensor,
    token_penalties: Sequence[Sequence[Tensor]] | None,
    values: Sequence[Sequence[Tensor]],
    *,
    gamma: float,
    gae_lambda: float,
    scale: Scale,
    ddof: int,
    eps: float,
) -> tuple[list[list[Tensor]], list[list[Tensor]]]:
    """Advantages and returns of each token, both [p][g] → float64, shape T:

    δ_t = reward_t + γ·V_{t+1} − V_t,   A_t = δ_t + γλ·A_{t+1},   return_t = A_t + V_t

    reward_t is −penalty_t, and at the last token the completion's reward is added; V_t is the critic's value before
    token t, and 0 after the last one, also of a completion that was cut off.

    scale  batch_std: advantages are then (A − mean) / (std + eps) over all tokens of the batch; returns stay as they
           are. none: not.

    Source: generalised advantage estimation, Schulman et al. 2015, arXiv 1506.02438, section 3. Unscored samples have
    advantage 0 and their own values as returns, so that nothing is learned from them.
    """
    advantages: list[list[Tensor]] = []
    returns: list[list[Tensor]] = []
    for p, row in enumerate(values):
        advantages.append([])
        returns.append([])
        for g, values_T in enumerate(row):
            values_T = values_T.to(torch.float64)
            if bool(scored_PG[p, g]):
                rewards_T = torch.zeros_like(values_T)
                if token_penalties is not None:
                    rewards_T -= token_penalties[p][g].to(torch.float64)
                rewards_T[-1] += rewards_PG[p, g]
                advantages_T = _gae(rewards_T, values_T, gamma, gae_lambda)
            else:
                advantages_T = torch.zeros_like(values_T)
            advantages[-1].append(advantages_T)
            returns[-1].append(advantages_T + values_T)
    places = scored_PG.nonzero().tolist()
    if scale == "batch_std" and places:
        whiten = standardised(torch.cat([advantages[p][g] for p, g in places]), ddof=ddof, eps=eps)
        for p, g in places:
            advantages[p][g] = whiten(advantages[p][g])
    return advantages, returns


def _gae(rewards_T: Tensor, values_T: Tensor, gamma: float, gae_lambda: float) -> Tensor:
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
    return 0.5 * torch.maximum((values_N - returns_N).square(), (clipped_N - returns_N).square())
