"""Numbers and foreign text as a check prints them."""

from grpo_core.text import printable

MINUS = "\u2212"
LONGEST = 500
"""Characters of a line that is printed."""


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
