"""Share of groups that will carry a signal: in which some completions are right and some wrong. Worked out from an
evaluation before training, so that G can be chosen before it is paid for."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from grpo_core.stats.quantiles import Z95, wilson

GROUP_SIZES = (4, 8, 16, 32, 64)


@dataclass(frozen=True, slots=True)
class Forecast:
    group: int
    """G, completions of a problem."""
    share: float | None
    """Expected share of informative groups; None from one completion a problem, which says only how many can be."""
    low: float
    """95 % interval."""
    high: float


def informative(counts: Mapping[float, int], samples: int, group: int) -> Forecast:
    """E[1 − p^G − (1 − p)^G] over problems, p a problem's chance of a right completion. `counts`: share right of a
    problem's `samples` completions → how many problems have it. Raises ValueError without a problem.

    p is taken to be Beta distributed with mean m and intraclass correlation ρ = 1/(a + b + 1), which are fitted by
    moments (Kleinman 1973, JASA 68): with v the variance of the shares over problems,
    ρ = (v / (m(1 − m)) − 1/n) / (1 − 1/n), held within 0 and 1. Then E[p^G] = Π_{i<G} (a + i) / (a + b + i). The
    interval is the delete-one-problem jackknife's, ± 1.96 SE (Efron and Stein 1981, Annals of Statistics 9).

    One completion a problem gives m and nothing about ρ: the share is between 0 (ρ 1: each problem always right or
    always wrong) and 1 − m^G − (1 − m)^G (ρ 0), with m anywhere in its Wilson interval. So it is where no completion
    was wrong, or none right.
    """
    problems = sum(counts.values())
    if not problems:
        raise ValueError("a forecast needs at least one problem")
    right = sum(share * count for share, count in counts.items())
    if samples == 1 or problems < 2 or right in (0, problems):
        around = wilson(right, problems)
        nearest = min(max(0.5, around.low), around.high)  # the m at which most groups are mixed
        return Forecast(group, None if 0 < right < problems else 0.0, 0.0, _mixed(nearest, 0.0, group))
    share = _expected(counts, samples, group)
    spread = 0.0
    for value, count in counts.items():
        without = {**counts, value: count - 1}
        spread += count * (_expected(without, samples, group) - share) ** 2
    error = Z95 * math.sqrt((problems - 1) / problems * spread)
    return Forecast(group, share, max(0.0, share - error), min(1.0, share + error))


def _expected(counts: Mapping[float, int], samples: int, group: int) -> float:
    problems = sum(counts.values())
    mean = sum(share * count for share, count in counts.items()) / problems
    if problems < 2 or mean <= 0 or mean >= 1:
        return 0.0
    variance = sum(count * (share - mean) ** 2 for share, count in counts.items()) / (problems - 1)
    rho = (variance / (mean * (1 - mean)) - 1 / samples) / (1 - 1 / samples)
    return _mixed(mean, min(max(rho, 0.0), 1.0), group)


def _mixed(mean: float, rho: float, group: int) -> float:
    """1 − E[p^G] − E[(1 − p)^G], p Beta distributed with this mean and intraclass correlation."""
    if mean <= 0 or mean >= 1:
        return 0.0
    size = (1 - rho) / rho if rho > 0 else math.inf  # a + b
    if size == 0:
        return 0.0

    def power(share: float) -> float:
        if size == math.inf:
            return share**group
        return math.prod((share * size + i) / (size + i) for i in range(group))

    return max(0.0, 1 - power(mean) - power(1 - mean))
