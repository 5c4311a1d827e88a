"""Which samples of a run are looked for: what an address or a form says, as a query and in words for people.

The one filter of samples, for their table, their facets, queues and exports. Every field is declared once below;
parsing, the canonical query and the words read the declaration.
"""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Self, get_args
from urllib.parse import urlencode

from django.core.exceptions import ValidationError
from django.db.models import BooleanField, Count, Exists, F, FloatField, Func, OuterRef, Q, QuerySet, Value
from django.db.models.fields.json import KT
from django.db.models.functions import Abs, Cast, Coalesce
from django.http import QueryDict

from cohort.base import formatting
from cohort.base.storable import storable
from cohort.review.models import Annotation, Group, Sample, Verdict
from cohort.runs.models import Run
from cohort.runs.transitions import current_rows
from grpo_core.records.types import ErrorClass, FinishReason, MaskCause

_COMPONENT = re.compile(r"[a-z][a-z0-9_]{0,39}")
FINISH = {"eos": "ended by itself", "stop": "ended at a stop text", "length": "truncated"}
MASKED = {"reward_error": "no reward", "truncated": "truncated", "importance": "sampler and trainer disagree"}
JUDGEMENTS = {
    "right": "judged right",
    "wrong": "judged wrong",
    "unsure": "judged unsure",
    "none": "not judged",
    "disagree": "reviewers disagree",
    "against": "judged against the verifier",
}
SORTS = {"advantage": "|advantage|", "reward": "reward", "component": "component", "tokens": "tokens", "step": "step"}
assert set(FINISH) == set(get_args(FinishReason))
assert set(MASKED) == set(get_args(MaskCause))


def _number(label: str, *, whole: bool = False) -> Any:
    return field(default=None, metadata={"label": label, "read": _whole if whole else _finite})


def _choice(label: str, words: Mapping[str, str]) -> Any:
    return field(default="", metadata={"label": label, "words": words, "read": _one_of(words)})


def _finite(text: str) -> float:
    try:
        number = float(text.replace(formatting.MINUS, "-"))
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise ValidationError(f"{text!r} is not a number.")
    return number


def _whole(text: str) -> int:
    number = _finite(text)
    if not number.is_integer() or not 0 <= number < 2**31:
        raise ValidationError(f"{text!r} is not a whole number from 0 to 2,147,483,647.")
    return int(number)


def _one_of(words: Mapping[str, str]) -> Any:
    def read(text: str) -> str:
        if text not in words:
            raise ValidationError(f"{text!r} is not known; there are {', '.join(words)}.")
        return text

    return read


def _component(text: str) -> str:
    if not _COMPONENT.fullmatch(text):
        raise ValidationError(f"{text!r} is not the name of a component.")
    return text


def _problem(text: str) -> str:
    if len(text) > 200:
        raise ValidationError(f"A problem's id has at most 200 characters; this one has {len(text):,}.")
    return text


def _sort(text: str) -> str:
    if text.removeprefix("-") not in SORTS:
        raise ValidationError(f"{text!r} is no order; there are {', '.join(SORTS)}, each with - before it for falling.")
    return text


_ERRORS = {"yes": "any"} | {name: name for name in get_args(ErrorClass)}
_RANGES = ("reward", "component", "advantage", "tokens", "step")
FIRST = "-advantage"
"""The order where none is given: what was learned from most comes first."""


@dataclass(frozen=True, kw_only=True)
class SampleFilter:
    """What a sample must be; a field that is empty or None asks nothing of it."""

    reward_min: float | None = _number("reward")
    reward_max: float | None = _number("reward")
    component: str = field(default="", metadata={"label": "component", "read": _component})
    component_min: float | None = _number("component")
    component_max: float | None = _number("component")
    advantage_min: float | None = _number("|advantage|")
    advantage_max: float | None = _number("|advantage|")
    tokens_min: int | None = _number("tokens", whole=True)
    tokens_max: int | None = _number("tokens", whole=True)
    step_min: int | None = _number("step", whole=True)
    step_max: int | None = _number("step", whole=True)
    finish: str = _choice("finish", FINISH)
    error: str = _choice("error", _ERRORS)
    masked: str = _choice("masked", MASKED)
    judgement: str = _choice("judgement", JUDGEMENTS)
    problem: str = field(default="", metadata={"label": "problem", "read": _problem})
    sort: str = field(default=FIRST, metadata={"label": "order", "read": _sort})

    @classmethod
    def parse(cls, data: QueryDict | Mapping[str, str]) -> Self:
        """Of an address or a form; what is empty is not given, and what is no field is ignored.

        Raises ValidationError keyed by field.
        """
        values: dict[str, Any] = {}
        faults: dict[str, Any] = {}
        for declared in fields(cls):
            text = storable(str(data.get(declared.name, ""))).strip()
            if not text:
                continue
            try:
                values[declared.name] = declared.metadata["read"](text)
            except ValidationError as error:
                faults[declared.name] = error.messages
        for name in _RANGES:
            least, most = values.get(f"{name}_min"), values.get(f"{name}_max")
            if least is not None and most is not None and least > most:
                faults[f"{name}_max"] = [f"The largest {name}, {most:g}, is below the smallest, {least:g}."]
        by_component = {"component_min", "component_max"} & set(values) or values.get("sort", "").endswith("component")
        if by_component and "component" not in values | faults:
            faults["component"] = ["Choose the component whose value is meant."]
        if faults:
            raise ValidationError(faults)
        return cls(**values)

    @property
    def query(self) -> str:
        """Canonical: every field that differs from its default, in the order of declaration."""
        return urlencode([(name, _text(value)) for name, value in self._given()])

    @property
    def words(self) -> str:
        """Such as "reward from 0.5; truncated; step 10 to 20"; "all samples" where nothing is looked for."""
        return "; ".join(words for _, words in self.parts) or "all samples"

    @property
    def parts(self) -> list[tuple[tuple[str, ...], str]]:
        """(the fields, what they ask) of each thing that is looked for; without the order."""
        given = dict(self._given())
        parts: list[tuple[tuple[str, ...], str]] = []
        for declared in fields(self):
            name, value = declared.name, given.get(declared.name)
            stem = name.rpartition("_")[0]
            label = self.component if stem == "component" else declared.metadata["label"]
            if stem in _RANGES:
                least, most = given.get(f"{stem}_min"), given.get(f"{stem}_max")
                names = tuple(key for key in (f"{stem}_min", f"{stem}_max") if key in given)
                if names[:1] == (name,):
                    parts.append((names, f"{label} {_range(least, most)}"))
            elif value is None or name in ("sort", "component"):
                continue
            elif name in ("finish", "judgement"):
                parts.append(((name,), declared.metadata["words"][value]))
            elif name == "error":
                parts.append(((name,), "with an error" if value == "yes" else f"with an error: {value}"))
            else:
                parts.append(((name,), f"{label}: {declared.metadata.get('words', {}).get(value, value)}"))
        return parts

    def _given(self) -> list[tuple[str, Any]]:
        return [(f.name, getattr(self, f.name)) for f in fields(self) if getattr(self, f.name) != f.default]

    def samples(self, run: Run) -> QuerySet[Sample]:
        """Current samples of the run that fit, in no order."""
        rows = _current_samples(run).filter(self._stored())
        if self.component and (self.component_min is not None or self.component_max is not None):
            rows = rows.alias(component_value=_component_value(self.component)).filter(
                _between("component_value", self.component_min, self.component_max)
            )
        rows = rows.alias(strength=Abs("advantage"))
        rows = rows.filter(_between("strength", self.advantage_min, self.advantage_max))
        return _judged(rows, self.judgement, run) if self.judgement else rows

    def _stored(self) -> Q:
        wanted = _between("reward", self.reward_min, self.reward_max)
        wanted &= _between("tokens", self.tokens_min, self.tokens_max)
        wanted &= _between("group__step", self.step_min, self.step_max)
        if self.finish:
            wanted &= Q(finish_reason=self.finish)
        if self.masked:
            wanted &= Q(mask_cause=self.masked)
        if self.error:
            wanted &= Q(_HasError("components", _error_path(self.error)))
        if self.problem:
            wanted &= Q(group__problem_id=self.problem)
        return wanted

    def ordered(self, run: Run) -> QuerySet[Sample]:
        """As `samples`, in the filter's order; what has no value comes last, and of equals the earlier one first.

        Each has `sort_value`, by which it rises; with its id it names the sample's position.
        """
        rows = self.samples(run).annotate(sort_value=self._sort_value())
        return rows.order_by("sort_value", "pk")

    def _sort_value(self) -> Any:
        name = self.sort.removeprefix("-")
        sign = -1.0 if self.sort.startswith("-") else 1.0
        value: Any = {
            "advantage": Abs("advantage"),
            "component": _component_value(self.component) if self.component else None,
            "step": Cast("group__step", FloatField()),
        }.get(name) or Cast(name, FloatField())
        return Coalesce(Value(sign) * value, Value(math.inf), output_field=FloatField())


def _text(value: Any) -> str:
    return f"{value:.17g}" if isinstance(value, float) and f"{value:g}" != repr(value) else str(value)


def _range(least: float | None, most: float | None) -> str:
    if most is None:
        return f"from {formatting.exact(least)}"
    return f"to {formatting.exact(most)}" if least is None else f"{formatting.exact(least)} to {formatting.exact(most)}"


def _between(name: str, least: float | None, most: float | None) -> Q:
    wanted = Q()
    if least is not None:
        wanted &= Q((f"{name}__gte", least))
    if most is not None:
        wanted &= Q((f"{name}__lte", most))
    return wanted


def _current_samples(run: Run) -> QuerySet[Sample]:
    groups = current_rows(Group.objects.filter(run=run)).values("pk")
    return Sample.objects.filter(group__in=groups)


def _component_value(name: str) -> Any:
    return Cast(KT(f"components__{name}__value"), FloatField())


class _HasError(Func):
    """Whether any reward component of a sample holds an error."""

    template = "jsonb_path_exists(%(expressions)s::jsonpath)"
    output_field = BooleanField()


def _error_path(error: str) -> Value:
    path = "$.*.error ? (@ != null)" if error == "yes" else f'$.*.error_class ? (@ == "{error}")'
    return Value(path)


def _judged(rows: QuerySet[Sample], judgement: str, run: Run) -> QuerySet[Sample]:
    """By the judgement that more reviewers gave, each by their newest; "unsure" where as many said right as wrong."""
    mine = Annotation.objects.filter(sample=OuterRef("sample"), by=OuterRef("by"), pk__gt=OuterRef("pk"))
    newest = Annotation.objects.filter(~Exists(mine), sample__group__run=run).order_by().values("sample")
    counted = newest.annotate(
        right=Count("pk", filter=Q(verdict=Verdict.RIGHT)),
        wrong=Count("pk", filter=Q(verdict=Verdict.WRONG)),
        kinds=Count("verdict", distinct=True),
    )

    def of(condition: Q) -> QuerySet[Any]:
        return counted.filter(condition).values("sample")

    right, wrong = Q(right__gt=F("wrong")), Q(wrong__gt=F("right"))
    match judgement:
        case "none":
            return rows.exclude(pk__in=newest)
        case "disagree":
            return rows.filter(pk__in=of(Q(kinds__gt=1)))
        case "against":
            passed = f"components__{run.parsed_config.reward.success_component}__passed"
            paid = Q((passed, True), mask_cause="", pk__in=of(wrong))
            return rows.filter(paid | Q((passed, False), mask_cause="", pk__in=of(right)))
    return rows.filter(pk__in=of({"right": right, "wrong": wrong, "unsure": Q(right=F("wrong"))}[judgement]))
