"""One sample token by token: a window of at most 2,000 of them, coloured by a signal."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any
from urllib.parse import urlencode

from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, render
from django.utils.html import escape
from django.utils.safestring import SafeString, mark_safe
from django.views.decorators.http import require_safe

from cohort.base.formatting import minus, natural, num
from cohort.review.models import Sample
from cohort.review.token_files import TokensUnreadable, token_row
from cohort.web.access import run_for
from cohort.web.review.judging import shows_samples
from cohort.web.review.token_signals import (
    SIGNALS,
    Scale,
    Signal,
    available,
    is_uniform,
    largest,
    position_curve,
    scale_of,
)
from cohort.web.runs.tries import successor
from cohort.web.templatetags.cohort import visible, visible_text
from grpo_core.files.token_file import COLUMNS

WINDOW = 2000
LONGEST = 200
"""Characters of a token's text that are shown."""
TABLE = 400
"""Tokens at once in the table, whose rows are longer."""


@require_safe
@shows_samples
def sample_tokens(request: HttpRequest, slug: str, run_id: int, group_id: int, index: int) -> HttpResponse:
    """`?signal=` colours, `?at=` shows the window with this token (from 1), `?view=table` the numbers of each."""
    run = run_for(request, slug, run_id)
    samples = Sample.objects.select_related("group__attempt", "group__run")
    sample = get_object_or_404(samples, group__run=run, group=group_id, index=index)
    view = why = None
    try:
        columns = token_row(sample).columns
        view = TokenView(columns, signal=request.GET.get("signal"), at=natural(request.GET.get("at")))
    except TokensUnreadable as error:
        why = str(error)
    context = {
        "run": run,
        "group": sample.group,
        "sample": sample,
        "number": sample.index + 1,
        "successor": successor(sample.group.attempt, step=sample.group.step),
        "kept": run.scored_config.traces.tokens,
        "why": why,
        "view": view,
        "table": request.GET.get("view") == "table",
    }
    return render(request, "review/tokens.html", context)


@dataclass(frozen=True)
class TableRow:
    position: int
    piece: str
    cells: tuple[str, ...]


class TokenView:
    """What the page shows of one sample's arrays."""

    def __init__(self, columns: Mapping[str, Sequence[Any]], *, signal: str | None, at: int | None) -> None:
        self._columns = columns
        self.signals: dict[str, Signal] = available(columns)
        self.signal = self.signals.get(signal or "", SIGNALS["advantage"])
        self.pieces = [_short(piece) for piece in columns["piece"]]
        self.count = len(self.pieces)
        self.at = min(max(at or 1, 1), self.count)
        """Position, from 1, that the window has and the keys begin at."""
        self.values = self.signal.values_of(columns) or []
        self.scale: Scale = scale_of(self.signal, self.values)
        self._numbers = {COLUMNS[name].title: columns[name] for name in COLUMNS if name in columns and name != "piece"}
        self._pieces_written: dict[str, tuple[str, str]] = {}
        self._push = SIGNALS["push"].values_of(columns) or []
        self._difference = SIGNALS["difference"].values_of(columns)

    # ------------------------------------------------------------------ the window

    @property
    def first(self) -> int:
        """Index of the window's first token."""
        return (self.at - 1) // WINDOW * WINDOW

    @property
    def last(self) -> int:
        """And of the token after its last."""
        return min(self.first + WINDOW, self.count)

    @property
    def windows(self) -> list[tuple[int, int]]:
        """(first, last) position of each."""
        return [(first + 1, min(first + WINDOW, self.count)) for first in range(0, self.count, WINDOW)]

    def link(self, at: int, signal: str | None = None) -> str:
        query = urlencode({"signal": signal or self.signal.name, "at": at})
        return f"?{query}#t{at}"

    @cached_property
    def clipped_before(self) -> str | None:
        return self._next_clipped(range(self.at - 2, -1, -1))

    @cached_property
    def clipped_after(self) -> str | None:
        return self._next_clipped(range(self.at, self.count))

    @property
    def clipped_beyond(self) -> str | None:
        """The first one after the window."""
        return self._next_clipped(range(self.last, self.count))

    def _next_clipped(self, indexes: range) -> str | None:
        clipped = self._columns.get("clipped")
        found_at = next((index for index in indexes if clipped[index]), None) if clipped else None
        return None if found_at is None else self.link(found_at + 1)

    @cached_property
    def clipped_count(self) -> int | None:
        clipped = self._columns.get("clipped")
        return None if clipped is None else sum(clipped)

    @property
    def masked_count(self) -> int:
        return sum(not used for used in self._columns["in_loss"])

    def strip(self) -> SafeString:
        """The window's tokens; everything of the model in it is escaped by `visible`."""
        return mark_safe("".join(self._token(index) for index in range(self.first, self.last)))

    def _token(self, index: int) -> str:
        classes = ["tok", self.scale.level(self.values[index])]
        if "clipped" in self._columns and self._columns["clipped"][index]:
            classes.append("clip")
        if not self._columns["in_loss"][index]:
            classes.append("masked")
        title, text = self._written(self.pieces[index])
        numbers = [f"{name}: {_cell(values[index])}" for name, values in self._numbers.items()]
        title = "&#10;".join([f"Token: {index + 1:,}", f"Text: {title}", *numbers])
        text = text or f'<i class="mark">id {self._columns["token_id"][index]}</i>'
        return f'<span class="{" ".join(classes)}" id="t{index + 1}" title="{title}">{text}</span>'

    def _written(self, piece: str) -> tuple[str, str]:
        """A token's text as HTML, for a title and for the strip; most texts come often."""
        if piece not in self._pieces_written:
            title = escape(visible_text(piece.replace("\n", "↵")))
            self._pieces_written[piece] = title, visible(piece).replace("\n", '<i class="mark">↵</i>\n')
        return self._pieces_written[piece]

    # ------------------------------------------------------------------ lists

    @property
    def columns(self) -> list[str]:
        return list(self._numbers)

    def rows(self) -> list[TableRow]:
        """Of the table, from the token `at` on."""
        return [
            TableRow(index + 1, self.pieces[index], tuple(_cell(values[index]) for values in self._numbers.values()))
            for index in range(self.at - 1, min(self.at - 1 + TABLE, self.count))
        ]

    @property
    def next_rows(self) -> int | None:
        """Position at which the table goes on."""
        return self.at + TABLE if self.at + TABLE <= self.count else None

    @cached_property
    def curve(self) -> Any:
        return position_curve(self.values, self.first, self.last)

    @property
    def push_is_uniform(self) -> bool:
        return is_uniform(self._push)

    @property
    def pushed_up(self) -> list[Any]:
        return largest(self._push, self.pieces, sign=1)

    @property
    def pushed_down(self) -> list[Any]:
        return largest(self._push, self.pieces, sign=-1)

    @property
    def parted(self) -> list[Any] | None:
        """Where sampler and trainer differ most; None where the trainer has no numbers."""
        return None if self._difference is None else largest(self._difference, self.pieces)


def _short(piece: str) -> str:
    """A tokenizer's longest token has some hundred characters; what a file holds can be longer."""
    return piece if len(piece) <= LONGEST else f"{piece[:LONGEST]}… ({len(piece):,} characters)"


def _cell(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return minus(f"{value:.4g}") if isinstance(value, float) else num(value)
