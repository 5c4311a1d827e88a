"""How a group's rewards become advantages, with its own numbers, by the formula that the estimator declares."""

import math
import string
from collections.abc import Sequence
from dataclasses import dataclass

from cohort.base import formatting
from cohort.web.launch.variants import USUAL, Variant, variant_of
from grpo_core.advantages.base import Statistics
from grpo_core.config.algorithm import AlgorithmConfig
from grpo_core.stats.paired import nearly_equal

_NAMES = {"mean": "mean", "std": "std", "step_mean": "mean of the step", "step_std": "std of the step"}
VARIANTS = [
    variant for variant in USUAL if variant.scaling.terms is not None and variant.estimator.compared_with == "group"
]
"""Always one click away; the run's own comes first when it is another."""


@dataclass(frozen=True)
class Derivation:
    """One variant for one group; `advantages` is None where a sample has no reward."""

    parts: tuple[str, ...]
    """The calculation in pieces, in order, each short enough for one line."""
    advantages: tuple[float | None, ...]
    outcomes: tuple[tuple[str, float], ...]
    """(reward, its advantage) for each different reward, highest first."""
    note: str
    """What a person should know beyond the numbers; empty when nothing."""


def variants_for(algorithm: AlgorithmConfig) -> list[Variant]:
    own = variant_of(algorithm)
    return VARIANTS if own in VARIANTS else [own, *VARIANTS]


def uses_step(variant: Variant) -> bool:
    """Whether the rewards of the whole step are needed."""
    return "{step_" in variant.scaling.formula


def stored_only(variant: Variant) -> str:
    """What to show in place of a calculation, where rewards alone do not give the advantages; empty where they do."""
    if variant.scaling.terms is not None:
        return ""
    return (
        f"{variant.help} The rewards of one group do not give that; below is what the trainer stored, the mean "
        "over a completion's tokens where they differ."
    )


def derive(
    rewards: Sequence[float | None],
    variant: Variant,
    algorithm: AlgorithmConfig,
    *,
    step: Sequence[float | None] = (),
    phantom: bool = False,
) -> Derivation | None:
    """Advantages of one group under a variant that has terms; None when there are too few rewards to compare. `step`:
    the rewards of the whole step, for a variant that `uses_step`. `phantom`: only shaping varies in the group."""
    scored = [reward for reward in rewards if reward is not None]
    compared = [reward for reward in step if reward is not None] if uses_step(variant) else scored
    alone = variant.estimator.zero_when_equal == "never"
    if len(scored) < 1 or len(compared) < (1 if alone else 2):
        return None
    statistics = _statistics(scored, compared, variant.ddof)
    assert variant.scaling.terms is not None, "stored_only"
    terms = variant.scaling.terms(statistics, algorithm)
    written = [f"r = [{', '.join(number(reward) for reward in scored)}]"]
    zero_reason = ""
    if variant.estimator.zero_when_equal == "step" and nearly_equal(compared):
        zero_reason = "All rewards of the step are equal, so every advantage is 0"
    elif variant.estimator.zero_when_equal == "group" and nearly_equal(scored):
        zero_reason = "All rewards are equal, so every advantage is 0"
    elif phantom and algorithm.gates_by_success:
        zero_reason = "What means right does not vary in the group, so every advantage is 0"
    elif not terms.usable:
        zero_reason = "The mean is not above 0, so every advantage is 0"
    if zero_reason:
        advantages = [0.0] * len(scored)
    else:
        advantages = [(reward - terms.baseline) * terms.factor / terms.divisor for reward in scored]
        values = {name: number(value) for name, value in vars(statistics).items()}
        used = [name for _, name, _, _ in string.Formatter().parse(variant.scaling.formula) if name in _NAMES]
        written += [f"{_NAMES[name]} = {values[name]}" for name in dict.fromkeys(used)]
        written.append(f"A = {variant.scaling.formula.format(**values, eps=f'{algorithm.advantage_eps:g}')}")
    outcomes: dict[str, float] = {}
    for reward, advantage in sorted(zip(scored, advantages, strict=True), reverse=True):
        outcomes.setdefault(number(reward), advantage)
    known = iter(advantages)
    return Derivation(
        parts=tuple(written),
        advantages=tuple(None if reward is None else next(known) for reward in rewards),
        outcomes=tuple(outcomes.items()),
        note=_note(zero_reason, len(rewards) - len(scored)),
    )


def _statistics(scored: Sequence[float], compared: Sequence[float], ddof: int) -> Statistics:
    mean, std = _moments(scored, ddof)
    step_mean, step_std = _moments(compared, ddof)
    return Statistics(len(scored), mean, std, max(1.0, *map(abs, scored)), step_mean, step_std)


def _moments(values: Sequence[float], ddof: int) -> tuple[float, float]:
    """(mean, standard deviation); 0 for that of one value."""
    mean = math.fsum(values) / len(values)
    return mean, math.sqrt(math.fsum((value - mean) ** 2 for value in values) / max(len(values) - ddof, 1))


def _note(zero_reason: str, unscored: int) -> str:
    notes = [f"{zero_reason}: no signal."] if zero_reason else []
    if unscored:
        have = "1 sample has no reward and counts" if unscored == 1 else f"{unscored} samples have no reward and count"
        notes.append(f"{have} for nothing here.")
    return " ".join(notes)


def number(value: float) -> str:
    """Four significant digits at most, so that a calculation can be followed."""
    return formatting.number(value, 4)
