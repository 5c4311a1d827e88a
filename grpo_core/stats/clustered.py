"""Differences of problems that hang together, such as one problem in several languages: their error is that of the
clusters, not of the problems."""

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

from grpo_core.stats.inferiority import needed_units
from grpo_core.stats.quantiles import Z80, Z95, student_p, student_t


@dataclass(frozen=True, slots=True)
class Clustered:
    """A mean difference with the error of its clusters."""

    units: int
    """Clusters."""
    difference: float
    low: float
    """95 % interval."""
    high: float
    p: float
    """Two-sided, of the test whose interval this is: 5 % at most just where the interval is without 0."""
    mde: float
    """Smallest difference that would be found with 80 % power."""
    centre: float
    standard_error: float
    noun: str
    """What the units are: items or clusters."""

    def units_needed(self, threshold: float) -> int | None:
        """The interval's half on the side of `threshold` falls with the root of the number of units."""
        gap = self.difference - threshold
        half = self.difference - self.low if gap > 0 else self.high - self.difference
        return needed_units(gap / half * Z95, self.units, Z95 + Z80) if half > 0 else None


def by_cluster(differences: Sequence[float], clusters: Sequence[Hashable] | None) -> tuple[list[float], list[int]]:
    """Sum and number of the differences of each cluster, in order of first appearance; None: each by itself."""
    if not differences:
        raise ValueError("at least one difference is needed")
    if clusters is None:
        return [*differences], [1] * len(differences)
    if len(differences) != len(clusters):
        raise ValueError(f"each difference needs its cluster: {len(differences)} differences, {len(clusters)} clusters")
    together: dict[Hashable, list[float]] = {}
    for difference, cluster in zip(differences, clusters, strict=True):
        together.setdefault(cluster, []).append(difference)
    return [math.fsum(group) for group in together.values()], [len(group) for group in together.values()]


def clustered_error(differences: Sequence[float], clusters: Sequence[Hashable]) -> float:
    """Clustered standard error of the mean: √(Σ_c (Σ_{i∈c} (d_i − d̄))²) / n (Miller 2024, arXiv 2411.00640: the
    clustered standard error, taken of the paired differences). No correction for few clusters; `clustered` has one."""
    return math.sqrt(_spread(*by_cluster(differences, clusters))) / len(differences)


def clustered(differences: Sequence[float], clusters: Sequence[Hashable] | None) -> Clustered:
    """Mean difference with its clustered interval, honest with few clusters. `clusters` None: each problem is one.

    Miller's clustered standard error (`clustered_error`) with two changes. Two pseudo-clusters of the mean size m are
    added (½ with all its differences at +1, ½ at −1, 1 at 0), so that no change in few clusters is not certainty; with
    one problem a cluster this is exactly Agresti and Min's interval's standard error. And the quantiles are those of
    Student's t with clusters − 1 degrees of freedom (one cluster counts as two). The pseudo-clusters are this
    project's own extension of Agresti and Min 2005; tests/core/stats simulates its coverage.
    """
    sums, sizes = by_cluster(differences, clusters)
    count, n = len(sums), sum(sizes)
    size = n / count
    total = n + 2 * size
    centre = math.fsum(sums) / total
    error = math.sqrt(_spread(sums, sizes, centre) + size * size * (1 + 2 * centre * centre)) / total
    degrees = max(1, count - 1)
    two_sided = student_t(0.975, degrees)
    mean = math.fsum(sums) / n
    unchanged = math.sqrt(math.fsum(s * s for s in sums) + size * size) / total
    return Clustered(
        units=count,
        difference=mean,
        low=max(-1.0, centre - two_sided * error),
        high=min(1.0, centre + two_sided * error),
        p=student_p(centre / error, degrees),
        mde=(two_sided + student_t(0.8, degrees)) * unchanged,
        centre=centre,
        standard_error=error,
        noun="items" if count == n else "clusters",
    )


def effective_n(scores: Sequence[float], clusters: Sequence[Hashable]) -> float:
    """How many independent problems estimate the mean score as precisely: n over the design effect, the clustered
    variance over the plain one (Korn and Graubard 1998, Survey Methodology 24; Kish 1965). Never more than n, nor
    fewer than 1; the number of clusters where all scores are equal and the design effect is unknown."""
    sums, sizes = by_cluster(scores, clusters)
    mean = math.fsum(sums) / len(scores)
    plain = math.fsum([(score - mean) ** 2 for score in scores])
    if plain == 0:
        return float(len(sums))
    return max(1.0, len(scores) / max(1.0, _spread(sums, sizes, mean) / plain))


def _spread(sums: Sequence[float], sizes: Sequence[int], centre: float | None = None) -> float:
    """Σ_c (S_c − n_c·centre)², of clusters with sums S and sizes n; `centre` is their mean if it is not given."""
    middle = math.fsum(sums) / sum(sizes) if centre is None else centre
    return math.fsum([(s - size * middle) ** 2 for s, size in zip(sums, sizes, strict=True)])
