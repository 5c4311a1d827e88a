"""Which samples of a run are looked for: what an address or a form says, as a query and in words for people.

The one filter of samples, for their table, their facets, queues and exports. Every field is declared once below;
parsing, the canonical query and the words read the declaration.
"""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import Any, Self
from urllib.parse import urlencode

from django.core.exceptions import ValidationError
from django.db.models import Count, Exists, F, OuterRef, Q, QuerySet
from django.db.models.functions import Abs
from django.http import QueryDict

from cohort.base import formatting
from cohort.base.storable import storable
from cohort.review.facets import DISCARDED, ERROR, FINISH, FLAGS, MASKED, VERIFIER, component_order
from cohort.review.models import Annotation, Sample, Verdict
from cohort.review.monitors import MONITOR_WORDS, flagged_by
from cohort.review.order import SampleOrder
from cohort.review.rescored_set import rescored
from cohort.review.words import TextMatches, TextQuery, text_matches
from cohort.runs.models import Run
from cohort.runs.transitions import current_rows

_COMPONENT = re.compile(r"[a-z][a-z0-9_]{0,39}")
FINISH_WORDS = {"eos": "ended by itself", "stop": "ended at a stop text", "length": "truncated"}
MASK_WORDS = {
    "reward_error": "masked: no reward",
    "truncated": "masked: truncated",
    "importance": "masked: sampler and trainer disagree",
}
DISCARD_WORDS = {
    "all_right": "discarded: all right",
    "all_wrong": "discarded: all wrong",
    "all_equal": "discarded: all equal",
    "unscored": "discarded: not scored",
}
VERIFIER_WORDS = {"right": "right by the verifier", "wrong": "wrong by the verifier"}
FLAG_WORDS = {
    "no_reasoning": "rewarded without reasoning",
    "format_only": "format only",
    "near_duplicate": "near-duplicate",
    "language_switch": "language switch",
}
JUDGEMENTS = {
    "right": "judged right",
    "wrong": "judged wrong",
    "unsure": "judged unsure",
    "none": "not judged",
    "disagree": "reviewers disagree",
    "against": "judged against the verifier",
}
_RANGES = ("reward", "component", "advantage", "tokens", "step", "clipped")
SORTS = {name: name for name in _RANGES} | {"advantage": "|advantage|", "clipped": "clipped share"}
FIRST = "-advantage"
"""The order where none is given: what was learned from most comes first."""


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


def _text_query(text: str) -> str:
    TextQuery.parse(text)
    return text


RESCORE_WORDS = {
    "differs": "called otherwise",
    "lower": "rewarded less",
    "higher": "rewarded more",
    "unscored": "not scored",
}


def _rescore(text: str) -> str:
    pk, _, what = text.partition(":")
    if not re.fullmatch(r"[0-9]{1,18}", pk) or what not in RESCORE_WORDS:
        raise ValidationError(
            f"{text!r} is no re-score: give its number, a colon, and one of {', '.join(RESCORE_WORDS)}."
        )
    return text


def _sort(text: str) -> str:
    if text.removeprefix("-") not in SORTS:
        raise ValidationError(f"{text!r} is no order; there are {', '.join(SORTS)}, each with - before it for falling.")
    return text


_ERROR_WORDS = {"yes": "with an error"} | {name: f"with an error: {name}" for name in ERROR.values[1:]}


@dataclass(frozen=True, kw_only=True)
class SampleFilter:
    """What a sample must be; a field that is empty or None asks nothing of it."""

    reward_min: float | None = _number("reward")
    reward_max: float | None = _number("reward")
    component: str = field(default="", metadata={"label": "component", "read": _component})
    component_min: float | None = _number("value of the component")
    component_max: float | None = _number("value of the component")
    advantage_min: float | None = _number("|advantage|")
    advantage_max: float | None = _number("|advantage|")
    tokens_min: int | None = _number("tokens", whole=True)
    tokens_max: int | None = _number("tokens", whole=True)
    step_min: int | None = _number("step", whole=True)
    step_max: int | None = _number("step", whole=True)
    clipped_min: float | None = _number("clipped share")
    clipped_max: float | None = _number("clipped share")
    finish: str = _choice("finish", FINISH_WORDS)
    verifier: str = _choice("verifier", VERIFIER_WORDS)
    error: str = _choice("error", _ERROR_WORDS)
    masked: str = _choice("masked", MASK_WORDS)
    discarded: str = _choice("discarded", DISCARD_WORDS)
    flag: str = _choice("flag", FLAG_WORDS)
    monitor: str = _choice("monitor", MONITOR_WORDS)
    judgement: str = _choice("judgement", JUDGEMENTS)
    rescore: str = field(default="", metadata={"label": "re-score", "read": _rescore})
    """Number of a re-score of the run, a colon, and what it made of the sample."""
    problem: str = field(default="", metadata={"label": "problem", "read": _problem})
    text: str = field(default="", metadata={"label": "text", "read": _text_query})
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
        return urlencode(self.given)

    @property
    def given(self) -> list[tuple[str, str]]:
        """The query as (field, value), for a form that keeps it."""
        return [(name, _text(value)) for name, value in self._given()]

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
            elif name == "rescore":
                pk, _, what = value.partition(":")
                parts.append(((name,), f"{RESCORE_WORDS[what]} by re-score {pk}"))
            else:
                words = declared.metadata.get("words")
                parts.append(((name,), words[value] if words else f"{label}: {value}"))
        return parts

    def _given(self) -> list[tuple[str, Any]]:
        return [(f.name, getattr(self, f.name)) for f in fields(self) if getattr(self, f.name) != f.default]

    def samples(self, run: Run) -> QuerySet[Sample]:
        """Current samples of the run that fit, in no order."""
        rows: QuerySet[Any] = current_samples(run).annotate(strength=Abs("advantage"))
        for name, column in self._columns(run).items():
            least, most = getattr(self, f"{name}_min"), getattr(self, f"{name}_max")
            rows = rows.filter(*([Q((f"{column}__gte", least))] if least is not None else []))
            rows = rows.filter(*([Q((f"{column}__lte", most))] if most is not None else []))
        for facet in (FINISH, VERIFIER, MASKED, DISCARDED):
            if value := getattr(self, facet.name):
                rows = rows.filter(facet.has(value))
        if self.error:
            rows = rows.filter(~ERROR.has("") if self.error == "yes" else ERROR.has(self.error))
        if self.flag:
            rows = rows.filter(FLAGS[self.flag].has(self.flag))
        if self.monitor:
            rows = rows.filter(flagged_by(run, self.monitor))
        if self.rescore:
            pk, _, what = self.rescore.partition(":")
            rows = rows.filter(rescored(run, int(pk), what))
        if self.problem:
            rows = rows.filter(group__problem_id=self.problem)
        rows = _judged(rows, self.judgement, run) if self.judgement else rows
        return self._matches(rows, run).rows if self.text else rows

    def text_matches(self, run: Run) -> TextMatches | None:
        """What the search found and could not look at, for the page to say; None where no text is searched for."""
        if self.text and run.pk not in self._searched:
            self.samples(run)
        return self._searched.get(run.pk)

    def _matches(self, rows: QuerySet[Any], run: Run) -> TextMatches:
        if run.pk not in self._searched:
            self._searched[run.pk] = text_matches(rows, run, TextQuery.parse(self.text))
        return self._searched[run.pk]

    @cached_property
    def _searched(self) -> dict[int, TextMatches]:
        """By run; one page reads the same samples several times."""
        return {}

    def _columns(self, run: Run) -> dict[str, str]:
        """Range → what it is compared with."""
        columns = {name: name for name in _RANGES} | {"advantage": "strength"}
        order = component_order(run.scored_by)
        # A run without the component has no value of it: the place after the last is always empty.
        place = order.index(self.component) if self.component in order else len(order)
        return columns | {"component": f"component_values__{place}"}

    def order(self, run: Run) -> SampleOrder:
        return SampleOrder(self._columns(run)[self.sort.removeprefix("-")], self.sort.startswith("-"))

    def ordered(self, run: Run) -> QuerySet[Any]:
        """As `samples`, in the filter's order, each with its `sort_value`."""
        return self.order(run).of(self.samples(run))


@dataclass(frozen=True)
class ReadyFilter:
    """One that reviewers often need."""

    name: str
    query: str
    sentence: str


READY = (
    ReadyFilter("Highest |advantage|", "", "What the policy learned from most."),
    ReadyFilter(
        "Rewarded, judged wrong", "verifier=right&judgement=wrong", "The verifier passed it and a person disagrees."
    ),
    ReadyFilter(
        "Rewarded without reasoning", "flag=no_reasoning", "A reward above 0, and hardly a word before the answer."
    ),
    ReadyFilter(
        "Format only", "flag=format_only", "The reward comes from other components than the one that means right."
    ),
    ReadyFilter("Truncated", "finish=length", "Stopped at the longest completion that the run allows."),
    ReadyFilter("Clipped over 20 %", "clipped_min=0.2&sort=-clipped", "One token in five or more was clipped."),
    ReadyFilter("Near-duplicates", "flag=near_duplicate", "Nearly the same text as an earlier sample of its group."),
    ReadyFilter("Language switch", "flag=language_switch", "Much of it is not in the language of its prompt."),
    ReadyFilter("Unscored", "masked=reward_error", "No reward could be computed, so nothing was learned from it."),
    ReadyFilter("With errors", "error=yes", "A component of the reward failed on it."),
)


def _text(value: Any) -> str:
    return f"{value:.17g}" if isinstance(value, float) and f"{value:g}" != repr(value) else str(value)


def _range(least: float | None, most: float | None) -> str:
    if most is None:
        return f"from {formatting.exact(least)}"
    return f"to {formatting.exact(most)}" if least is None else f"{formatting.exact(least)} to {formatting.exact(most)}"


def current_samples(run: Run) -> QuerySet[Sample]:
    """Without superseded ones. Attempts are looked at only where the run has superseded rows at all: without, an index
    of samples answers alone."""
    rows = Sample.objects.filter(run=run).order_by()
    return current_rows(rows) if run.attempts.filter(valid_through__isnull=False).exists() else rows


def _judged(rows: QuerySet[Sample], judgement: str, run: Run) -> QuerySet[Sample]:
    """By the judgement that more reviewers gave, each by their newest; "unsure" where as many said right as wrong."""
    later = Annotation.objects.filter(sample=OuterRef("sample"), by=OuterRef("by"), pk__gt=OuterRef("pk"))
    judged = Annotation.objects.filter(~Exists(later)).exclude(verdict="").order_by()
    counted = (
        judged.filter(sample__run=run)
        .values("sample")
        .annotate(
            right=Count("pk", filter=Q(verdict=Verdict.RIGHT)),
            wrong=Count("pk", filter=Q(verdict=Verdict.WRONG)),
            kinds=Count("verdict", distinct=True),
        )
    )

    def of(condition: Q) -> Q:
        return Q(pk__in=counted.filter(condition).values("sample"))

    right, wrong = of(Q(right__gt=F("wrong"))), of(Q(wrong__gt=F("right")))
    conditions = {
        "right": right,
        "wrong": wrong,
        "unsure": of(Q(right=F("wrong"))),
        "none": ~Q(Exists(judged.filter(sample=OuterRef("pk")))),
        "disagree": of(Q(kinds__gt=1)),
        "against": (VERIFIER.has("right") & wrong) | (VERIFIER.has("wrong") & right),
    }
    return rows.filter(conditions[judgement])


def label_of(name: str, value: str = "") -> str:
    """Words for a field or a range, or for a value of a field that has a choice of them."""
    declared = {declared.name: declared.metadata for declared in fields(SampleFilter)}
    if value:
        words: str = declared[name]["words"].get(value, value)
        return words
    label: str = declared[name if name in declared and name != "component" else f"{name}_min"]["label"]
    return label


def choices_of(name: str) -> dict[str, str]:
    """Value → words of a field that has a choice of them."""
    declared = {declared.name: declared.metadata for declared in fields(SampleFilter)}
    return dict(declared[name]["words"])
