"""Files of suite items: right ones come out whole; faults are reported with file, line, item and what is expected."""

import json

import pytest

from grpo_core.errors import DataError
from grpo_core.evaluate.item import SuiteItem
from grpo_core.evaluate.scorers import scorer
from grpo_core.evaluate.suites import items_digest, items_jsonl, load_items, scan_items
from tests.tables import cases

GOOD = {"id": "a", "prompt": "2 + 2?", "target": "4"}


def scanned(*rows, kind=None):
    """The items of lines, each bytes, text, or what is written as JSON."""
    lines = []
    for row in rows:
        text = row if isinstance(row, str | bytes) else json.dumps(row) + "\n"
        lines.append(text if isinstance(text, bytes) else text.encode())
    return list(scan_items(lines, scorer=scorer(kind, {}) if kind else None, source="s.jsonl"))


def refused(*rows, kind=None):
    with pytest.raises(DataError) as caught:
        scanned(*rows, kind=kind)
    return str(caught.value)


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
    (item,) = scanned({"id": "b", "prompt": "Which way?", "choices": ["left", "right"], "target": 0})
    assert item.shown() == "Which way?\n\nA. left\nB. right\n\nAnswer with the letter of the right option."
    (tools,) = scanned({"id": "c", "prompt": "Weather?", "functions": [{"name": "look"}], "target": []})
    assert '\n{"name": "look"}\n\n' in tools.shown()
    assert tools.shown().endswith("\n\nWeather?")
    assert scanned(GOOD)[0].problem().prompt == "2 + 2?"


@pytest.mark.parametrize("target", ["B", 1, "right"])
def test_a_right_option_by_letter_number_or_text(target):
    assert scanned({"id": "b", "prompt": "?", "choices": ["left", "right"], "target": target})[0].target == 1


@pytest.mark.parametrize(
    ("row", "match"),
    [
        *cases("suite_items_refused", "row", "match"),
        pytest.param(b"\xff\n", ["is not UTF-8"], id="bytes"),
        pytest.param({**GOOD, "id": "x" * 201}, ["201 characters", "1 to 200"], id="long id"),
        pytest.param({**GOOD, "slice": "s" * 201}, ["'slice' has 201 characters"], id="long slice"),
    ],
)
def test_a_fault_is_reported_with_file_and_line(row, match):
    message = refused({**GOOD, "id": "first"}, row)
    assert message.startswith("s.jsonl, line 2: ")
    assert all(word in message for word in match), message


def test_ids_are_unique_and_a_file_holds_something():
    assert "line 3: the id 'a' was already used on line 1" in refused(GOOD, b"\n", GOOD)
    for rows in ((), (b"\n", b"  \n")):
        assert "holds no items" in refused(*rows)
    assert "longer than 1,048,576 bytes" in refused({**GOOD, "prompt": "x" * 2**20})


@pytest.mark.parametrize(
    ("kind", "target", "functions", "match"),
    cases("suite_targets_refused", "kind", "target", "functions", "match"),
)
def test_a_target_that_its_scorer_cannot_use_is_refused(kind, target, functions, match):
    more = {"functions": functions} if functions else {}
    message = refused({**GOOD, "target": target, **more}, kind=kind)
    assert message.startswith("s.jsonl, line 1: item 'a': ")
    assert match in message


def test_only_so_many_lines_are_read(tmp_path):
    path = tmp_path / "s.jsonl"
    path.write_text(json.dumps(GOOD) + "\nnot json\n", encoding="utf-8")
    assert len(load_items(path, scorer=None, limit=1)) == 1
    with pytest.raises(DataError, match="line 2"):
        load_items(path, scorer=None)
    with pytest.raises(DataError, match="no such file"):
        load_items(tmp_path / "none.jsonl", scorer=None)


def test_the_digest_covers_what_is_asked_and_what_is_right():
    first = items_digest(scanned(GOOD))
    for change in ({"target": "5"}, {"prompt": "2 + 3?"}, {"cluster": "c"}, {"attack": "none"}, {"id": "b"}):
        assert items_digest(scanned({**GOOD, **change})) != first
    assert items_digest(scanned({**GOOD, "note": "no part of it"})) == first
