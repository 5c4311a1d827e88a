"""From a group's rewards to its advantages, written out with the actual numbers, for a person to follow.

Torch-free and for showing only: training has its own code in grpo_core.algo, and the stored advantages are what was
trained on. The variants are those of `algorithm.scale` and `algorithm.std_ddof`, and the leave-one-out baseline
(RLOO, Ahmadian et al. 2024), which is G/(G−1) times the centred reward.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from cohort import figures
from cohort.figures import MINUS
from grpo_core.stats import nearly_equal


@dataclass(frozen=True)
class Variant:
    id: str
    label: str
    why: str


GROUP_POPULATION = Variant("population", "z-score, population std", "GRPO: divide by the group's own spread (by G).")
GROUP_SAMPLE = Variant(
    "sample", "z-score, sample std", "GRPO as TRL and verl do it: divide by G\N{MINUS SIGN}1 inside."
)
BATCH = Variant("batch", "batch std", "Lite-PPO: divide by the spread of all rewards of the step.")
MEAN_ONLY = Variant("mean", "mean only", "Dr. GRPO: no division, so easy and hard problems are not blown up.")
LEAVE_ONE_OUT = Variant("loo", "leave one out", "RLOO: each sample's baseline is the mean of the others.")

VARIANTS = (GROUP_POPULATION, GROUP_SAMPLE, BATCH, MEAN_ONLY, LEAVE_ONE_OUT)


def variant_of(scale: str, std_ddof: int) -> Variant:
    """The variant that a run's `algorithm.scale` and `algorithm.std_ddof` name."""
    if scale == "none":
        return MEAN_ONLY
    if scale == "batch_std":
        return BATCH
    return GROUP_SAMPLE if std_ddof == 1 else GROUP_POPULATION


@dataclass(frozen=True)
class Arithmetic:
    """One variant worked out for one group; `advantages` is None where a sample has no reward."""

    variant: Variant
    parts: tuple[str, ...]
    """The calculation in pieces, in order, each short enough to stand on one line."""
    advantages: tuple[float | None, ...]
    outcomes: tuple[tuple[str, float], ...]
    """(reward, its advantage) for each different reward, highest first."""
    note: str
    """What a person should know beyond the numbers; empty when nothing."""


def work_out(
    rewards: Sequence[float | None], variant: Variant, *, eps: float, batch_std: float | None = None
) -> Arithmetic | None:
    """Advantages of one group under `variant`; None when fewer than two samples were scored.

    `batch_std` is the standard deviation of all rewards of the step; without it the batch variant cannot be told from
    one group, and None is returned for it.
    """
    scored = [reward for reward in rewards if reward is not None]
    if len(scored) < 2 or (variant is BATCH and batch_std is None):
        return None
    count = len(scored)
    equal = nearly_equal(scored)
    if equal:  # neither noise in the rewards nor the rounding of their mean may show up as a spread
        scored = [scored[0]] * count
    mean = scored[0] if equal else math.fsum(scored) / count
    parts = [f"r = [{', '.join(number(reward) for reward in scored)}]"]
    squares = math.fsum((reward - mean) ** 2 for reward in scored)
    if variant is LEAVE_ONE_OUT:
        parts.append(f"A = r {MINUS} mean of the other {count - 1}")
        divisor = (count - 1) / count
    elif variant is MEAN_ONLY:
        parts += [f"mean = {number(mean)}", f"A = r {MINUS} {number(mean)}"]
        divisor = 1.0
    else:
        if variant is BATCH:
            assert batch_std is not None
            std = batch_std
            written = f"std of the step = {number(std)}"
        else:
            variance = squares / (count - 1 if variant is GROUP_SAMPLE else count)
            std = math.sqrt(variance)
            written = f"std = √({number(variance)}) = {number(std)}"
        parts += [f"mean = {number(mean)}", written]
        parts.append(f"A = (r {MINUS} {number(mean)}) / ({number(std)} + {eps:g})")
        divisor = std + eps

    def advantage(reward: float) -> float:
        return 0.0 if equal else (reward - mean) / divisor

    return Arithmetic(
        variant=variant,
        parts=tuple(parts),
        advantages=tuple(None if reward is None else advantage(reward) for reward in rewards),
        outcomes=tuple((number(reward), advantage(reward)) for reward in sorted(set(scored), reverse=True)),
        note=_note(equal, len(rewards) - count),
    )


def _note(equal: bool, unscored: int) -> str:
    notes = []
    if equal:
        notes.append("All rewards are equal, so every advantage is 0: no signal.")
    if unscored == 1:
        notes.append("1 sample has no reward and counts for nothing here.")
    elif unscored:
        notes.append(f"{unscored} samples have no reward and count for nothing here.")
    return " ".join(notes)


def number(value: float) -> str:
    """Four significant digits at most, so that a calculation can be followed."""
    return figures.number(value, 4)


def batch_std(rewards: Sequence[float | None], *, ddof: int = 0) -> float | None:
    """Standard deviation over all scored rewards of a step; None when there are too few."""
    scored = [reward for reward in rewards if reward is not None]
    if len(scored) < 2:
        return None
    mean = math.fsum(scored) / len(scored)
    return math.sqrt(math.fsum((reward - mean) ** 2 for reward in scored) / (len(scored) - ddof))
