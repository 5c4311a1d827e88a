"""Template filters and tags: how numbers, times, states and model text are shown everywhere.

One place, so that a figure looks the same on every page. Nothing here reads the database. Text that a person or a
model wrote goes through `visible`, which escapes HTML and makes unseen characters seen.
"""

import json
import re
import unicodedata
from collections.abc import Iterable
from functools import cache
from itertools import groupby
from typing import Any

from django import template
from django.utils.html import escape, format_html, format_html_join
from django.utils.safestring import SafeString, mark_safe

from cohort.base.formatting import NBSP, NOTHING, ago, bytes_, duration, exact, fixed, num, percent, signed
from grpo_core.compute.words import format_flop
from grpo_core.lab.preview import PreviewRow
from grpo_core.text import UNSEEN

register = template.Library()
for _filter in (num, fixed, exact, signed, percent, duration, ago):
    register.filter(_filter)
register.filter("bytes", bytes_)
register.filter("flop", format_flop)


@register.filter
def call_time(seconds: Any) -> str:
    """How long one call took, from microseconds on: 3 µs, 2.1 ms, 1.5 s, 3 min 10 s."""
    if seconds is None or seconds == "":
        return NOTHING
    span = float(seconds)
    if span >= 10:
        return duration(span)
    for size, unit in ((1.0, "s"), (1e-3, "ms")):
        if span >= size:
            return f"{num(span / size, 2)}{NBSP}{unit}"
    return f"{num(round(span * 1e6))}{NBSP}µs"


@register.filter
def digest(value: str | None, length: int = 8) -> SafeString | str:
    """The beginning of a digest, the whole of it on hover and to screen readers' title."""
    if not value:
        return NOTHING
    return format_html('<span class="mono" title="{}">{}…</span>', value, value[:length])


@cache
def _unseen(character: str) -> bool:
    """What `printable` marks, and all that is control, format, surrogate, private, unassigned or an odd separator."""
    if character in "\n\t ":
        return False
    other = unicodedata.category(character) in {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}
    return other or UNSEEN.match(character) is not None


_ASCII = re.compile(r"[\n\t -~]*")
"""Characters that everybody sees, of most texts all: these need no look at each."""


@register.filter(is_safe=True)
def visible(text: Any) -> SafeString:
    """Hostile text made harmless and whole: HTML escaped, unseen characters shown as marked `\\u202e`."""
    whole = "" if text is None else str(text)
    if _ASCII.fullmatch(whole):
        return escape(whole)
    pieces: list[str] = []
    for unseen, characters in groupby(whole, key=_unseen):
        if not unseen:
            pieces.append(escape("".join(characters)))
            continue
        for character in characters:
            title = escape(unicodedata.name(character, "unseen character").lower())
            pieces.append(f'<span class="unseen" title="{title}">{_code(character)}</span>')
    return mark_safe("".join(pieces))  # every piece is escaped above


@register.filter
def both_ends(text: str, length: int) -> str:
    """The text; of one longer than `length` characters the first third of so many and the rest from its end, where
    prompts with the same system message and examples differ."""
    first = length // 3
    return text if len(text) <= length else f"{text[:first]}…{text[first + 1 - length :]}"


@register.filter
def tokens(row: PreviewRow) -> SafeString:
    """A prompt as the policy sees it: special tokens marked, ▸ where the answer begins."""
    before, answer = (
        "".join(f"<mark>{visible(piece.text)}</mark>" if piece.special else visible(piece.text) for piece in pieces)
        for pieces in (row.prompt, row.answer)
    )
    more = f'<span class="muted">… ({row.left_out:,} more tokens)</span>' if row.left_out else ""
    begins = '<span class="answer-begins"><span class="sr-only">The answer begins here: </span>▸</span>'
    return mark_safe(f"{before}{more}{begins}{answer}")  # every piece is escaped by `visible`


@register.filter
def visible_text(text: Any) -> str:
    """The same without markup, for places that take none: titles, options, attributes. Escaped by the template."""
    whole = "" if text is None else str(text)
    if _ASCII.fullmatch(whole):
        return whole
    return "".join(_code(character) if _unseen(character) else character for character in whole)


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


_STAGE_STATES = {
    "waiting": ("is-plain", "○"),
    "ready": ("", "○"),
    "refused": ("is-wrong", "!"),
    "out_of_date": ("is-suspect", "↻"),
}
"""Those of a stage of a pipeline that no run has."""


@register.filter
def stage_tone(state: str) -> str:
    """The CSS class of a stage's state."""
    return (_STAGE_STATES.get(state) or _STATES[state])[0]


@register.simple_tag
def stage_badge(state: str, words: str) -> SafeString:
    """The state of a stage as a badge: colour, sign and word."""
    kind, sign = _STAGE_STATES.get(state) or _STATES[state]
    return format_html(
        '<span class="badge {}"><span aria-hidden="true">{}</span>{}</span>', kind, sign, words.capitalize()
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
