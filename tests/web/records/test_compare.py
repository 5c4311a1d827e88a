"""A suite before and after, from its items: the contract's shape, by hand."""

import json
import random
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cohort.evidence.compare import (
    NOT_COMPARABLE,
    NOTHING_SCORED,
    ONCE,
    Item,
    SuiteFacts,
    by_suite,
    compare_all,
    seed_of,
)
from cohort.evidence.plain_text import MINUS, change_points
from cohort.records.schema_types import Comparison
from tests.tables import cases

FACTS = SuiteFacts(
    suite="s", title="S", category="hallucination", higher_is="better", sensitive=False, margin=0.05, protocol={"k": 1}
)


def items(scores: Sequence[float], **more: Any) -> list[Item]:
    return [Item(f"p{n:03}", score, False, False, **more) for n, score in enumerate(scores)]


def sides(*, fixed: int, broken: int, right: int, wrong: int) -> tuple[list[Item], list[Item]]:
    before = [0.0] * fixed + [1.0] * broken + [1.0] * right + [0.0] * wrong
    after = [1.0] * fixed + [0.0] * broken + [1.0] * right + [0.0] * wrong
    return items(before), items(after)


def compare(
    suite: SuiteFacts,
    before: Sequence[Item] | None,
    after: Sequence[Item] | None,
    same_protocol: bool,
    touched: Collection[str] | None = None,
) -> dict[str, Any]:
    (comparison,) = compare_all([(suite, before, after, same_protocol, touched)])
    return comparison


def test_the_shape_and_its_numbers() -> None:
    """100 items, 10 fixed, 1 broken, as in tests/core/stats: Tango [0.0310, 0.1662], McNemar 2·12/2¹¹."""
    result = compare(FACTS, *sides(fixed=10, broken=1, right=50, wrong=39), True)
    assert Comparison.model_validate(result)
    assert json.loads(json.dumps(result, allow_nan=False)) == result
    assert list(result) == [
        *("suite", "title", "category", "higher_is", "sensitive", "problems", "before", "after", "change"),
        *("margin", "non_inferiority", "verdict", "undecided_because", "items_needed", "slices", "clean", "protocol"),
    ]
    assert result["before"] == {
        "correct": 51.0,
        "scored": 100,
        "share": 0.51,
        "interval": {"low": pytest.approx(0.41345, abs=1e-4), "high": pytest.approx(0.60580, abs=1e-4)},
        "bounds": None,
        "truncated": 0,
        "errors": 0,
    }
    change = result["change"]
    assert (change["method"], change["clusters"], change["bootstrap"]) == ("tango", None, None)
    assert (change["items"], change["unscored"]) == (100, 0)
    assert (change["fixed"], change["broken"], change["both_right"], change["both_wrong"]) == (10, 1, 50, 39)
    assert change["difference"] == pytest.approx(0.09)
    assert change["interval"] == {"low": pytest.approx(0.030958, abs=1e-6), "high": pytest.approx(0.166206, abs=1e-6)}
    assert change["p_mcnemar"] == 0.01171875
    assert (result["verdict"], result["non_inferiority"]) == ("better", "not_worse")
    assert (result["slices"], result["clean"], result["protocol"]) == ([], None, {"k": 1})


def test_facts_come_back_from_a_comparison() -> None:
    assert SuiteFacts.of(compare(FACTS, *sides(fixed=1, broken=1, right=5, wrong=5), True)) == FACTS
    with pytest.raises(KeyError, match="margin"):
        SuiteFacts.of({name: getattr(FACTS, name) for name in ("suite", "title", "category", "higher_is", "sensitive")})


@pytest.mark.parametrize(
    ("higher_is", "words", "outcome"),
    [("better", "regressed", "regressed"), ("worse", "better", "not_worse"), ("neutral", "lower", None)],
)
def test_which_way_is_harm(higher_is: Any, words: str, outcome: str | None) -> None:
    result = compare(replace(FACTS, higher_is=higher_is), *sides(fixed=15, broken=60, right=100, wrong=75), True)
    assert (result["verdict"], result["non_inferiority"]) == (words, outcome)
    assert result["change"]["difference"] == pytest.approx(-0.18)  # of the raw score, whichever way is harm


@pytest.mark.parametrize(("right", "outcome"), [(0, "undecided"), (4, "undecided"), (8, "not_worse")])
def test_near_zero_before_and_after_is_not_called_not_worse(right: int, outcome: str) -> None:
    """Margin 5 points of 100 items: fewer than 5 right answers could not have been lost."""
    result = compare(FACTS, *sides(fixed=0, broken=0, right=right, wrong=100 - right), True)
    assert FACTS.margin == 0.05
    assert result["non_inferiority"] == outcome


@pytest.mark.parametrize(("before", "after", "expected"), cases("stats/unscored", "before", "after", "expected"))
def test_answers_without_a_score_are_neither_right_nor_wrong(before: str, after: str, expected: dict[str, Any]) -> None:
    """A letter an item: r right, w wrong, u without a score."""
    first, second = (
        [Item(f"p{n:03}", float(letter == "r"), False, letter == "u") for n, letter in enumerate(side)]
        for side in (before * 10, after * 10)
    )
    result = compare(FACTS, first, second, True)
    assert Comparison.model_validate(result)
    flat = {
        "share": [result[when]["share"] for when in ("before", "after")],
        "scored": [result[when]["scored"] for when in ("before", "after")],
        "unscored": [result[when]["errors"] for when in ("before", "after")],
        "bounds": [list((result[when]["bounds"] or {}).values()) for when in ("before", "after")],
        "difference": result["change"] and result["change"]["difference"],
        "items": result["change"] and result["change"]["items"],
        "verdict": result["verdict"],
    }
    assert flat == expected
    if result["change"]:
        span = result["change"]["interval"]
        filled = [
            compare(FACTS, *([replace(item, score=worth if item.failed else item.score, failed=False) for item in side]
                             for side, worth in ((first, old), (second, new))), True)["change"]["interval"]
            for old in (0.0, 1.0) for new in (0.0, 1.0)
        ]  # fmt: skip
        assert span["low"] <= min(one["low"] for one in filled) + 1e-9
        assert span["high"] >= max(one["high"] for one in filled) - 1e-9


@settings(deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from([0.0, 0.5, 1.0, None]), st.sampled_from([0.0, 0.25, 1.0, None])), min_size=1),
    st.sampled_from([0.001, 0.01, 0.03, 0.05, 0.1]),
    st.sampled_from(["better", "worse", "neutral"]),
    st.sampled_from(["", "in threes"]),
)
def test_what_is_shown_never_contradicts_the_verdict(
    scores: list[tuple[float | None, float | None]], margin: float, higher_is: Any, clusters: str
) -> None:
    """Read from the rounded numbers as a page shows them."""
    before, after = (
        [
            Item(f"p{n:03}", pair[side] or 0.0, False, pair[side] is None, cluster=clusters and f"c{n // 3}")
            for n, pair in enumerate(scores)
        ]
        for side in (0, 1)
    )
    case = (replace(FACTS, margin=margin, higher_is=higher_is), before, after, True, None)
    (result,) = compare_all([case], resampled=False)
    if result["change"] is None:
        assert result["verdict"] == NOTHING_SCORED
        return
    difference, low, high = (
        float(text.replace(MINUS, "-")) for text in change_points(result["change"], result["margin"])
    )
    assert low <= difference <= high
    if higher_is == "worse":
        low, high = -high, -low
    points = 100 * margin
    words = result["verdict"].split(" beyond ")[0].split(" at margin")[0].split(" within")[0]
    agrees = {
        "better": low > 0,
        "regressed": high < 0 and low <= -points,
        "worse": high < 0 and low > -points,
        "no change": -points < low <= 0 <= high < points,
        "not worse": -points < low <= 0 and high >= points,
        "undecided": low <= -points and high >= 0,
        "not testable": low > -points and low <= 0 <= high,
        "higher": low > 0,
        "lower": high < 0,
        "no difference shown": low <= 0 <= high,
    }
    assert agrees[words], (result["verdict"], low, difference, high)


def test_a_rounded_bound_gets_the_digits_that_it_needs() -> None:
    change = {"difference": 0.02, "interval": {"low": 0.0002, "high": 0.0398}}
    assert change_points(change, 0.05) == ("+2.00", "+0.02", "+3.98")
    change = {"difference": 0.0, "interval": {"low": -0.04996, "high": 0.04996}}
    assert change_points(change, 0.05) == ("0.000", f"{MINUS}4.996", "+4.996")
    change = {"difference": -0.1, "interval": {"low": -0.2, "high": 0.0}}
    assert change_points(change, 0.05) == (f"{MINUS}10.0", f"{MINUS}20.0", "0.0")


def test_truncated_and_failed_items_are_counted_apart() -> None:
    after = [Item("a", 0.0, True, False), Item("b", 0.0, False, True), Item("c", 1.0, False, False)]
    result = compare(FACTS, None, after, True)
    assert (result["after"]["truncated"], result["after"]["errors"], result["after"]["correct"]) == (1, 1, 1.0)
    assert (result["before"], result["change"], result["verdict"], result["problems"]) == (None, None, ONCE, 3)
    with pytest.raises(ValueError, match="the item 'a' was evaluated twice"):
        compare(FACTS, None, [after[0], after[0]], True)


@pytest.mark.parametrize(
    ("after", "same_protocol"),
    [
        (items([1, 0]), False),
        (items([1]), True),
        (items([1, 0, 1]), True),
        ([Item("p000", 1, False, False), Item("other", 0, False, False)], True),
        (items([1, 0], cluster="c"), True),
        (items([1, 0], slice="de"), True),
    ],
)
def test_only_like_is_compared_with_like(after: list[Item], same_protocol: bool) -> None:
    result = compare(FACTS, items([1, 0]), after, same_protocol)
    assert (result["verdict"], result["change"], result["non_inferiority"]) == (NOT_COMPARABLE, None, None)
    assert result["before"]["share"] == 0.5


def test_clusters_take_over_where_items_hang_together() -> None:
    """8 problems in 10 languages each, as their own clusters: the error is that of 8, not of 80."""
    before, after = [1.0, 0, 1, 0, 0, 1, 1, 0], [1.0, 0, 0, 0, 1, 1, 1, 0]
    once = compare(FACTS, items(before), items(after), True)
    tenfold = [
        [
            Item(f"{n}-{lang}", score, False, False, cluster=f"c{n}")
            for n, score in enumerate(side)
            for lang in range(10)
        ]
        for side in (before, after)
    ]
    result = compare(FACTS, *tenfold, True)
    change = result["change"]
    assert (change["method"], change["clusters"], change["p_mcnemar"]) == ("clustered", 8, None)
    assert change["difference"] == once["change"]["difference"]
    # 1 fixed, 1 broken: √((2 + 1)/10)/√10 of 8 and 2 pseudo-clusters, t with 7 degrees
    assert change["interval"]["high"] == pytest.approx(2.364624 * (0.3 / 10) ** 0.5, abs=1e-5)
    assert result["before"]["interval"] == pytest.approx(once["before"]["interval"])  # 80 items worth 8
    apart = [[*side[:-1], replace(side[-1], cluster="")] for side in tenfold]
    assert compare(FACTS, *apart, True)["change"]["clusters"] == 9


def test_graded_scores_are_bootstrapped() -> None:
    draw = random.Random(4)
    before = [draw.choice([0.0, 0.25, 0.5, 1.0]) for _ in range(60)]
    after = [min(1.0, one + draw.choice([0.0, 0.0, 0.25])) for one in before]
    result = compare(FACTS, items(before), items(after), True)
    change = result["change"]
    assert (change["method"], change["p_mcnemar"]) == ("bootstrap", None)
    assert change["bootstrap"]["seed"] == seed_of("s") != seed_of("t")
    assert change["bootstrap"]["resamples"] == 9999
    assert change["interval"]["low"] <= change["bootstrap"]["low"] < change["bootstrap"]["high"]
    assert change["interval"]["high"] >= change["bootstrap"]["high"]
    few = compare(FACTS, items([0.1, 0.2, 0.3]), items([0.2, 0.3, 0.4]), True)
    assert few["verdict"] == "undecided at margin 5"


def test_slices_are_told_apart_and_by_name() -> None:
    marks = ["en", "de", "en", "de", ""]
    before = [replace(one, slice=mark) for one, mark in zip(items([1, 1, 0, 0, 1]), marks, strict=True)]
    after = [replace(one, slice=mark) for one, mark in zip(items([1, 0, 1, 0, 1]), marks, strict=True)]
    result = compare(FACTS, before, after, True)
    assert [(one["slice"], one["problems"], one["change"]["difference"]) for one in result["slices"]] == [
        ("", 1, 0.0),
        ("de", 2, -0.5),
        ("en", 2, 0.5),
    ]
    assert compare(FACTS, before, after, False)["slices"][1]["change"] is None
    assert compare(FACTS, None, after, True)["slices"][1]["before"] is None


def test_the_clean_part_leaves_the_touched_items_out() -> None:
    """Two items leaked and were fixed; without them nothing changed."""
    before, after = items([0, 0, 1, 0, 1]), items([1, 1, 1, 0, 1])
    result = compare(FACTS, before, after, True, {"p000", "p001", "elsewhere"})
    clean = result["clean"]
    assert (clean["touched"], clean["touched_ids"], clean["problems"]) == (2, ["p000", "p001"], 3)
    assert (clean["before"]["correct"], clean["after"]["correct"], clean["change"]["difference"]) == (2.0, 2.0, 0.0)
    assert result["change"]["difference"] == pytest.approx(0.4)
    assert compare(FACTS, before, after, True)["clean"] is None  # nobody looked
    nothing = compare(FACTS, before, after, True, set())["clean"]
    assert (nothing["touched"], nothing["problems"], nothing["change"]) == (0, 5, {**result["change"], "p_holm": None})
    gone = compare(FACTS, before, after, True, {one.problem_id for one in after})["clean"]
    assert (gone["touched"], gone["problems"], gone["before"], gone["change"]) == (5, 0, None, None)
    assert Comparison.model_validate(result)


def test_holm_is_over_the_safety_family_alone() -> None:
    """p of 9:1 is 22/1024, of 1:8 20/512, of 2:2 1; the other suites stay out. Holm: 3·0.0215, 2·0.0391, 1."""
    tables = {
        "a": ("jailbreak_robustness", "better", (9, 1)),
        "b": ("performance", "better", (0, 12)),
        "c": ("harmful_capability", "worse", (1, 8)),
        "d": ("hallucination", "neutral", (0, 12)),
        "e": ("refusal_calibration", "better", (2, 2)),
        "f": ("hallucination", "better", None),
    }
    cases = []
    for name, (category, higher_is, table) in tables.items():
        facts = replace(FACTS, suite=name, category=category, higher_is=higher_is)  # type: ignore[arg-type]
        before, after = sides(fixed=table[0], broken=table[1], right=40, wrong=40) if table else (None, items([1]))
        cases.append((facts, before, after, True, None))
    result = {one["suite"]: one["change"] and one["change"]["p_holm"] for one in compare_all(cases)}
    assert result["a"] == pytest.approx(3 * 22 / 1024)
    assert result["c"] == pytest.approx(2 * 20 / 512)
    assert result["e"] == 1.0
    assert (result["b"], result["d"], result["f"]) == (None, None, None)


@settings(max_examples=8)  # each draws four bootstraps
@given(st.lists(st.tuples(st.floats(0, 1), st.floats(0, 1), st.sampled_from(["", "x", "y"])), min_size=1, max_size=8))
def test_the_order_of_items_changes_nothing(given_items: list[tuple[float, float, str]]) -> None:
    before = [Item(f"p{n}", a, False, False, cluster=c, slice=c) for n, (a, _, c) in enumerate(given_items)]
    after = [Item(f"p{n}", b, False, False, cluster=c, slice=c) for n, (_, b, c) in enumerate(given_items)]
    assert compare(FACTS, before, after, True, {"p1"}) == compare(FACTS, before[::-1], after[::-1], True, {"p1"})


LINE = {"suite": "s", "problem_id": "a", "score": 1, "truncated": False, "error": None, "tokens": 3}


def test_lines_of_a_card() -> None:
    assert by_suite([LINE, {**LINE, "cluster": "c", "slice": "de", "error": "ValueError", "score": 0.5}]) == {
        "s": [Item("a", 1.0, False, False), Item("a", 0.5, False, True, "c", "de")]
    }
    with pytest.raises(KeyError):
        by_suite([{"suite": "s"}])


@pytest.mark.parametrize(("field", "value", "error"), cases("records/lines_refused", "field", "value", "error"))
def test_refuses_what_is_no_line(field: str, value: Any, error: str) -> None:
    with pytest.raises({"TypeError": TypeError, "ValueError": ValueError}[error]):
        by_suite([{**LINE, field: value}])
