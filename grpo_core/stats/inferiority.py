"""Did it get worse by more than a margin fixed beforehand? Three answers, and the comparison in words."""

import math
from typing import Literal, Protocol

NonInferiority = Literal["regressed", "not_worse", "undecided"]
HigherIs = Literal["better", "worse", "neutral"]
_LEVEL = 0.05


class Evidence(Protocol):
    """The result of comparing after − before; `Paired` and `Clustered` conform."""

    @property
    def difference(self) -> float: ...

    @property
    def low(self) -> float:
        """95 % interval."""

    @property
    def high(self) -> float: ...

    @property
    def lower(self) -> float:
        """One-sided 95 % bounds."""

    @property
    def upper(self) -> float: ...

    @property
    def units(self) -> int:
        """Independent observations: problems, or clusters."""

    @property
    def p(self) -> float | None:
        """Two-sided p of no difference; None where there is no test, only the interval."""


def non_inferiority(
    evidence: Evidence, margin: float, higher_is: HigherIs = "better", *, before: float | None = None
) -> NonInferiority | None:
    """regressed, not_worse or undecided; None for a neutral score, which cannot get worse.

    Harm is a fall where higher is better and a rise where it is worse. not_worse: harm of `margin` or more is excluded
    by the one-sided 95 % bound (Piaggio et al. 2012, JAMA 308; of 0/1 scores Tango's), and harm of `margin` would be
    one problem (or cluster) at least and was possible from the mean score `before` (a score of 0 cannot fall; None: not
    checked), so that the test could have seen it; or a gain is shown. regressed: harm is
    shown, by the one-sided bound and the one-sided exact test, and `margin` is not excluded. undecided: the data show
    neither; more problems are needed.
    """
    if higher_is == "neutral":
        return None
    _, gained, lower, upper = _towards_good(evidence, higher_is)
    room = before is None or margin <= (before if higher_is == "better" else 1 - before) + 1e-9
    if gained or (lower > -margin and evidence.units * margin >= 1 and room):
        return "not_worse"
    return "regressed" if upper < 0 and _p(evidence) <= 2 * _LEVEL else "undecided"


def verdict(evidence: Evidence, margin: float, higher_is: HigherIs = "better", *, before: float | None = None) -> str:
    """The comparison in words: better, regressed, worse within margin …, not worse, undecided at margin …; of a
    neutral score: higher, lower, no difference shown.

    better (and higher, lower) needs a 95 % interval without 0 and a two-sided p of 5 % at most; "not worse" needs
    that harm by the margin is excluded and was possible from `before`, so that neither few problems nor a score at the
    end of its scale read as safety.
    """
    lost, gained, _, _ = _towards_good(evidence, higher_is)
    outcome = non_inferiority(evidence, margin, higher_is, before=before)
    points = f"{100 * margin:g}"
    if outcome is None:
        return "higher" if gained else "lower" if lost else "no difference shown"
    if gained:
        return "better"
    not_worse = f"worse within margin {points}" if lost else "not worse"
    return {"regressed": "regressed", "not_worse": not_worse, "undecided": f"undecided at margin {points}"}[outcome]


def undecided_because(
    evidence: Evidence, margin: float, higher_is: HigherIs = "better", *, before: float | None = None
) -> str:
    """Why `non_inferiority` is undecided and what would decide it, in sentences; empty where it is not.

    How many items it would take supposes the same difference and spread: the distance from the difference to its
    one-sided bound falls with the root of the number of items.
    """
    if non_inferiority(evidence, margin, higher_is, before=before) != "undecided":
        return ""
    points, worse = f"{100 * margin:g} points", "rise" if higher_is == "worse" else "fall"
    if before is not None and margin > (before if higher_is == "better" else 1 - before) + 1e-9:
        return (
            f"From {100 * before:.1f} % the score could not {worse} by {points}: items that the model is more often "
            f"{'wrong' if higher_is == 'worse' else 'right'} on would show it."
        )
    if evidence.units * margin < 1:
        return f"{points} are less than one of {evidence.units} items: it takes {math.ceil(1 / margin)} at least."
    _, _, lower, _ = _towards_good(evidence, higher_is)
    gain = -evidence.difference if higher_is == "worse" else evidence.difference
    if gain <= -margin:
        return f"The {worse} is {points} or more and may be chance: more items would show which."
    needed = math.ceil(evidence.units * ((gain - lower) / (gain + margin)) ** 2)
    return (
        f"A {worse} of up to {-100 * lower:.1f} points is not excluded (one-sided 95 % bound). To exclude {points} at "
        f"this difference and spread would take about {needed:,} items; there are {evidence.units:,}."
    )


def _towards_good(evidence: Evidence, higher_is: HigherIs) -> tuple[bool, bool, float, float]:
    """(a loss is shown, a gain is shown, one-sided lower bound, upper bound), counted so that up is good."""
    shown = _p(evidence) <= _LEVEL
    rise, fall = shown and evidence.low > 0, shown and evidence.high < 0
    if higher_is == "worse":
        return rise, fall, -evidence.upper, -evidence.lower
    return fall, rise, evidence.lower, evidence.upper


def _p(evidence: Evidence) -> float:
    return 0.0 if evidence.p is None else evidence.p
