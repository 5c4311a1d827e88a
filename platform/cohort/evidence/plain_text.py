"""Numbers and foreign text as a check prints them."""

import re

MINUS = "\u2212"
LONGEST = 500
"""Characters of a line that is printed."""
UNSEEN = re.compile(
    "[\x00-\x1f\x7f-\x9f\xad\u034f\u0600-\u0605\u061c\u06dd\u070f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f"
    "\u2028-\u202e\u2060-\u206f\u2800\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufffb\ud800-\uf8ff\U0001bca0-\U0001bca3"
    "\U0001d173-\U0001d17a\U000e0000-\U000e0fff\U000f0000-\U0010ffff]"
)
"""Characters that steer a terminal or cannot be seen: controls, what Unicode lets a font ignore (fillers, variation
selectors, tags, joiners), and the blank Braille pattern. Ranges, so that every Python takes the same ones."""


def printable(text: str) -> str:
    """`text` with the characters that steer a terminal or cannot be seen as `\\x1b`."""
    return UNSEEN.sub(lambda match: ascii(match[0])[1:-1], text)


def one_line(text: str) -> str:
    """A text that may come out of a card, as it is safe to print: no line ends, and not longer than `LONGEST`."""
    return printable(text if len(text) <= LONGEST else f"{text[:LONGEST]}…")


def percent(share: float) -> str:
    return f"{100 * share:.1f} %".replace("-", MINUS)


def points(difference: float) -> str:
    """A difference of shares in percentage points, with its sign."""
    return f"{100 * difference:+.1f}".replace("-", MINUS)


def counted(number: int, singular: str, plural: str | None = None) -> str:
    """`1 file`, `2 files`, `1,234 files`."""
    return f"{number:,} {singular if number == 1 else plural or singular + 's'}"


def named(names: list[str], most: int = 6) -> str:
    """The first `most` of names that may come out of a card, and how many more there are."""
    shown = ", ".join(names[:most])
    return f"{shown} and {len(names) - most:,} more" if len(names) > most else shown
