"""Checkpoints that the next attempt of a run is offered, and fetches from the platform."""

import pytest

from cohort.accounts.models import Project, User
from cohort.runs.checkpoints import offers, pinned
from cohort.runs.models import Checkpoint, Run
from cohort.runs.nodes import node_create
from tests.web.checkpoint_calls import STATE, WEIGHTS, registers, run, sends, worker
from tests.web.conftest import PROBLEMS
from tests.web.run_rows import Maker, add_checkpoint
from tests.web.worker_calls import AttemptCaller, Caller, claim, node, refused

__all__ = ["node", "run", "worker"]  # fixtures

pytestmark = pytest.mark.django_db


def offered(run: Run) -> list[tuple[int, int, bool]]:
    run.refresh_from_db()
    return [(offer.step, offer.fence, offer.stored) for offer in offers(run)]


def test_offers_are_newest_first_of_what_stands_and_is_held(maker: Maker) -> None:
    run = maker.run(state="training")
    first = maker.attempt(run, state="lost")
    for number in (0, 20, 40, 60):
        add_checkpoint(first, number)
    first.valid_through = 40
    first.save()
    second = maker.attempt(run)
    add_checkpoint(second, 50, stored=True)
    add_checkpoint(second, 60, removed=True)
    add_checkpoint(second, 45, removed=True, stored=True)  # it made room there, and the platform still has it
    add_checkpoint(second, 60, final=True)
    assert offered(run) == [(50, 2, True), (45, 2, True), (40, 1, False), (20, 1, False), (0, 1, False)]
    newest = offers(run)[0]
    assert newest.path == "checkpoints/step-000050"
    assert newest.files["state.json"].size == 1000


def test_a_chosen_checkpoint_comes_first_and_then_only_older_ones(maker: Maker) -> None:
    run = maker.run(state="failed")
    attempt = maker.attempt(run, state="failed")
    made = {number: add_checkpoint(attempt, number) for number in (0, 20, 40)}
    Run.objects.filter(pk=run.pk).update(resume_from=made[20])
    assert offered(run) == [(20, 1, False), (0, 1, False)]
    Checkpoint.objects.update(removed_at="2026-11-21T12:00:00Z")
    assert offered(run) == [(20, 1, False)], "an attempt that cannot have it says so, and does not begin anew"


def test_from_the_start_nothing_is_offered(maker: Maker) -> None:
    run = maker.run(state="failed")
    add_checkpoint(maker.attempt(run, state="failed"), 20)
    Run.objects.filter(pk=run.pk).update(from_start=True)
    assert offered(run) == []
    Run.objects.filter(pk=run.pk).update(from_start=False)
    assert offered(run) == [(20, 1, False)]


def test_pins_are_of_what_stands(maker: Maker) -> None:
    run = maker.run(state="training")
    first = maker.attempt(run, state="lost")
    for number in (20, 40, 60):
        add_checkpoint(first, number, pinned=number != 20)
    first.valid_through = 40
    first.save()
    second = maker.attempt(run)
    add_checkpoint(second, 60)
    add_checkpoint(second, 80, pinned=True)
    add_checkpoint(second, 40, pinned=True)
    assert pinned(run) == [40, 80]


def test_another_node_is_offered_and_fetches_what_is_stored(
    worker: AttemptCaller, run: Run, ours: Project, alice: User
) -> None:
    registers(worker, 1, {"weights.safetensors": WEIGHTS, "state.json": STATE})
    sends(worker, WEIGHTS, STATE)
    assert worker.finish("preempted", last_seq=3, code="worker_shutdown").status_code == 204
    claimed = claim(Caller(node_create(name="gpu-2")[1]), run)
    (offer,) = claimed.resume
    assert (offer.step, offer.fence, offer.path, offer.stored) == (1, 1, "checkpoints/step-000001", True)
    second = AttemptCaller(claimed)
    fetched = {
        name: b"".join(second.get(f"{second.at}/files/{entry.sha256}").streaming_content)
        for name, entry in offer.files.items()
    }
    assert fetched == {"weights.safetensors": WEIGHTS, "state.json": STATE}
    dataset = claimed.files[0].sha256
    assert b"".join(second.get(f"{second.at}/files/{dataset}").streaming_content) == PROBLEMS
    assert refused(second.get(f"{second.at}/files/{'0' * 64}")) == (404, "unknown_file")
    assert refused(worker.get(f"{worker.at}/files/{dataset}")) == (409, "stale_fence"), "an ended attempt reads nothing"
