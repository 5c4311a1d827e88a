"""Did it get worse by more than a margin fixed beforehand? Every verdict is read off one interval, the one that is
shown, so that the two cannot contradict each other."""

import math
from dataclasses import dataclass
from typing import Literal, Protocol

NonInferiority = Literal["regressed", "not_worse", "undecided"]
HigherIs = Literal["better", "worse", "neutral"]

RESOLUTION = 1e-9
"""Bounds that are nearer than this to 0 or to the margin lie on it, and show nothing: what differs by less is the
arithmetic's rounding, and would change a verdict from one machine to another."""

MEANINGS = (
    ("better", "the whole 95 % interval of the difference is on the good side of 0"),
    ("regressed", "the whole interval is on the bad side of 0, and harm by the margin is not excluded"),
    ("worse within margin m", "the whole interval is on the bad side of 0, and harm by the margin is excluded"),
    ("no change beyond m", "the whole interval, with 0 in it, is nearer to 0 than the margin, both ways"),
    ("not worse", "harm by the margin is excluded; a gain by more than it is not, so this is not “no change”"),
    ("undecided at margin m", "the interval holds 0 and harm by the margin: more items would decide"),
    ("not testable at margin m", "the score before was too near the end of its scale to get worse by the margin"),
    (
        "higher, lower, no difference shown",
        "of a score that is neither good nor bad: is the interval without 0?",
    ),
)
"""Verdicts and what they mean, for the legends of pages and cards; m is the margin in points."""
UNSURE = ("undecided", "not testable", "worse", "not comparable", "nothing scored")
"""How verdicts begin that are no good news, and that a reader must not miss."""


class Evidence(Protocol):
    """The result of comparing after − before; `Paired`, `Clustered` and `Partial` conform."""

    @property
    def difference(self) -> float: ...

    @property
    def low(self) -> float:
        """95 % interval."""

    @property
    def high(self) -> float: ...

    @property
    def units(self) -> int:
        """Independent observations: items, or clusters."""

    @property
    def noun(self) -> str:
        """What the units are: items or clusters."""

    def units_needed(self, threshold: float) -> int | None:
        """How many units would show, with 80 % power, that the difference is not `threshold`, were difference and
        spread what they are here; None where no number would, as the difference is the threshold."""


@dataclass(frozen=True, slots=True)
class Verdict:
    outcome: NonInferiority | None
    """None for a neutral score, which cannot get worse."""
    words: str
    because: str
    """Why it is undecided and what would decide it, in sentences; empty where it is not."""
    needed: int | None
    """About how many items (or clusters) would decide it; None where it is decided, or no number would."""


def judge(evidence: Evidence, margin: float, higher_is: HigherIs = "better", *, before: float | None = None) -> Verdict:
    """The verdict of a comparison, by where its two-sided 95 % interval lies. Harm is a fall where higher is better and
    a rise where it is worse; the table counts so that up is good, with the interval from `low` to `high`.

    | words | when | outcome |
    | --- | --- | --- |
    | better | low > 0 | not_worse |
    | worse within margin m | high < 0, low > −m | not_worse |
    | no change beyond m | −m < low ≤ 0 ≤ high < m | not_worse |
    | not worse | −m < low ≤ 0, high ≥ m | not_worse |
    | regressed | high < 0, low ≤ −m | regressed |
    | undecided at margin m | low ≤ −m, high ≥ 0 | undecided |
    | not testable at margin m | low > −m, high ≤ m at most, but harm by m was impossible from `before` | undecided |

    Of a neutral score: higher, lower, no difference shown. `before` is the mean score before: one that is nearer to the
    end of its scale than the margin could not have got worse by it, so that neither "no change" nor "not worse" is
    given there (None: not checked).

    Non-inferiority by the two-sided 95 % interval is a one-sided test at 2.5 % (Piaggio et al. 2012, JAMA 308; ICH E9,
    3.3.2); "no change" is equivalence by two of them (Schuirmann 1987, J. Pharmacokinet. Biopharm. 15).
    """
    low, high = evidence.low, evidence.high
    if higher_is == "worse":
        low, high = -high, -low
    gained, lost = low > RESOLUTION, high < -RESOLUTION
    if higher_is == "neutral":
        return Verdict(None, "higher" if gained else "lower" if lost else "no difference shown", "", None)
    points = f"{100 * margin:g}"
    if gained:
        return Verdict("not_worse", "better", "", None)
    harm_excluded = low > RESOLUTION - margin
    if lost:
        words = f"worse within margin {points}" if harm_excluded else "regressed"
        return Verdict("not_worse" if harm_excluded else "regressed", words, "", None)
    if harm_excluded and before is not None and not _has_room(before, margin, higher_is):
        return Verdict("undecided", f"not testable at margin {points}", _no_room(before, margin, higher_is), None)
    if harm_excluded:
        unchanged = high < margin - RESOLUTION
        return Verdict("not_worse", f"no change beyond {points}" if unchanged else "not worse", "", None)
    because, needed = _undecided(evidence, low, margin, higher_is, before)
    return Verdict("undecided", f"undecided at margin {points}", because, needed)


def _has_room(before: float, margin: float, higher_is: HigherIs) -> bool:
    return margin <= (before if higher_is == "better" else 1 - before) + RESOLUTION


def _no_room(before: float, margin: float, higher_is: HigherIs) -> str:
    return (
        f"From {100 * before:.1f} % the score could not {_harm(higher_is)} by {100 * margin:g} points: items that the "
        f"model is more often {'wrong' if higher_is == 'worse' else 'right'} on would show it."
    )


def _harm(higher_is: HigherIs) -> str:
    return "rise" if higher_is == "worse" else "fall"


def _undecided(
    evidence: Evidence, low: float, margin: float, higher_is: HigherIs, before: float | None
) -> tuple[str, int | None]:
    """`low` counts so that up is good."""
    if before is not None and not _has_room(before, margin, higher_is):
        return _no_room(before, margin, higher_is), None
    sign = -1 if higher_is == "worse" else 1
    points, harm, noun = f"{100 * margin:g} points", _harm(higher_is), evidence.noun
    open_to = f"A {harm} of up to {_at_least(-100 * low, 100 * margin)} points is not excluded (95 % interval)."
    beyond = sign * evidence.difference <= -margin + RESOLUTION
    needed = evidence.units_needed(0.0 if beyond else -sign * margin)
    if needed is None:
        return f"{open_to} Not more {noun}, but the scores of the answers that have none would decide it.", None
    what = f"show that the {harm} is no chance" if beyond else f"exclude one of {points}"
    if needed <= evidence.units:  # the bound is wider than the spread explains: unscored answers, or the exact test
        return f"{open_to} More {noun} at this difference and spread would {what}; there are {evidence.units:,}.", None
    return (
        f"{open_to} To {what}, were difference and spread what they are here, takes about {needed:,} {noun} "
        f"(80 % power); there are {evidence.units:,}."
    ), needed


def _at_least(points: float, margin: float) -> str:
    """With as many digits as keep it from reading as less than the margin."""
    digits = next((d for d in range(1, 8) if round(points, d) >= margin), 8)
    return f"{points:.{digits}f}"


def needed_units(z: float, units: int, wanted: float) -> int | None:
    """Units at which a test statistic of `z` from `units` of them becomes `wanted`, were everything else the same: it
    grows with the root of their number (for matched pairs, Nam 1997, Biometrics 53). None where z is 0."""
    return math.ceil(units * (wanted / z) ** 2 - RESOLUTION) if abs(z) > RESOLUTION else None
