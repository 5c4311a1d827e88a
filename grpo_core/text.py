"""Numbers in words, the boxed part of LaTeX, which texts can be stored (PostgreSQL holds neither NUL nor half a
surrogate pair), and foreign text as a terminal may show it."""

import math
import re
from collections.abc import Iterable
from typing import Any

UNSTORABLE = re.compile("[\x00\ud800-\udfff]")
_NONCHARACTERS = "\ufdd0-\ufdef" + "".join(chr(plane << 16 | last) for plane in range(17) for last in (0xFFFE, 0xFFFF))
UNSEEN = re.compile(
    "[\x00-\x1f\x7f-\x9f\xad\u034f\u0600-\u0605\u061c\u06dd\u070f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f"
    "\u2028-\u202e\u2060-\u206f\u2800\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufffb\ud800-\uf8ff\U0001bca0-\U0001bca3"
    f"\U0001d173-\U0001d17a\U000e0000-\U000e0fff\U000f0000-\U0010ffff{_NONCHARACTERS}]"
)
"""Characters that steer a terminal or cannot be seen: controls, what Unicode lets a font ignore (fillers, variation
selectors, tags, joiners), and the blank Braille pattern. Ranges, so that every Python takes the same ones."""


def printable(text: str) -> str:
    """`text` with the characters that steer a terminal or cannot be seen as `\\x1b`."""
    return UNSEEN.sub(lambda match: ascii(match[0])[1:-1], text)


def printable_lines(text: str) -> str:
    """The same for a text of several lines, whose line ends stay."""
    return "\n".join(map(printable, text.split("\n")))


def format_duration(seconds: float) -> str:
    """Such as 40 µs, 2.5 ms, 3.25 s, 75 s, 12 min and 3 h 20 min."""
    for unit, size in (("µs", 1e-6), ("ms", 1e-3)):
        if 0 < seconds < 999.5 * size:
            return f"{seconds / size:.3g} {unit}"
    if seconds < 119.5:
        return f"{seconds:.3g} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 120 else f"{minutes // 60} h {minutes % 60} min"


def format_bytes(count: float) -> str:
    """Such as 999 bytes, 1.5 kB and 20.0 GB."""
    for unit, size in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count:.0f} bytes"


def format_percent(share: float) -> str:
    """0.125 is 12.5 %, 0.05 is 5 %."""
    return f"{round(100 * share, 1):g} %"


def first_repeated(texts: Iterable[str]) -> str | None:
    """The first of the texts that was there before; None when no two are equal. Linear: there may be a million."""
    seen: set[str] = set()
    for text in texts:
        if text in seen:
            return text
        seen.add(text)
    return None


def finite_number(digits: str) -> float:
    """For `json.loads(parse_float=…)`. Raises ValueError for 1e999, which would be infinity."""
    if math.isinf(number := float(digits)):
        raise ValueError(f"{digits[:40]} is too large a number")
    return number


def last_boxed(text: str) -> str | None:
    """Inside the last `\\boxed{…}` of a text in LaTeX, braces balanced; None without one. Linear in the text."""
    start = text.rfind("\\boxed{")
    if start < 0:
        return None
    start += len("\\boxed{")
    depth = 1
    for index in range(start, len(text)):
        depth += {"{": 1, "}": -1}.get(text[index], 0)
        if depth == 0:
            return text[start:index].strip()
    return None


def refuse_unstorable(value: Any) -> Any:
    """`value` as it is. Raises ValueError when it is, or holds in a list or mapping, a text that cannot be stored."""
    match value:
        case str():
            if match := UNSTORABLE.search(value):
                raise ValueError(f"holds the character U+{ord(match[0]):04X}, which cannot be stored; take it out")
        case dict():
            refuse_unstorable([*value, *value.values()])
        case list() | tuple():
            for item in value:
                refuse_unstorable(item)
    return value
