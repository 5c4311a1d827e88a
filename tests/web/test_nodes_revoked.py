"""What a revocation takes from a machine: its attempts end with it, nobody brings their tokens back, and the runs wait
for the machine as long as it may be let in again."""

from datetime import timedelta

import pytest
from django.db.models.functions import Now

from cohort.accounts.models import User
from cohort.background.revoke import node_revoke
from cohort.cli.embedded import people
from cohort.nodes.leases import NotWaiting
from cohort.nodes.models import Node
from cohort.nodes.services import node_rotate
from cohort.runs.models import Attempt, Checkpoint, Run, RunEvent
from cohort.runs.services import run_cancel, run_retry
from tests.factories.worker import NODE, envelopes, packed, phase, step
from tests.web import control
from tests.web.control import checkpoint, fresh, steps, waited_for_its_record, why
from tests.web.worker_calls import AttemptCaller, Caller, claim, refused, run

__all__ = ["run"]  # fixtures

pytestmark = pytest.mark.django_db
BATCH = packed(envelopes([phase("training", 9), step(1)]))


@pytest.fixture
def row(node: Caller) -> Node:
    return Node.objects.get(name="gpu-1")


@pytest.fixture
def thief(node: Caller, run: Run) -> AttemptCaller:
    """Who has the token of the attempt that runs on the node."""
    return AttemptCaller(claim(node, run))


def test_a_new_token_does_not_bring_the_old_attempt_s_back(row: Node, thief: AttemptCaller, alice: User) -> None:
    assert thief.beat().status_code == 200
    node_revoke(node=row, actor=alice)
    for answer in (thief.beat(), thief.records(BATCH), thief.finish("finished", last_seq=0)):
        assert refused(answer) == (401, "unknown_token")
    node_rotate(node=row, actor=alice)
    calls = (thief.beat(), thief.records(BATCH), thief.finish("finished", last_seq=0), thief.upload("0" * 64))
    assert [refused(answer) for answer in calls] == [(409, "stale_fence")] * 4
    assert refused(thief.get(f"{thief.at}/files/{'0' * 64}")) == (409, "stale_fence")


def test_what_ran_there_is_queued_at_once_and_says_why(row: Node, thief: AttemptCaller, run: Run, alice: User) -> None:
    node_revoke(node=row, actor=alice)
    assert (fresh(run).state, run.error_code, run.retries) == ("queued", "node_revoked", 1)
    assert run.reason.startswith("gpu-1 was revoked by alice")
    assert run.reason.endswith("(1 of 5)")
    attempt = Attempt.objects.get()
    assert (attempt.state, attempt.end_code) == ("lost", "node_revoked")
    assert RunEvent.objects.get(kind="attempt").actor == "user:alice"


def test_on_the_server_too(row: Node, thief: AttemptCaller, run: Run) -> None:
    people.node_revoke(name="gpu-1")
    assert fresh(run).reason.startswith("gpu-1 was revoked on the server")
    assert RunEvent.objects.get(kind="attempt").actor == "platform"


def test_a_cancelled_run_ends_and_other_nodes_go_on(row: Node, thief: AttemptCaller, run: Run, alice: User) -> None:
    node_revoke(node=control.node("gpu-2"), actor=alice)
    assert thief.beat().status_code == 200
    run_cancel(run=run, actor=alice)
    node_revoke(node=row, actor=alice)
    assert fresh(run).state == "cancelled"


# ---------------------------------------------------------------------- where its runs continue


@pytest.fixture
def left(row: Node, run: Run, alice: User) -> Run:
    """A run of which the revoked node alone has a checkpoint."""
    info = NODE.model_dump(mode="json")
    Node.objects.filter(pk=row.pk).update(info=info, last_seen_at=Now())
    row.refresh_from_db()
    control.train(control.claim(row, run.pk), *steps(1, 4), checkpoint(4))
    node_revoke(node=row, actor=alice)
    run.refresh_from_db()
    return run


def test_a_run_waits_for_the_revoked_node_that_has_its_checkpoints(left: Run, row: Node, alice: User) -> None:
    other = control.node("gpu-2")
    Run.objects.update(queued_at=Now() - timedelta(hours=5))
    row.refresh_from_db()
    until = row.last_seen_at + timedelta(minutes=15)  # type: ignore[operator]
    assert why(left).startswith(f"waits until {until:%H:%M:%S} UTC for gpu-1")
    with pytest.raises(NotWaiting, match="for gpu-1"):
        control.claim(other, left.pk)
    token = node_rotate(node=row, actor=alice)
    answer = claim(Caller(token), left)
    assert [offer.step for offer in answer.resume] == [4]


def test_after_that_another_takes_it_and_it_can_only_begin_anew(left: Run, row: Node, alice: User) -> None:
    other = control.node("gpu-2")
    Node.objects.filter(pk=row.pk).update(last_seen_at=Now() - timedelta(minutes=16))
    attempt = control.claim(other, left.pk)
    run = waited_for_its_record(control.finish(attempt, "failed", "checkpoint_missing"))
    assert (attempt.run_id, run.state) == (left.pk, "failed")
    run_retry(run=run, actor=alice, from_start=True)
    assert control.claimed(other).resume == []


def test_it_does_not_wait_where_the_platform_has_one(left: Run) -> None:
    Checkpoint.objects.update(stored_at=Now())
    assert control.claim(control.node("gpu-2")).run_id == left.pk
