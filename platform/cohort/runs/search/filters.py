"""Which runs of a project a query matches, and in which order: the terms as conditions of one query."""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import reduce
from operator import or_
from typing import Any

from django.db.models import BooleanField, Count, F, FilteredRelation, FloatField, Q, QuerySet, TextField, Value, Window
from django.db.models.fields.json import KeyTextTransform
from django.db.models.functions import Cast, Coalesce

from cohort.accounts.models import Project, User
from cohort.catalog.models import BaseModel, PromptDataset
from cohort.runs.models import Run, RunState, RunValue
from cohort.runs.search.fields import Field, Fields, UnknownField
from cohort.runs.search.syntax import Operator, Term, parse
from cohort.runs.transitions import ENDED, ON_A_WORKER

_LOOKUPS: dict[Operator, str] = {"=": "exact", ">": "gt", ">=": "gte", "<": "lt", "<=": "lte"}
_PERCENT = re.compile(r"(.+?)\s?%")
NONE = "none"
"""As a value of = and !=: the run has no value there."""

STATES = {
    "live": Q(state__in=set(RunState) - ENDED - {RunState.DRAFT, RunState.PAUSED}),
    "again": Q(state=RunState.QUEUED, fence__gt=0),
    "stalled": Q(state__in=ON_A_WORKER, stalled_at__isnull=False),
    **{state.value: Q(state=state) for state in RunState},
}
_ARCHIVED = {"yes": Q(archived_at__isnull=False), "no": Q(archived_at=None), "any": Q()}


@dataclass(frozen=True)
class Search:
    """A query that was understood."""

    runs: QuerySet[Run]
    """Without the archived ones, unless the query names `archived`."""
    terms: Sequence[Term]


def search(project: Project, text: str, fields: Fields | None = None) -> Search:
    """Raises SearchError for a query that cannot be understood; one that is empty matches every run."""
    fields, terms = fields or Fields(project), parse(text)
    runs: QuerySet[Run] = Run.objects.filter(project=project)
    archived = False
    for number, term in enumerate(terms):
        if not term.field:
            matches = _word(project, term.value)
        else:
            try:
                field = fields.field(term.field)
            except UnknownField as unknown:
                raise term.refused(str(unknown), unknown.code) from None
            archived = archived or field.kind == "archived"
            runs, matches = _condition(runs, project, term, field, f"term_{number}")
        runs = runs.filter(~matches if term.negated else matches)
    return Search(runs if archived else runs.filter(archived_at=None), terms)


def _word(project: Project, word: str) -> Q:
    """The models, datasets and people are few: they are looked up first, not joined to each run."""
    named = {"project": project, "name__icontains": word}
    return reduce(
        or_,
        (
            Q(name__icontains=word),
            Q(tags__contains=[word.casefold()]),
            Q(preset__icontains=word),
            Q(base_model__in=BaseModel.objects.filter(**named)),
            Q(dataset__in=PromptDataset.objects.filter(**named)),
            Q(created_by__in=User.objects.filter(username__icontains=word)),
        ),
    )


def _condition(runs: QuerySet[Run], project: Project, term: Term, field: Field, alias: str) -> tuple[QuerySet[Run], Q]:
    """(the runs with what the condition needs, the condition), which is true or false and never unknown."""
    different = term.operator == "!="
    match field.kind:
        case "state" | "archived":
            condition = _choice(term, field)
        case "tag":
            condition = _tag(term)
        case "time":
            condition = _time(term, field)
        case "number" if term.value.casefold() == NONE and term.operator in ("=", "!="):
            runs, condition = _number(runs, project, field, alias, None)
            condition = ~condition
        case "number":
            runs, condition = _number(runs, project, field, alias, (_lookup(term, field), _as_number(term, field)))
        case _:
            condition = _text(project, term, field)
    return runs, ~condition if different else condition


def _choice(term: Term, field: Field) -> Q:
    choices = STATES if field.kind == "state" else _ARCHIVED
    _only(term, field, ("=", "!=", ":"))
    if term.value.casefold() not in choices:
        raise term.refused(
            f"{term.value} is no value of {field.name}: write one of {', '.join(choices)}.", "not_a_choice"
        )
    return choices[term.value.casefold()]


def _tag(term: Term) -> Q:
    _only(term, Field("tag", "tag", "column", "tags"), ("=", "!=", ":"))
    return Q(tags=[]) if term.value.casefold() == NONE else Q(tags__contains=[term.value.casefold()])


def _time(term: Term, field: Field) -> Q:
    """A day is all of it: > is after its end, = within it."""
    _only(term, field, ("=", "!=", ">", ">=", "<", "<="))
    if term.value.casefold() == NONE and term.operator in ("=", "!="):
        return Q((f"{field.key}__isnull", True))
    try:
        begin = datetime.fromisoformat(term.value)
        begin = begin if begin.tzinfo else begin.replace(tzinfo=UTC)
        length = timedelta(days=1) if len(term.value) <= len("2026-11-01") else timedelta(microseconds=1)
        end = begin.astimezone(UTC) + length
    except (ValueError, OverflowError):
        raise term.refused(
            f"{term.value} is no day or moment: write {field.name}>2026-11-01 or {field.name}>2026-11-01T14:30.",
            "not_a_time",
        ) from None
    before, after = Q((f"{field.key}__lt", begin)), Q((f"{field.key}__gte", end))
    known = Q((f"{field.key}__isnull", False))
    within = {"<": before, ">=": ~before, ">": after, "<=": ~after}.get(term.operator, ~before & ~after)
    return known & within


def _number(
    runs: QuerySet[Run], project: Project, field: Field, alias: str, compared: tuple[str, float] | None
) -> tuple[QuerySet[Run], Q]:
    """`compared` (lookup, number); None: whether there is a number at all."""
    if field.source == "value":
        values = RunValue.objects.filter(project=project, key=field.key)
        values = (
            values.filter(number__isnull=False)
            if compared is None
            else values.filter(**{f"number__{compared[0]}": compared[1]})
        )
        return runs, Q(pk__in=values.values("run"))
    runs = runs.alias(**{alias: number_of(field)})
    if compared is None:
        return runs, Q((f"{alias}__isnull", False))
    lookup, number = compared
    # False, not unknown, where there is no number; `__isnull` next to it would read each run's metrics twice.
    return runs, Q(Coalesce(Q((f"{alias}__{lookup}", number)), Value(False), output_field=BooleanField()))


def number_of(field: Field) -> Any:
    """Expression of a metric's newest value, or of a column that holds a number."""
    stored = KeyTextTransform(field.key, "latest_metrics") if field.source == "metric" else F(field.key)
    return Cast(stored, FloatField())


def _text(project: Project, term: Term, field: Field) -> Q:
    _only(term, field, ("=", "!=", ":"))
    values = RunValue.objects.filter(project=project, key=field.key)
    if term.value.casefold() == NONE and term.operator != ":":
        if field.source == "column":
            return Q((f"{field.key}__exact", "")) | Q((f"{field.key}__isnull", True))
        return ~Q(pk__in=values.values("run"))
    lookup = "icontains" if term.operator == ":" else "iexact"
    if field.source == "column":
        return Q((f"{field.key}__{lookup}", term.value))
    return Q(pk__in=values.filter(**{f"text__{lookup}": term.value}).values("run"))


def _only(term: Term, field: Field, operators: tuple[Operator, ...]) -> None:
    if term.operator not in operators:
        hint = f" Its newest number is metric.{field.name}." if field.name == "loss" else ""
        raise term.refused(
            f"{field.name} cannot be compared by {term.operator}: it takes {' '.join(operators)}.{hint}",
            "operator_unfit",
        )


def _lookup(term: Term, field: Field) -> str:
    _only(term, field, ("=", "!=", ">", ">=", "<", "<="))
    return "exact" if term.operator == "!=" else _LOOKUPS[term.operator]


def _as_number(term: Term, field: Field) -> float:
    """With a percent sign the hundredth; a real minus is one."""
    text = term.value.replace("\N{MINUS SIGN}", "-").replace(",", "")
    percent = _PERCENT.fullmatch(text)
    try:
        number = float(percent[1] if percent else text) / (100 if percent else 1)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise term.refused(
            f"{term.value} is no number: {field.name} takes one, as {field.name}{term.operator}0.5.", "not_a_number"
        )
    return number


# ---------------------------------------------------------------------- order

ORDER_VALUE = "order_value"
_COUNT = "matching"


@dataclass(frozen=True)
class Order:
    """By a field, then by id, so that no two runs are equal; runs without a value are last either way."""

    field: Field | None
    """None: by id, which is by when they were made."""
    descending: bool = True

    def apply(self, runs: QuerySet[Run], project: Project) -> QuerySet[Run]:
        """With ORDER_VALUE annotated, not yet ordered."""
        field = self.field
        if field is None:
            return runs
        if field.source == "value":
            joined = FilteredRelation("values", condition=Q(values__project=project, values__key=field.key))
            value = F("ordered_by__number" if field.kind == "number" else "ordered_by__text")
            return runs.alias(ordered_by=joined).annotate(**{ORDER_VALUE: value})
        if field.kind == "number":
            return runs.annotate(**{ORDER_VALUE: number_of(field)})
        if field.kind == "tag":
            return runs.annotate(**{ORDER_VALUE: Cast(F("tags"), TextField())})
        return runs.annotate(**{ORDER_VALUE: F(field.key)})

    def page(
        self, runs: QuerySet[Run], edge: tuple[Any, int] | None, *, backwards: bool, size: int
    ) -> list[tuple[int, Any]]:
        """(id, value) of at most `size` runs that follow the run `edge` (its value and id), or lie before it when
        `backwards`, in the order of the list."""
        falls = self.descending != backwards
        if edge is not None:
            runs = runs.filter(self._beyond(edge, falls=falls, backwards=backwards))
        rows = [(pk, value) for pk, value, _ in self._rows(runs, falls=falls, backwards=backwards)[:size]]
        return rows[::-1] if backwards else rows

    def first_page(self, runs: QuerySet[Run], *, size: int) -> tuple[list[tuple[int, Any]], int]:
        """`page` from the beginning, and how many runs there are in all, counted by the same query: what takes time is
        to read the values that the search compares, and so they are read once."""
        counted = runs.annotate(**{_COUNT: Window(Count("*"))})
        rows = list(self._rows(counted, _COUNT, falls=self.descending, backwards=False)[:size])
        return [(pk, value) for pk, value, _ in rows], rows[0][2] if rows else 0

    def _rows(self, runs: QuerySet[Run], third: str = "pk", *, falls: bool, backwards: bool) -> Any:
        """(id, value, `third`) of each run, in order."""
        if self.field is None:
            runs = runs.annotate(**{ORDER_VALUE: Value(None, FloatField())}).order_by("-pk" if falls else "pk")
        else:
            value, nulls = F(ORDER_VALUE), {"nulls_first": True} if backwards else {"nulls_last": True}
            by_value = value.desc(**nulls) if falls else value.asc(**nulls)
            runs = runs.order_by(by_value, "pk" if backwards else "-pk")
        return runs.values_list("pk", ORDER_VALUE, third)

    def _beyond(self, edge: tuple[Any, int], *, falls: bool, backwards: bool) -> Q:
        value, pk = edge
        if self.field is None:
            return Q(pk__lt=pk) if falls else Q(pk__gt=pk)
        later = Q(pk__gt=pk) if backwards else Q(pk__lt=pk)
        missing, there = Q((f"{ORDER_VALUE}__isnull", True)), Q((f"{ORDER_VALUE}__isnull", False))
        if value is None:
            return (missing & later) | there if backwards else missing & later
        beyond = Q((f"{ORDER_VALUE}__{'lt' if falls else 'gt'}", value)) | (Q((ORDER_VALUE, value)) & later)
        return beyond if backwards else beyond | missing
