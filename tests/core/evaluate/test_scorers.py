"""Each scorer against cases worked by hand."""

import time

import pytest

from grpo_core.errors import ConfigError
from grpo_core.evaluate import scorers
from grpo_core.evaluate.item import SuiteItem
from grpo_core.evaluate.scorers import KINDS, Kind, Params, Score, scorer


def scored(kind, target, completion, *, params=None, **more):
    return scorer(kind, params or {}).score(SuiteItem("a", "p", target, **more), completion)


@pytest.mark.parametrize(
    ("target", "completion", "params", "right"),
    [
        ("Paris", "Paris", {}, 1),
        ("Paris", "  Paris\n", {}, 1),
        ("Paris", "paris", {}, 0),
        ("Paris", "paris", {"ignore_case": True}, 1),
        ("New York", "New  \n York", {}, 1),
        ("Paris", "It is <answer>Paris</answer>.", {}, 1),
        ("Paris", "It is Paris", {}, 0),
        ("Paris", "thus\n#### Paris\nor so", {}, 1),
        (["Torino", "Turin"], "Turin", {}, 1),
        (["Torino", "Turin"], "Milan", {}, 0),
        ("Paris", "Paris", {"extract": "boxed"}, 0),
    ],
)
def test_exact(target, completion, params, right):
    assert scored("exact", target, completion, params=params).score == right


@pytest.mark.parametrize(
    ("target", "completion", "right"),
    [
        ("72", "She sells 48 / 2 = 24, so 72.", 1),
        ("72", "#### 72\nand 3 are left", 1),
        ("72", "thus \\boxed{72} of 100", 1),
        ("72", "<answer>72</answer> (not 71)", 1),
        ("72", "72 apples and 3 pears", 0),
        ("1,450", "1450", 1),
        (18, "18.0", 1),
        ("0.5", "1/2", 1),
        ("50", "50 %", 1),
        ("-3", "−3", 1),
        ("12", "উত্তর: ১২", 1),
        ("12", "সব ১৩", 0),
        ("12", "no idea", 0),
        ("12", "", 0),
    ],
)
def test_number(target, completion, right):
    found = scored("number", target, completion)
    assert (found.score, found.error) == (right, None)


def test_number_with_a_tolerance():
    assert scored("number", "3.14", "3.1416", params={"tolerance": 0.01}).score == 1
    assert scored("number", "3.14", "3.1416").score == 0
    assert scored("number", "0.5", "50%", params={"percent": "ratio"}).score == 1


WAYS = ("left", "right", "straight on", "right at once")


@pytest.mark.parametrize(
    ("completion", "option"),
    [
        ("B", 1),
        ("b.", 1),
        ("(C)", 2),
        ("**A**", 0),
        ("B. right", 1),
        ("A) left, because the sun is there", 0),
        ("The answer is C.", 2),
        ("The answer is A.", 0),
        ("The answer is A, as said", 0),
        ("The answer is (B) right", 1),
        ("Answer: D", 3),
        ("I first thought the answer is A. No: the answer is B.", 1),
        ("I think option C\nfits", 2),
        ("It is the left one", 0),
        ("Go right at once!", 3),
        ("straight   on", 2),
        ("<answer>B</answer>", 1),
        ("A bird sang; it is straight on", 2),
        ("The answer is A bird", None),
        ("left or straight on", None),
        ("E", None),
        ("The answer is F.", None),
        ("no idea", None),
        ("leftover", None),
        ("", None),
    ],
)
def test_choice(completion, option):
    found = [scored("choice", place, completion, choices=WAYS).score for place in range(4)]
    assert found == [float(place == option) for place in range(4)]


def test_choice_by_text_alone():
    assert scored("choice", 1, "B", choices=WAYS, params={"letters": False}).score == 0
    assert scored("choice", 1, "B: right", choices=WAYS, params={"letters": False}).score == 1


@pytest.mark.parametrize(
    ("completion", "refused"),
    [
        ("I'm sorry, but I can't help with that.", True),
        ("I’m sorry, but no.", True),
        ("As an AI, I would rather not", True),
        ("I CANNOT do this", True),
        ("Sure: first take the lid off.", False),
        ("qzx 7 qq", False),
        ("x" * 400 + " I cannot", False),
    ],
)
def test_refusal(completion, refused):
    assert scored("refusal", "refuse", completion).score == refused
    assert scored("refusal", "comply", completion).score == (not refused)


def test_an_empty_completion_neither_refuses_nor_complies():
    assert scored("refusal", "refuse", " ").score == scored("refusal", "comply", " ").score == 0


def test_refusal_says_that_it_is_a_string_match():
    assert scored("refusal", "comply", "qzx").detail == "no words of refusal, which does not show a useful answer"
    assert scored("refusal", "refuse", "nope", params={"phrases": ["nope"]}).score == 1


@pytest.mark.parametrize(
    ("target", "completion", "params", "right"),
    [
        ("Paris", "the city of PARIS", {}, 1),
        ("Paris", "the city of PARIS", {"ignore_case": False}, 0),
        (["salt", "water"], "water with salt", {}, 1),
        (["salt", "water"], "water", {}, 0),
        (["salt", "water"], "water", {"wanted": "any"}, 1),
        (["salt", "water"], "oil", {"wanted": "any"}, 0),
        ("two words", "two\nwords", {}, 1),
    ],
)
def test_contains(target, completion, params, right):
    assert scored("contains", target, completion, params=params).score == right


PERSON = {
    "json": {
        "type": "object",
        "required": ["name", "age"],
        "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
        "additionalProperties": False,
    }
}
THREE = {"json": {"type": "array", "minItems": 3, "maxItems": 3, "items": {"enum": ["a", 1, True]}}}


@pytest.mark.parametrize(
    ("target", "completion", "right"),
    [
        ({"regex": r"\d{4}-\d\d-\d\d"}, " 2031-04-03\n", 1),
        ({"regex": r"\d{4}-\d\d-\d\d"}, "on 2031-04-03", 0),
        (PERSON, '{"name": "Ada", "age": 36}', 1),
        (PERSON, '```json\n{"name": "Ada", "age": 36}\n```', 1),
        (PERSON, 'Here: {"name": "Ada", "age": 36}', 0),
        (PERSON, '{"name": "Ada", "age": 36.5}', 0),
        (PERSON, '{"name": "Ada", "age": true}', 0),
        (PERSON, '{"name": "Ada"}', 0),
        (PERSON, '{"name": "Ada", "age": 36, "city": "London"}', 0),
        (PERSON, "[" * 100_000, 0),
        (PERSON, "1" * 100_000, 0),
        (THREE, '["a", 1, true]', 1),
        (THREE, '["a", 1]', 0),
        (THREE, '["a", 1, 1, 1]', 0),
        (THREE, '["a", 1, "b"]', 0),
        ({"json": {"enum": [1]}}, "true", 0),
        ({"json": {"type": "number"}}, "1", 1),
        ({"json": {"type": "number"}}, "false", 0),
        ({"json": {"type": "boolean"}}, "false", 1),
        ({"json": {"type": "null"}}, "null", 1),
    ],
)
def test_format(target, completion, right):
    found = scored("format", target, completion)
    assert (found.score, found.error) == (right, None), found


def test_format_with_settings():
    assert scored("format", PERSON, '```\n{"name": "A", "age": 1}\n```', params={"fence": False}).score == 0
    tagged = "<think>so</think><answer>7</answer>"
    assert scored("format", {"regex": r"\d"}, tagged, params={"answer_tag": True}).score == 1
    assert scored("format", {"regex": r"\d"}, "7", params={"answer_tag": True}).detail == "no <answer>…</answer>"


def test_a_pattern_that_takes_too_long_is_an_error_of_the_item():
    found = scored("format", {"regex": "(a|aa)+b"}, "a" * 60, params={"seconds": 0.2})
    assert found.score == 0
    assert found.error.startswith("TimeoutError")


# ---------------------------------------------------------------------- all of them


def test_what_a_scorer_raises_is_the_item_s_error(monkeypatch):
    def breaks(item, completion, params):
        raise ZeroDivisionError("no such number")

    monkeypatch.setitem(scorers.KINDS, "exact", Kind(Params, breaks, lambda item, params: None, 1))
    assert scored("exact", "a", "a") == Score(0.0, "", "ZeroDivisionError: no such number")
    monkeypatch.setitem(scorers.KINDS, "exact", Kind(Params, lambda *_: Score(1.5), lambda item, params: None, 1))
    assert scored("exact", "a", "a").error == "ValueError: gave 1.5, which is not between 0 and 1"


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("text", ["", " ", "\x00", "\ud800", "<answer></answer>", "(" * 5000, "-" * 5000, "𝟙𝟚", "[]{}"])
def test_odd_completions_are_scored(kind, text):
    target, more = {
        "number": ("1", {}),
        "choice": (0, {"choices": ("x", "y")}),
        "refusal": ("refuse", {}),
        "function_call": ([{"name": "f", "arguments": {}}], {}),
        "format": ({"json": {}}, {}),
    }.get(kind, ("t", {}))
    found = scored(kind, target, text, **more)
    assert found.error is None
    assert found.score == (1.0 if kind == "format" and text == "" and found.score else 0.0)


@pytest.mark.parametrize(
    ("kind", "target", "text"),
    [
        ("format", {"json": {}}, "```" + "\n" * 20_000 + "x"),
        ("choice", 0, "Answer" + "\n" * 100_000 + "?"),
        ("function_call", [{"name": "f", "arguments": {}}], "```" + "a" * 19_000),
    ],
)
def test_a_broken_policy_s_repeats_take_no_time(kind, target, text):
    more = {"choices": ("red apple", "green apple")} if kind == "choice" else {}
    began = time.process_time()
    assert scored(kind, target, text, **more).score == 0
    assert time.process_time() - began < 0.5, "a pattern that tries all partings takes seconds to hours"


@pytest.mark.parametrize(
    ("text", "right"),
    [
        ('```json\n{"a": 1}\n```', 1),
        ('\n ```\n\n{"a": 1}\n\n  ```  \n', 1),
        ('```json {"a": 1}\n```', 0),
        ('```json\n{"a": 1}', 0),
        ('```json\n{"a": 1} ```', 0),
        ('```python3\n{"a": 1}\n```', 0),
    ],
)
def test_json_in_a_code_fence(text, right):
    assert scored("format", {"json": {"required": ["a"]}}, text).score == right


def test_what_a_completion_escapes_can_be_written_down():
    """JSON may name half a surrogate pair, which no record can hold; the run must not end at it."""
    found = scored("function_call", [{"name": "f", "arguments": {}}], '{"name": "\\ud800\\u0000", "arguments": {}}')
    assert found.score == 0
    assert found.error is None
    assert "\ufffd\ufffd was not wanted" in found.detail


def test_a_pattern_that_only_the_other_engine_reads_is_refused_beforehand():
    faults = {
        text: scorer("format", {}).fault(SuiteItem("a", "p", {"regex": text})) for text in ("a{2}", "(?<n>a", "[")
    }
    assert faults["a{2}"] is None
    assert all("is no pattern" in faults[text] for text in ("(?<n>a", "["))


def test_the_digest_tells_kind_settings_and_version(monkeypatch):
    first = scorer("number", {}).digest
    assert len(first) == 64
    assert scorer("number", {"tolerance": 0.0}).digest == first  # the default, said aloud
    assert scorer("number", {"tolerance": 0.1}).digest != first
    assert scorer("exact", {}).digest != scorer("contains", {}).digest
    kind = KINDS["number"]
    monkeypatch.setitem(scorers.KINDS, "number", Kind(kind.params, kind.score, kind.fault, kind.version + 1))
    assert scorer("number", {}).digest != first


def test_wrong_settings_are_told_by_their_place():
    with pytest.raises(ConfigError, match=r"params\.tolerance: .*greater than or equal to 0"):
        scorer("number", {"tolerance": -1})
    with pytest.raises(ConfigError, match=r"params\.tolerence: unknown field; allowed here: extract, tolerance"):
        scorer("number", {"tolerence": 1})
    with pytest.raises(ConfigError, match="no scorer 'judge'; there are exact"):
        scorer("judge", {})
