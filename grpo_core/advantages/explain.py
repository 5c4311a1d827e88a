"""The advantages of one stored group in plain numbers, so that a page can write its calculation out. Loads no torch.

`compute` of an estimator, and its terms, are what trains; what is here must give the same numbers, which a test checks
for every estimator.
"""

import math
from collections.abc import Sequence

from grpo_core.advantages.base import AdvantageSettings, Figures, GroupScores, Statistics
from grpo_core.stats.paired import nearly_equal


def explain(own: GroupScores, step: Sequence[GroupScores], settings: AdvantageSettings) -> Figures | None:
    """The figures of `own` under the estimator in use. `step`: all groups that it was compared with, itself among them.
    None where the estimator needs more than scores, or there are too few of them to compare."""
    estimator = settings.estimator
    if estimator.explain is not None:
        return estimator.explain(own, step, settings) if own.scored else None
    return _from_terms(own, step, settings) if settings.scaling.terms is not None else None


def _from_terms(own: GroupScores, step: Sequence[GroupScores], settings: AdvantageSettings) -> Figures | None:
    estimator, scaling = settings.estimator, settings.scaling
    everywhere = [reward for group in step for reward in group.scored]
    compared = everywhere if scaling.uses_step else own.scored
    if not own.scored or len(compared) < (1 if estimator.zero_when_equal == "never" else 2):
        return None
    mean, std = moments(own.scored, settings.std_ddof)
    step_mean, step_std = moments(everywhere, settings.std_ddof) if everywhere else (math.nan, math.nan)
    largest = max(1.0, *map(abs, own.scored))
    statistics = Statistics(len(own.scored), mean, std, largest, step_mean, step_std)
    zero_because, terms = "", None
    if estimator.zero_when_equal == "step" and nearly_equal(compared):
        zero_because = "All rewards of the step are equal"
    elif estimator.zero_when_equal == "group" and nearly_equal(own.scored):
        zero_because = "All rewards are equal"
    elif not (terms := scaling.terms(statistics, settings)).usable:  # type: ignore[misc]
        zero_because = "The mean is not above 0"
    return Figures(own.rewards, terms, vars(statistics), zero_because=zero_because)


def moments(values: Sequence[float], ddof: int, counts: Sequence[int] | None = None) -> tuple[float, float]:
    """(mean, standard deviation), each value counted so often, or once; 0 for the deviation of one, and of none."""
    counts = [1] * len(values) if counts is None else counts
    n = sum(counts)
    if n == 0:
        return 0.0, 0.0
    mean = math.fsum(count * value for value, count in zip(values, counts, strict=True)) / n
    square = math.fsum(count * (value - mean) ** 2 for value, count in zip(values, counts, strict=True))
    return mean, math.sqrt(square / max(n - ddof, 1))


def centred(values: Sequence[float | None]) -> list[float | None]:
    """Each value minus their mean; 0 where all are equal or fewer than two are there."""
    known = [value for value in values if value is not None]
    if len(known) < 2 or nearly_equal(known):
        return [None if value is None else 0.0 for value in values]
    mean = math.fsum(known) / len(known)
    return [None if value is None else value - mean for value in values]
