"""The filter of a run's samples: what it reads, writes and says, and which samples it selects."""

import math
import random
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from itertools import product
from typing import Any, get_args

import pytest
from django.core.exceptions import ValidationError
from django.db import connection
from django.db.models import Count
from django.http import QueryDict
from hypothesis import given
from hypothesis import strategies as st

from cohort.accounts.models import User
from cohort.review.facets import FLAGS, facet_counts
from cohort.review.filters import READY, SampleFilter
from cohort.review.models import Sample, Verdict
from cohort.review.services import sample_judge
from cohort.runs.models import Run
from grpo_core.records.types import SampleFlag
from tests.factories.runs import Maker, add_group, add_samples, gone_on


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ("", "all samples"),
        ("reward_min=0.5&finish=length", "reward from 0.5; truncated"),
        ("component=format&component_max=0.25", "format to 0.25"),
        ("step_min=10&step_max=20&judgement=against", "step 10 to 20; judged against the verifier"),
        ("advantage_min=1&error=timeout&masked=importance", "|advantage| from 1; with an error: timeout; masked: "
         "sampler and trainer disagree"),
        ("problem=p%261&sort=reward", "problem: p&1"),
        ("tokens_min=0", "tokens from 0"),
    ],
)  # fmt: skip
def test_a_query_reads_as_itself(query: str, words: str) -> None:
    looked_for = SampleFilter.parse(QueryDict(query))
    assert (looked_for.query, looked_for.words) == (query, words)
    assert SampleFilter.parse(QueryDict(looked_for.query)) == looked_for


@pytest.mark.parametrize(
    ("query", "field", "message"),
    [
        ("reward_min=high", "reward_min", "'high' is not a number."),
        ("reward_min=nan", "reward_min", "'nan' is not a number."),
        ("tokens_min=1.5", "tokens_min", "'1.5' is not a whole number from 0 to 2,147,483,647."),
        ("step_min=9&step_max=3", "step_max", "The largest step, 3, is below the smallest, 9."),
        ("finish=soon", "finish", "'soon' is not known; there are eos, stop, length."),
        ("component_min=1", "component", "Choose the component whose value is meant."),
        ("component=a__b'", "component", '"a__b\'" is not the name of a component.'),
        ("sort=colour", "sort", None),
    ],
)
def test_nonsense_is_refused_by_field(query: str, field: str, message: str | None) -> None:
    with pytest.raises(ValidationError) as refused:
        SampleFilter.parse(QueryDict(query))
    assert list(refused.value.message_dict) == [field]
    if message:
        assert refused.value.message_dict[field] == [message]


@dataclass(frozen=True)
class Row:
    """A sample as it was made, for filters in plain Python."""

    pk: int
    step: int
    problem: str
    made: dict[str, Any]
    verdicts: tuple[str, ...]
    """The newest of each person."""

    @property
    def passed(self) -> bool | None:
        return None if self.made["mask_cause"] else self.made["components"]["answer"]["passed"]

    @property
    def errors(self) -> list[str]:
        return [score["error_class"] or "unknown" for score in self.made["components"].values() if score["error"]]

    @property
    def majority(self) -> str:
        right, wrong = self.verdicts.count("right"), self.verdicts.count("wrong")
        if not self.verdicts:
            return "none"
        return "unsure" if right == wrong else "right" if right > wrong else "wrong"

    def value(self, name: str) -> float | None:
        if name == "step":
            return self.step
        if name == "advantage":
            return abs(self.made["advantage"])
        made = self.made["components"]["format"] if name == "component" else self.made
        number: float | None = made["value" if name == "component" else name]
        return number


DISCARDS = ("", "", "all_right", "unscored")


def sample_of(chance: random.Random) -> dict[str, Any]:
    failed = chance.random() < 0.2
    passed = None if failed else chance.choice([True, False])
    answer: dict[str, Any] = {"value": None if passed is None else float(passed), "passed": passed}
    answer |= {
        "error": "it broke" if failed else None,
        "error_class": chance.choice([None, "timeout"]) if failed else None,
    }
    score = {"value": chance.choice([0.0, 0.25, 1.0]), "error": None, "error_class": None}
    return {
        "completion": "text",
        "tokens": chance.randrange(5),
        "finish_reason": chance.choice(["eos", "stop", "length"]),
        "reward": None if failed else chance.choice([-1.0, 0.0, 0.5, 1.0]),
        "components": {"format": score, "answer": answer},
        "advantage": chance.choice([-1.5, -0.5, 0.0, 0.5, 2.0]),
        "mask_cause": "reward_error" if failed else chance.choice([None, None, "truncated", "importance"]),
        "clipped": chance.choice([None, 0.0, 0.3]),
        "flags": [flag for flag in get_args(SampleFlag) if chance.random() < 0.3],
    }


@pytest.fixture
def rows(maker: Maker, alice: User, rita: User, oscar: User) -> tuple[Run, list[Row]]:
    """120 samples of every kind in 30 groups, some of them superseded and left out here; a third judged."""
    chance = random.Random(24)
    run = maker.run(state="training")
    first, second = maker.attempt(run, state="lost"), maker.attempt(run)
    kept = []
    for number in range(30):
        attempt = first if number < 15 else second
        step = number + 1 if number < 15 else number - 4
        group = add_group(attempt, [], step=step, problem_id=f"p{number % 4}", discarded=chance.choice(DISCARDS))
        made = [sample_of(chance) for _ in range(4)]
        add_samples(group, made)
        for sample, own in zip(group.samples.order_by("index"), made, strict=True):
            verdicts = []
            for person in (alice, rita, oscar):
                if chance.random() < 0.2:
                    verdicts.append(chance.choice(Verdict.values))
                    for verdict in ("unsure", verdicts[-1]):
                        sample_judge(sample=sample, actor=person, verdict=verdict)
            if attempt == second or step <= 10:
                kept.append(Row(sample.pk, step, group.problem_id, own, tuple(verdicts)))
    gone_on(second, 10)
    return run, kept


def rising(least: float, name: str) -> Callable[[Row], bool]:
    return lambda row: (value := row.value(name)) is not None and value >= least


def flagged(flag: str) -> Callable[[Row], bool]:
    return lambda row: flag in row.made["flags"]


def judged(verdict: str) -> Callable[[Row], bool]:
    return lambda row: row.majority == verdict


FITS: dict[str, Callable[[Row], bool]] = {
    "": lambda row: True,
    "reward_min=0.5": rising(0.5, "reward"),
    "reward_max=0": lambda row: row.made["reward"] is not None and row.made["reward"] <= 0,
    "component=format&component_min=0.25": rising(0.25, "component"),
    "component=missing&component_min=0": lambda row: False,
    "component=missing": lambda row: True,
    "advantage_min=1&advantage_max=1.75": lambda row: abs(row.made["advantage"]) == 1.5,
    "tokens_min=2&tokens_max=3": lambda row: row.made["tokens"] in (2, 3),
    "step_min=5&step_max=12": lambda row: 5 <= row.step <= 12,
    "clipped_min=0.2": rising(0.2, "clipped"),
    "finish=length": lambda row: row.made["finish_reason"] == "length",
    "finish=eos": lambda row: row.made["finish_reason"] == "eos",
    "verifier=right": lambda row: row.passed is True,
    "verifier=wrong": lambda row: row.passed is False,
    "error=yes": lambda row: bool(row.errors),
    "error=timeout": lambda row: row.errors[:1] == ["timeout"],
    "error=unknown": lambda row: row.errors[:1] == ["unknown"],
    "masked=importance": lambda row: row.made["mask_cause"] == "importance",
    "masked=reward_error": lambda row: row.made["mask_cause"] == "reward_error",
    "problem=p1": lambda row: row.problem == "p1",
    "judgement=disagree": lambda row: len(set(row.verdicts)) > 1,
    "judgement=against": lambda row: (row.passed, row.majority) in ((True, "wrong"), (False, "right")),
    "verifier=right&judgement=wrong&step_min=3": lambda row: (
        row.passed is True and row.majority == "wrong" and row.step >= 3
    ),
    **{f"flag={flag}": flagged(flag) for flag in get_args(SampleFlag)},
    **{f"judgement={verdict}": judged(verdict) for verdict in ("right", "wrong", "unsure", "none")},
}


def test_every_field_selects_what_plain_python_does(rows: tuple[Run, list[Row]]) -> None:
    run, every = rows
    for query, fits in FITS.items():
        selected = SampleFilter.parse(QueryDict(query)).samples(run).values_list("pk", flat=True)
        wanted = sorted(row.pk for row in every if fits(row))
        assert sorted(selected) == wanted, query
        assert wanted or "missing" in query, f"{query}: no row fits, so it shows nothing"


def test_no_filter_reads_more_than_the_index(rows: tuple[Run, list[Row]]) -> None:
    """Else a page among a million samples would read a gigabyte of texts' pages. A problem and judgements are of other
    tables; superseded rows need their attempts."""
    run, _ = rows
    run.attempts.update(valid_through=None)
    orders = [f"sort={sign}{name}" for sign in ("", "-") for name in ("reward", "tokens", "step", "clipped")]
    with connection.cursor() as cursor:
        cursor.execute("SET LOCAL enable_seqscan = off; SET LOCAL enable_bitmapscan = off")
    for query in [*FITS, *orders, "component=format&sort=-component"]:
        if "problem" in query or "judgement" in query:
            continue
        looked_for = SampleFilter.parse(QueryDict(query))
        samples = looked_for.samples(run)
        for read in (
            looked_for.ordered(run).values_list("pk", "sort_value"),
            samples.values("facets").annotate(n=Count("pk")),
        ):
            plan = read.explain()
            assert re.search("Index Only Scan (Backward )?using sample_by_step", plan), f"{query}: {plan}"
            assert plan.count("Scan") == 1, f"{query}: {plan}"


@given(least=st.floats(allow_nan=False, allow_infinity=False), sign=st.sampled_from(["", "-"]))
def test_every_number_survives_its_query(least: float, sign: str) -> None:
    looked_for = SampleFilter(reward_min=least, sort=f"{sign}tokens")
    assert SampleFilter.parse(QueryDict(looked_for.query)) == looked_for


def test_orders_put_what_has_no_value_last(rows: tuple[Run, list[Row]]) -> None:
    run, every = rows
    names = ("advantage", "reward", "component&component=format", "tokens", "step", "clipped")
    for sign, name in product(("", "-"), names):
        looked_for = SampleFilter.parse(QueryDict(f"sort={sign}{name}"))
        ordered = looked_for.ordered(run)

        def key(row: Row, sign: str = sign, column: str = name.partition("&")[0]) -> tuple[float, int]:
            value = row.value(column)
            return (math.inf if value is None else -value if sign else value), row.pk

        expected = [row.pk for row in sorted(every, key=key)]
        assert [row.pk for row in ordered] == expected, (sign, name)
        for at, (pk, value) in enumerate(ordered.values_list("pk", "sort_value")):
            order = looked_for.order(run)
            assert [row.pk for row in order.after(ordered, (value, pk))] == expected[at + 1 :], (sign, name)
            assert [row.pk for row in order.before(ordered, (value, pk))] == expected[:at][::-1], (sign, name)


def test_facets_count_what_plain_python_counts(rows: tuple[Run, list[Row]]) -> None:
    run, every = rows
    counts = facet_counts(SampleFilter.parse(QueryDict("step_min=4")).samples(run))
    fit = [row for row in every if row.step >= 4]
    assert counts["finish"] == Counter(row.made["finish_reason"] for row in fit)
    assert counts["masked"] == Counter(row.made["mask_cause"] or "" for row in fit)
    assert counts["error"] == Counter((row.errors or [""])[0] for row in fit)
    assert counts["verifier"] == Counter({True: "right", False: "wrong", None: ""}[row.passed] for row in fit)
    for flag in get_args(SampleFlag):
        assert counts[flag][flag] == sum(flag in row.made["flags"] for row in fit)


def test_ready_filters_are_canonical() -> None:
    for ready in READY:
        assert SampleFilter.parse(QueryDict(ready.query)).query == ready.query, ready.name


READY_FITS: dict[str, Callable[[Row], bool]] = {
    "Highest |advantage|": lambda row: True,
    "Rewarded, judged wrong": lambda row: row.passed is True and row.majority == "wrong",
    "Rewarded without reasoning": flagged("no_reasoning"),
    "Format only": flagged("format_only"),
    "Truncated": lambda row: row.made["finish_reason"] == "length",
    "Clipped over 20 %": rising(0.2, "clipped"),
    "Near-duplicates": flagged("near_duplicate"),
    "Language switch": flagged("language_switch"),
    "Unscored": lambda row: row.made["reward"] is None,
    "With errors": lambda row: bool(row.errors),
}


def test_every_ready_filter_selects_what_its_name_says(rows: tuple[Run, list[Row]]) -> None:
    run, every = rows
    assert {ready.name for ready in READY} == set(READY_FITS)
    for ready in READY:
        looked_for = SampleFilter.parse(QueryDict(ready.query))
        wanted = {row.pk for row in every if READY_FITS[ready.name](row)}
        selected = list(looked_for.ordered(run))
        assert {sample.pk for sample in selected} == wanted, ready.name
        assert wanted, ready.name
        column = "clipped" if "clipped" in ready.query else "strength"
        values = [getattr(sample, column) for sample in selected]
        assert values == sorted(values, reverse=True), ready.name


def test_a_migration_fills_the_columns_of_what_was_stored_before(rows: tuple[Run, list[Row]]) -> None:
    """As ingest fills them, but for flags, which only a trainer can make."""
    run, _ = rows
    samples = Sample.objects.filter(run=run).order_by("pk")
    flags = sum(facet.mask for facet in FLAGS.values())
    columns = ("run", "attempt", "step", "facets", "component_values__0", "component_values__1")
    before = [(*row[:3], row[3] & ~flags, *row[4:]) for row in samples.values_list(*columns)]
    samples.update(step=0, facets=0, component_values=[])
    with connection.cursor() as cursor:
        cursor.execute(import_module("migrations.review.0004_sample_columns").COLUMNS)
    assert list(samples.values_list(*columns)) == before


def test_superseded_samples_are_left_out(maker: Maker) -> None:
    run = maker.run(state="training")
    attempt = maker.attempt(run, state="lost")
    kept = add_group(attempt, [1.0], step=1)
    add_group(attempt, [1.0], step=2)
    gone_on(maker.attempt(run), 1)
    assert {row.group_id for row in SampleFilter().samples(run)} == {kept.pk}
