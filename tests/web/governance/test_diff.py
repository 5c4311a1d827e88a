"""The difference of two records, as pure data: what is added, removed, changed, withheld, by hand-worked cases."""

import copy
import json
from typing import Any

import pytest

from cohort.evidence.record import redact
from cohort.governance.diff.compare import Diff, FieldDiff, diff
from cohort.governance.diff.export import to_json, to_markdown
from cohort.governance.diff.highlight import marked
from cohort.governance.diff.reading import NotARecord
from cohort.governance.diff.values import Change, Kind, changes
from tests.web.governance.made_reading import HOSTILE, comparison, document, entry


def with_entry(whole: dict[str, Any], path: str, **changed: Any) -> dict[str, Any]:
    """A copy in which this field says something else."""
    section, _, name = path.partition(".")
    made = copy.deepcopy(whole)
    made["sections"][section][name] |= changed
    return {**made, "seal": "f" * 64}


def of(found: Diff, path: str) -> FieldDiff:
    section, _, name = path.partition(".")
    return next(one for part in found.sections if part.name == section for one in part.fields if one.name == name)


@pytest.fixture
def first() -> dict[str, Any]:
    return document(text="said", method__config=entry("the config", {"optim": {"steps": 3, "lr": 0.1}, "seed": 0}))


def test_a_record_differs_not_from_itself(first: dict[str, Any]) -> None:
    found = diff(first, first)
    assert found.identical
    assert {kind: count for kind, count in found.counts.items() if count} == {
        Kind.EQUAL: sum(len(part) for part in first["sections"].values())
    }
    assert (found.head, found.differing_files) == ((), ())


def test_salts_are_no_difference() -> None:
    found = diff(document(text="said"), document(text="said"))
    assert found.counts[Kind.CHANGED] == 0
    assert not found.identical, "salts differ, so the seals do"


@pytest.mark.parametrize(
    ("before", "after", "wanted"),
    [
        (3, 4, [Change("", Kind.CHANGED, 3, 4)]),
        ({"a": {"b": 1}}, {"a": {"b": 2}}, [Change("a.b", Kind.CHANGED, 1, 2)]),
        ({"a": 1}, {"b": 1}, [Change("a", Kind.REMOVED, before=1), Change("b", Kind.ADDED, after=1)]),
        ([{"w": 1}, {"w": 2}], [{"w": 1}, {"w": 3}], [Change("[1].w", Kind.CHANGED, 2, 3)]),
        ([{"w": 1}], [{"w": 1}, {"w": 2}], [Change("[1]", Kind.ADDED, after={"w": 2})]),
        ({"x": [1, 2]}, {"x": [2, 1]}, [Change("x", Kind.CHANGED, [1, 2], [2, 1])]),
        (None, {"a": 1}, [Change("", Kind.CHANGED, None, {"a": 1})]),
        (1, True, [Change("", Kind.CHANGED, 1, True)]),
        (1, 1.0, []),
        ("", None, [Change("", Kind.CHANGED, "", None)]),
        ({}, {}, []),
    ],
)
def test_values_by_dotted_path(before: Any, after: Any, wanted: list[Change]) -> None:
    assert list(changes(before, after)) == wanted


@pytest.mark.parametrize(
    ("before", "after", "wanted"), [(3, 4, 1), (0.1, 0.3, 0.2), (4, 1.5, -2.5), ("a", 1, None), (True, 2, None)]
)
def test_numbers_have_a_difference(before: Any, after: Any, wanted: float | None) -> None:
    assert Change("x", Kind.CHANGED, before, after).difference == wanted


def test_a_changed_config_is_told_place_by_place(first: dict[str, Any]) -> None:
    second = with_entry(first, "method.config", value={"optim": {"steps": 5, "lr": 0.1}, "extra": 1})
    found = of(diff(first, second), "method.config")
    assert found.kind == Kind.CHANGED
    assert found.values == (
        Change("optim.steps", Kind.CHANGED, 3, 5),
        Change("seed", Kind.REMOVED, before=0),
        Change("extra", Kind.ADDED, after=1),
    )
    assert not found.words_differ


def test_sealed_configs_are_compared_where_they_are_given(first: dict[str, Any]) -> None:
    second = with_entry(first, "method.config", value={"sha256": "b" * 64}, text="config.yaml, sha256 bbbb")
    configs = {"optim": {"steps": 3}, "seed": 0}, {"optim": {"steps": 5}, "seed": 0}
    found = of(diff(first, second, configs), "method.config")
    assert found.values == (Change("optim.steps", Kind.CHANGED, 3, 5),)
    assert all(one.kind == Kind.EQUAL for one in diff(first, first, configs).sections[0].fields)


def test_source_note_and_audience_are_told(first: dict[str, Any]) -> None:
    second = with_entry(
        first, "data.prompts", source="stated by ada", evidence="stated", note="new", audience="internal"
    )
    assert [one.path for one in of(diff(first, second), "data.prompts").marks] == [
        "source", "evidence", "audience", "note",
    ]  # fmt: skip


def test_a_field_that_only_one_has(first: dict[str, Any]) -> None:
    second = copy.deepcopy(first)
    del second["sections"]["reward"]["source"]
    assert of(diff(first, second), "reward.source").kind == Kind.REMOVED
    added = of(diff(second, first), "reward.source")
    assert (added.kind, added.before, added.after) == (Kind.ADDED, None, "said")


def test_withheld_is_told_and_never_guessed(first: dict[str, Any]) -> None:
    public = redact(first, "public")
    one_side = of(diff(first, public), "subject.attempts")  # for authorities
    assert (one_side.kind, one_side.before, one_side.after, one_side.withheld) == (Kind.WITHHELD, "said", None, "after")
    both = of(diff(public, public), "subject.attempts")
    assert (both.kind, both.withheld) == (Kind.EQUAL, "both")
    other = of(diff(public, redact(document(text="said"), "public")), "subject.attempts")
    assert (other.kind, other.withheld) == (Kind.WITHHELD, "both"), "other salts: nobody can say whether it changed"


def test_suites_row_by_row(first: dict[str, Any]) -> None:
    better = {
        **comparison(),
        "after": {**comparison()["after"], "share": 0.85, "correct": 85.0},
        "verdict": "regressed",
    }
    second = with_entry(first, "behaviour.performance", value=[better, comparison("new suite")])
    section = next(one for one in diff(first, second).sections if one.name == "behaviour")
    by_name = {one.suite: one for one in section.suites}
    assert {name: one.kind for name, one in by_name.items()} == {
        "heldout": Kind.CHANGED, "new suite": Kind.ADDED, "format": Kind.REMOVED,
    }  # fmt: skip
    cells = {cell.name: (cell.before, cell.after, cell.difference) for cell in by_name["heldout"].cells}
    assert cells["share after"] == (0.8, 0.85, 0.05)
    assert cells["verdict"] == ("better", "regressed", None)
    assert cells["problems"] == (100, 100, 0)
    assert [one.path for one in by_name["heldout"].others] == ["after.correct"]


def test_files(first: dict[str, Any]) -> None:
    def file(path: str, digest: str) -> dict[str, Any]:
        return {"path": path, "sha256": digest * 64, "size": 1, "audience": "public"}

    a = {**first, "files": [file("config.yaml", "a"), file("gone.jsonl", "b"), file("same", "c")]}
    b = {**first, "files": [file("config.yaml", "d"), file("new.jsonl", "b"), file("same", "c")]}
    assert [(one.path, one.kind) for one in diff(a, b).files] == [
        ("config.yaml", Kind.CHANGED),
        ("gone.jsonl", Kind.REMOVED),
        ("new.jsonl", Kind.ADDED),
        ("same", Kind.EQUAL),
    ]


def test_a_record_of_the_first_schema_against_one_of_today(first: dict[str, Any]) -> None:
    old = {
        "schema": "cohort-record/1",
        "record": {
            "title": "said", "sealed_at": "2026-11-01T10:00:00Z", "state": "failed", "data_files_digest": "0" * 64,
            "data": {"prompts": {"value": 1, "text": "said", "source": "measured", "evidence": "reported", "note": ""}},
            "budget": {"superseded": None},
        },
        "record_digest": "0" * 64, "files": [], "seal": "1" * 64,
    }  # fmt: skip
    second = with_entry(first, "data.prompts", value=1, text="said")
    found = diff(old, second)
    assert of(found, "data.prompts").kind == Kind.EQUAL, "it named no audience, which is no change of it"
    assert of(found, "budget.superseded").kind == Kind.ADDED
    assert [one.path for one in found.head] == ["sealed_at", "state", "run", "end", "version"]


def test_what_is_no_record_is_refused() -> None:
    with pytest.raises(NotARecord, match="'cohort-record/3' is no schema"):
        diff({"schema": "cohort-record/3"}, {})


def test_words_that_differ_are_marked_and_nothing_is_lost() -> None:
    before, after = "3 steps of 8 prompts, β 0.04", "5 steps of 8 prompts,\n β 0"
    left, right = marked(before, after)
    assert "".join(one.text for one in left) == before
    assert "".join(one.text for one in right) == after
    assert next(one.text for one in left if one.differs) == "3"
    assert next(one.text for one in right if one.differs) == "5"
    assert any(not one.differs and "steps of 8 prompts" in one.text for one in left)


@pytest.mark.parametrize("words", ["ab", "abc"])
def test_no_text_takes_long_to_mark(words: str) -> None:
    """Two texts of 740 other words; two of few words said over and over. Where the marking is not bounded, each takes
    half a minute, and a hundred of them the better part of an hour."""
    other = " ".join(f"a{number}" for number in range(740)), " ".join(f"b{number}" for number in range(740))
    over = " ".join(words * (740 // len(words))), " ".join(("z" + words) * (740 // (1 + len(words))))
    for before, after in (other, over) * 50:
        left, right = marked(before, after)
        assert ("".join(one.text for one in left), "".join(one.text for one in right)) == (before, after)


def test_long_texts_stand_unmarked() -> None:
    left, right = marked("a " * 10_000, "b " * 10_000)
    assert (len(left), len(right)) == (1, 1)
    assert not left[0].differs


# ---------------------------------------------------------------------- files to keep


def test_json_file_holds_all_that_differs(first: dict[str, Any]) -> None:
    second = with_entry(first, "method.config", value={"optim": {"steps": 5, "lr": 0.1}, "seed": 0})
    found = json.loads(to_json(diff(first, second)))
    assert found["schema"] == "cohort-record-diff/1"
    assert (found["before"]["seal"], found["after"]["seal"]) == (first["seal"], "f" * 64)
    values = found["sections"]["method"]["fields"]["config"]["values"]
    assert values == [{"path": "optim.steps", "kind": "changed", "before": 3, "after": 5, "difference": 2}]
    assert "config" not in found["sections"]["method"]["equal"]
    assert "loss" in found["sections"]["method"]["equal"]


def test_markdown_file_in_words(first: dict[str, Any]) -> None:
    second = with_entry(first, "method.config", value={"optim": {"steps": 1, "lr": 0.1}, "seed": 0}, text="another")
    text = to_markdown(diff(first, second))
    for words in (
        "- fields: 1 changed, 0 added",
        "### ≠ Complete config (changed)",
        "- before: the config",
        "- after: another",
        "| ≠ changed | optim.steps | 3 | 1 | −2 |",
        "## Reward\n\nNo difference.",
    ):
        assert words in text


def test_markdown_takes_no_markup_from_what_people_wrote(first: dict[str, Any]) -> None:
    hostile = HOSTILE.replace("\ud800", "")
    text = to_markdown(diff(first, with_entry(first, "data.prompts", text=hostile, note=hostile)))
    assert "<script>" not in text
    assert "[x](" not in text
    assert "\u202e" not in text
    assert "\x1b" not in text
    assert "\\|" in next(one for one in text.splitlines() if one.startswith("- after: \\<script"))
