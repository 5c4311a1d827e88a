"""Template filters and tags: how numbers, times, states and model text are shown everywhere.

One place, so that a figure looks the same on every page. Nothing here reads the database. Text that a person or a
model wrote goes through `visible`, which escapes HTML and makes unseen characters seen.
"""

import json
import math
import unicodedata
from collections.abc import Iterable
from datetime import datetime
from functools import cache
from itertools import groupby
from typing import Any

from django import template
from django.utils import timezone
from django.utils.html import escape, format_html, format_html_join
from django.utils.safestring import SafeString, mark_safe

from cohort.figures import MINUS, minus

register = template.Library()

NBSP = "\u00a0"
NOTHING = "–"


@register.filter
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


@register.filter
def fixed(value: Any, places: int = 2) -> str:
    """A number with a fixed count of decimals, for columns whose points should stand under each other."""
    if value is None or value == "":
        return NOTHING
    number = float(value)
    if not math.isfinite(number):
        return num(number)
    text = f"{number:,.{places}f}"
    return minus(text if float(text.replace(",", "")) else text.lstrip("-"))


@register.filter
def exact(value: Any) -> str:
    """A number that somebody set, with all its digits and no more: 0.1, 1, 1e−6, 16,384."""
    if value is None or value == "":
        return NOTHING
    number = float(value)
    if number.is_integer() and abs(number) < 1e15:
        return minus(f"{int(number):,}")
    return minus(repr(number).replace("e-0", "e-"))


@register.filter
def signed(value: Any, digits: int = 3) -> str:
    """A change: always with its sign, + or −; zero has none."""
    shown = num(value, digits)
    if value is None or value == "" or shown.startswith(MINUS) or not float(value) > 0:
        return shown
    return f"+{shown}"


@register.filter
def percent(value: Any, places: int = 1) -> str:
    """A share between 0 and 1 as a percentage."""
    if value is None or value == "":
        return NOTHING
    return f"{fixed(float(value) * 100, places)}{NBSP}%"


@register.filter
def duration(seconds: Any) -> str:
    """A time span in its two largest units: 36 s, 3 min 10 s, 2 h 5 min, 3 d 4 h."""
    if seconds is None or seconds == "":
        return NOTHING
    span = seconds.total_seconds() if hasattr(seconds, "total_seconds") else float(seconds)
    if 0 < span < 1:
        return f"{span * 1000:.0f}{NBSP}ms"
    whole = max(0, round(span))
    units = (("d", 86400), ("h", 3600), ("min", 60), ("s", 1))
    for place, (name, size) in enumerate(units):
        if whole >= size:
            text = f"{whole // size}{NBSP}{name}"
            if place + 1 < len(units):
                next_name, next_size = units[place + 1]
                if rest := whole % size // next_size:
                    text += f" {rest}{NBSP}{next_name}"
            return text
    return f"0{NBSP}s"


@register.filter
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


@register.filter(name="bytes")
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


@register.filter
def digest(value: str | None, length: int = 8) -> SafeString | str:
    """The beginning of a digest, the whole of it on hover and to screen readers' title."""
    if not value:
        return NOTHING
    return format_html('<span class="mono" title="{}">{}…</span>', value, value[:length])


@cache
def _unseen(character: str) -> bool:
    """Control, format (zero-width, bidi), surrogate, private and unassigned characters, and odd separators."""
    if character in "\n\t ":
        return False
    return unicodedata.category(character) in {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"} or character in "\u2800\u3164"


@register.filter(is_safe=True)
def visible(text: Any) -> SafeString:
    """Hostile text made harmless and whole: HTML escaped, unseen characters shown as marked `\\u202e`."""
    pieces: list[str] = []
    for unseen, run in groupby("" if text is None else str(text), key=_unseen):
        if not unseen:
            pieces.append(escape("".join(run)))
            continue
        for character in run:
            title = escape(unicodedata.name(character, "unseen character").lower())
            pieces.append(f'<span class="unseen" title="{title}">{_code(character)}</span>')
    return mark_safe("".join(pieces))  # every piece is escaped above


@register.filter
def visible_text(text: Any) -> str:
    """The same without markup, for places that take none: titles, options, attributes. Escaped by the template."""
    return "".join(_code(one) if _unseen(one) else one for one in ("" if text is None else str(text)))


def _code(character: str) -> str:
    code = ord(character)
    return f"\\u{code:04x}" if code <= 0xFFFF else f"\\U{code:08x}"


@register.filter
def category(value: Any) -> str:
    """A suite's category as people call it."""
    return str(value).replace("_", " ")


@register.filter
def compact_json(value: Any) -> str:
    """A stored value on one line, as JSON; text stays as it is. Pass it on to `visible`."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


_STATES = {
    # state: (css class, sign); the word is always shown, so that colour is never alone
    "draft": ("is-plain", "○"),
    "queued": ("", "○"),
    "starting": ("is-live", "●"),
    "evaluating": ("is-live", "●"),
    "training": ("is-live", "●"),
    "sealing": ("is-live", "●"),
    "running": ("is-live", "●"),
    "paused": ("is-suspect", "‖"),
    "preempted": ("is-suspect", "‖"),
    "succeeded": ("is-right", "✓"),
    "finished": ("is-right", "✓"),
    "failed": ("is-wrong", "✕"),
    "lost": ("is-wrong", "✕"),
    "cancelled": ("", "–"),
}


@register.simple_tag
def state_badge(state: str) -> SafeString:
    """The state of a run or an attempt as a badge: colour, sign and word."""
    kind, sign = _STATES[state]
    return format_html(
        '<span class="badge {}"><span aria-hidden="true">{}</span>{}</span>', kind, sign, str(state).capitalize()
    )


@register.simple_tag
def progress(value: int, total: int, label: str = "Progress") -> SafeString:
    """A bar for `value` of `total`; empty while the total is not known."""
    return format_html(
        '<progress class="progress" max="{}" value="{}" aria-label="{}">{} of {}</progress>',
        max(total, 1),
        value if total else 0,
        label,
        value,
        total,
    )


@register.simple_tag
def squares(passed: Iterable[bool | None]) -> SafeString:
    """One square per sample: filled for right, hollow for wrong, dashed for neither; read out as a count."""
    flags = list(passed)
    names = {True: "right", False: "wrong", None: "masked"}
    neither = flags.count(None)
    label = f"{flags.count(True)} of {len(flags)} right" + (f", {neither} masked or not judged" if neither else "")
    return format_html(
        '<span class="squares" role="img" aria-label="{}">{}</span>',
        label,
        format_html_join("", '<i class="{}"></i>', ((names[flag],) for flag in flags)),
    )
