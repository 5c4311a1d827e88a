"""What a person thinks of a sample: verdict, labels, note and undo, as services store it and forms send it."""

import pytest
from django.core.exceptions import ValidationError
from django.db import DatabaseError, connection, transaction
from django.test import Client

from cohort.accounts.models import Project, User
from cohort.audit.models import AuditEntry
from cohort.review.figures import run_figures
from cohort.review.labels import BUILT_IN, FREE, label_add, label_remove, labels_of
from cohort.review.models import Annotation, AnswerJudgement, Group
from cohort.review.services import answer_judge, sample_judge, sample_undo
from cohort.runs.models import Run
from tests.factories.lab import talked
from tests.factories.runs import Maker, add_group
from tests.web.pages import html

pytestmark = pytest.mark.django_db


@pytest.fixture
def group(maker: Maker) -> Group:
    return add_group(maker.attempt(maker.run("adder", state="training")), [1.0, 0.0], step=1)


def states() -> list[tuple[str, list[str], str]]:
    return list(Annotation.objects.order_by("pk").values_list("verdict", "labels", "note"))


def test_a_change_leaves_all_else_and_nothing_changed_adds_nothing(alice: User, group: Group) -> None:
    sample = group.samples.get(index=0)
    for change in (
        {"note": " cut short "},
        {"note": "cut short"},
        {"toggle": "reward_hack"},
        {"verdict": "wrong"},
        {"verdict": "wrong"},
        {"toggle": "false_positive"},
        {"toggle": "reward_hack"},
    ):
        sample_judge(sample=sample, actor=alice, **change)
    assert states() == [
        ("", [], "cut short"),
        ("", ["reward_hack"], "cut short"),
        ("wrong", ["reward_hack"], "cut short"),
        ("wrong", ["false_positive", "reward_hack"], "cut short"),
        ("wrong", ["false_positive"], "cut short"),
    ]
    assert AuditEntry.objects.filter(kind="sample_judged").count() == 5
    with pytest.raises(DatabaseError, match="only added"), transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("UPDATE review_annotation SET labels = '[]'")


def test_undo_adds_what_was_before_and_once_more_brings_it_back(alice: User, group: Group) -> None:
    sample = group.samples.get(index=0)
    assert sample_undo(sample=sample, actor=alice) is None
    sample_judge(sample=sample, actor=alice, verdict="right")
    sample_undo(sample=sample, actor=alice)
    sample_undo(sample=sample, actor=alice)
    sample_judge(sample=sample, actor=alice, verdict="wrong", note="no")
    sample_undo(sample=sample, actor=alice)
    assert states() == [("right", [], ""), ("", [], ""), ("right", [], ""), ("wrong", [], "no"), ("right", [], "")]


def test_without_a_verdict_nothing_is_judged(alice: User, rita: User, group: Group) -> None:
    first, second = group.samples.order_by("index")
    sample_judge(sample=first, actor=alice, note="odd")
    sample_judge(sample=second, actor=alice, verdict="right")
    sample_undo(sample=second, actor=alice)
    figures = run_figures(group.run)
    assert (figures["samples"], figures["reviewers"], figures["verifier"]) == (0, 0, None)
    sample_judge(sample=first, actor=rita, verdict="wrong")
    figures = run_figures(group.run)
    assert (figures["samples"], figures["reviewers"], figures["disagreeing"]) == (1, 1, 0)
    assert figures["judged"] == {"right": 0, "wrong": 1, "unsure": 0}


def test_a_note_alone_and_a_label_are_sent_without_a_verdict(reviewer: Client, viewer: Client, group: Group) -> None:
    address = f"/p/ours/runs/{group.run_id}/groups/{group.pk}/samples/0/judge/"
    part = {"HX-Request": "true"}
    reviewer.post(address, {"save": "note", "note": "odd"}, headers=part)
    answer = reviewer.post(address, {"toggle": "unsafe", "note": "odd"}, headers=part)
    assert states() == [("", [], "odd"), ("", ["unsafe"], "odd")]
    assert "Sample 1: not judged, unsafe; note saved." in html(answer)
    assert "rita: not judged, unsafe · “odd”" in html(viewer.get(f"/p/ours/runs/{group.run_id}/groups/{group.pk}/"))
    reviewer.post(address, {"undo": "1", "note": "odd"}, headers=part)
    assert states()[-1] == ("", [], "odd")
    refused = reviewer.post(address, {"toggle": "nothing", "note": "kept"}, headers=part)
    assert (refused.status_code, 'value="kept"' in html(refused), len(states())) == (422, True, 3)


def test_the_first_button_of_the_form_is_no_verdict(reviewer: Client, group: Group) -> None:
    """So Enter in the note cannot judge, with or without JavaScript."""
    page = html(reviewer.get(f"/p/ours/runs/{group.run_id}/groups/{group.pk}/"))
    form = page[page.index('class="judgement') :]
    first = form[form.index("<button") :].partition(">")[0]
    assert ('name="save"' in first, 'type="submit"' in first) == (True, True)


def test_a_note_on_an_answer_of_a_chat_is_no_judgement(maker: Maker, alice: User) -> None:
    chat = talked(alice, "2 + 3 =", {"model": "5"}, base_model=maker.base_model)
    answer = chat.messages.get().answers.get()
    answer_judge(answer=answer, actor=alice, note="short")
    answer_judge(answer=answer, actor=alice, verdict="right")
    rows = AnswerJudgement.objects.order_by("pk").values_list("verdict", "note")
    assert list(rows) == [("", "short"), ("right", "short")]


def test_own_labels_are_offered_removed_and_kept_where_they_were_given(
    reviewer: Client, rita: User, group: Group, maker: Maker
) -> None:
    label = label_add(project=maker.project, actor=rita, letter="S", word="off  topic")
    assert (label.key, label.letter, label.word) == ("off_topic", "s", "off topic")
    sample = group.samples.get(index=0)
    sample_judge(sample=sample, actor=rita, toggle="off_topic")
    label_remove(label=label, actor=rita)
    label_remove(label=label, actor=rita)
    assert labels_of(maker.project) == BUILT_IN
    assert "off topic" in html(reviewer.get(f"/p/ours/runs/{group.run_id}/groups/{group.pk}/"))
    with pytest.raises(ValidationError):
        sample_judge(sample=group.samples.get(index=1), actor=rita, toggle="off_topic")
    sample_judge(sample=sample, actor=rita, toggle="off_topic")  # what was given can be taken off
    again = label_add(project=maker.project, actor=rita, letter="t", word="Off topic")
    assert (again.pk, labels_of(maker.project)[-1].letter) == (label.pk, "t")
    kinds = AuditEntry.objects.filter(kind__startswith="review_label").order_by("pk").values_list("kind", flat=True)
    assert list(kinds) == ["review_label_added", "review_label_removed", "review_label_added"]


@pytest.mark.parametrize(
    ("letter", "word", "field"),
    [
        *(("f", "mine", "letter"), ("j", "mine", "letter"), ("", "mine", "letter"), ("ab", "mine", "letter")),
        *(("s", "", "word"), ("s", "?!", "word"), ("s", "x" * 41, "word"), ("s", "Unsafe", "word")),
    ],
)
def test_a_label_that_cannot_be_is_refused(maker: Maker, rita: User, letter: str, word: str, field: str) -> None:
    with pytest.raises(ValidationError) as caught:
        label_add(project=maker.project, actor=rita, letter=letter, word=word)
    assert [*caught.value.message_dict] == [field]


def test_no_letter_does_two_things(maker: Maker) -> None:
    letters = [label.letter for label in BUILT_IN]
    assert len({*letters, *"gjknu", *FREE}) == len(letters) + 5 + len(FREE)


def test_the_run_of_a_label_is_the_sample_s(maker: Maker, alice: User, run_of_theirs: Run) -> None:
    """A label of one project is no label of another's samples."""
    label_add(project=maker.project, actor=alice, letter="s", word="mine")
    group = add_group(maker.attempt(run_of_theirs), [1.0])
    with pytest.raises(ValidationError):
        sample_judge(sample=group.samples.get(), actor=alice, toggle="mine")


@pytest.fixture
def run_of_theirs(maker: Maker) -> Run:
    run = maker.run("theirs", state="training")
    Run.objects.filter(pk=run.pk).update(project=Project.objects.get(slug="theirs"))
    return Run.objects.get(pk=run.pk)
