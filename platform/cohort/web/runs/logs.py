"""The log of a run's attempts: a window of lines that can be searched, filtered and followed while the trainer prints.

Everything that is shown is in the address: attempt, where the window begins or ends, search, level.
"""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from django.http import Http404, HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from django.shortcuts import get_object_or_404, redirect, render
from django.urls import reverse
from django.utils.http import urlencode
from django.views.decorators.http import require_safe

from cohort.base.formatting import natural
from cohort.runs.logs import (
    LEVELS,
    LIMIT,
    Line,
    line_start,
    log_bytes,
    log_lines,
    log_size,
    offset_of_step,
)
from cohort.runs.models import Attempt, Run
from cohort.web.access import STOP_POLLING, polled_run_for, run_for, streamed
from cohort.web.audit.selectors import downloaded
from cohort.web.runs.header import Header
from cohort.web.runs.series import file_stem

WINDOW = 500
"""Most lines on a page."""
_BACK = 128 * 1024
"""Bytes that are read to find the lines before a byte."""


@dataclass(frozen=True)
class Choice:
    """Which lines are wanted."""

    text: str = ""
    level: str = ""

    @classmethod
    def of(cls, request: HttpRequest) -> "Choice":
        level = request.GET.get("level", "")
        return cls(request.GET.get("q", "").strip(), level if level in LEVELS else "")

    @property
    def all(self) -> bool:
        return not self.text and not self.level

    def lines(self, lines: Iterator[Line]) -> Iterator[Line]:
        text = self.text.lower()
        return (line for line in lines if self._fits(line, text))

    def _fits(self, line: Line, text: str) -> bool:
        # An error is at least a warning.
        level = not self.level or line.level == self.level or (self.level == "warning" and line.level == "error")
        return level and text in line.text.lower()


@dataclass
class Window:
    """The lines of a page, in order."""

    attempt: Attempt
    size: int
    """Bytes of the log that are stored."""
    lines: list[Line] = field(default_factory=list)
    matching: int | None = None
    """How many lines fit a search, of all; None without one."""
    at_end: bool = True
    """Whether no line follows the last one."""
    end: int = 0
    """From which byte on lines are new."""

    @property
    def earlier(self) -> int | None:
        """The window before this one ends at this byte; None at the log's beginning."""
        first = self.lines[0].offset if self.lines else 0
        return first or None

    @property
    def later(self) -> int | None:
        return None if self.at_end else self.end

    @property
    def full(self) -> bool:
        return self.size >= LIMIT


def window(attempt: Attempt, choice: Choice, *, at: int | None, before: int | None, live: bool) -> Window:
    """The lines from byte `at` on, those before byte `before`, or the last ones. While the log grows its last line is
    left out until it is whole."""
    shown = Window(attempt, log_size(attempt))
    lines: Iterator[Line]
    if not choice.all:
        fitting, count = deque[Line](maxlen=WINDOW), 0
        for line in choice.lines(_whole(log_lines(attempt), live)):
            count += 1
            if before is None or line.offset < before:
                fitting.append(line)
        shown.lines, shown.matching = list(fitting), count
        shown.end = shown.size
        return shown
    if at is not None:
        lines = _whole(log_lines(attempt, line_start(attempt, min(at, shown.size), back=_BACK) if at else 0), live)
        lines = (line for line in lines if line.end > at)
        shown.lines = list(islice(lines, WINDOW))
        shown.at_end = next(lines, None) is None
    else:
        until = shown.size if before is None else min(before, shown.size)
        start = line_start(attempt, until, back=_BACK)
        lines = _whole(log_lines(attempt, start), live and before is None)
        shown.lines = list(deque((line for line in lines if line.offset < until), maxlen=WINDOW))
        shown.at_end = until >= shown.size
    shown.end = shown.lines[-1].end if shown.lines else 0
    return shown


def _whole(lines: Iterator[Line], live: bool) -> Iterator[Line]:
    return (line for line in lines if line.whole or not live)


@require_safe
def run_logs(request: HttpRequest, slug: str, run_id: int) -> HttpResponse:
    """`attempt` (the newest), `q` and `level` choose lines; `at`, `before` and `step` where the window is. A page that
    waits for the first attempt asks by htmx, and is loaded anew once there is one."""
    run = run_for(request, slug, run_id)
    header = Header(run)
    attempts = list(run.attempts.defer("manifest", "outcome").order_by("-fence"))
    fence = natural(request.GET.get("attempt"))
    chosen = next((attempt for attempt in attempts if attempt.fence == fence), attempts[0] if attempts else None)
    if request.htmx:  # type: ignore[attr-defined]
        return HttpResponse(status=204, headers={"HX-Refresh": "true"} if chosen or run.ended_at else {})
    context: dict[str, Any] = {"attempts": attempts, "chosen": chosen, "levels": LEVELS, "choice": Choice.of(request)}
    if chosen is None:
        return render(request, "runs/logs.html", header.context("logs", **context))
    step = natural(request.GET.get("step"))
    if step is not None and (offset := offset_of_step(chosen, step)) is not None:
        query = urlencode({"attempt": chosen.fence, "at": offset})
        return redirect(f"{reverse('run_logs', args=(slug, run_id))}?{query}#line-{offset}")
    at, before = natural(request.GET.get("at")), natural(request.GET.get("before"))
    live = chosen.ended_at is None and run.ended_at is None
    shown = window(chosen, context["choice"], at=at, before=before, live=live)
    context |= {"window": shown, "no_step": step, "log_live": live, "follows": live and shown.at_end and before is None}
    return render(request, "runs/logs.html", header.context("logs", **context))


@require_safe
def run_logs_more(request: HttpRequest, slug: str, run_id: int) -> HttpResponse:
    """The lines from byte `from` on of the attempt, for a page that follows. 204 while there are none."""
    run, _ = polled_run_for(request, slug, run_id)
    attempt = _attempt(request, run)
    live, start = attempt.ended_at is None and run.ended_at is None, natural(request.GET.get("from")) or 0
    size = log_size(attempt)
    if live and size <= start:
        return HttpResponse(status=204)
    choice = Choice.of(request)
    lines = list(_whole(log_lines(attempt, start), live))
    if live and not lines:
        return HttpResponse(status=204)
    shown = Window(attempt, size, list(choice.lines(iter(lines))), end=lines[-1].end if lines else start)
    context = {"run": run, "window": shown, "choice": choice, "follows": live, "slug": slug, "polled": True}
    return render(request, "runs/_log_more.html", context, status=200 if live else STOP_POLLING)


@require_safe
def run_log_file(request: HttpRequest, slug: str, run_id: int) -> HttpResponseBase:
    """The attempt's whole log as it was printed."""
    run = run_for(request, slug, run_id)
    attempt = _attempt(request, run)
    downloaded(request, kind="run_log_downloaded", subject=f"run:{run.pk}", project=run.project)
    return streamed(
        log_bytes(attempt), "text/plain; charset=utf-8", f"{file_stem(run)}.attempt-{attempt.fence}.log.txt"
    )


def _attempt(request: HttpRequest, run: Run) -> Attempt:
    fence = natural(request.GET.get("attempt"))
    if fence is None:
        newest = run.attempts.order_by("-fence").first()
        if newest is None:
            raise Http404("this run has no attempt yet")
        return newest
    return get_object_or_404(Attempt, run=run, fence=fence)
