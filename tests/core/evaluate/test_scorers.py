"""Each scorer against the cases worked by hand in tests/cases/scorers, and what holds for all of them."""

import pytest

from grpo_core.errors import ConfigError
from grpo_core.evaluate import scorers
from grpo_core.evaluate.item import SuiteItem
from grpo_core.evaluate.scorers import KINDS, Kind, Params, Score, scorer
from grpo_core.evaluate.scorers.calls import Call, calls_in
from tests.tables import cases

FIELDS = ("target", "completion", "params", "choices", "score", "detail", "error", "match")
WAYS = ("left", "right", "straight on", "right at once")
WEATHER = {"name": "weather.get", "parameters": {"properties": {"city": {}, "unit": {}}}}
CALL = [{"name": "f", "arguments": {}}]


def scored(kind, target, completion, *, params=None, choices=None):
    item = SuiteItem("a", "p", target, choices=tuple(choices or ()), functions=(WEATHER,))
    return scorer(kind, params or {}).score(item, completion)


@pytest.mark.parametrize("kind", KINDS)
def test_each_case_earns_its_score(kind):
    wrong = []
    for case in cases(f"scorers/{kind}", *FIELDS):
        target, completion, params, choices, score, detail, error, match = case.values
        result = scored(kind, target, completion, params=params, choices=choices)
        right = [
            result.score == score,
            (result.error or "").partition(":")[0] == (error or ""),
            detail in (None, result.detail),
            (match or "") in result.detail,
        ]
        if not all(right):
            wrong.append((case.id, completion, result))
    assert wrong == []


@pytest.mark.parametrize(("completion", "option"), cases("choice_options", "completion", "option"))
def test_a_choice_is_right_for_the_option_that_is_named_alone(completion, option):
    scores = [scored("choice", number, completion, choices=WAYS).score for number in range(4)]
    assert scores == [float(number == option) for number in range(4)]


@pytest.mark.parametrize(("text", "calls"), cases("function_calls", "text", "calls"))
def test_calls_are_read(text, calls):
    assert calls_in(text, [WEATHER]) == [Call(**call) for call in calls]


@pytest.mark.parametrize("text", ["f(" * 3000 + ")" * 3000, "f(x=" + "-" * 5000 + "1)", "f(x=" + "1" * 30_000 + ")"])
def test_calls_that_would_break_the_parser_are_not_read(text):
    assert calls_in(text, [WEATHER]) == []


def test_what_a_scorer_raises_is_the_item_s_error(monkeypatch):
    def breaks(item, completion, params):
        raise ZeroDivisionError("no such number")

    monkeypatch.setitem(scorers.KINDS, "exact", Kind(Params, breaks, lambda item, params: None, 1))
    assert scored("exact", "a", "a") == Score(0.0, "", "ZeroDivisionError: no such number")
    monkeypatch.setitem(scorers.KINDS, "exact", Kind(Params, lambda *_: Score(1.5), lambda item, params: None, 1))
    assert scored("exact", "a", "a").error.startswith("ValueError: gave 1.5")


@pytest.mark.parametrize("kind", KINDS)
def test_odd_completions_are_scored(kind):
    choices = ("x", "y") if kind == "choice" else None
    targets = {"number": "1", "choice": 0, "refusal": "refuse", "function_call": CALL, "format": {"json": {}}}
    odd = ["", " ", "\x00", "\ud800", "<answer></answer>", "(" * 5000, "-" * 5000, "𝟙𝟚", "[" * 100_000, "1" * 100_000]
    for text in odd:
        result = scored(kind, targets.get(kind, "t"), text, choices=choices)
        assert (result.score, result.error) == (0, None), text[:20]
    assert scored(kind, targets.get(kind, "t"), "[]{}", choices=choices).error is None


def test_a_pattern_that_only_the_other_engine_reads_is_refused_beforehand():
    def fault(pattern):
        return scorer("format", {}).fault(SuiteItem("a", "p", {"regex": pattern}))

    assert fault("a{2}") is None
    assert all("is no pattern" in fault(pattern) for pattern in ("(?<n>a", "["))


def test_the_digest_covers_kind_settings_and_version(monkeypatch):
    first = scorer("number", {}).digest
    assert len(first) == 64
    assert scorer("number", {"tolerance": 0.0}).digest == first  # the default, written out
    assert scorer("number", {"tolerance": 0.1}).digest != first
    assert scorer("exact", {}).digest != scorer("contains", {}).digest
    kind = KINDS["number"]
    monkeypatch.setitem(scorers.KINDS, "number", Kind(kind.params, kind.score, kind.fault, kind.version + 1))
    assert scorer("number", {}).digest != first


@pytest.mark.parametrize(
    ("kind", "params", "match"),
    [
        ("number", {"tolerance": -1}, r"params\.tolerance: "),
        ("number", {"tolerence": 1}, r"params\.tolerence: .* extract, tolerance"),
        ("judge", {}, "'judge'"),
    ],
)
def test_wrong_settings_are_refused_by_their_place(kind, params, match):
    with pytest.raises(ConfigError, match=match):
        scorer(kind, params)
