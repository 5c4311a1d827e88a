"""Whether an update ruined the policy: what it samples next is right hardly ever, where it often was before, or its
entropy or divergence jumped while rewards fell. Loads no torch."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from grpo_core.config.run import RunConfig
from grpo_core.files.checkpoint import step_folder
from grpo_core.monitors.history import StepRow
from grpo_core.records.types import EvalItem
from grpo_core.text import format_percent

LEFT = 0.1
"""Share of what was right or rewarded before that may be left after a step."""
CHANCE = 1e-6
"""Of so few right completions, were the policy still as it was (binomial): below it the fall is none of chance."""
ENTROPY = 0.05, 3.0
"""Factors by which the entropy may fall and rise in one step."""
LEAST_NATS = 0.1
"""And by how much it must: near 0 factors are noise."""
KL = 10.0
"""Factor by which the divergence may rise in one step, once it is above 1 nat a token."""


@dataclass(frozen=True)
class Point:
    """One step's completions, and the update that followed them."""

    step: int
    sampled_at: int
    """Step whose policy sampled them."""
    judged: int
    right: int
    reward: float | None
    entropy: float | None
    kl: float | None
    """Nats a token."""
    grad_norm: float | None
    learning_rate: float | None

    @classmethod
    def of(cls, row: StepRow) -> "Point":
        """Of a step whose sums are kept."""
        numbers = (row.metrics.get(name) for name in ("reward", "entropy", "kl", "grad_norm", "learning_rate"))
        judged, right = row.sums.get("judged", 0), row.sums.get("right", 0)
        return cls(row.step, row.sampled_at or row.step, judged, right, *numbers)

    @classmethod
    def of_answers(cls, step: int, items: Sequence[EvalItem]) -> "Point":
        """Of held-out problems that the policy after the update of `step` answered."""
        scores = [item.score for item in items if item.error is None]
        return cls(step + 1, step + 1, len(scores), round(sum(scores)), None, None, None, None, None)

    @property
    def share_right(self) -> float:
        return self.right / self.judged if self.judged else 0.0


@dataclass(frozen=True)
class Ruin:
    step: int
    """Whose update did it."""
    text: str

    def advice(self, checkpoint: int | None) -> str:
        """`checkpoint`: step of the newest one from before that update, which is kept."""
        kept = "No checkpoint from before it is left (checkpoints.keep); start again"
        if checkpoint is not None:
            kept = f"{step_folder(checkpoint)} is the last checkpoint from before it and is kept; start from it"
        return f"{kept} with a lower optim.lr, a longer warmup, a lower optim.max_grad_norm, or a KL penalty."


def ruined(newest: Point, earlier: Sequence[Point], config: RunConfig) -> Ruin | None:
    """What `newest` shows about the update before it, compared with `earlier` steps, oldest first."""
    if not earlier:
        return None
    fell = _accuracy_fell(newest, earlier) or _reward_fell(newest, earlier)
    jumped = _jumps(newest, earlier)
    rewards = [point.reward for point in earlier if point.reward is not None]
    if not fell and jumped and rewards and newest.reward is not None and newest.reward < fmean(rewards):
        fell = f"the mean reward fell from {fmean(rewards):.3g} to {newest.reward:.3g}"
    if not fell:
        return None
    step = newest.sampled_at - 1
    update = next((point for point in earlier if point.step == step), earlier[-1])
    facts = [fell, *jumped]
    if update.grad_norm is not None:
        clipped = f", clipped at {config.optim.max_grad_norm:g}" if config.optim.method == "adamw" else ""
        facts.append(f"its gradient had norm {update.grad_norm:.3g}{clipped}")
    if update.learning_rate is not None:
        facts.append(f"its learning rate was {update.learning_rate:.3g}")
    return Ruin(step, f"The update of step {step} ruined the policy: {'; '.join(facts)}.")


def _accuracy_fell(newest: Point, earlier: Sequence[Point]) -> str:
    judged, right = sum(point.judged for point in earlier), sum(point.right for point in earlier)
    if not right or not newest.judged:
        return ""
    before, now = right / judged, newest.right / newest.judged
    if now > LEFT * before or _at_most(newest.right, newest.judged, (right + 1) / (judged + 2)) > CHANCE:
        return ""
    return f"{format_percent(before)} of completions were right before it and {format_percent(now)} after it"


def _reward_fell(newest: Point, earlier: Sequence[Point]) -> str:
    """Where nothing is judged right or wrong."""
    rewards = [point.reward for point in earlier if point.reward is not None]
    if newest.judged or newest.reward is None or not rewards or not 0 < min(rewards) * LEFT >= newest.reward:
        return ""
    return f"the mean reward fell from {fmean(rewards):.3g} to {newest.reward:.3g}"


def _jumps(newest: Point, earlier: Sequence[Point]) -> list[str]:
    jumps = []
    entropies = [point.entropy for point in earlier if point.entropy is not None]
    if entropies and newest.entropy is not None:
        before, (low, high) = fmean(entropies), ENTROPY
        moved = newest.entropy < low * before or newest.entropy > high * before
        if moved and abs(newest.entropy - before) > LEAST_NATS:
            jumps.append(f"entropy went from {before:.3g} to {newest.entropy:.3g} nats a token")
    divergences = [point.kl for point in earlier if point.kl is not None]
    if divergences and newest.kl is not None and newest.kl > max(1.0, KL * fmean(divergences)):
        jumps.append(f"KL went from {fmean(divergences):.3g} to {newest.kl:.3g} nats a token")
    return jumps


def _at_most(right: int, of: int, share: float) -> float:
    """Probability of at most so many successes of a binomial; 0 < share < 1."""
    logs = (
        math.lgamma(of + 1) - math.lgamma(k + 1) - math.lgamma(of - k + 1)
        + k * math.log(share) + (of - k) * math.log1p(-share)
        for k in range(right + 1)
    )  # fmt: skip
    return math.fsum(math.exp(log) for log in logs)
