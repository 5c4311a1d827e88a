"""The worker API by HTTP: who may call what, and every answer that docs/worker-protocol.md promises until an attempt
ends (test_worker_api_ends.py has the rest)."""

from datetime import timedelta

import pytest
from django.db.models.functions import Now
from django.test import Client

from cohort import __version__
from cohort.accounts.models import Project, User
from cohort.catalog.models import PromptDataset
from cohort.environment import environment
from cohort.runs.models import Attempt, Node, Run, RunEvent, RunState, StepMetric
from cohort.runs.nodes import node_create
from cohort.runs.reconcile import attempts_lost
from cohort.runs.services import run_cancel
from grpo_core.config import RunConfig
from grpo_core.wire import BeatReply, ClaimReply, IngestReply
from tests.web.conftest import PROBLEMS
from tests.web.run_rows import add_checkpoint
from tests.web.worker_calls import API, AttemptCaller, Caller, claim, node, refused, run, worker
from tests.worker.making import NODE, WHOLE_RUN, envelopes, packed, phase, step

__all__ = ["node", "run", "worker"]  # fixtures

pytestmark = pytest.mark.django_db


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
    run.refresh_from_db()
    assert (run.state, run.fence) == (RunState.STARTING, 1)
    assert Node.objects.get().info["hostname"] == "host"
    assert RunEvent.objects.get(data__to="starting").actor == "node:gpu-1"


def test_a_node_says_that_it_is_here(node: Caller, worker: AttemptCaller) -> None:
    Node.objects.update(last_seen_at=None, info={})
    assert node.post("node", NODE.model_dump(mode="json")).status_code == 204
    row = Node.objects.get()
    assert row.last_seen_at is not None
    assert row.info["hostname"] == NODE.hostname
    assert worker.post("node", NODE.model_dump(mode="json")).status_code == 401, "an attempt is not a node"


def test_a_worker_of_another_version_is_told_so(run: Run, node: Caller) -> None:
    other = NODE.model_copy(update={"versions": {"cohort-grpo": "0.0.9"}})
    answer = node.post("claim", {"run_id": run.pk, "node": other.model_dump(mode="json")})
    assert refused(answer) == (409, "other_version")
    assert f"install cohort-grpo=={__version__}" in answer.json()["message"]
    assert not Attempt.objects.exists()
    same = NODE.model_copy(update={"versions": {"cohort-grpo": __version__}})
    answer = node.post("claim", {"run_id": run.pk, "node": same.model_dump(mode="json")})
    assert answer.status_code == 201


def test_a_claim_whose_answer_was_lost_gets_the_same_attempt_again(run: Run, node: Caller, ours: Project) -> None:
    """No attempt is left that nobody runs, and the token of the lost answer opens nothing."""
    body = {"run_id": run.pk, "claim_id": "one-claim", "node": NODE.model_dump(mode="json")}
    lost = ClaimReply.model_validate_json(node.post("claim", body).content)
    Attempt.objects.update(lease_until=Now())
    again = ClaimReply.model_validate_json(node.post("claim", body).content)
    assert lost.model_dump(exclude={"token"}) == again.model_dump(exclude={"token"})
    attempt = Attempt.objects.get()
    assert (attempt.pk, attempt.fence, attempt.state, attempt.claim_id) == (again.attempt_id, 1, "running", "one-claim")
    assert attempt.lease_until - attempt.claimed_at >= timedelta(seconds=60), "its lease begins anew"
    assert RunEvent.objects.filter(data__to="starting").count() == 1
    assert AttemptCaller(lost).beat().status_code == 401
    assert AttemptCaller(again).beat().status_code == 200
    assert refused(node.post("claim", body)) == (409, "not_waiting"), "it was heard of, so it has its worker"


@pytest.mark.parametrize("other", ["", "another"])
def test_another_claim_is_another_attempt(run: Run, node: Caller, other: str) -> None:
    body = {"run_id": run.pk, "node": NODE.model_dump(mode="json")}
    assert node.post("claim", {**body, "claim_id": other and "one-claim"}).status_code == 201
    assert refused(node.post("claim", {**body, "claim_id": other})) == (409, "not_waiting")
    second = Caller(node_create(name="gpu-2")[1])
    assert refused(second.post("claim", {**body, "claim_id": other and "one-claim"})) == (409, "not_waiting")


def test_a_claim_that_comes_again_after_its_attempt_was_ended_is_a_new_one(run: Run, node: Caller) -> None:
    body = {"run_id": run.pk, "claim_id": "one-claim", "node": NODE.model_dump(mode="json")}
    first = ClaimReply.model_validate_json(node.post("claim", body).content)
    Attempt.objects.update(lease_until=Now() - timedelta(seconds=1))
    assert attempts_lost() == [run.pk]
    second = ClaimReply.model_validate_json(node.post("claim", body).content)
    assert (first.fence, second.fence) == (1, 2)


@pytest.mark.parametrize("claim_id", ["x" * 65, "a b", "\0"])
def test_a_claim_id_that_cannot_be_stored_is_refused(run: Run, node: Caller, claim_id: str) -> None:
    body = {"run_id": run.pk, "claim_id": claim_id, "node": NODE.model_dump(mode="json")}
    assert node.post("claim", body).status_code == 422
    assert not Attempt.objects.exists()


def test_a_worker_that_refuses_runs_is_given_none(run: Run, node: Caller) -> None:
    full = NODE.model_copy(update={"refuses": "1.2 GiB free, 2 GiB needed"})
    answer = node.post("claim", {"run_id": run.pk, "node": full.model_dump(mode="json")})
    assert refused(answer) == (409, "not_waiting")
    assert "takes no run now: 1.2 GiB free, 2 GiB needed" in answer.json()["message"]


def test_a_draining_node_is_given_nothing(run: Run, node: Caller) -> None:
    Node.objects.update(draining="finish")
    body = {"run_id": run.pk, "node": NODE.model_dump(mode="json")}
    assert refused(node.post("claim", body)) == (409, "not_waiting")
    Node.objects.update(draining="")
    assert node.post("claim", body).status_code == 201


def test_a_second_claim_is_refused(run: Run, node: Caller) -> None:
    claim(node, run)
    body = {"run_id": run.pk, "node": NODE.model_dump(mode="json")}
    assert refused(node.post("claim", body)) == (409, "not_waiting")
    assert Attempt.objects.count() == 1
    assert refused(node.post("claim", {**body, "run_id": 10**6})) == (404, "unknown_run")


def test_files_are_those_of_the_claim(worker: AttemptCaller, dataset: PromptDataset) -> None:
    answer = worker.get(f"{worker.at}/files/{dataset.sha256}")
    assert b"".join(answer.streaming_content) == PROBLEMS
    assert answer.headers["Content-Length"] == str(len(PROBLEMS))
    assert refused(worker.get(f"{worker.at}/files/{'0' * 64}")) == (404, "unknown_file")


def test_a_file_that_is_gone_is_said_before_the_answer(worker: AttemptCaller, dataset: PromptDataset) -> None:
    """Once an answer has begun, a worker can only take its end for a broken line."""
    store = environment().home_folder / "artifacts" / dataset.artifact
    away = store.rename(store.with_suffix(".away"))
    try:
        answer = worker.get(f"{worker.at}/files/{dataset.sha256}")
    finally:
        away.rename(store)
    assert refused(answer) == (404, "file_missing")
    assert "the file of the dataset additions cannot be read" in answer.json()["message"]


# ---------------------------------------------------------------------- tokens


def test_each_token_opens_only_its_own(run: Run, node: Caller, worker: AttemptCaller, alice: User) -> None:
    claim_body = {"run_id": run.pk, "node": NODE.model_dump(mode="json")}
    assert refused(worker.post("claim", claim_body)) == (401, "unknown_token")
    assert refused(node.post(f"{worker.at}/heartbeat", {"fence": 1})) == (401, "unknown_token")
    assert refused(worker.post("attempts/999999/heartbeat", {"fence": 1})) == (401, "unknown_token")
    nobody = Caller("guess")
    for call in ("claim", f"{worker.at}/heartbeat", f"{worker.at}/records", f"{worker.at}/finish"):
        assert refused(nobody.post(call, {}, **{"X-Cohort-Fence": "1"})) == (401, "unknown_token")
    assert refused(nobody.get(f"{worker.at}/files/{'0' * 64}")) == (401, "unknown_token")
    signed_in = Client()
    signed_in.force_login(alice, backend="django.contrib.auth.backends.ModelBackend")
    assert signed_in.post(f"{API}/claim", claim_body, content_type="application/json").status_code == 401


def test_a_revoked_node_loses_its_attempts_too(worker: AttemptCaller, node: Caller, run: Run) -> None:
    Node.objects.update(revoked_at=Now())
    assert refused(worker.beat()) == (401, "unknown_token")
    assert refused(node.post("claim", {"run_id": run.pk, "node": {}})) == (401, "unknown_token")


def test_a_body_of_the_wrong_shape_is_named(node: Caller, worker: AttemptCaller) -> None:
    answer = node.post("claim", {"run_id": "seven", "node": NODE.model_dump(mode="json")})
    assert refused(answer) == (422, "bad_request")
    assert "run_id" in answer.json()["message"]
    assert refused(node.post("claim", b"not json")) == (400, "bad_request")
    assert refused(worker.post(f"{worker.at}/records", b"", **{"X-Cohort-Fence": "x"})) == (422, "bad_request")


def test_no_documentation_is_served(node: Caller) -> None:
    for path in ("docs", "openapi.json", ""):
        assert node.get(path).status_code == 404


# ---------------------------------------------------------------------- heartbeat


def test_beat_extends_the_lease_and_says_what_is_wanted(worker: AttemptCaller, run: Run, alice: User) -> None:
    Attempt.objects.update(lease_until=Now() + timedelta(seconds=3))
    reply = BeatReply.model_validate_json(worker.beat().content)
    assert (reply.desired, reply.lease_seconds) == ("run", 60)
    attempt = Attempt.objects.get()
    assert attempt.heartbeat_at is not None
    assert attempt.lease_until - attempt.heartbeat_at == timedelta(seconds=60)
    assert attempt.spooled_bytes == 7
    run_cancel(run=run, actor=alice)
    assert worker.beat().json()["desired"] == "cancel"


def test_beat_says_when_the_run_is_to_go_on_elsewhere(worker: AttemptCaller, run: Run, alice: User) -> None:
    Node.objects.update(draining="finish")
    assert worker.beat().json()["desired"] == "run", "what runs there ends there"
    Node.objects.update(draining="move")
    assert worker.beat().json()["desired"] == "preempt"
    run_cancel(run=run, actor=alice)
    assert worker.beat().json()["desired"] == "cancel", "a person's word counts for more"


def test_beat_says_which_checkpoints_stay(worker: AttemptCaller) -> None:
    attempt = Attempt.objects.select_related("run").get()
    for number in (1, 2, 3):
        add_checkpoint(attempt, number, pinned=number != 2)
    add_checkpoint(attempt, 4, pinned=True, final=True)
    assert worker.beat().json()["pinned"] == [1, 3]


def test_beat_says_how_far_the_trainer_is(worker: AttemptCaller) -> None:
    told = {"fence": 1, "free_bytes": 5_000_000_000, "progress": {"phase": "training", "done": 3, "total": 9}}
    assert worker.post(f"{worker.at}/heartbeat", told).status_code == 200
    attempt = Attempt.objects.get()
    assert (attempt.free_bytes, attempt.progress) == (5_000_000_000, told["progress"])


def test_a_stale_fence_may_not_even_beat(worker: AttemptCaller) -> None:
    assert refused(worker.beat(fence=2)) == (409, "stale_fence")
    assert Attempt.objects.get().heartbeat_at is None


# ---------------------------------------------------------------------- records


def test_records_are_acknowledged_in_order(worker: AttemptCaller) -> None:
    batch = envelopes(WHOLE_RUN)
    answer = worker.records(packed(batch[:5]))
    assert IngestReply.model_validate_json(answer.content).acked_seq == 5
    assert worker.records(packed(batch[6:])).json() == {"acked_seq": 5}
    assert worker.records(packed(batch)).json() == {"acked_seq": 17}


def test_bad_and_stale_batches_store_nothing(worker: AttemptCaller) -> None:
    answer = worker.records(packed([*envelopes([phase("training"), step(1)]), b'{"seq": 3}']))
    assert refused(answer) == (422, "bad_record")
    assert "record 3" in answer.json()["message"]
    assert refused(worker.records(packed(envelopes(WHOLE_RUN)), fence=2)) == (409, "stale_fence")
    assert StepMetric.objects.count() == 0
    assert Attempt.objects.get().acked_seq == 0
