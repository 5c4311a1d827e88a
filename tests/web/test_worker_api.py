"""The worker API by HTTP: who may call what, and every answer that docs/worker-protocol.md promises. What follows for
the run is in test_failures, test_schedule and test_reconcile."""

from dataclasses import dataclass
from datetime import timedelta
from hashlib import sha256
from typing import Any

import pytest
from django.db.models.functions import Now
from django.test import Client

from cohort import __version__
from cohort.accounts.models import User
from cohort.background import reconcile
from cohort.background.reconcile import attempts_lost, seals_republish, span
from cohort.background.tasks import seal
from cohort.base.environment import environment
from cohort.catalog.models import PromptDataset
from cohort.lab.models import LabJob
from cohort.lab.services import job_request
from cohort.nodes.models import Node
from cohort.nodes.services import node_create
from cohort.records.models import Record
from cohort.runs.models import Attempt, Run, RunEvent, RunState
from cohort.runs.services import run_cancel, run_sealed
from grpo_core.config.run import RunConfig
from grpo_core.protocol.messages import BeatReply, ClaimReply
from grpo_core.records import types as records
from tests.factories.runs import Maker
from tests.factories.worker import NODE, WHOLE_RUN, envelopes, outcome, packed, phase, step
from tests.tables import cases
from tests.web.conftest import PROBLEMS, R1_EXACT
from tests.web.control import fresh
from tests.web.worker_calls import AttemptCaller, Caller, claim, refused, run, worker

__all__ = ["run", "worker"]  # fixtures

pytestmark = pytest.mark.django_db
INFO = NODE.model_dump(mode="json")


def claims(caller: Caller, run: Run, **more: Any) -> Any:
    return caller.post("claim", {"run_id": run.pk, "node": INFO, **more})


# ---------------------------------------------------------------------- claim and files


def test_claim_gives_one_attempt_with_all_it_needs(run: Run, node: Caller, dataset: PromptDataset) -> None:
    claimed = claim(node, run)
    assert RunConfig.from_dict(claimed.config).name == "first"
    assert [(file.path, file.sha256, file.size) for file in claimed.files] == [
        (f"inputs/{dataset.sha256}.jsonl", dataset.sha256, len(PROBLEMS))
    ]
    assert (claimed.fence, claimed.heartbeat_seconds, claimed.lease_seconds) == (1, 10, 60)
    attempt = Attempt.objects.get()
    assert attempt.lease_until - attempt.claimed_at == timedelta(seconds=60)
    assert claimed.token not in attempt.token_digest
    assert (fresh(run).state, run.fence) == (RunState.STARTING, 1)
    assert Node.objects.get().info["hostname"] == "host"
    assert RunEvent.objects.get(data__to="starting").actor == "node:gpu-1"
    assert refused(claims(node, run)) == (409, "not_waiting")
    stranger = Caller(node_create(name="gpu-2")[1])
    assert refused(claims(stranger, run, run_id=10**6)) == (404, "unknown_run")
    assert Attempt.objects.count() == 1


@pytest.mark.parametrize(
    ("info", "code"),
    [
        ({"versions": {"cohort-grpo": "0.0.9"}}, "other_version"),
        ({"versions": {}}, "other_version"),
        ({"refuses": "the disk is full"}, "not_waiting"),
    ],
)
def test_a_worker_that_cannot_take_the_run_gets_none(run: Run, node: Caller, info: dict[str, Any], code: str) -> None:
    assert refused(claims(node, run, node=INFO | info)) == (409, code)
    assert not Attempt.objects.exists()
    assert claims(node, run, node=INFO | {"versions": {"cohort-grpo": __version__}}).status_code == 201


def test_a_node_has_one_run_at_a_time(run: Run, node: Caller, maker: Maker) -> None:
    worker, second = AttemptCaller(claim(node, run)), maker.launched("second", eval={"holdout": 5})
    answer = claims(node, second)
    assert refused(answer) == (409, "not_waiting")
    assert "attempt 1 of run" in answer.json()["message"]
    worker.finish("failed", last_seq=0)
    assert claim(node, second).run_id == second.pk


def test_a_claim_whose_answer_was_lost_gets_the_same_attempt_again(run: Run, node: Caller) -> None:
    """No attempt is left that nobody runs, and the token of the lost answer opens nothing."""
    lost = ClaimReply.model_validate_json(claims(node, run, claim_id="one-claim").content)
    Attempt.objects.update(lease_until=Now())
    again = ClaimReply.model_validate_json(claims(node, run, claim_id="one-claim").content)
    assert lost.model_dump(exclude={"token"}) == again.model_dump(exclude={"token"})
    attempt = Attempt.objects.get()
    assert (attempt.pk, attempt.fence, attempt.state, attempt.claim_id) == (again.attempt_id, 1, "running", "one-claim")
    assert attempt.lease_until - attempt.claimed_at >= timedelta(seconds=60), "its lease begins anew"
    assert RunEvent.objects.filter(data__to="starting").count() == 1
    for other in ("", "another"):
        assert refused(claims(node, run, claim_id=other)) == (409, "not_waiting")
    stranger = Caller(node_create(name="gpu-2")[1])
    assert refused(claims(stranger, run, claim_id="one-claim")) == (409, "not_waiting")
    assert AttemptCaller(lost).beat().status_code == 401
    assert AttemptCaller(again).beat().status_code == 200
    assert refused(claims(node, run, claim_id="one-claim")) == (409, "not_waiting"), "it was heard of"


def test_a_claim_that_comes_again_after_its_attempt_was_ended_is_a_new_one(run: Run, node: Caller) -> None:
    first = ClaimReply.model_validate_json(claims(node, run, claim_id="one-claim").content)
    Attempt.objects.update(lease_until=Now() - timedelta(seconds=1))
    assert attempts_lost() == [run.pk]
    second = ClaimReply.model_validate_json(claims(node, run, claim_id="one-claim").content)
    assert (first.fence, second.fence) == (1, 2)


def test_files_are_those_of_the_claim(worker: AttemptCaller, dataset: PromptDataset) -> None:
    address = f"{worker.at}/files/{dataset.sha256}"
    answer = worker.get(address)
    assert b"".join(answer.streaming_content) == PROBLEMS
    assert answer.headers["Content-Length"] == str(len(PROBLEMS))
    assert refused(worker.get(f"{worker.at}/files/{'0' * 64}")) == (404, "unknown_file")
    store = environment().home_folder / "artifacts" / dataset.artifact
    away = store.rename(store.with_suffix(".away"))
    try:
        answer = worker.get(address)
    finally:
        away.rename(store)
    assert refused(answer) == (404, "file_missing"), "said before the answer begins"


# ---------------------------------------------------------------------- tokens


@dataclass
class World:
    """Callers by name, each in possession of what it may call, and what the tables' placeholders stand for."""

    callers: dict[str, Caller]
    ids: dict[str, Any]
    bodies: dict[str, Any]

    def body(self, body: Any) -> Any:
        if isinstance(body, dict):
            return {key: self.body(value) for key, value in body.items()}
        return self.bodies.get(body, body) if isinstance(body, str) else body


@pytest.fixture
def world(run: Run, node: Caller, worker: AttemptCaller, maker: Maker) -> World:
    weights = records.FileEntry(size=7, sha256=sha256(b"weights").hexdigest())
    path, files = "checkpoints/step-000001", {"weights.safetensors": weights}
    manifest = records.CheckpointManifest(step=1, path=path, files=files, seconds=0.1)
    assert worker.records(packed(envelopes([phase("training"), step(1), manifest]))).json() == {"acked_seq": 3}
    second = Caller(node_create(name="gpu-2")[1])
    other = AttemptCaller(claim(second, maker.launched("other", eval={"holdout": 5})))
    of = {"project": run.project, "actor": maker.actor, "dataset": run.dataset}
    for _ in range(2):
        job_request(kind="try", spec=R1_EXACT, options={"rows": 1}, **of)
    job, other_job = (caller.post("jobs/claim", {"job_id": 1, "node": INFO}).json() for caller in (node, second))
    person = Caller("")
    person.client = Client()
    person.client.force_login(maker.actor, backend="django.contrib.auth.backends.ModelBackend")
    ids = {name: caller.at.rpartition("/")[2] for name, caller in (("attempt", worker), ("other", other))}
    return World(
        callers={
            "node": node,
            "worker": worker,
            "other": other,
            "job": Caller(job["token"]),
            "person": person,
            "nobody": Caller("guess"),
        },
        ids={
            **ids,
            "job": job["job_id"],
            "other_job": other_job["job_id"],
            "weights": weights.sha256,
            "zeros": "0" * 64,
        },
        bodies={"{run}": run.pk, "{info}": INFO, "weights": b"weights", "not json": b"not json"},
    )


CALL = ("caller", "method", "path", "body", "headers", "status", "code")


@pytest.mark.parametrize(CALL, cases("worker_api/refusals", *CALL))
def test_calls_that_no_worker_of_ours_makes(
    world: World, caller: str, method: str, path: str, body: Any, headers: Any, status: int, code: str | None
) -> None:
    before, call, address = _rows(), world.callers[caller], path.format(**world.ids)
    answer = call.get(address) if method == "get" else call.post(address, world.body(body), **(headers or {}))
    assert answer.status_code == status
    if code:
        assert refused(answer) == (status, code)
    assert _rows() == before


def _rows() -> list[Any]:
    return [*Attempt.objects.values_list("acked_seq", "state"), *LabJob.objects.values_list("state")]


# ---------------------------------------------------------------------- heartbeat and records


def test_a_beat_extends_the_lease_and_says_what_is_wanted(worker: AttemptCaller, run: Run, alice: User) -> None:
    Attempt.objects.update(lease_until=Now() + timedelta(seconds=3))
    progress = {"phase": "training", "done": 3, "total": 9}
    body = {"fence": 1, "spooled_bytes": 7, "free_bytes": 5_000_000_000, "progress": progress}
    reply = BeatReply.model_validate_json(worker.post(f"{worker.at}/heartbeat", body).content)
    assert (reply.desired, reply.lease_seconds) == ("run", 60)
    attempt = Attempt.objects.get()
    assert attempt.heartbeat_at is not None
    assert attempt.lease_until - attempt.heartbeat_at == timedelta(seconds=60)
    assert (attempt.spooled_bytes, attempt.free_bytes, attempt.progress) == (7, 5_000_000_000, progress)
    run_cancel(run=run, actor=alice)
    assert worker.beat().json()["desired"] == "cancel"


# ---------------------------------------------------------------------- finish


def test_finished_waits_for_all_records_and_then_for_its_record(worker: AttemptCaller, run: Run) -> None:
    batch = envelopes(WHOLE_RUN)
    worker.records(packed(batch[:16]))
    assert refused(worker.finish("finished", last_seq=17)) == (409, "records_missing")
    worker.records(packed(batch))
    for _ in range(2):  # the second time because its answer was lost
        assert worker.finish("finished", last_seq=17, log_tail="the last line").status_code == 204
    assert (fresh(run).state, run.ended_at) == (RunState.SEALING, None)
    assert refused(worker.finish("failed", last_seq=17)) == (409, "stale_fence")
    assert refused(worker.beat()) == (409, "stale_fence")
    assert RunEvent.objects.filter(run=run, data__to="sealing").count() == 1
    run_sealed(run=run)
    assert (fresh(run).state, run.log_tail) == (RunState.SUCCEEDED, "the last line")


def test_success_without_an_outcome_is_no_success(worker: AttemptCaller, run: Run) -> None:
    worker.records(packed(envelopes([phase("training"), outcome("failed")])))
    worker.finish("finished", last_seq=2)
    assert (fresh(run).state, run.error_code) == (RunState.FAILED, "no_outcome")


@pytest.mark.parametrize(
    ("end", "state", "code"), [("failed", "failed", "trainer_died"), ("cancelled", "cancelled", "")]
)
def test_other_ends_carry_their_reason(worker: AttemptCaller, run: Run, end: str, state: str, code: str) -> None:
    more = {"code": "trainer_died", "message": "killed\x00", "log_tail": "last\x00line"}
    assert worker.finish(end, last_seq=0, **more).status_code == 204
    assert (fresh(run).state, run.error_code) == (state, code)
    assert (run.reason, run.log_tail) == ("killed\ufffd", "last\ufffdline")
    assert run.ended_at is not None
    assert Attempt.objects.get().state == end


def test_a_cancelled_run_says_by_whom_and_when(worker: AttemptCaller, run: Run, alice: User) -> None:
    worker.records(packed(envelopes([phase("training"), step(1), step(2)])))
    run_cancel(run=run, actor=alice)
    worker.finish("cancelled", last_seq=3, message="the worker's own words")
    assert (fresh(run).state, run.reason) == (RunState.CANCELLED, "Stopped by alice after 2 steps")


def test_a_node_that_was_restarted_gives_its_dead_attempts_back(worker: AttemptCaller, node: Caller, run: Run) -> None:
    attempt = Attempt.objects.get()
    body = {"attempts": [{"attempt_id": attempt.pk, "fence": 1}, {"attempt_id": 10**6, "fence": 1}]}
    for caller, state in ((Caller(node_create(name="gpu-2")[1]), "running"), (node, "lost"), (node, "lost")):
        assert caller.post("node/lost", body).status_code == 204
        assert fresh(attempt).state == state, "only its own; a second time because the answer was lost"
    assert (fresh(run).state, attempt.end_code) == (RunState.QUEUED, "worker_lost")
    assert refused(worker.beat()) == (409, "stale_fence")


# ---------------------------------------------------------------------- records that did not come


@pytest.fixture
def unsealed(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The reconciler's clock; it remembers no run of another test."""
    clock = [0.0]
    monkeypatch.setattr("cohort.background.reconcile.time.monotonic", lambda: clock[0])
    monkeypatch.setattr(reconcile, "_seals_requested", {})
    return clock


def test_a_record_lost_to_a_kill_is_asked_for_again(worker: AttemptCaller, run: Run, unsealed: list[float]) -> None:
    worker.records(packed(envelopes(WHOLE_RUN)))
    worker.finish("finished", last_seq=17)
    assert seals_republish() == []
    Attempt.objects.update(ended_at=Now() - timedelta(seconds=61))
    run.refresh_from_db(fields=["fence", "ends"])
    made = {"schema_version": "1", "document": "{}", "fields_stated": 1, "fields_total": 1, "sealed_at": Now()}
    Record.objects.create(run=run, end=run.ends, fence=run.fence, seal="cd" * 32, record_root="ab" * 32, **made)
    assert seals_republish() == [run.pk], "the run was not told of it"
    seal(run.pk)
    assert fresh(run).state == RunState.SUCCEEDED
    assert seals_republish() == []


def test_a_seal_that_fails_is_asked_for_more_and_more_rarely(worker: AttemptCaller, unsealed: list[float]) -> None:
    worker.finish("failed", last_seq=0)
    Attempt.objects.update(ended_at=Now() - timedelta(hours=1))
    minutes_asked = []
    for minutes in range(190):
        unsealed[0] = 60.0 * minutes
        if seals_republish():
            minutes_asked.append(unsealed[0] / 60)
    assert minutes_asked == [0, 2, 6, 14, 30, 62, 122, 182]


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0, "0 seconds"), (119, "119 seconds"), (120, "2 minutes"), (7199, "119 minutes"), (7200, "2 hours")],
)
def test_spans_in_words(seconds: int, words: str) -> None:
    assert span(timedelta(seconds=seconds)) == words
