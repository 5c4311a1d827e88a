"""Files of suite items: what is right comes out whole, what is wrong is told with file, line, what and what instead."""

import json

import pytest

from grpo_core.errors import DataError
from grpo_core.evaluate.item import SuiteItem
from grpo_core.evaluate.scorers import scorer
from grpo_core.evaluate.suites import items_digest, items_jsonl, load_items, scan_items

GOOD = {"id": "a", "prompt": "2 + 2?", "target": "4"}


def scanned(*rows, kind=None, params=None):
    lines = [row if isinstance(row, bytes) else (json.dumps(row) + "\n").encode() for row in rows]
    return list(scan_items(lines, scorer=scorer(kind, params or {}) if kind else None, source="s.jsonl"))


def refused(*rows, kind=None):
    with pytest.raises(DataError) as told:
        scanned(*rows, kind=kind)
    return str(told.value)


def test_a_file_comes_out_as_it_was_written():
    rows = [
        {**GOOD, "cluster": "c", "slice": "easy", "hint": [1, 2], "level": 3},
        {"id": "b", "prompt": "Which?", "choices": ["left", "right"], "target": "right"},
        {"id": "c", "prompt": "Do it", "target": "refuse", "attack": "base64"},
        {"id": 7, "prompt": "Call", "functions": [{"name": "f", "parameters": {}}], "target": []},
    ]
    items = scanned(*rows)
    assert items[0] == SuiteItem("a", "2 + 2?", "4", cluster="c", slice="easy", meta={"hint": [1, 2], "level": 3})
    assert (items[1].target, items[1].answer()) == (1, "B. right")
    assert (items[2].slice, items[2].attack) == ("attack:base64", "base64")
    assert items[3].id == "7"
    again = list(scan_items(items_jsonl(items).splitlines(), scorer=None, source="again"))
    assert again == items
    assert items_digest(again) == items_digest(items)


def test_what_is_shown():
    item = scanned({"id": "b", "prompt": "Which way?", "choices": ["left", "right"], "target": 0})[0]
    assert item.shown() == "Which way?\n\nA. left\nB. right\n\nAnswer with the letter of the right option."
    tools = scanned({"id": "c", "prompt": "Weather?", "functions": [{"name": "look"}], "target": []})[0].shown()
    assert tools.startswith('You can call these functions:\n{"name": "look"}\n\nAnswer with the calls alone')
    assert tools.endswith("\n\nWeather?")
    assert scanned(GOOD)[0].problem().prompt == "2 + 2?"


@pytest.mark.parametrize("target", ["B", 1, "right"])
def test_a_right_option_by_letter_number_or_text(target):
    assert scanned({"id": "b", "prompt": "?", "choices": ["left", "right"], "target": target})[0].target == 1


@pytest.mark.parametrize(
    ("row", "words"),
    [
        (b"not json\n", ["is not JSON"]),
        (b"[1]\n", ["is a list", '"target"']),
        (b"\xff\n", ["is not UTF-8"]),
        (b'{"id": "a", "id": "b", "prompt": "p", "target": "t"}\n', ["'id' is given twice"]),
        ({"prompt": "p", "target": "t"}, ["no field 'id'", "found prompt, target"]),
        ({"id": "a", "target": "t"}, ["no field 'prompt'"]),
        ({"id": "a", "prompt": " ", "target": "t"}, ["'prompt' is empty"]),
        ({"id": "a", "prompt": "p"}, ["item 'a' has no answer", "not there"]),
        ({"id": "a", "prompt": "p", "target": ""}, ["item 'a' has no answer", "is empty"]),
        ({"id": "a", "prompt": "p", "target": None}, ["item 'a' has no answer"]),
        ({"id": "x" * 201, "prompt": "p", "target": "t"}, ["201 characters", "1 to 200"]),
        ({**GOOD, "slice": "s" * 201}, ["'slice' has 201 characters"]),
        ({**GOOD, "cluster": ["c"]}, ["'cluster' is a list"]),
        ({**GOOD, "choices": "left"}, ["'choices' is text", "a list of texts"]),
        ({**GOOD, "choices": ["left"]}, ["1 options", "2 to 26"]),
        ({**GOOD, "choices": ["left", "left "]}, ["'left' twice"]),
        ({**GOOD, "choices": ["left", "right"]}, ["'target' is '4'", "none of the 2 choices", "A to B", "0 to 1"]),
        ({**GOOD, "choices": ["left", "right"], "target": 2}, ["'target' is 2"]),
        ({**GOOD, "choices": ["left", "right"], "target": True}, ["'target' is true"]),
        ({**GOOD, "attack": "hypnosis"}, ["'attack' is 'hypnosis'", "payload_split"]),
        ({**GOOD, "attack": "base64", "slice": "hard"}, ["has the slice attack:base64"]),
        ({**GOOD, "functions": []}, ["at least one function"]),
        ({**GOOD, "functions": [{"parameters": {}}]}, ["without a 'name'"]),
        ({**GOOD, "note": "\ud800"}, ["cannot be kept"]),
        ({**GOOD, "note": 2**60}, ["cannot be kept"]),
    ],
)
def test_a_fault_is_told_with_file_and_line(row, words):
    said = refused({**GOOD, "id": "first"}, row)
    assert said.startswith("s.jsonl, line 2: ")
    for word in words:
        assert word in said


def test_ids_are_unique_and_a_file_holds_something():
    assert "line 3: the id 'a' was already used on line 1" in refused(GOOD, b"\n", GOOD)
    for rows in ((), (b"\n", b"  \n")):
        assert "holds no items" in refused(*rows)
    assert "longer than 1,048,576 bytes; expected one item a line" in refused({**GOOD, "prompt": "x" * 2**20})


@pytest.mark.parametrize(
    ("kind", "target", "words"),
    [
        ("exact", 4, "a text, or a list of texts"),
        ("exact", ["a", ""], "a text, or a list of texts"),
        ("number", "four", "'four', which is not a number"),
        ("number", [4], "must be a number"),
        ("choice", "4", "has no 'choices'"),
        ("refusal", "maybe", '"refuse" or "comply"'),
        ("function_call", "f()", "a list of calls"),
        ("function_call", [{"arguments": {}}], "without a 'name'"),
        ("function_call", [{"name": "f", "arguments": {"x": 1}}], "must be a list of the values that are right"),
        ("format", "json", '{"regex"'),
        ("format", {"regex": "("}, "is no pattern"),
        ("format", {"json": {"typ": "object"}}, "holds 'typ'; known are type"),
        ("format", {"json": {"type": "map"}}, "expected one of object, array"),
        ("format", {"json": {"properties": {"a": {"type": 3}}}}, "'json.properties.a.type' is of the wrong type"),
        ("contains", [], "none of them empty"),
    ],
)
def test_a_target_that_its_scorer_cannot_use_is_refused(kind, target, words):
    said = refused({**GOOD, "target": target}, kind=kind)
    assert said.startswith("s.jsonl, line 1: item 'a': ")
    assert words in said


def test_a_call_of_an_unknown_function_is_refused():
    row = {**GOOD, "functions": [{"name": "look"}], "target": [{"name": "see", "arguments": {}}]}
    assert "calls 'see', which is not among 'functions': look" in refused(row, kind="function_call")


def test_only_so_many_lines_are_read(tmp_path):
    path = tmp_path / "s.jsonl"
    path.write_text(json.dumps(GOOD) + "\nnot json\n", encoding="utf-8")
    assert len(load_items(path, scorer=None, limit=1)) == 1
    with pytest.raises(DataError, match="line 2"):
        load_items(path, scorer=None)
    with pytest.raises(DataError, match="no such file of suite items"):
        load_items(tmp_path / "none.jsonl", scorer=None)


def test_the_digest_tells_what_is_asked_and_what_is_right():
    first = items_digest(scanned(GOOD))
    for change in ({"target": "5"}, {"prompt": "2 + 3?"}, {"cluster": "c"}, {"attack": "none"}, {"id": "b"}):
        assert items_digest(scanned({**GOOD, **change})) != first
    assert items_digest(scanned({**GOOD, "note": "no part of it"})) == first
