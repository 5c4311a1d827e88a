"""Chats with base models: messages and answers of two models side by side, what a worker may hand over, judgements, an
item of a suite, and the deletion of texts. Who may is in tests/cases/access."""

from datetime import timedelta
from typing import Any

import pytest
from django.db import DatabaseError, transaction
from django.test import Client

from cohort.accounts.models import Project, User
from cohort.audit.models import AuditEntry
from cohort.base.artifacts import read_chunks
from cohort.catalog.models import BaseModel, VerifierVersion
from cohort.catalog.services import base_model_archive, base_model_register
from cohort.lab import chat, turns
from cohort.lab.models import ChatAnswer, ChatMessage, Conversation, JobState, LabJob
from cohort.lab.services import job_cancel
from cohort.review.models import AnswerJudgement
from cohort.review.services import answer_judge
from grpo_core.errors import ConfigError
from grpo_core.lab.job import Job
from grpo_core.protocol.messages import JobBeatReply
from tests.factories.lab import answers_given
from tests.factories.runs import HOSTILE, HOSTILE_SHOWN
from tests.factories.suites import add_suite
from tests.web.pages import html
from tests.web.test_lab_jobs import expire
from tests.web.test_lab_pages import text_of
from tests.web.worker_calls import Caller, JobCaller, refused, taken_job

pytestmark = pytest.mark.django_db

CHAT = "/p/ours/lab/chat/"
SETTINGS = {"temperature": "0.5", "top_p": "0.9", "max_tokens": "64", "seed": "3"}
ANSWER = {"text": "5", "tokens": 2, "prompt_tokens": 9, "finish": "eos", "template": "chat", "seconds": 0.25}


@pytest.fixture
def reference(base_model: BaseModel, alice: User) -> BaseModel:
    return base_model_register(project=base_model.project, actor=alice, name="reference", path=base_model.path)


@pytest.fixture
def conversation(base_model: BaseModel, reference: BaseModel, oscar: User) -> Conversation:
    """One message, not answered."""
    return chat.conversation_begin(base_model=base_model, reference=reference, actor=oscar, text="2 + 3 =")


def beat(worker: JobCaller, *answers: dict[str, Any]) -> JobBeatReply:
    reply = worker.beat(answers=list(answers))
    assert reply.status_code == 200, reply.content
    return JobBeatReply.model_validate_json(reply.content)


def page_of(client: Client, conversation: Conversation) -> str:
    return html(client.get(f"{CHAT}{conversation.pk}/"))


# ---------------------------------------------------------------------- messages and answers


def test_a_chat_begins_with_a_message_that_a_worker_answers_with_both(
    operator: Client, oscar: User, base_model: BaseModel, reference: BaseModel, node: Caller
) -> None:
    sent = {"base_model": base_model.pk, "reference": reference.pk, "system": "Be brief.", "text": " 2 + 3 = "}
    answer: Any = operator.post(CHAT, sent | SETTINGS)
    conversation = Conversation.objects.get()
    assert answer.url == f"{CHAT}{conversation.pk}/"
    given = taken_job(node)
    job = Job.model_validate(given.job)
    assert job.model is not None
    assert job.reference is not None
    assert (job.model.path, job.reference.path, job.options) == (
        base_model.path,
        reference.path,
        {"system": "Be brief."},
    )
    assert given.heartbeat_seconds <= 1
    worker = JobCaller(given)
    (turn,) = beat(worker).turns
    texts = {side: [(each.role, each.text) for each in history] for side, history in turn.histories.items()}
    assert texts == {"model": [("user", "2 + 3 =")], "reference": [("user", "2 + 3 =")]}
    assert (turn.temperature, turn.top_p, turn.max_tokens, turn.seed) == (0.5, 0.9, 64, 3)

    first = {"turn": turn.turn, "side": "model", **ANSWER}
    (turn,) = beat(worker, first).turns
    assert list(turn.histories) == ["reference"], "what is answered does not come again"
    other = {**first, "side": "reference", "text": "6\x00", "finish": "length", "template": "plain"}
    reply = beat(worker, first, other)
    assert (reply.turns, reply.close) == ([], False)
    shown = text_of(page_of(operator, conversation))
    for words in ("end of turn", "truncated", "by the chat template", "it has no chat template", "2 tokens"):
        assert words in shown
    assert ChatAnswer.objects.get(side="reference").text == "6\ufffd"
    kinds = ("conversation_begun", "chat_message_sent", "lab_job_asked")
    entries = AuditEntry.objects.filter(kind__in=kinds).order_by("pk")
    assert [(entry.kind, entry.actor) for entry in entries] == [(kind, "user:oscar") for kind in kinds]
    assert b"2 + 3" not in bytes(entries[1].body), "the log holds no text of it"


def test_each_side_has_its_own_history_and_one_may_be_asked_alone(
    operator: Client, oscar: User, conversation: Conversation, node: Caller
) -> None:
    answers_given(conversation, model="5", reference="six")
    operator.post(f"{CHAT}{conversation.pk}/", {"text": "Sure?", "sides": ["reference"], **SETTINGS})
    worker = JobCaller(taken_job(node))
    (turn,) = beat(worker).turns
    texts = {side: [each.text for each in history] for side, history in turn.histories.items()}
    assert texts == {"reference": ["2 + 3 =", "six", "Sure?"]}
    beat(worker, {"turn": turn.turn, "side": "reference", **ANSWER, "text": "yes"})
    chat.message_send(conversation=conversation, actor=oscar, text="Again")
    (turn,) = beat(worker).turns
    texts = {side: [each.text for each in history] for side, history in turn.histories.items()}
    assert texts == {
        "model": ["2 + 3 =", "5", "Again"],
        "reference": ["2 + 3 =", "six", "Sure?", "yes", "Again"],
    }
    assert conversation.jobs.count() == 2, "the last message found the models loaded"
    again = html(operator.get(f"{CHAT}{conversation.pk}/"))
    assert 'name="temperature" value="0.7"' in again, "the form begins with the newest message's settings"


def test_what_is_wrong_with_a_message_is_said_and_nothing_is_lost(
    operator: Client, oscar: User, base_model: BaseModel, charlie: User, conversation: Conversation
) -> None:
    def faults(text: str = "Hi", **more: Any) -> list[str]:
        with pytest.raises(ConfigError) as error:
            chat.message_send(conversation=conversation, actor=oscar, text=text, **more)
        return [problem.path for problem in error.value.problems]

    assert faults() == ["text"], "the last one is not answered yet"
    answers_given(conversation, model="5", reference="6")
    assert faults(" \n") == ["text"]
    assert faults("x" * 32_001) == ["text"]
    assert faults(sides=[]) == ["sides"]
    assert faults(sides=["model", "nobody"]) == ["sides"]
    assert faults(sampling={"top_p": 0}) == ["top_p"]
    assert faults(sampling={"max_tokens": 9000}) == ["max_tokens"]
    answer = operator.post(f"{CHAT}{conversation.pk}/", {"text": "Kept", "sides": ["model"], **SETTINGS, "seed": "-1"})
    assert (answer.status_code, "Kept</textarea>" in html(answer)) == (422, True)
    assert conversation.messages.count() == 1
    begin = {"base_model": base_model.pk, "reference": base_model.pk, "system": "", "text": "Hi", **SETTINGS}
    answer = operator.post(CHAT, begin)
    assert (answer.status_code, 'id="id_reference_error"' in html(answer)) == (422, True)
    answer = operator.post(CHAT, {**begin, "reference": "", "system": "x" * 32_001})
    assert (answer.status_code, 'id="id_system_error"' in html(answer)) == (422, True)
    assert Conversation.objects.count() == 1


def test_a_job_ends_when_idle_or_needed_elsewhere_and_a_late_message_is_not_lost(
    oscar: User, conversation: Conversation, node: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = JobCaller(taken_job(node))
    (turn,) = beat(worker).turns
    both = [{"turn": turn.turn, "side": side, **ANSWER} for side in ("model", "reference")]
    assert not beat(worker, *both).close
    LabJob.objects.create(project=conversation.project, kind="probe", spec={}, created_by=oscar)
    assert beat(worker).close, "another job waits for a worker"
    LabJob.objects.filter(kind="probe").delete()
    monkeypatch.setattr(turns, "IDLE", timedelta(0))
    assert beat(worker).close, "nobody writes"
    chat.message_send(conversation=conversation, actor=oscar, text="Late")
    assert conversation.jobs.count() == 1
    ended = {"kind": "chat", "model": conversation.base_model.path, "device": "cpu", "answers": 2, "seconds": 1.0}
    assert worker.finish("done", result=ended).status_code == 204
    job = conversation.jobs.get()
    assert (job.state, job.result) == (JobState.WAITING, None), "it waits again, for the late message"
    again = JobCaller(taken_job(node))
    assert [each.turn for each in beat(again).turns] == [conversation.messages.get(number=2).pk]
    monkeypatch.setattr(turns, "LONGEST", timedelta(0))
    reply = beat(again)
    assert (reply.close, reply.turns) == (True, []), "below the deadline of every job"


def test_a_worker_that_is_lost_leaves_the_message_to_another(
    conversation: Conversation, node: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    from cohort.background.reconcile import jobs_lost

    first = JobCaller(taken_job(node))
    (turn,) = beat(first).turns
    beat(first, {"turn": turn.turn, "side": "model", **ANSWER})
    expire()
    jobs_lost()
    second = JobCaller(taken_job(node))
    (turn,) = beat(second).turns
    assert list(turn.histories) == ["reference"]
    assert refused(first.beat(answers=[{"turn": turn.turn, "side": "reference", **ANSWER}])) == (401, "unknown_token")
    expire()
    jobs_lost()
    answer = ChatAnswer.objects.get(side="reference")
    assert "lost twice" in answer.error


def test_answers_to_another_chat_are_refused(
    oscar: User, base_model: BaseModel, conversation: Conversation, node: Caller
) -> None:
    other = chat.conversation_begin(base_model=base_model, reference=None, actor=oscar, text="Hi")
    message, theirs = conversation.messages.get(), other.messages.get()
    worker = JobCaller(taken_job(node))
    for wrong in ({"turn": theirs.pk, "side": "model"}, {"turn": 10**9, "side": "model"}):
        assert refused(worker.beat(answers=[{**wrong, **ANSWER}])) == (422, "bad_answer")
    bad = {"turn": message.pk, "side": "model", **ANSWER, "text": "x" * 100_001}
    assert refused(worker.beat(answers=[bad])) == (422, "bad_request")
    assert not ChatAnswer.objects.exists()


def test_a_waiting_chat_that_is_called_off_says_so(oscar: User, conversation: Conversation) -> None:
    job_cancel(job=conversation.jobs.get(), actor=oscar)
    assert {answer.error for answer in ChatAnswer.objects.all()} == {turns.CALLED_OFF}
    assert ChatAnswer.objects.count() == 2


# ---------------------------------------------------------------------- the page


def test_the_newest_message_is_polled_until_it_is_answered(
    viewer: Client, conversation: Conversation, node: Caller
) -> None:
    page = page_of(viewer, conversation)
    assert "data-poll" in page
    assert "Waits for a worker" in page
    assert 'name="text"' not in page, "a viewer writes nothing"
    live = f"{CHAT}{conversation.pk}/live/"
    seen = page.split(f'hx-get="{live}?v=')[1].split('"')[0]
    assert viewer.get(f"{live}?v={seen}").status_code == 204
    worker = JobCaller(taken_job(node))
    (turn,) = beat(worker).turns
    half: Any = viewer.get(f"{live}?v={seen}")
    assert (half.status_code, "data-poll" in html(half)) == (200, True)
    beat(worker, *({"turn": turn.turn, "side": side, **ANSWER, "text": HOSTILE} for side in ("model", "reference")))
    done: Any = viewer.get(f"{live}?v={seen}")
    content = done.content.decode()
    assert (done.status_code, "data-poll" in content) == (286, False)
    assert content.count(HOSTILE_SHOWN) == 2
    job = conversation.jobs.get()
    assert viewer.get(f"/p/ours/lab/jobs/{job.pk}/").url == f"{CHAT}{conversation.pk}/"  # type: ignore[attr-defined]


def test_a_long_chat_takes_no_more_queries(
    operator: Client, oscar: User, conversation: Conversation, django_assert_max_num_queries: Any
) -> None:
    answers_given(conversation, model="5", reference="6")
    with django_assert_max_num_queries(25) as first:
        page_of(operator, conversation)
    for _ in range(3):
        chat.message_send(conversation=conversation, actor=oscar, text="More")
        answers_given(conversation, model="7", reference="8")
    with django_assert_max_num_queries(len(first)):
        shown = page_of(operator, conversation)
    assert [shown.index(f'id="message-{number}"') for number in range(1, 5)] == sorted(
        shown.index(f'id="message-{number}"') for number in range(1, 5)
    )


# ---------------------------------------------------------------------- what becomes of it


def test_an_answer_is_judged_and_the_judgement_stays(
    reviewer: Client, viewer: Client, rita: User, alice: User, conversation: Conversation
) -> None:
    answers_given(conversation, model="5", reference="6")
    answer = ChatAnswer.objects.get(side="reference")
    judge = f"{CHAT}{conversation.pk}/answers/{answer.pk}/judge/"
    assert viewer.post(judge, {"verdict": "wrong"}).status_code == 403
    part = reviewer.post(judge, {"verdict": "wrong", "note": "it is 5"}, headers={"HX-Request": "true"})
    assert 'aria-pressed="true"' in part.content.decode()
    fault = reviewer.post(judge, {"verdict": "maybe", "note": "kept"}, headers={"HX-Request": "true"})
    assert (fault.status_code, 'value="kept"' in fault.content.decode()) == (422, True)
    answer_judge(answer=answer, actor=alice, verdict="unsure")
    answer_judge(answer=answer, actor=rita, verdict="wrong", note="it is 5")  # again: adds nothing
    assert [(row.by, row.verdict) for row in AnswerJudgement.objects.order_by("pk")] == [
        (rita, "wrong"),
        (alice, "unsure"),
    ]
    assert AuditEntry.objects.filter(kind="chat_answer_judged").count() == 2
    assert "alice: unsure" in text_of(page_of(reviewer, conversation))
    with pytest.raises(DatabaseError, match="only added to"), transaction.atomic():
        AnswerJudgement.objects.update(verdict="right")


def test_an_answer_is_scored_by_a_reward(
    operator: Client, stranger: Client, conversation: Conversation, verifier_version: VerifierVersion
) -> None:
    answers_given(conversation, model="<answer>5</answer>", reference="6")
    answer = ChatAnswer.objects.get(side="model")
    assert f'href="/p/ours/lab/?answer={answer.pk}"' in page_of(operator, conversation)
    home = html(operator.get(f"/p/ours/lab/?answer={answer.pk}"))
    lab = f"/p/ours/rewards/{verifier_version.verifier_id}/lab/?answer={answer.pk}"
    assert f'href="{lab}"' in home
    page = html(operator.get(lab))
    assert "&lt;answer&gt;5&lt;/answer&gt;</textarea>" in page
    assert "2 + 3 =</textarea>" in page
    assert "2 + 3" not in html(stranger.get(f"/p/theirs/lab/?answer={answer.pk}"))


def test_a_first_message_becomes_an_item_of_a_suite(
    operator: Client, ours: Project, oscar: User, conversation: Conversation
) -> None:
    answers_given(conversation, model="5", reference="6")
    version = add_suite(ours, oscar)
    row = f"{CHAT}{conversation.pk}/messages/1/suite/"
    assert "capitals" in html(operator.get(row))
    answer: Any = operator.post(row, {"suite": version.pk, "target": "5"})
    newest = version.suite.versions.order_by("-number")[0]
    assert answer.url == f"/p/ours/suites/{version.suite_id}/"
    assert (newest.number, newest.items, newest.scorer) == (2, version.items + 1, version.scorer)
    last = b"".join(read_chunks(newest.artifact)).splitlines()[-1]
    assert last == b'{"id": "chat-%d", "prompt": "2 + 3 =", "target": "5"}' % conversation.pk
    again = operator.post(row, {"suite": newest.pk, "target": "5"})
    assert again.status_code == 422, "one id is taken once"
    chat.message_send(conversation=conversation, actor=oscar, text="More")
    refused_row = operator.post(f"{CHAT}{conversation.pk}/messages/2/suite/", {"suite": newest.pk, "target": "5"})
    assert "Only the first message" in html(refused_row)


def test_texts_are_deleted_for_a_reason(admin: Client, alice: User, conversation: Conversation) -> None:
    answers_given(conversation, model="5 SECRET", reference="6 SECRET")
    answer = ChatAnswer.objects.get(side="model")
    delete = f"{CHAT}{conversation.pk}/messages/1/delete/"
    assert admin.post(delete, {"reason": " "}).status_code == 422
    admin.post(delete, {"reason": "a name is in it"})
    assert {row.text for row in (*ChatMessage.objects.all(), *ChatAnswer.objects.all())} == {""}
    assert "SECRET" not in page_of(admin, conversation)
    entry = AuditEntry.objects.get(kind="chat_message_redacted")
    assert b"a name is in it" in bytes(entry.body)
    answer.refresh_from_db()
    with pytest.raises(Exception, match="no answer to judge"):
        answer_judge(answer=answer, actor=alice, verdict="right")
    message = chat.message_send(conversation=conversation, actor=alice, text="Next")
    assert turns.history(message, "model") == [], "what was deleted is given to no model"
    assert admin.get(delete).status_code == 404


def test_a_model_that_is_not_to_be_had_is_said_in_words_and_the_message_stays(
    operator: Client, conversation: Conversation, reference: BaseModel, oscar: User
) -> None:
    """In the chat, where its field is not; and at the field of a new chat."""
    LabJob.objects.update(state=JobState.DONE)
    ChatMessage.objects.all().delete()
    base_model_archive(model=reference, actor=oscar, archived=True)
    answer = operator.post(
        f"{CHAT}{conversation.pk}/", {"text": "and then?", "sides": ["model", "reference"], **SETTINGS}
    )
    page = html(answer)
    assert (answer.status_code, "and then?</textarea>" in page) == (422, True)
    assert ("reference is archived." in page, "reference: reference" in page) == (True, False)
    sent = {"base_model": conversation.base_model_id, "reference": reference.pk, "system": "", "text": "hello"}
    fresh = operator.post(CHAT, sent | SETTINGS)
    assert (fresh.status_code, "hello</textarea>" in html(fresh)) == (422, True)
