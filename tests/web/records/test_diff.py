"""The difference of two records: what is added, removed, changed, withheld; its page and its files."""

import copy
import json
from collections.abc import Callable
from typing import Any

import pytest

from cohort.base import artifacts
from cohort.evidence.record import redact
from cohort.records.diff.compare import Diff, FieldDiff, NotARecord, diff, read
from cohort.records.diff.side_by_side import side_by_side
from cohort.records.diff.values import MISSING, Change, Kind, changes, places
from cohort.records.diff.words import value_words
from cohort.records.models import Record
from cohort.runs.models import Run
from cohort.web.diff import views
from cohort.web.diff.export import to_document, to_markdown
from cohort.web.diff.settings_rows import settings_rows
from cohort.web.diff.shown import marked
from tests.factories import sealed_run
from tests.factories.documents import HOSTILE, comparison, document, entry
from tests.tables import cases
from tests.web.pages import html
from tests.web.records.conftest import World
from tests.web.records.records import logged, page_text, put, stripped

CONFIG = {"optim": {"steps": 3, "lr": 0.1}, "seed": 0}


def with_entry(whole: dict[str, Any], path: str, **changed: Any) -> dict[str, Any]:
    """A copy in which this field says something else."""
    section, _, name = path.partition(".")
    made = copy.deepcopy(whole)
    made["sections"][section][name] |= changed
    return {**made, "seal": "f" * 64}


def of(difference: Diff, path: str) -> FieldDiff:
    section, _, name = path.partition(".")
    return next(one for part in difference.sections if part.name == section for one in part.fields if one.name == name)


@pytest.fixture
def first() -> dict[str, Any]:
    return document(text="said", method__config=entry("the config", CONFIG))


def test_a_record_differs_not_from_itself(first: dict[str, Any]) -> None:
    difference = diff(first, first)
    assert difference.identical
    equal = sum(len(part) for part in first["sections"].values())
    assert {kind: count for kind, count in difference.counts.items() if count} == {Kind.EQUAL: equal}
    assert (difference.head, difference.differing_files) == ((), ())
    salted = diff(document(text="said"), document(text="said"))
    assert (salted.counts[Kind.CHANGED], salted.identical) == (0, False), "salts differ, so the seals do"


@pytest.mark.parametrize(("before", "after", "wanted"), cases("records/value_changes", "before", "after", "changes"))
def test_values_by_dotted_path(before: Any, after: Any, wanted: list[Any]) -> None:
    difference = [[change.path, change.kind.value, change.before, change.after] for change in changes(before, after)]
    assert (difference, str(difference)) == (wanted, str(wanted)), "1 is not true"


@pytest.mark.parametrize(("values", "wanted"), cases("records/place_words", "values", "places"))
def test_places_and_values_are_words(values: list[Any], wanted: list[list[str | None]]) -> None:
    differing = [
        [at.words, *(None if value is MISSING else value_words(value, at.path) for value in at.values)]
        for at in places(values, noun="attempts")
    ]
    assert differing == wanted


@pytest.mark.parametrize(
    ("before", "after", "wanted"), [(3, 4, 1), (0.1, 0.3, 0.2), (4, 1.5, -2.5), ("a", 1, None), (True, 2, None)]
)
def test_numbers_have_a_difference(before: Any, after: Any, wanted: float | None) -> None:
    assert Change("x", Kind.CHANGED, before, after).difference == wanted
    assert Change("attempts[0].run", Kind.CHANGED, before, after).difference is None


def test_a_changed_added_or_removed_field(first: dict[str, Any]) -> None:
    second = with_entry(first, "method.config", value={"optim": {"steps": 5, "lr": 0.1}, "extra": 1})
    difference = of(diff(first, second), "method.config")
    assert [(change.path, change.kind) for change in difference.values] == [
        *(("optim.steps", Kind.CHANGED), ("seed", Kind.REMOVED), ("extra", Kind.ADDED))
    ]
    assert (difference.kind, difference.words_differ) == (Kind.CHANGED, False)
    digest = with_entry(first, "method.config", value={"sha256": "b" * 64}, text="config.yaml, sha256 bbbb")
    configs = {"optim": {"steps": 3}, "seed": 0}, {"optim": {"steps": 5}, "seed": 0}
    assert of(diff(first, digest, configs), "method.config").values == (Change("optim.steps", Kind.CHANGED, 3, 5),)
    marks = {"source": "stated by ada", "evidence": "stated", "audience": "internal", "note": "new"}
    marked_field = of(diff(first, with_entry(first, "data.prompts", **marks)), "data.prompts")
    assert [mark.path for mark in marked_field.marks] == list(marks)
    del second["sections"]["reward"]["source"]
    assert of(diff(first, second), "reward.source").kind == Kind.REMOVED
    added = of(diff(second, first), "reward.source")
    assert (added.kind, added.before, added.after) == (Kind.ADDED, None, "said")


def test_what_people_chose_comes_first_and_digests_last(first: dict[str, Any]) -> None:
    """Three records: of the same model under other digests, with other settings, and with other words."""
    base = {"source": "org/tiny", "weights": {"model.safetensors": "e" * 64}}
    documents = [
        first,
        with_entry(first, "subject.base_model", value=base, text="tiny: org/tiny at abc"),
        with_entry(
            with_entry(first, "budget.time", text="40 s"), "data.prompts", text=f"30 problems, sha256 {'b' * 64}"
        ),
    ]
    configs = [
        {"engine": {"threads": 1}, "optim": {"steps": 3}, "seed": 0},
        {"engine": {"threads": 2}, "optim": {"steps": 3}, "seed": 1},
        {"engine": {"threads": 1}, "optim": {"steps": 5}, "seed": 0},
    ]
    table = side_by_side([read(each) for each in documents], settings_rows(configs))
    chosen = {row.path: row.cells for row in table.chosen}
    model = ["subject.base_model.revision", "subject.base_model.architecture"]
    assert list(chosen) == [*model, "data.prompts", "optim.steps", "seed", "engine.threads"]
    assert chosen["data.prompts"] == ("20 problems", "20 problems", "30 problems, sha256 …")
    assert [(group.title, [row.path for row in group.rows]) for group in table.rest if group.rows] == [
        ("Training budget", ["budget.time"])
    ]
    assert "Time and device" not in next(group.equal for group in table.rest if group.title == "Training budget")
    assert table.equal == sum(len(group.equal) for group in table.rest)
    steps = next(row for row in table.chosen if row.path == "optim.steps")
    assert steps.marked == [("3", False, ""), ("3", False, ""), ("5", True, "+2")]
    assert [group.title for group in table.results] == ["Outcome", "heldout", "format"]
    figures = {row.label: row.cells[0] for row in table.results[1].rows}
    assert figures["difference in points, 95 %"] == "+50.0 [+39.0, +60.0]"
    digests = {row.path: row.cells for row in table.digests}
    weights = "subject.base_model.weights.model.safetensors"
    assert (list(digests), digests[weights][1]) == (["seal", weights], "e" * 64)


def test_withheld_is_told_and_never_guessed(first: dict[str, Any]) -> None:
    public = redact(first, "public")
    one_side = of(diff(first, public), "subject.attempts")  # for authorities
    assert (one_side.kind, one_side.before, one_side.after, one_side.withheld) == (Kind.WITHHELD, "said", None, "after")
    both = of(diff(public, public), "subject.attempts")
    assert (both.kind, both.withheld) == (Kind.EQUAL, "both")
    other = of(diff(public, redact(document(text="said"), "public")), "subject.attempts")
    assert (other.kind, other.withheld) == (Kind.WITHHELD, "both"), "other salts: nobody can say whether it changed"


def test_suites_and_files_row_by_row(first: dict[str, Any]) -> None:
    later = {**comparison()["after"], "share": 0.85, "correct": 85.0}
    suites = [{**comparison(), "after": later, "verdict": "regressed"}, comparison("new suite")]
    second = with_entry(first, "behaviour.performance", value=suites)

    def files(**digests: str) -> list[dict[str, Any]]:
        return [{"path": path, "sha256": d * 64, "size": 1, "audience": "public"} for path, d in digests.items()]

    before = {**first, "files": files(config="a", gone="b", same="c")}
    difference = diff(before, {**second, "files": files(config="d", new="b", same="c")})
    by_name = {suite.suite: suite for part in difference.sections if part.name == "behaviour" for suite in part.suites}
    kinds = {"heldout": Kind.CHANGED, "new suite": Kind.ADDED, "format": Kind.REMOVED}
    assert {name: suite.kind for name, suite in by_name.items()} == kinds
    cells = {cell.name: (cell.before, cell.after, cell.difference) for cell in by_name["heldout"].cells}
    assert cells["share after"] == (0.8, 0.85, 0.05)
    assert cells["verdict"] == ("better", "regressed", None)
    assert cells["problems"] == (100, 100, 0)
    assert [change.path for change in by_name["heldout"].others] == ["after.correct"]
    file_kinds = {file.path: file.kind.value for file in difference.files}
    assert file_kinds == {"config": "changed", "gone": "removed", "new": "added", "same": "equal"}


def test_words_that_differ_are_marked_and_nothing_is_lost() -> None:
    before, after = "3 steps of 8 prompts, β 0.04", "5 steps of 8 prompts,\n β 0"
    left, right = marked(before, after)
    assert ("".join(one.text for one in left), "".join(one.text for one in right)) == (before, after)
    assert next(one.text for one in left if one.differs) == "3"
    assert next(one.text for one in right if one.differs) == "5"
    assert any(not one.differs and "steps of 8 prompts" in one.text for one in left)
    long = marked("a " * 10_000, "b " * 10_000)
    assert [[one.differs for one in side] for side in long] == [[False], [False]], "long texts stand unmarked"


@pytest.mark.parametrize("words", ["ab", "abc"])
def test_no_text_takes_long_to_mark(words: str) -> None:
    """Two texts of 740 other words; two of few words said over and over. Where the marking is not bounded, each takes
    half a minute, and a hundred of them the better part of an hour."""
    other = " ".join(f"a{number}" for number in range(740)), " ".join(f"b{number}" for number in range(740))
    over = " ".join(words * (740 // len(words))), " ".join(("z" + words) * (740 // (1 + len(words))))
    for before, after in (other, over) * 50:
        left, right = marked(before, after)
        assert ("".join(one.text for one in left), "".join(one.text for one in right)) == (before, after)


def test_files_to_keep(first: dict[str, Any], golden: Callable[[str, Any], None]) -> None:
    hostile = HOSTILE.replace("\ud800", "")
    second = with_entry(first, "method.config", value={"optim": {"steps": 1, "lr": 0.1}, "seed": 0}, text="another")
    second = with_entry(second, "data.prompts", text=hostile, note=hostile)
    difference = to_document(diff(first, second))
    assert (difference["before"]["seal"], difference["after"]["seal"]) == (first["seal"], "f" * 64)
    values = difference["sections"]["method"]["fields"]["config"]["values"]
    place = {"path": "optim.steps", "words": "Steps", "kind": "changed"}
    assert values == [{**place, "before": 3, "after": 1, "difference": -2}]
    assert "loss" in difference["sections"]["method"]["equal"]
    text = "".join(to_markdown(diff(first, second)))
    golden("records/diff.md", stripped(text))
    for harmful in ("<script>", "[x](", "\u202e", "\x1b"):
        assert harmful not in text


# ---------------------------------------------------------------------- the page


@pytest.fixture
def two(launch: Callable[..., Run]) -> tuple[Record, Record]:
    other = entry("another <script>alert(1)</script> \u202e", {"optim": {"steps": 5}, "<img src=x>": 1})
    first = put(launch(name="first run"), document(text="said", method__config=entry("the config", CONFIG)))
    return first, put(launch(name="second run"), document(text="said", method__config=other))


def address(*records: Record, **more: str) -> str:
    query = "&".join([*(f"record={one.pk}" for one in records), *(f"{name}={value}" for name, value in more.items())])
    return f"/p/ours/records/compare/?{query}"


@pytest.mark.django_db
def test_the_page_shows_what_differs_and_folds_what_does_not(
    world: World, two: tuple[Record, Record], golden: Callable[[str, Any], None]
) -> None:
    client = world.client("bob")
    response = client.get(address(*two))
    page = response.content.decode()
    golden("pages/diff.txt", page_text(response))
    assert '<details class="panel diff-section" id="diff-method" open>' in page
    assert '<details class="panel diff-section" id="diff-reward">' in page
    for harmful in ("<script>alert", "<img src=x", "\u202e"):
        assert harmful not in page
    for ending, kind in (("json", "application/json"), ("md", "text/markdown; charset=utf-8")):
        answer = client.get(address(*two, format=ending))
        assert (answer["Content-Type"], answer.streaming) == (kind, True)
        content = b"".join(answer).decode()
        assert "another" in content
        assert ending != "json" or json.loads(content)["after"]["seal"] == two[1].seal
        assert f'record-diff-{two[0].seal[:8]}-{two[1].seal[:8]}.{ending}"' in answer["Content-Disposition"]
    assert [one["actor"] for one in logged("diff_downloaded")] == ["user:bob", "user:bob"]
    for query in (address(*two, format="pdf"), address(two[0], format="json")):
        assert client.get(query).status_code == 404


@pytest.mark.django_db
def test_choosing_two(world: World, two: tuple[Record, Record], monkeypatch: pytest.MonkeyPatch) -> None:
    client = world.client("bob")
    monkeypatch.setattr(views, "MOST", 2)
    for chosen in ((two[0],), (two[0], two[0]), (*two, put(world.launch(name="third run")))):
        page = client.get(address(*chosen)).content.decode()
        assert f'value="{two[0].pk}" selected' in page
        assert 'id="diff-method"' not in page
    assert client.get("/p/ours/records/compare/?record=x&record=%00").status_code == 200
    newer = put(two[0].run, version=2, supersedes=two[0])
    assert 'id="diff-method"' in client.get(address(two[0], newer)).content.decode(), "two versions of one record"
    monkeypatch.setattr(views, "CHOICES", 1)
    page = client.get(address(two[0])).content.decode()
    assert page.count(f'<option value="{two[0].pk}"') == 2, "what was chosen stands in the list, however old"


@pytest.mark.django_db
def test_three_records_and_more_are_columns(world: World, two: tuple[Record, Record]) -> None:
    worse = document(text="said", behaviour__performance=entry("x", [{**comparison(), "verdict": "regressed"}]))
    records, client = [*two, put(world.launch(name="<b>third</b> run"), worse)], world.client("bob")
    response = client.get(address(*records))
    page = html(response)
    for number, record in enumerate(records, 1):
        assert f'value="{record.pk}" selected' in page
        assert f'data-label="Record {number}"' in page
    for harmful in ("<script>alert", "<img src=x", "<b>third"):
        assert harmful not in page
    assert page.index('id="diff-chosen"') < page.index('id="diff-results"') < page.index('id="diff-digests"')
    assert "regressed" in page
    table = json.loads(b"".join(client.get(address(*records, format="json"))))
    assert [each["seal"] for each in table["records"]] == [record.seal for record in records]
    markdown = b"".join(client.get(address(*records, format="md"))).decode()
    assert ("What people chose" in markdown, "<b>" in markdown) == (True, False)
    assert [body["data"]["format"] for body in logged("diff_downloaded")] == ["json", "md"]
    too_many = client.get(address(*(put(world.launch(name=f"more {n}")) for n in range(7))))
    assert "at most 6 can be compared" in html(too_many)


@pytest.mark.django_db
def test_sealed_configs_are_read_from_the_cards(sealed: Record, world: World) -> None:
    """The record holds only the config's digest."""
    settings = {**sealed_run.SETTINGS, "optim": {"steps": 3, "lr": 0.5}}
    second, client = sealed_run.sealed(world.launch(name="faster", settings=settings)), world.client("bob")
    difference = json.loads(b"".join(client.get(address(sealed, second, format="json"))))
    values = difference["sections"]["method"]["fields"]["config"]["values"]
    assert [(change["path"], change["after"]) for change in values] == [("name", "faster"), ("optim.lr", 0.5)]
    unread = "could not be read"
    assert unread not in html(client.get(address(sealed, second)))
    for card in sealed.cards.all():
        artifacts.remove(card.artifact)
    assert unread in html(client.get(address(sealed, second)))


def test_a_document_of_another_schema_is_refused(first: dict[str, Any]) -> None:
    with pytest.raises(NotARecord, match="cohort-record/3"):
        diff({"schema": "cohort-record/3"}, first)
