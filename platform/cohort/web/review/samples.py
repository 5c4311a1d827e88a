"""The samples of a run as one table: filtered, ordered, a page at a time, with counts of what they are.

The address holds all of it: the filter's fields, and `after` or `before`, the edge of another page (keyset). Which
samples a page has is read from an index alone; then their rows, and of their texts the beginning.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from django.core.exceptions import ValidationError
from django.db.models.functions import Left
from django.http import HttpRequest, HttpResponse, QueryDict
from django.shortcuts import render
from django.urls import reverse
from django.views.decorators.http import require_safe

from cohort.base.formatting import natural
from cohort.base.storable import storable
from cohort.review.facets import ERROR, FACETS, FINISH, FLAGS, MASKED, VERIFIER, Facet, component_order, facet_counts
from cohort.review.filters import (
    FLAG_WORDS,
    SORTS,
    SampleFilter,
    choices_of,
    current_samples,
    label_of,
)
from cohort.review.models import Annotation, Sample
from cohort.review.monitors import monitor_counts
from cohort.review.order import Position
from cohort.review.ready_filters import ready_filters
from cohort.review.services import judges
from cohort.review.words import HELP, unindexed_from
from cohort.runs.models import Run, SavedView
from cohort.runs.saved_views import views_for
from cohort.web.access import reviewed_run_for
from cohort.web.accounts.views import person
from cohort.web.review.arithmetic import number
from cohort.web.review.export import export_menu
from cohort.web.review.judging import shows_samples
from cohort.web.runs.header import Header
from cohort.web.runs.list_rows import ViewChip
from cohort.web.runs.page import charts_csp
from grpo_core.monitors.table import title_of

PAGE = 50
BEGINNING, NAME = 160, 40
"""Characters of a completion and of a problem's id that a row shows."""
HEADS = (("step", "Step"), ("reward", "Reward"), ("advantage", "A"), ("tokens", "Tokens"), ("clipped", "Clipped"))
"""(order, words) of the columns that can be sorted by."""
RANGES = ("reward", "component", "advantage", "tokens", "step", "clipped")
CHOICES = ("finish", "verifier", "error", "masked", "discarded", "flag", "monitor", "judgement")


@dataclass(frozen=True)
class SampleRow:
    sample: Sample
    address: str
    """Of its group, with it marked."""
    problem: str
    beginning: str
    scores: tuple[tuple[str, str], ...]
    """(component, its value) in the order of the run's reward."""
    verdicts: tuple[str, ...]
    """Of each reviewer the newest, and how many gave it where several did."""

    @property
    def number(self) -> int:
        return self.sample.index + 1

    @property
    def right(self) -> bool | None:
        return {"right": True, "wrong": False}.get(VERIFIER.read(self.sample.facets))

    @property
    def remarks(self) -> list[str]:
        """What is unusual about it."""
        facets = self.sample.facets
        error, masked = ERROR.read(facets), MASKED.read(facets)
        remarks = [label_of("finish", "length")] if FINISH.read(facets) == "length" else []
        remarks += [label_of("masked", masked)] if masked else []
        remarks += [label_of("error", error)] if error else []
        return remarks + [FLAG_WORDS[name] for name, facet in FLAGS.items() if facet.read(facets)]


class SamplePage:
    """One page of the samples that the filter selects."""

    def __init__(self, run: Run, looked_for: SampleFilter, params: QueryDict) -> None:
        self.run, self.filter = run, looked_for
        self.order = component_order(run.scored_by)
        after, before = _edge(params.get("after")), _edge(params.get("before"))
        read = self._read(after, before)
        more = len(read) > PAGE
        shown = read[:PAGE]
        alone = not more and after is None and before is None
        self.matching: int | None = len(shown) if alone else None
        """How many fit; None on one of several pages until they are counted, which takes as long as the page."""
        self.empty = not shown and not current_samples(run).exists()
        """Whether the run has no sample at all."""
        if before is not None:
            shown.reverse()
        self.rows = self._rows([pk for pk, _ in shown])
        self.following = _edge_text(shown[-1]) if shown and (more or before is not None) else ""
        self.preceding = _edge_text(shown[0]) if shown and (after is not None or (before is not None and more)) else ""

    def _read(self, after: Position | None, before: Position | None) -> list[tuple[int, float | None]]:
        """(id, sort value), one more than a page has; those before an edge from it backwards."""
        order, samples = self.filter.order(self.run), self.filter.ordered(self.run)
        if before is not None:
            samples = order.before(samples, before)
        elif after is not None:
            samples = order.after(samples, after)
        return list(samples.values_list("pk", "sort_value")[: PAGE + 1])

    def _rows(self, ids: Sequence[int]) -> list[SampleRow]:
        columns = (
            "index",
            "group_id",
            "step",
            "reward",
            "advantage",
            "tokens",
            "facets",
            "component_values",
            "clipped",
        )
        samples = Sample.objects.filter(pk__in=ids).select_related("group")
        samples = samples.only(*columns, "redacted_at", "group__problem_id")
        groups = reverse("run_groups", args=[self.run.project.slug, self.run.pk])
        by_id = {sample.pk: sample for sample in samples.annotate(beginning=Left("completion", BEGINNING + 1))}
        judged: dict[int, list[Annotation]] = {}
        for annotation in Annotation.objects.filter(sample__in=ids):
            judged.setdefault(annotation.sample_id, []).append(annotation)
        return [self._row(by_id[pk], judged.get(pk, []), groups) for pk in ids]

    def _row(self, sample: Any, annotations: list[Annotation], groups: str) -> SampleRow:
        scores = zip(self.order, sample.component_values, strict=False)
        verdicts = Counter(annotation.get_verdict_display() for annotation in judges(annotations).values())
        return SampleRow(
            sample,
            f"{groups}{sample.group_id}/?sample={sample.index + 1}#sample-{sample.index + 1}",
            _cut(sample.group.problem_id, NAME),
            _cut(sample.beginning, BEGINNING),
            tuple((name, number(value)) for name, value in scores if value is not None),
            tuple(f"{verdict} ×{count}" if count > 1 else verdict for verdict, count in verdicts.items()),
        )

    @property
    def headings(self) -> dict[str, tuple[str, str, str]]:
        """Order → (words, the query that sorts by it, aria-sort)."""
        headings = {}
        for name, words in HEADS:
            current = self.filter.sort.removeprefix("-") == name
            falls = self.filter.sort.startswith("-")
            query = replace(self.filter, sort=name if current and falls else f"-{name}").query
            headings[name] = words, query, ("descending" if falls else "ascending") if current else ""
        return headings


def _cut(text: str, length: int) -> str:
    return text if len(text) <= length else f"{text[:length]}…"


def _edge(text: str | None) -> Position | None:
    """Of the sample at the edge of a page; None for what no page has linked to."""
    written, _, digits = storable(text or "").partition("~")
    pk = natural(digits)
    try:
        value = float(written) if written else None
    except ValueError:
        return None
    return None if pk is None or (value is not None and not math.isfinite(value)) else (value, pk)


def _edge_text(row: tuple[int, float | None]) -> str:
    return f"{'' if row[1] is None else repr(row[1])}~{row[0]}"


# ---------------------------------------------------------------------- the form


@dataclass(frozen=True)
class Input:
    """A field of the form: what was typed, and what is wrong with it."""

    name: str
    label: str
    value: str
    faults: Sequence[str]
    choices: Mapping[str, str]
    """Empty for a field to type in."""
    help: str = ""


class FilterForm:
    def __init__(self, run: Run, data: QueryDict, faults: Mapping[str, Sequence[str]]) -> None:
        self._data, self._faults = data, faults
        self._order = component_order(run.scored_by)

    def _input(self, name: str, label: str, choices: Mapping[str, str] | None = None) -> Input:
        return Input(name, label, storable(self._data.get(name, "")), self._faults.get(name, ()), choices or {})

    @cached_property
    def ranges(self) -> list[tuple[str, Input, Input]]:
        """(what is compared, its smallest, its largest)."""
        return [
            (
                label_of(name),
                self._input(f"{name}_min", f"Smallest {label_of(name)}"),
                self._input(f"{name}_max", f"Largest {label_of(name)}"),
            )
            for name in RANGES
        ]

    @cached_property
    def text(self) -> Input:
        return replace(self._input("text", "Text"), help=HELP)

    @cached_property
    def others(self) -> list[Input]:
        choices = [self._input(name, name.capitalize(), choices_of(name)) for name in CHOICES]
        component = self._input("component", "Component", {name: name for name in self._order})
        orders = {f"{sign}{name}": f"{words}, {end} first" for name, words in SORTS.items() for sign, end in _ENDS}
        return [component, *choices, self._input("problem", "Problem id"), self._input("sort", "Order", orders)]


_ENDS = (("-", "highest"), ("", "lowest"))


@dataclass(frozen=True)
class Chip:
    words: str
    query: str
    title: str = ""
    current: bool = False


def chips_of(looked_for: SampleFilter) -> list[Chip]:
    """What is filtered by, each with the query without it."""
    defaults = SampleFilter()
    return [
        Chip(words, _with(looked_for, {name: getattr(defaults, name) for name in names}).query)
        for names, words in looked_for.parts
    ]


@dataclass(frozen=True)
class FacetList:
    label: str
    entries: list[tuple[str, int, str]]
    """(words, how many, the query that asks for it too)."""


def facet_lists(run: Run, looked_for: SampleFilter) -> tuple[int, list[FacetList]]:
    """(how many samples fit, what they are)."""
    counts = facet_counts(looked_for.samples(run))
    lists = [
        FacetList(facet.name, _entries(facet, counts[facet.name], looked_for))
        for facet in FACETS
        if facet.name not in FLAGS
    ]
    flags = [
        (FLAG_WORDS[name], counts[name][name], replace(looked_for, flag=name).query)
        for name in FLAGS
        if counts[name][name]
    ]
    monitors = [
        (title_of(code), count, replace(looked_for, monitor=code).query)
        for code, count in monitor_counts(looked_for.samples(run), run).items()
        if count
    ]
    lists += [FacetList("flag", flags), FacetList("monitor", monitors)]
    return counts[FINISH.name].total(), [shown for shown in lists if shown.entries]


def _entries(facet: Facet, counts: Counter[str], looked_for: SampleFilter) -> list[tuple[str, int, str]]:
    return [
        (label_of(facet.name, value), counts[value], _with(looked_for, {facet.name: value}).query)
        for value in facet.values
        if value and counts[value]
    ]


def _with(looked_for: SampleFilter, changes: dict[str, Any]) -> SampleFilter:
    return replace(looked_for, **changes)


def filter_of(request: HttpRequest) -> tuple[SampleFilter, dict[str, list[str]]]:
    """What the address looks for, or every sample; and what is wrong with it, by field."""
    try:
        return SampleFilter.parse(request.GET), {}
    except ValidationError as error:
        return SampleFilter(), error.message_dict


@require_safe
@charts_csp
@shows_samples
def run_samples(request: HttpRequest, slug: str, run_id: int) -> HttpResponse:
    """With `facets` the counts too, and for htmx those alone."""
    header = Header(reviewed_run_for(request, slug, run_id))
    run, (looked_for, faults) = header.run, filter_of(request)
    context: dict[str, Any] = {"query": looked_for.query}
    if "facets" in request.GET and not faults:
        context["matching"], context["facets"] = facet_lists(run, looked_for)
        if request.htmx:  # type: ignore[attr-defined]
            return render(request, "review/_facets.html", context)
    views = views_for(project=run.project, user=person(request), page=SavedView.Page.SAMPLES)
    page = None if faults else SamplePage(run, looked_for, request.GET)
    if page is not None and page.matching is not None:
        context["matching"] = page.matching
    matches = looked_for.text_matches(run)
    if matches is not None and matches.through not in (None, looked_for.step_min):
        context["later"] = replace(looked_for, step_min=matches.through).query
    context |= {
        "page": page,
        "export": export_menu(looked_for),
        "form": FilterForm(run, request.GET, faults),
        "matches": matches,
        "unindexed": unindexed_from(run) if looked_for.text else None,
        "faults": faults,
        "chips": chips_of(looked_for),
        "ready": [
            Chip(ready.name, ready.query, ready.sentence, not faults and ready.query == looked_for.query)
            for ready in ready_filters(run)
        ],
        "views": [ViewChip(view, user=person(request), here=looked_for.query) for view in views],
    }
    return render(request, "review/samples.html", header.context("samples", **context))
