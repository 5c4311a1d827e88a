"""The list of runs: searched, sorted, a page at a time, with the columns that the address names.

The address holds all of it: `q`, `sort` (a field, with a minus for the largest first), `columns`, and `after` or
`before`, the edge of another page. A page is taken from its edge on (keyset), so that it stays where it is while runs
arrive.
"""

import math
from collections.abc import Sequence
from datetime import datetime
from functools import cache, cached_property
from typing import Any

from django.db.models import Count, Q
from django.db.models.fields.json import KeyTransform
from django.http import HttpRequest, HttpResponse, QueryDict
from django.shortcuts import redirect, render
from django.template.loader import render_to_string
from django.urls import reverse
from django.utils.safestring import SafeString
from django.views.decorators.http import require_safe

from cohort.accounts.models import Project, User
from cohort.alerts.selectors import badges_with_alerts
from cohort.base.formatting import natural
from cohort.base.storable import storable
from cohort.lab.judged import training_reward_judges
from cohort.runs.marks import MOST_AT_ONCE
from cohort.runs.models import Run, RunOrigin, RunValue, SavedView
from cohort.runs.run_values import VARIANT, VERDICT
from cohort.runs.saved_views import views_for
from cohort.runs.search.fields import Field, Fields, UnknownField, short_names
from cohort.runs.search.filters import Order, search
from cohort.runs.search.syntax import SearchError, quoted
from cohort.web.access import project_for
from cohort.web.accounts.views import person
from cohort.web.context import LIVE, query_without, render_polled, version_of
from cohort.web.runs.cells import RunRow, rows_html
from cohort.web.runs.columns import Column, columns_of, offers
from cohort.web.runs.trend import trends

PAGE = 50
FIRST = "-created"
"""Order where the address names none: newest first."""
SHOWN = (
    *("pk", "name", "state", "desired", "step", "steps_total", "reward", "unscored", "fence", "retries", "stalled_at"),
    *("preset", "tags", "note", "archived_at", "created_at", "base_model__name", "created_by__username"),
    *("eval_verifier_version__verifier__name", "eval_verifier_version__number", "eval_verifier_version_id"),
    *("verifier_version_id", "dataset_id", "kind"),
)
"""What is read of each run: columns, and of its newest metrics `reward` and `unscored`."""


class RunPage:
    """One page of the runs that the address selects."""

    def __init__(self, project: Project, params: QueryDict) -> None:
        """With `choose=columns` it offers columns to choose from, which takes the configs of its runs."""
        self.choosing = params.get("choose") == "columns"
        self.project, self.text = project, storable(params.get("q", "").strip())
        self._fields = Fields(project)
        self.columns = columns_of(params.getlist("columns"), self._fields)
        self.notices = list(self.columns.unknown)
        """What of the address could not be understood, but for the search."""
        self.order = self._order(storable(params.get("sort", "")))
        self.fault: SearchError | None = None
        self.rows: list[RunRow] = []
        self.matching = 0
        self.following = self.preceding = ""
        """Edges of the next and the previous page; empty at the ends."""
        counts = Run.objects.filter(project=project).aggregate(every=Count("pk"), archived=Count("archived_at"))
        self.archived: int = counts["archived"]
        self.total: int = counts["every"] - self.archived
        try:
            runs = search(project, self.text, self._fields).runs
        except SearchError as error:
            self.fault = error
            return
        self._read(self.order.apply(runs, project), params)

    def _order(self, text: str) -> Order:
        self.sort = text or FIRST
        name = self.sort.removeprefix("-")
        try:
            field = self._fields.field(name)
        except UnknownField as error:
            self.notices.append(f"The order {name} is not known, so the newest are first. {error}")
            self.sort, field = FIRST, short_names()["created"]
        return Order(None if field.name == "created" else field, self.sort.startswith("-"))

    def _read(self, runs: Any, params: QueryDict) -> None:
        after, before = self._edge(params.get("after")), self._edge(params.get("before"))
        backwards = before is not None
        if self.text and (before or after) is None:
            read, self.matching = self.order.first_page(runs, size=PAGE + 1)
        else:
            read = self.order.page(runs, before or after, backwards=backwards, size=PAGE + 1)
            self.matching = runs.count() if self.text else self.total
        more = len(read) > PAGE
        shown = (read[1:] if backwards else read[:PAGE]) if more else read
        if shown and (more or backwards):
            self.following = _edge_text(*reversed(shown[-1]))
        if shown and (after is not None or (backwards and more)):
            self.preceding = _edge_text(*reversed(shown[0]))
        self.rows = self._rows([pk for pk, _ in shown])

    def _rows(self, ids: Sequence[int]) -> list[RunRow]:
        others = {
            f"shown_{index}": column for index, column in enumerate(self.columns.shown) if column.stored is not None
        }
        runs = Run.objects.filter(pk__in=ids).annotate(
            reward=KeyTransform("reward", "latest_metrics"), unscored=KeyTransform("frac_unscored", "latest_metrics")
        )
        runs = runs.annotate(**{alias: column.stored for alias, column in others.items()})
        by_id = {run.pk: run for run in runs.values_list(*SHOWN, *others, named=True)}
        scores: dict[int, dict[str, float]] = {}
        variants: dict[int, str] = {}
        verdicts: dict[int, dict[str, str]] = {}
        values = RunValue.objects.filter(Q(key__startswith="evaluation.") | Q(key=VARIANT), run__in=ids)
        for run_id, key, share, text in values.values_list("run_id", "key", "number", "text"):
            if key == VARIANT:
                variants[run_id] = text
            elif key.startswith(VERDICT):
                verdicts.setdefault(run_id, {})[key.removeprefix(VERDICT)] = text
            elif share is not None:
                scores.setdefault(run_id, {})[key] = share
        health = badges_with_alerts(list(by_id), live={pk for pk, run in by_id.items() if run.state in LIVE})
        own = {
            pk: (run.verifier_version_id, run.dataset_id)
            for pk, run in by_id.items()
            if run.verifier_version_id and run.eval_verifier_version_id in (None, run.verifier_version_id)
        }
        judges = training_reward_judges(own.values()) if own else {}
        return [
            RunRow(
                run,
                scores.get(pk, {}),
                variant=variants.get(pk, ""),
                health=health[pk],
                values={column.name: getattr(run, alias) for alias, column in others.items()},
                judge=judges[own[pk]] if pk in own else None,
                verdicts=verdicts.get(pk, {}),
            )
            for pk in ids
            if (run := by_id.get(pk)) is not None  # none: it was deleted in between
        ]

    def _edge(self, text: str | None) -> tuple[Any, int] | None:
        """(value, id) of the run at the edge; None for what no page has linked to."""
        number, given, value = storable(text or "").partition("~")
        pk = natural(number)
        if pk is None:
            return None
        return (_value(self.order.field, value) if given and self.order.field else None), pk

    @property
    def rows_html(self) -> SafeString:
        """The rows of the table, which a poll that finds nothing new does without."""
        if "trend" in self.columns.names:
            drawn = trends({row.run.pk: row.run.step for row in self.rows})
            for row in self.rows:
                row.trend = drawn.get(row.run.pk)
        return rows_html(self.rows, self.columns.shown, reverse("run_list", args=[self.project.slug]))

    @property
    def headings(self) -> list[tuple[Column, str, str]]:
        """(column, what its link sorts by, aria-sort) of each column shown."""
        return [self._heading(column) for column in self.columns.shown]

    @property
    def name_heading(self) -> tuple[Column, str, str]:
        return self._heading(Column("name", "Name", "name"))

    def _heading(self, column: Column) -> tuple[Column, str, str]:
        if self.sort.removeprefix("-") != column.sort:
            first = f"-{column.sort}" if column.number or column.sort in ("step", "created") else column.sort
            return column, first if column.sort else "", ""
        falls = self.sort.startswith("-")
        return column, column.sort if falls else f"-{column.sort}", "descending" if falls else "ascending"

    @cached_property
    def offers(self) -> Any:
        read = Run.objects.only("config", "latest_metrics").in_bulk([row.run.pk for row in self.rows])
        return offers(
            [read[row.run.pk] for row in self.rows if row.run.pk in read], self._fields.scores(), self.columns.names
        )

    @property
    def fault_parts(self) -> tuple[str, str, str]:
        """The search before, at and after what is wrong with it."""
        assert self.fault is not None
        start, end = self.fault.start, self.fault.end
        return self.text[:start], self.text[start:end], self.text[end:]

    @property
    def at_once(self) -> int:
        return MOST_AT_ONCE

    @property
    def live(self) -> bool:
        return any(row.live for row in self.rows)

    @property
    def version(self) -> str:
        """Changes when anything that a row shows has changed."""
        rows = [(row.run, row.variant, row.health, sorted(row.scores.items())) for row in self.rows]
        return version_of((rows, self.matching, self.total, self.following, self.preceding))


def _edge_text(value: Any, pk: int) -> str:
    if value is None:
        return str(pk)
    text = repr(value) if isinstance(value, float) else value.isoformat() if isinstance(value, datetime) else value
    return f"{pk}~{text}"


def _value(field: Field, text: str) -> Any:
    """The value of an edge as its field's type; None for one that it cannot be."""
    try:
        if field.kind == "number":
            number = float(text)
            return number if math.isfinite(number) else None
        return datetime.fromisoformat(text) if field.kind in ("time", "archived") else text
    except ValueError:
        return None


class ViewChip:
    def __init__(self, view: SavedView, *, user: User, here: str) -> None:
        self.view, self.own = view, view.owner_id == user.pk
        self.current = bool(here) and QueryDict(view.query) == QueryDict(here)


@cache
def search_help() -> SafeString:
    """The fold with the search's language, which is the same on every page."""
    return render_to_string("runs/_search_help.html", {"fields": short_names().values()})


@require_safe
def run_list(request: HttpRequest, slug: str) -> HttpResponse:
    """With `v` the rows alone, for a poll; with `choose=columns` the columns to choose from too. Without any parameter
    the person's default view, where there is one."""
    project = project_for(request, slug)
    views: list[SavedView] = []
    if "v" not in request.GET:
        views = list(views_for(project=project, user=person(request)))
        default = next((view for view in views if view.default and view.owner_id == request.user.pk), None)
        if default is not None and default.query and not request.GET:
            return redirect(f"{reverse('run_list', args=[slug])}?{default.query}")
    page = RunPage(project, request.GET)
    here = query_without(request, "v", "choose", "after", "before")
    context = {
        "page": page,
        "views": [ViewChip(view, user=person(request), here=here) for view in views],
        "help": search_help(),
        "query": here,
        "unsorted": query_without(request, "v", "choose", "after", "before", "sort"),
        "here": query_without(request, "v", "choose"),
        "quoted": quoted,
        "imported": Run.every.filter(project=project, origin=RunOrigin.IMPORTED),
    }
    if page.choosing and request.htmx:  # type: ignore[attr-defined]
        return render(request, "runs/_columns.html", context)
    return render_polled(request, "runs/list.html", "runs/_rows.html", context)
