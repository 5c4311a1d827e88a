"""Comparisons where some answers have no score: what holds whatever those answers were worth.

An answer that could not be scored is neither right nor wrong. The difference is of the items that were scored both
times; its interval reaches from the lowest that the missing scores could make it to the highest (worst-case bounds:
Horowitz and Manski 2000, JASA 95). Nothing is assumed about why an answer was not scored, so that a policy whose
answers break the verifier gains nothing by that.
"""

from dataclasses import dataclass

from grpo_core.stats.clustered import Clustered
from grpo_core.stats.paired import Paired


@dataclass(frozen=True, slots=True)
class Partial:
    """A comparison of which some answers have no score."""

    scored: Paired | Clustered
    """Of the items scored both times."""
    lowest: Paired | Clustered
    """Of all items, were every missing score 1 before and 0 after."""
    highest: Paired | Clustered
    """Of all items, were every missing score 0 before and 1 after."""

    @property
    def difference(self) -> float:
        return self.scored.difference

    @property
    def low(self) -> float:
        return min(self.lowest.low, self.scored.low)

    @property
    def high(self) -> float:
        return max(self.highest.high, self.scored.high)

    @property
    def p(self) -> float:
        """The largest of the three, and 1 where the missing scores could turn the difference around."""
        turned = self.lowest.difference <= 0 <= self.highest.difference
        return 1.0 if turned else max(self.lowest.p, self.scored.p, self.highest.p)

    @property
    def mde(self) -> float:
        return self.scored.mde

    @property
    def units(self) -> int:
        return self.scored.units

    @property
    def noun(self) -> str:
        return self.scored.noun

    def units_needed(self, threshold: float) -> int | None:
        """Of the scored items; None where scores of the missing ones alone could decide otherwise."""
        within = self.lowest.difference <= threshold <= self.highest.difference
        return None if within else self.scored.units_needed(threshold)


def scored_share(correct: float, answers: int, unscored: int) -> float | None:
    """Mean score of the answers that have one, `correct` being their sum; None where none has."""
    scored = answers - unscored
    return min(1.0, correct / scored) if scored > 0 else None


@dataclass(frozen=True, slots=True)
class Bounds:
    """The mean score, were every missing score 0, and 1."""

    low: float
    high: float


def share_bounds(total: float, scored: int, unscored: int) -> Bounds:
    """`total` is the sum of the scores of `scored` answers."""
    if scored + unscored < 1:
        raise ValueError("share_bounds needs at least one answer")
    return Bounds(low=total / (scored + unscored), high=(total + unscored) / (scored + unscored))
