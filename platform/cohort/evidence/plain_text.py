"""Numbers and foreign text as a check prints them."""

from collections.abc import Iterable, Mapping
from typing import Any

from grpo_core.stats.inferiority import RESOLUTION
from grpo_core.text import printable

MINUS = "\u2212"
LONGEST = 500
"""Characters of a line that is printed."""


def one_line(text: str) -> str:
    """A text that may come out of a card, as it is safe to print: no line ends, and not longer than `LONGEST`."""
    return printable(text if len(text) <= LONGEST else f"{text[:LONGEST]}…")


def percent(share: float) -> str:
    return f"{100 * share:.1f} %".replace("-", MINUS)


def side_text(side: Mapping[str, Any]) -> str:
    """The share of one evaluation's scored answers, and apart from it those that have no score: `62.0 %`, `62.0 % of
    100 scored; 8 unscored, 57.4 to 64.8 % if all were wrong or right`."""
    if side["bounds"] is None:
        return percent(side["share"])
    low, high = percent(side["bounds"]["low"]), percent(side["bounds"]["high"])
    unscored = f"{side['errors']:,} unscored"
    if side["share"] is None:
        return f"none scored, {unscored}"
    share = f"{percent(side['share'])} of {side['scored']:,} scored"
    return f"{share}; {unscored}, {low} to {high} if all were wrong or right"


def points(difference: float, digits: int = 1) -> str:
    """A difference of shares in percentage points, with its sign; 0 has none."""
    rounded = round(100 * difference, digits)
    return f"{rounded:+.{digits}f}".replace("-", MINUS) if rounded else f"{0:.{digits}f}"


def change_points(change: Mapping[str, Any], margin: float) -> tuple[str, str, str]:
    """(difference, low, high) of a comparison's change in percentage points, with one digit, or with as many as the
    rounded numbers need to lie on the same sides of 0 and of ± `margin` (a share) as the numbers do: what is shown
    never contradicts the verdict, which is read off them."""
    bounds = (change["interval"]["low"], change["interval"]["high"])
    compared = [(change["difference"], 0.0), *((bound, edge) for bound in bounds for edge in (0.0, margin, -margin))]
    digits = next((digits for digits in range(1, MOST_DIGITS) if _kept(compared, digits)), MOST_DIGITS)
    difference, low, high = (points(value, digits) for value in (change["difference"], *bounds))
    return difference, low, high


MOST_DIGITS = 8
"""Of points: what differs by `grpo_core.stats.inferiority.RESOLUTION` of a share differs in the seventh."""


def _kept(compared: Iterable[tuple[float, float]], digits: int) -> bool:
    return all(
        _side(round(100 * value, digits) / 100 - edge) == _side(value - edge, RESOLUTION) for value, edge in compared
    )


def _side(distance: float, on: float = RESOLUTION / 10) -> int:
    return 0 if abs(distance) <= on else 1 if distance > 0 else -1


def counted(number: int, singular: str, plural: str | None = None) -> str:
    """`1 file`, `2 files`, `1,234 files`."""
    return f"{number:,} {singular if number == 1 else plural or singular + 's'}"


def named(names: list[str], most: int = 6) -> str:
    """The first `most` of names that may come out of a card, and how many more there are."""
    shown = ", ".join(names[:most])
    return f"{shown} and {len(names) - most:,} more" if len(names) > most else shown
