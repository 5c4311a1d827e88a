"""How numbers, sizes and times are written on pages, and read from addresses.

Records have their own way (records.answers): it belongs to the format of a card and may not change with the pages.
"""

import math
from datetime import datetime
from typing import Any

from django.utils import timezone

MINUS = "\N{MINUS SIGN}"
NBSP = "\u00a0"
NOTHING = "–"


def minus(text: str) -> str:
    """A real minus sign for each hyphen of a written number."""
    return text.replace("-", MINUS)


def number(value: float, digits: int) -> str:
    """At most `digits` significant digits, as people write them: 0.04, 2, 1e−6."""
    mantissa, e, exponent = f"{value or 0:.{digits}g}".partition("e")
    return minus(mantissa + (f"e{int(exponent)}" if e else ""))


def natural(text: str | None) -> int | None:
    """An id, an index or a count from a URL; an invalid one, or one larger than any id, counts as not given."""
    return int(text) if text and text.isascii() and text.isdigit() and len(text) < 19 else None


def seconds_in_words(seconds: float) -> str:
    """Of a step: with parts of a second below a minute."""
    return f"{seconds:.3g} s" if seconds < 60 else str(duration(seconds))


def signed_percent(share: float) -> str:
    """ "+12 %", with a real minus."""
    return f"{100 * share:+.0f} %".replace("-", "\N{MINUS SIGN}")


def num(value: Any, digits: int = 3) -> str:
    """An integer with thousands separators, a float with `digits` significant digits; a dash for None."""
    if value is None or value == "":
        return NOTHING
    if isinstance(value, int):
        return minus(f"{value:,}")
    number = float(value)
    if not math.isfinite(number):
        return "not a number" if math.isnan(number) else minus(f"{number}").replace("inf", "∞")
    if number == 0:
        return "0"
    size = abs(number)
    if size < 1e-3:
        mantissa, exponent = f"{number:.{digits - 1}e}".split("e")
        mantissa = mantissa.rstrip("0").rstrip(".") if "." in mantissa else mantissa
        return minus(f"{mantissa}e{int(exponent)}")
    # Rounding may carry into the next power of ten (0.9996 is 1.00), so the exponent is that of the rounded number.
    exponent_of_rounded = int(f"{size:.{digits - 1}e}".split("e")[1])
    return minus(f"{number:,.{max(0, digits - 1 - exponent_of_rounded)}f}")


def fixed(value: Any, places: int = 2) -> str:
    """A number with a fixed count of decimals, for columns whose points should be aligned."""
    if value is None or value == "":
        return NOTHING
    number = float(value)
    if not math.isfinite(number):
        return num(number)
    text = f"{number:,.{places}f}"
    return minus(text if float(text.replace(",", "")) else text.lstrip("-"))


def exact(value: Any) -> str:
    """A number that somebody set, with all its digits and no more: 0.1, 1, 1e−6, 16,384."""
    if value is None or value == "":
        return NOTHING
    number = float(value)
    if number.is_integer() and abs(number) < 1e15:
        return minus(f"{int(number):,}")
    return minus(repr(number).replace("e-0", "e-"))


def signed(value: Any, digits: int = 3) -> str:
    """A change: always with its sign, + or −; zero has none."""
    shown = num(value, digits)
    if value is None or value == "" or shown.startswith(MINUS) or not float(value) > 0:
        return shown
    return f"+{shown}"


def percent(value: Any, places: int = 1) -> str:
    """A share between 0 and 1 as a percentage."""
    if value is None or value == "":
        return NOTHING
    return f"{fixed(float(value) * 100, places)}{NBSP}%"


def duration(seconds: Any) -> str:
    """A time span in its two largest units: 36 s, 3 min 10 s, 2 h 5 min, 3 d 4 h."""
    if seconds is None or seconds == "":
        return NOTHING
    span = seconds.total_seconds() if hasattr(seconds, "total_seconds") else float(seconds)
    if 0 < span < 1:
        return f"{span * 1000:.0f}{NBSP}ms"
    whole = max(0, round(span))
    units = (("d", 86400), ("h", 3600), ("min", 60), ("s", 1))
    for index, (name, size) in enumerate(units):
        if whole >= size:
            text = f"{whole // size}{NBSP}{name}"
            if index + 1 < len(units):
                next_name, next_size = units[index + 1]
                if rest := whole % size // next_size:
                    text += f" {rest}{NBSP}{next_name}"
            return text
    return f"0{NBSP}s"


def ago(moment: datetime | None) -> str:
    """How long ago, in one unit; "never" for None. A moment ahead of our clock by a little is "now"."""
    if moment is None:
        return "never"
    span = (timezone.now() - moment).total_seconds()
    if span < 1:
        return "now"
    for name, size in (("d", 86400), ("h", 3600), ("min", 60), ("s", 1)):
        if span >= size:
            return f"{int(span // size)}{NBSP}{name} ago"
    raise AssertionError("span is at least one second")


def bytes_(size: Any) -> str:
    """A file size in decimal units: 1 kB is 1,000 bytes."""
    if size is None or size == "":
        return NOTHING
    amount = float(size)
    if amount < 1000:
        return f"{amount:.0f}{NBSP}B"
    for unit in ("kB", "MB", "GB", "TB"):
        amount /= 1000
        if amount < 999.5 or unit == "TB":
            break
    return f"{num(amount)}{NBSP}{unit}"
