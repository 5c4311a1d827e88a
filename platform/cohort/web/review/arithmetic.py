"""From a group's rewards to its advantages, written out with the actual numbers, for a person to follow.

Torch-free and for showing only: training has its own code in grpo_core.algo, and the stored advantages are what was
trained on. Estimators that look at more than rewards (lengths, a critic's values, steps, single components) are not
worked out here: `estimators.py` says so in a sentence, and the page shows what was stored.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from cohort.base import formatting as figures
from cohort.base.formatting import MINUS
from grpo_core.stats import EQUAL_TOLERANCE, nearly_equal


@dataclass(frozen=True)
class Variant:
    id: str
    label: str
    why: str
    of_the_step: bool = False
    """Whether it needs the rewards of the whole step."""


GROUP_POPULATION = Variant("population", "z-score, population std", "GRPO: divide by the group's own spread (by G).")
GROUP_SAMPLE = Variant(
    "sample", "z-score, sample std", "GRPO as TRL and verl do it: divide by G\N{MINUS SIGN}1 inside."
)
BATCH = Variant("batch", "batch std", "Lite-PPO: divide by the spread of all rewards of the step.", of_the_step=True)
MEAN_ONLY = Variant("mean", "mean only", "Dr. GRPO: no division, so easy and hard problems are not blown up.")
LEAVE_ONE_OUT = Variant("loo", "leave one out", "RLOO: each sample's baseline is the mean of the others.")
MAX_RL = Variant("maxrl", "divided by the mean", "MaxRL: the rarer a right answer, the more it counts.")
REWARD = Variant("reward", "the reward itself", "REINFORCE: compared with nothing, so equal rewards teach too.")
STEP_MEAN = Variant(
    "step", "step's mean", "REINFORCE with a baseline: the mean of all rewards of the step.", of_the_step=True
)
STEP_Z = Variant(
    "stepz", "step's mean and std", "REINFORCE with a baseline, divided by the step's spread.", of_the_step=True
)

VARIANTS = (GROUP_POPULATION, GROUP_SAMPLE, BATCH, MEAN_ONLY, LEAVE_ONE_OUT, MAX_RL)
"""Always one click away; the run's own comes first when it is another."""


def best_of(k: int, *, divided: bool) -> Variant:
    """Pass@k training with this k."""
    how = "and divided by its spread" if divided else "without a division"
    why = f"Pass@k: what a sample adds to the best of {k}, {how}."
    return Variant("passk" if divided else "passk-mean", f"best of {k}", why)


@dataclass(frozen=True)
class Step:
    """The rewards of a whole step."""

    mean: float
    std: float
    """With the run's `std_ddof`."""
    equal: bool

    @classmethod
    def of(cls, rewards: Sequence[float | None], *, ddof: int = 0) -> "Step | None":
        """Of all scored rewards; None when there are too few."""
        scored = [reward for reward in rewards if reward is not None]
        if len(scored) < 2:
            return None
        mean = math.fsum(scored) / len(scored)
        squares = math.fsum((reward - mean) ** 2 for reward in scored)
        return cls(mean, math.sqrt(squares / (len(scored) - ddof)), nearly_equal(scored))


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


@dataclass(frozen=True)
class _Way:
    """How one variant goes from a scored reward to its advantage."""

    parts: tuple[str, ...]
    advantages: tuple[float, ...]
    """Of the scored samples, in order."""
    silent: str = ""
    """Why every advantage is 0; empty when they are not."""


def work_out(
    rewards: Sequence[float | None], variant: Variant, *, eps: float, step: Step | None = None, k: int | None = None
) -> Arithmetic | None:
    """Advantages of one group under `variant`; None when there are too few rewards to compare.

    `step` is for the variants `of_the_step`; without it they cannot be told from one group, and None is returned.
    `k` belongs to `best_of`.
    """
    scored = [reward for reward in rewards if reward is not None]
    if len(scored) < (1 if variant in (REWARD, STEP_MEAN, STEP_Z) else 2) or (variant.of_the_step and step is None):
        return None
    written = f"r = [{', '.join(number(reward) for reward in scored)}]"
    if variant is REWARD:
        way = _Way(("A = r",), tuple(scored))
    elif variant in (STEP_MEAN, STEP_Z):
        assert step is not None
        way = _against_the_step(scored, step, divided=variant is STEP_Z, eps=eps)
    elif nearly_equal(scored):
        way = _Way(_equal_parts(scored), (0.0,) * len(scored), "All rewards are equal, so every advantage is 0")
    elif k is not None and variant.id.startswith("passk"):
        way = _best_of(scored, k, divided=variant.id == "passk", eps=eps)
    else:
        way = _against_the_group(scored, variant, eps=eps, step=step)
    known = iter(way.advantages)
    outcomes = dict(zip(scored, way.advantages, strict=True))
    return Arithmetic(
        variant=variant,
        parts=(written, *way.parts),
        advantages=tuple(None if reward is None else next(known) for reward in rewards),
        outcomes=_outcomes(outcomes),
        note=_note(way.silent, len(rewards) - len(scored)),
    )


def _against_the_group(scored: Sequence[float], variant: Variant, *, eps: float, step: Step | None) -> _Way:
    count = len(scored)
    mean = math.fsum(scored) / count
    squares = math.fsum((reward - mean) ** 2 for reward in scored)
    parts = [f"mean = {number(mean)}"]
    if variant is LEAVE_ONE_OUT:
        parts = [f"A = r {MINUS} mean of the other {count - 1}"]
        divisor = (count - 1) / count
    elif variant is MEAN_ONLY:
        parts.append(f"A = r {MINUS} {number(mean)}")
        divisor = 1.0
    elif variant is MAX_RL:
        if mean <= EQUAL_TOLERANCE * max(1.0, *map(abs, scored)):
            why = "The mean stands for a success rate and is not above 0, so every advantage is 0"
            return _Way(tuple(parts), (0.0,) * count, why)
        parts.append(f"A = (r {MINUS} {number(mean)}) / {number(mean)}")
        divisor = mean
    else:
        if variant is BATCH:
            assert step is not None
            std = step.std
            parts.append(f"std of the step = {number(std)}")
        else:
            variance = squares / (count - 1 if variant is GROUP_SAMPLE else count)
            std = math.sqrt(variance)
            parts.append(f"std = √({number(variance)}) = {number(std)}")
        parts.append(f"A = (r {MINUS} {number(mean)}) / ({number(std)} + {eps:g})")
        divisor = std + eps
    return _Way(tuple(parts), tuple((reward - mean) / divisor for reward in scored))


def _against_the_step(scored: Sequence[float], step: Step, *, divided: bool, eps: float) -> _Way:
    parts = [f"mean of the step = {number(step.mean)}"]
    if step.equal:
        why = "All rewards of the step are equal, so every advantage is 0"
        return _Way(tuple(parts), (0.0,) * len(scored), why)
    if divided:
        parts.append(f"std of the step = {number(step.std)}")
        parts.append(f"A = (r {MINUS} {number(step.mean)}) / ({number(step.std)} + {eps:g})")
    else:
        parts.append(f"A = r {MINUS} {number(step.mean)}")
    divisor = step.std + eps if divided else 1.0
    return _Way(tuple(parts), tuple((reward - step.mean) / divisor for reward in scored))


def _best_of(scored: Sequence[float], k: int, *, divided: bool, eps: float) -> _Way:
    """What a sample adds to the mean best reward of k of them, by counting the subsets ("Pass@k Training", arXiv
    2508.10751, for any rewards)."""
    count = len(scored)
    ordered = sorted(scored)
    if count <= k or nearly_equal((ordered[k - 1], ordered[-1])):
        why = f"Any {k} of these samples have the same best reward, so every advantage is 0"
        return _Way((), (0.0,) * count, why)
    subsets, with_one = math.comb(count, k), math.comb(count - 1, k - 1)
    # Rank j from 1: of all subsets, C(j−1, k−1) have the j-th smallest as their best.
    best = [math.comb(j - 1, k - 1) / subsets for j in range(1, count + 1)]
    mean = math.fsum(share * reward for share, reward in zip(best, ordered, strict=True))
    variance = math.fsum(share * (reward - mean) ** 2 for share, reward in zip(best, ordered, strict=True))
    beaten = [math.comb(j - 2, k - 2) / with_one if j >= k >= 2 else 0.0 for j in range(1, count + 1)]

    def with_this(reward: float) -> float:
        """Mean best reward of the subsets that hold it; ties are met at the lowest of their ranks."""
        rank = ordered.index(reward) + 1
        itself = math.comb(rank - 1, k - 1) / with_one * reward
        return itself + math.fsum(beaten[j] * ordered[j] for j in range(rank, count))

    std = math.sqrt(variance)
    parts = [f"mean best of {k} = {number(mean)}"]
    told = f"mean best of {k} with it {MINUS} {number(mean)}"
    if divided:
        parts += [f"std = √({number(variance)}) = {number(std)}", f"A = ({told}) / ({number(std)} + {eps:g})"]
    else:
        parts.append(f"A = {told}")
    divisor = std + eps if divided else 1.0
    return _Way(tuple(parts), tuple((with_this(reward) - mean) / divisor for reward in scored))


def _equal_parts(scored: Sequence[float]) -> tuple[str, ...]:
    """Neither noise in the rewards nor the rounding of their mean may show up as a spread."""
    return (f"mean = {number(scored[0])}", f"every r {MINUS} mean = 0")


def _outcomes(advantages: dict[float, float]) -> tuple[tuple[str, float], ...]:
    """Once for each reward as it is written, highest first."""
    told: dict[str, float] = {}
    for reward in sorted(advantages, reverse=True):
        told.setdefault(number(reward), advantages[reward])
    return tuple(told.items())


def _note(silent: str, unscored: int) -> str:
    notes = []
    if silent:
        notes.append(f"{silent}: no signal.")
    if unscored == 1:
        notes.append("1 sample has no reward and counts for nothing here.")
    elif unscored:
        notes.append(f"{unscored} samples have no reward and count for nothing here.")
    return " ".join(notes)


def number(value: float) -> str:
    """Four significant digits at most, so that a calculation can be followed."""
    return figures.number(value, 4)
