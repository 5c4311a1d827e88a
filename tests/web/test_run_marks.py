"""Tags, notes and the archive of runs, many at once, and saved views of the list: services, and pages."""

import re
from pathlib import Path

import pytest
from django.contrib.messages import get_messages
from django.core.exceptions import ValidationError
from django.test import Client

from cohort.accounts.models import Project, User
from cohort.audit.models import AuditEntry
from cohort.runs.marks import (
    MOST_AT_ONCE,
    MOST_TAGS,
    NOTE_CHARACTERS,
    run_archive,
    run_note_set,
    run_tags_change,
    runs_archive,
    runs_cancel,
    tags_of,
)
from cohort.runs.models import Run, RunValue, SavedView
from cohort.runs.run_values import evaluation_values_store
from cohort.runs.saved_views import MOST_VIEWS, view_change, view_save, views_for
from cohort.runs.search.fields import short_names
from cohort.runs.services import NotPossible
from grpo_core.records import types as records
from tests.factories.runs import Maker, add_evaluation, gone_on
from tests.factories.sealed_run import ingest
from tests.web.control import claim, node
from tests.web.pages import html
from tests.web.run_page import page_of, words
from tests.web.test_run_list import many

pytestmark = pytest.mark.django_db

BULK = "/p/ours/runs/bulk/"


@pytest.mark.parametrize(
    ("text", "tags"),
    [
        ("", []),
        ("Hack, #baseline  hack\nsweep-3", ["baseline", "hack", "sweep-3"]),
        ("straße λ_2 v1.0", ["strasse", "v1.0", "λ_2"]),
    ],
)
def test_tags_are_small_words_each_once(text: str, tags: list[str]) -> None:
    assert tags_of(text) == tags


@pytest.mark.parametrize(
    ("text", "code"), [("a" * 41, "tag_long"), ("-old", "bad_tag"), ("a/b", "bad_tag"), ("#", "bad_tag")]
)
def test_words_that_can_be_no_tag(text: str, code: str) -> None:
    with pytest.raises(NotPossible) as caught:
        tags_of(text)
    assert caught.value.code == code


def test_marks_change_the_run_once_and_are_logged(maker: Maker) -> None:
    run, by = maker.run(state="failed"), {"actor": maker.actor}
    before = AuditEntry.objects.count()
    for changed in (True, False):
        assert run_tags_change(run=run, add=["hack", "old"], **by) is changed
        assert run_note_set(run=run, note="  seen\r\n ", **by) is changed
        assert run_archive(run=run, archived=True, **by) is changed
    assert AuditEntry.objects.count() == before + 3
    assert run_tags_change(run=run, add=["new"], remove=["old"], **by)
    run = Run.objects.get(pk=run.pk)
    assert (run.tags, run.note, run.archived_at is not None) == (["hack", "new"], "seen", True)


def test_marks_have_bounds(maker: Maker) -> None:
    run, by = maker.run(state="training"), {"actor": maker.actor}
    faults = {
        "too_many_tags": lambda: run_tags_change(run=run, add=[f"t{n}" for n in range(MOST_TAGS + 1)], **by),
        "note_long": lambda: run_note_set(run=run, note="x" * (NOTE_CHARACTERS + 1), **by),
        "not_ended": lambda: run_archive(run=run, archived=True, **by),
    }
    for code, do in faults.items():
        with pytest.raises(NotPossible) as caught:
            do()
        assert caught.value.code == code
    assert Run.objects.filter(pk=run.pk, tags=[], note="", archived_at=None).exists()


def test_one_that_refuses_keeps_no_other_back(maker: Maker) -> None:
    waits, over, live = maker.run(state="queued"), maker.run(state="failed"), maker.run(state="training")
    maker.attempt(live)
    done, unchanged, refused = runs_cancel(runs=[waits, over, live], actor=maker.actor)
    assert (done, unchanged, [(run.pk, why) for run, why in refused]) == (2, [], [(over.pk, "it has ended")])
    done, unchanged, refused = runs_cancel(runs=[waits, live], actor=maker.actor)
    assert (done, unchanged, [run.pk for run, _ in refused]) == (0, [live], [waits.pk])
    done, unchanged, refused = runs_archive(runs=[waits, live], actor=maker.actor, archived=True)
    assert (done, [(run.pk, why) for run, why in refused]) == (
        1, [(live.pk, "it is training; archive it once it has ended, or cancel it first")]
    )  # fmt: skip


# ---------------------------------------------------------------------- the pages


def said(response: object) -> list[str]:
    return [str(message) for message in get_messages(response.wsgi_request)]  # type: ignore[attr-defined]


def test_an_action_says_what_it_did_and_what_not_and_may_be_repeated(operator: Client, maker: Maker) -> None:
    over, live = maker.run("over", state="failed"), maker.run("live", state="training")
    sent = {"action": "archive", "run": [over.pk, live.pk], "query": "q=a&sort=name"}
    response = operator.post(BULK, sent)
    assert response["Location"] == "/p/ours/runs/?q=a&sort=name"
    assert said(response) == [
        "Archived: 1 run.",
        "Not possible for 1 run. live: it is training; archive it once it has ended, or cancel it first.",
    ]
    assert said(operator.post(BULK, sent))[2:] == [
        "Nothing to do for 1 run, archived already: over.",
        "Not possible for 1 run. live: it is training; archive it once it has ended, or cancel it first.",
    ]


def test_every_match_is_taken_and_no_more_than_the_most(operator: Client, maker: Maker, stranger: Client) -> None:
    many(maker, 5)
    maker.run("other", state="failed")
    operator.post(BULK, {"action": "tag", "tags": "mine", "all": "1", "q": "state=draft"})
    assert Run.objects.filter(tags=["mine"]).count() == 5
    many(maker, MOST_AT_ONCE)
    response = operator.post(BULK, {"action": "tag", "tags": "all", "all": "1", "q": ""})
    assert f"at most {MOST_AT_ONCE} are changed at once" in said(response)[-1]
    assert not Run.objects.filter(tags__contains=["all"]).exists()


@pytest.mark.parametrize(
    ("sent", "fault"),
    [
        ({"action": "archive"}, "choose runs first"),
        ({"action": "archive", "run": ["x", "9" * 30]}, "choose runs first"),
        ({"action": "explode", "all": "1"}, "choose what to do"),
        ({"action": "tag", "all": "1"}, "write the tag first"),
        ({"action": "tag", "tags": "a/b", "all": "1"}, "can be no tag"),
        ({"action": "archive", "all": "1", "q": "G>"}, "A value is missing"),
        ({"action": "compare", "all": "1"}, "two runs or more"),
    ],
)
def test_what_cannot_be_done_at_all(operator: Client, maker: Maker, sent: dict[str, object], fault: str) -> None:
    maker.run(state="failed")
    response = operator.post(BULK, sent)
    assert (response.status_code, fault in said(response)[0]) == (302, True)
    assert Run.objects.filter(tags=[], archived_at=None).count() == 1


def test_many_are_cancelled_after_a_page_that_names_them(operator: Client, maker: Maker) -> None:
    run = maker.run("waits", state="queued")
    page = html(operator.post(BULK, {"action": "cancel", "run": run.pk}))
    assert "Cancel 1 run?" in page
    assert Run.objects.get(pk=run.pk).state == "queued"
    operator.post(BULK, {"action": "cancel", "run": run.pk, "confirmed": "1"})
    assert Run.objects.get(pk=run.pk).state == "cancelled"


def test_runs_are_compared_by_their_ids(viewer: Client, maker: Maker) -> None:
    first, second = maker.run(), maker.run()
    response = viewer.post(BULK, {"action": "compare", "run": [first.pk, second.pk]})
    assert response["Location"] == f"/p/ours/runs/compare/?run={second.pk}&run={first.pk}"


def test_tags_and_note_of_a_run_are_edited_and_shown(operator: Client, viewer: Client, maker: Maker) -> None:
    run = maker.run(state="failed")
    refused = operator.post(f"/p/ours/runs/{run.pk}/marks/", {"tags": "a/b", "note": "kept <b>"})
    assert refused.status_code == 422
    assert 'value="a/b"' in html(refused)
    assert "kept &lt;b&gt;" in html(refused)
    operator.post(f"/p/ours/runs/{run.pk}/marks/", {"tags": "hack", "note": "kept <b>"})
    shown = page_of(viewer, run)
    assert 'href="/p/ours/runs/?q=tag:hack"' in shown
    assert "kept &lt;b&gt;" in shown
    assert "/marks/" not in shown, "a viewer changes nothing"
    operator.post(f"/p/ours/runs/{run.pk}/marks/", {"archived": "true"})
    assert "archived" in words(page_of(viewer, run))


# ---------------------------------------------------------------------- saved views


def test_views_are_ones_own_or_shared_and_one_opens_with_the_list(
    ours: Project, oscar: User, bob: User, operator: Client, viewer: Client, maker: Maker
) -> None:
    maker.run()
    own = view_save(project=ours, actor=bob, name=" my  view ", query="q=G%3E8", default=True)
    shared = view_save(project=ours, actor=oscar, name="ours", query="q=a", shared=True, default=True)
    assert list(views_for(project=ours, user=bob)) == [own, shared]
    assert list(views_for(project=ours, user=oscar)) == [shared]
    assert viewer.get("/p/ours/runs/")["Location"] == "/p/ours/runs/?q=G%3E8"
    again = view_save(project=ours, actor=bob, name="second", query="q=b", default=True)
    own.refresh_from_db()
    assert (own.name, own.default) == ("my view", False)
    with pytest.raises(ValidationError):
        view_change(view=again, name="my view", shared=False, default=False)
    assert view_save(project=ours, actor=bob, name="second", query="q=c").pk == again.pk
    page = html(viewer.get("/p/ours/runs/?q=c"))
    assert re.search(r'href="\?q=c" aria-current="page"\s*>second', page)
    viewer.post(f"/p/ours/runs/views/{again.pk}/", {"delete": "1"})
    assert viewer.post(f"/p/ours/runs/views/{shared.pk}/", {"delete": "1"}).status_code == 403
    assert set(SavedView.objects.all()) == {own, shared}


def test_views_have_bounds(ours: Project, bob: User) -> None:
    for name, query in (("", "q="), ("x" * 61, "q="), ("x", "q=" + "x" * 4000)):
        with pytest.raises(ValidationError):
            view_save(project=ours, actor=bob, name=name, query=query)
    SavedView.objects.bulk_create(SavedView(project=ours, owner=bob, name=str(n)) for n in range(MOST_VIEWS))
    with pytest.raises(ValidationError):
        view_save(project=ours, actor=bob, name="one more", query="q=")


# ---------------------------------------------------------------------- what runs are found by


def test_a_score_can_be_searched_for_when_its_batch_is_stored_and_not_when_superseded(maker: Maker) -> None:
    """As workers' calls have it, with their rights in the database."""
    run = maker.launched("adder", eval={"holdout": 4})
    taken = claim(node("gpu-1"), run.pk)
    item = records.EvalItem(
        phase="before", suite="heldout", problem_id="p", prompt="p", answer="a", completion="c", score=1.0,
        truncated=False, error=None, tokens=3, detail="",
    )  # fmt: skip
    result = records.EvalResult(
        phase="before", suite="heldout", problems=1, correct=1.0, truncated=0, errors=0, mean_tokens=3.0, seconds=1.0,
        protocol={},
    )  # fmt: skip
    ingest(taken, [item, result])
    scores = RunValue.objects.filter(run=run, key__startswith="evaluation.").order_by("key")
    assert list(scores.values_list("key", "number")) == [
        ("evaluation.before.heldout", 1.0),
        ("evaluation.newest.heldout", 1.0),
    ]


def test_a_resumed_run_has_no_score_after_training(maker: Maker) -> None:
    run = maker.run(state="training")
    first = maker.attempt(run, state="failed")
    add_evaluation(first, "before", [1, 0])
    add_evaluation(first, "after", [1, 1])
    evaluation_values_store(run_id=run.pk)
    newest = RunValue.objects.filter(run=run, key="evaluation.newest.held-out").values_list("number", flat=True)
    assert newest.get() == 1.0
    gone_on(maker.attempt(run), 1)
    evaluation_values_store(run_id=run.pk)
    assert newest.get() == 0.5


def test_the_guide_has_every_short_name_in_its_words() -> None:
    guide = (Path(__file__).resolve().parents[2] / "docs/guide.md").read_text(encoding="utf-8")
    for name, field in short_names().items():
        path = f" (`{field.key}`)" if field.source == "value" and field.key != name else ""
        assert f"| `{name}` | {field.words}{path} |" in guide
