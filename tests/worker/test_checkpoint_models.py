"""Runs and jobs from a checkpoint of another run, by the real trainer: its node sends what is requested, the next run's
worker fetches it, and the weights that it begins with are those of the first run, over several runs, also as adapters.
"""

import shutil
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from django.db import connection

from cohort.catalog.models import BaseModel
from cohort.catalog.services import verifier_version_create
from cohort.lab.chat import conversation_begin
from cohort.lab.evaluations import reference_of
from cohort.lab.models import ChatAnswer, JobState, LabJob, VerifierProbe
from cohort.lab.services import doctor_request, evaluation_request, job_cancel, job_request
from cohort.lab.turns import unanswered
from cohort.launch.creation import run_launch
from cohort.runs.base_models import checkpoint_register, checkpoint_request, suggested_name
from cohort.runs.models import Checkpoint, Run, RunEvent
from cohort.runs.trained_rewards import trained_reward_create, trained_rewards
from grpo_core.protocol.messages import RequestedCheckpoint
from tests.factories.kinds import preferences
from tests.factories.suites import add_suite
from tests.factories.worker import NODE
from tests.processes import wait_for
from tests.worker.conftest import Attempting, Site, worker_settings
from worker.folders.run_folder import trainer_command
from worker.node.requested import RequestedSender, send_requested
from worker.platform_client.client import Platform
from worker.supervisor.job import run_job
from worker.supervisor.loop import Limits, Supervisor
from worker.supervisor.run import run_attempt

VOWELS = {"components": [{"name": "vowels", "kind": "regex", "params": {"pattern": "[aeiou]"}}]}
"""Paid by chance, so that a model that knows nothing learns from its first step on."""
SMALL: dict[str, Any] = {
    "sampling": {"group_size": 8, "prompts_per_step": 2, "max_completion_tokens": 12},
    "optim": {"steps": 2, "lr": 1e-3},
    "checkpoints": {"every": 1, "keep": 9},
    "data": {"limit": 8},
    "eval": {"holdout": 2, "before": False, "after": False},
    "engine": {"threads": 1, "device": "cpu"},
}


@dataclass
class Node:
    """A worker with quick turns and the real trainer."""

    site: Site
    platform: Platform
    folder: Path

    @property
    def settings(self) -> Any:
        return worker_settings(self.folder, upload_seconds=0.0, url=self.site.url, node_token=self.site.node_token)

    def supervisor(self) -> Supervisor:
        limits = Limits(tick=0.05, beat=0.2)
        return Supervisor(self.platform, self.settings, trainer_command(1 << 30), threading.Event(), limits=limits)

    def train(self, name: str, base: BaseModel, **more: Any) -> Run:
        self.site.base_model = base
        run = self.site.launched(name, **{**SMALL, **more})
        finish = run_attempt(self.supervisor(), run.pk)
        assert finish is not None
        assert (finish.end, finish.code) == ("finished", "ok"), finish.message + finish.log_tail
        return run

    def checkpoint(self, run: Run, step: int, *, final: bool = False) -> Checkpoint:
        return Checkpoint.objects.get(run=run, step=step, final=final)

    def path(self, checkpoint: Checkpoint) -> Path:
        folder = self.settings.runs_folder / f"run-{checkpoint.run_id}" / f"attempt-{checkpoint.attempt.fence}"
        return Path(folder / checkpoint.path)

    def requested(self) -> list[RequestedCheckpoint]:
        return self.platform.present(NODE).requested

    def register(self, checkpoint: Checkpoint) -> BaseModel:
        """Registered, and sent by this node as its heartbeat has it."""
        model = checkpoint_register(checkpoint=checkpoint, actor=self.site.actor, name=suggested_name(checkpoint))
        self.send(checkpoint)
        return model

    def send(self, checkpoint: Checkpoint) -> None:
        """The files that were requested of this node."""
        for requested in self.requested():
            send_requested(requested, self.settings.runs_folder, self.platform, threading.Event())
        checkpoint.refresh_from_db()
        assert checkpoint.stored_at is not None


@pytest.fixture
def node(tiny: Site, tmp_path: Path) -> Iterator[Node]:
    tiny.verifier_version = verifier_version_create(project=tiny.project, actor=tiny.actor, name="vowels", spec=VOWELS)
    with Platform(tiny.url, tiny.node_token) as platform:
        platform.present(NODE)
        yield Node(tiny, platform, tmp_path)


def trained(checkpoint: Checkpoint) -> str:
    """SHA-256 of its trained weights."""
    return str(checkpoint.files["policy.safetensors"]["sha256"])


def manifest(run: Run) -> dict[str, Any]:
    facts: dict[str, Any] = run.attempts.get().manifest["model"]  # type: ignore[index]
    return facts


def test_three_runs_in_a_row(node: Node) -> None:
    base = node.site.base_model
    first = node.train("first", base)
    learned = node.checkpoint(first, 2)
    assert trained(learned) != trained(node.checkpoint(first, 0)), "the first run learned something"
    model = node.register(learned)
    second = node.train("second", model)
    assert trained(node.checkpoint(second, 0)) == trained(learned)
    assert manifest(second)["checkpoint"]["policy.safetensors"] == trained(learned)
    attempt = node.path(node.checkpoint(second, 0)).parents[1]
    assert not list(attempt.glob("inputs/checkpoint-*")), "what it fetched is removed"
    third = node.train("third", node.register(node.checkpoint(second, 2)))
    assert trained(node.checkpoint(third, 0)) == trained(node.checkpoint(second, 2))


def test_final_weights(node: Node) -> None:
    first = node.train("first", node.site.base_model)
    final = node.checkpoint(first, 2, final=True)
    model = node.register(final)
    assert (model.adapter, [*model.weights]) == (None, ["model.safetensors"])
    second = node.train("second", model)
    assert trained(node.checkpoint(second, 0)) == trained(node.checkpoint(first, 2))
    assert manifest(second)["weights"] == {"model.safetensors": final.files["model.safetensors"]["sha256"]}


def test_adapters_go_on_in_a_run_and_the_doctor_takes_them(node: Node) -> None:
    lora = {"model": {"lora": {"rank": 2, "alpha": 4.0}}}
    first = node.train("first", node.site.base_model, **lora)
    model = node.register(node.checkpoint(first, 2))
    assert model.adapter == {"rank": 2, "alpha": 4.0, "base": "real", "revision": None}
    second = node.train("second", model, **lora)
    assert trained(node.checkpoint(second, 0)) == trained(node.checkpoint(first, 2))
    job = doctor_request(base_model=model, actor=node.site.actor)
    run_job(node.supervisor(), job.pk)
    job.refresh_from_db()
    assert (job.state, job.error) == (JobState.DONE, "")
    assert job.result is not None
    assert job.result["architecture"] == "LlamaForCausalLM"


def test_one_is_evaluated_and_talked_to_next_to_its_reference(node: Node) -> None:
    first = node.train("first", node.site.base_model)
    model = node.register(node.checkpoint(first, 2))
    reference = reference_of(model)
    assert reference == node.site.base_model
    version = add_suite(node.site.project, node.site.actor)
    options = {"max_completion_tokens": 4, "samples": 1, "temperature": 0.0, "seed": 0}
    job = evaluation_request(base_model=model, actor=node.site.actor, versions=[version], options=options)
    run_job(node.supervisor(), job.pk)
    job.refresh_from_db()
    assert (job.state, job.error) == (JobState.DONE, "")
    assert job.evaluations.get().problems == 3
    for one, other in ((model, reference), (reference, model)):
        conversation = conversation_begin(
            base_model=one,
            reference=other,
            actor=node.site.actor,
            text="2 + 3 =",
            sampling={"temperature": 0.0, "max_tokens": 4},
        )
        talk = conversation.jobs.get()
        assert [file["path"].split("/")[1] for file in talk.inputs] == [Path(model.path).name] * 2
        ending = threading.Thread(target=_end_when_answered, args=(talk, node.site.actor))
        ending.start()
        run_job(node.supervisor(), talk.pk)
        ending.join()
        answers = ChatAnswer.objects.filter(message__conversation=conversation)
        assert sorted(answers.values_list("side", "error")) == [("model", ""), ("reference", "")]
        assert all(answer.tokens for answer in answers)


def test_a_trained_reward_model_becomes_a_reward_that_is_probed(node: Node) -> None:
    site = node.site
    run = run_launch(
        kind="reward_model",
        project=site.project,
        actor=site.actor,
        name="judge",
        base_model=site.base_model,
        dataset=preferences(site.project, site.actor),
        settings={
            "optim": {"steps": 2, "batch_size": 4, "lr": 1e-3},
            "data": {"holdout": 4, "template": "{prompt} {completion}"},
            "engine": SMALL["engine"],
        },
    )
    finish = run_attempt(node.supervisor(), run.pk)
    assert finish is not None
    assert (finish.end, finish.code) == ("finished", "ok"), finish.message + finish.log_tail
    final = node.checkpoint(run, 2, final=True)
    version = trained_reward_create(checkpoint=final, actor=site.actor, name="judge", pass_at=0.0)
    node.send(final)
    options = {"problems": 2}
    job = job_request(
        project=site.project, actor=site.actor, kind="probe", version=version, dataset=site.dataset, options=options
    )
    run_job(node.supervisor(), job.pk)
    job.refresh_from_db()
    assert (job.state, job.error) == (JobState.DONE, "")
    probe = VerifierProbe.objects.get(version=version)
    assert (probe.dataset, probe.report["rubric_digest"]) == (site.dataset, version.digest)
    ((trained,),) = trained_rewards(site.project, [version]).values()
    assert trained.facts is not None
    assert (trained.run, trained.facts["accuracy"]["pairs"]) == (run, 4)
    assert 0 <= trained.facts["accuracy"]["low"] < trained.facts["accuracy"]["high"] <= 1


def _end_when_answered(job: LabJob, actor: Any) -> None:
    conversation = job.conversation
    assert conversation is not None
    try:
        wait_for(lambda: not unanswered(conversation), "the message was not answered")
    finally:
        job_cancel(job=job, actor=actor)
        connection.close()


def test_what_the_node_has_changed_or_has_no_longer(attempt: Attempting, site: Site, tmp_path: Path) -> None:
    """Of a run whose attempt has ended; one that it has is sent by the thread next to the heartbeat."""
    begun = attempt("checkpoints", upload_seconds=0.0)
    begun.cancel()
    begun.end()
    rows = list(Checkpoint.objects.filter(run=begun.run, final=False).order_by("step"))
    assert len(rows) >= 2
    settings = worker_settings(tmp_path, url=site.url, node_token=site.node_token)
    with Platform(site.url, site.node_token) as platform:

        def requested(checkpoint: Checkpoint) -> list[RequestedCheckpoint]:
            checkpoint_request(checkpoint=checkpoint, actor=site.actor)
            return platform.present(NODE).requested

        def outcome(checkpoint: Checkpoint) -> tuple[bool, bool, bool]:
            checkpoint.refresh_from_db()
            assert platform.present(NODE).requested == []
            times = (checkpoint.stored_at, checkpoint.requested_at, checkpoint.removed_at)
            return times[0] is not None, times[1] is not None, times[2] is not None

        platform.present(NODE)
        gone, whole = rows[0], rows[-1]
        sender = RequestedSender(settings, threading.Event())
        sender.send(requested(whole))
        assert sender._thread is not None
        sender._thread.join()
        assert outcome(whole) == (True, False, False)

        (wanted,) = requested(gone)
        file = begun.folder / gone.path / "weights.txt"
        content = file.read_bytes()
        file.write_bytes(bytes([content[0] ^ 1]) + content[1:])
        send_requested(wanted, settings.runs_folder, platform, threading.Event())
        assert outcome(gone) == (False, False, False)
        file.write_bytes(content)

        for path in ("../../../secret.json", str(settings.runs_folder / "secret.json")):
            (wanted,) = requested(gone)
            (settings.runs_folder / "secret.json").write_bytes(content)
            outside = wanted.model_copy(update={"files": {path: wanted.files["weights.txt"]}})
            send_requested(outside, settings.runs_folder, platform, threading.Event())
            assert outcome(gone) == (False, False, False)

        (wanted,) = requested(gone)
        shutil.rmtree(begun.folder / gone.path)
        send_requested(wanted, settings.runs_folder, platform, threading.Event())
        assert outcome(gone) == (False, False, True)
    words = RunEvent.objects.filter(run=begun.run, kind="checkpoint_unavailable").order_by("pk")
    assert [event.data["step"] for event in words] == [gone.step] * 4
