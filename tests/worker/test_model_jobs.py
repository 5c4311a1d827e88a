"""Jobs about a model by a worker's supervisor against a real web server: a suite that is evaluated, and a chat whose
messages and answers travel with the beats."""

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from cohort.catalog.models import BaseModel
from cohort.catalog.services import base_model_register
from cohort.lab import chat, turns
from cohort.lab.models import ChatAnswer, Conversation, JobState, LabJob, ModelEvalItem, ModelEvalResult
from cohort.lab.services import evaluation_request, job_cancel
from grpo_core.protocol.messages import JobFinish
from tests.factories.suites import add_suite
from tests.processes import DEADLINE, wait_for
from tests.worker.conftest import Site, worker_settings
from tests.worker.stand_in import child
from worker.platform_client.client import Platform
from worker.supervisor.job import run_job
from worker.supervisor.loop import Limits, Supervisor

SHORT = {"max_completion_tokens": 4, "samples": 1, "temperature": 0.0, "seed": 0}
SETTINGS = {"temperature": 0.0, "max_tokens": 4}


@dataclass
class Lab:
    """The platform with a worker that does jobs with quick turns."""

    site: Site
    platform: Platform
    folder: Path
    stop: threading.Event
    background: Callable[..., Any]

    def run(self, job: LabJob) -> JobFinish | None:
        """The worker's last word; the job is as it is then."""
        limits = Limits(tick=0.05, beat=0.1, disk=0.0)
        supervisor = Supervisor(self.platform, worker_settings(self.folder), child("finish"), self.stop, limits=limits)
        finish = run_job(supervisor, job.pk)
        job.refresh_from_db()
        return finish

    def begin(self, reference: BaseModel | None = None) -> tuple[Conversation, LabJob]:
        conversation = chat.conversation_begin(
            base_model=self.site.base_model,
            reference=reference,
            actor=self.site.actor,
            text="2 + 3 =",
            sampling=SETTINGS,
        )
        return conversation, conversation.jobs.get()

    def send(self, conversation: Conversation, text: str, **more: Any) -> None:
        chat.message_send(conversation=conversation, actor=self.site.actor, text=text, sampling=SETTINGS, **more)


def answered(conversation: Conversation) -> Callable[[], bool]:
    return lambda: not turns.unanswered(conversation)


@pytest.fixture
def lab(tiny: Site, tmp_path: Path, shutdown: threading.Event, background: Any) -> Iterator[Lab]:
    with Platform(tiny.url, tiny.node_token) as platform:
        yield Lab(tiny, platform, tmp_path, shutdown, background)


@pytest.fixture
def other(lab: Lab) -> BaseModel:
    return base_model_register(project=lab.site.project, actor=lab.site.actor, name="other", path="real")


def test_a_suite_is_evaluated_and_kept_item_by_item(lab: Lab) -> None:
    version = add_suite(lab.site.project, lab.site.actor)
    given = {"base_model": lab.site.base_model, "actor": lab.site.actor, "versions": [version], "options": SHORT}
    heldout = {"dataset": lab.site.dataset, "verifier_version": lab.site.verifier_version}
    job = evaluation_request(**given, **heldout)
    finish = lab.run(job)
    assert (finish and finish.end, job.state, job.error) == ("done", JobState.DONE, "")
    rows = list(job.evaluations.order_by("pk"))
    assert [(row.suite, row.suite_version, row.problems) for row in rows] == [
        ("heldout", None, lab.site.dataset.problems),
        ("capitals", version, 3),
    ]
    assert rows[1].protocol["file_sha256"] == version.sha256
    items = list(rows[1].items.order_by("index"))
    assert [item.problem_id for item in items] == ["france", "italy", "japan"]
    assert all(item.completion and item.tokens for item in items)
    assert job.result["results"][1]["correct"] == rows[1].correct == sum(item.score for item in items)
    assert "items" not in job.result


def test_a_suite_that_the_model_has_no_room_for_fails_with_its_item(lab: Lab) -> None:
    long = b'{"id": "long", "prompt": "' + b"x" * 17_000 + b'", "target": "y"}\n'
    version = add_suite(lab.site.project, lab.site.actor, content=long)
    given = {"base_model": lab.site.base_model, "actor": lab.site.actor, "options": SHORT}
    job = evaluation_request(**given, versions=[version])
    lab.run(job)
    assert (job.state, job.error_code) == (JobState.FAILED, "config_error")
    assert "suite capitals: the prompt of item long" in job.error
    assert not ModelEvalResult.objects.exists()
    assert not ModelEvalItem.objects.exists()


def test_a_conversation_keeps_its_job_until_it_is_idle(lab: Lab, other: BaseModel, monkeypatch: Any) -> None:
    conversation, job = lab.begin(other)
    ends = lab.background(lambda: lab.run(job))
    wait_for(answered(conversation), "the first message is answered")
    lab.send(conversation, "And 4 + 4?")
    wait_for(answered(conversation), "the second is answered by the same job")
    assert conversation.jobs.count() == 1
    first, second = conversation.messages.order_by("number")
    by_side = {answer.side: answer for answer in first.answers.all()}
    assert by_side["model"].text == by_side["reference"].text != "", "the same weights, and the likeliest tokens"
    assert {answer.template for answer in second.answers.all()} == {"plain"}
    longer = {answer.side: answer.prompt_tokens for answer in second.answers.all()}
    assert all(longer[side] > by_side[side].prompt_tokens + by_side[side].tokens for side in longer), "with its history"
    monkeypatch.setattr(turns, "IDLE", turns.IDLE * 0)
    finish = ends.result(timeout=DEADLINE)
    job.refresh_from_db()
    assert (finish.end, job.state, job.result["answers"]) == ("done", JobState.DONE, 4)
    lab.send(conversation, "More", sides=["reference"])
    again = conversation.jobs.exclude(pk=job.pk).get()
    lab.run(again)
    third = conversation.messages.get(number=3)
    assert [answer.side for answer in third.answers.all()] == ["reference"]
    assert again.state == JobState.DONE


def test_a_chat_that_is_called_off_answers_with_that(lab: Lab, monkeypatch: Any) -> None:
    from worker.folders import job_folder

    monkeypatch.setattr(job_folder.JobFolder, "command", lambda self: ["/bin/sh", "-c", "echo begun; sleep 600"])
    conversation, job = lab.begin()
    ends = lab.background(lambda: lab.run(job))
    wait_for(lambda: any(lab.folder.glob("runs/lab/job-*/out/turns/turn-*.json")), "the worker has the message")
    job_cancel(job=job, actor=lab.site.actor)
    assert ends.result(timeout=DEADLINE).end == "cancelled"
    (answer,) = ChatAnswer.objects.all()
    assert (answer.error, answer.text) == (turns.CALLED_OFF, "")
    lab.send(conversation, "Again")
    assert conversation.jobs.count() == 2


def test_a_model_that_cannot_be_loaded_is_the_answer(lab: Lab) -> None:
    BaseModel.objects.filter(pk=lab.site.base_model.pk).update(path="nowhere")
    lab.site.base_model.refresh_from_db()
    conversation, job = lab.begin()
    lab.run(job)
    assert job.state == JobState.FAILED
    (answer,) = conversation.messages.get().answers.all()
    assert answer.error == job.error
    assert "nowhere" in answer.error
