"""Checkpoints from which the next attempt may go on, and those of earlier attempts that a node need not keep."""

import pytest
from django.db import connection
from django.utils import timezone

from cohort.runs.checkpoints import needless as needless_of
from cohort.runs.checkpoints import offers, pinned, resumable
from cohort.runs.models import Attempt, Checkpoint, Run
from cohort.runs.nodes import node_create
from grpo_core import records
from tests.web.batches import saved
from tests.web.checkpoint_calls import STATE, WEIGHTS, registers, run, sends, worker
from tests.web.conftest import PROBLEMS
from tests.web.run_rows import Maker, add_checkpoint
from tests.web.worker_calls import AttemptCaller, Caller, claim, node, refused
from tests.worker.making import envelopes, packed, phase, step

__all__ = ["node", "run", "worker"]  # fixtures

pytestmark = pytest.mark.django_db


# ---------------------------------------------------------------------- offered


def offered(run: Run) -> list[tuple[int, int, bool]]:
    run.refresh_from_db()
    return [(offer.step, offer.fence, offer.stored) for offer in offers(run)]


def test_offers_are_newest_first_of_what_stands_and_is_held(maker: Maker) -> None:
    run = maker.run(state="training")
    first = maker.attempt(run, state="lost")
    for number in (0, 20, 40, 60):
        add_checkpoint(first, number, pinned=number > 20)
    first.valid_through = 40
    first.save()
    second = maker.attempt(run)
    add_checkpoint(second, 50, stored=True)
    add_checkpoint(second, 60, removed=True)
    add_checkpoint(second, 45, removed=True, stored=True)  # it made room there, and the platform still has it
    add_checkpoint(second, 60, final=True)
    add_checkpoint(second, 40, pinned=True, removed=True)
    assert offered(run) == [(50, 2, True), (45, 2, True), (40, 1, False), (20, 1, False), (0, 1, False)]
    newest = offers(run)[0]
    assert (newest.path, newest.files["state.json"].size) == ("checkpoints/step-000050", 1000)


def test_pins_are_of_what_stands(maker: Maker) -> None:
    run = maker.run(state="training")
    first = maker.attempt(run, state="lost")
    for number in (20, 40, 60):
        add_checkpoint(first, number, pinned=number != 20)
    first.valid_through = 40
    first.save()
    second = maker.attempt(run)
    for number in (40, 60, 80):
        add_checkpoint(second, number, pinned=number != 60)
    assert pinned(run) == [40, 80]


def test_a_chosen_checkpoint_comes_first_and_from_the_start_none(maker: Maker) -> None:
    run = maker.run(state="failed")
    attempt = maker.attempt(run, state="failed")
    made = {number: add_checkpoint(attempt, number) for number in (0, 20, 40)}
    Run.objects.update(from_start=True)
    assert offered(run) == []
    Run.objects.update(from_start=False, resume_from=made[20])
    assert offered(run) == [(20, 1, False), (0, 1, False)]
    Checkpoint.objects.update(removed_at=timezone.now())
    assert offered(run) == [(20, 1, False)], "an attempt that cannot have it says so, and does not begin anew"


def test_another_node_is_offered_and_fetches_what_is_stored(worker: AttemptCaller, run: Run) -> None:
    content = {"weights.safetensors": WEIGHTS, "state.json": STATE}
    registers(worker, 1, content)
    sends(worker, *content.values())
    assert worker.finish("preempted", last_seq=3, code="worker_shutdown").status_code == 204
    claimed = claim(Caller(node_create(name="gpu-2")[1]), run)
    (offer,) = claimed.resume
    assert (offer.step, offer.fence, offer.path, offer.stored) == (1, 1, "checkpoints/step-000001", True)
    second, dataset = AttemptCaller(claimed), claimed.files[0].sha256

    def fetched(sha256: str) -> bytes:
        return b"".join(second.get(f"{second.at}/files/{sha256}").streaming_content)

    assert {name: fetched(entry.sha256) for name, entry in offer.files.items()} == content
    assert fetched(dataset) == PROBLEMS
    assert refused(worker.get(f"{worker.at}/files/{dataset}")) == (409, "stale_fence"), "an ended attempt reads nothing"


# ---------------------------------------------------------------------- no longer needed


def trains(
    worker: AttemptCaller, *steps: int, first: int = 1, resumed: int | None = None, best: int | None = None
) -> None:
    """The steps, each with its checkpoint."""
    bodies: list[records.Body] = [phase("training", 20)] if first == 1 else []
    if resumed is not None:
        bodies.append(records.Resumed(step=resumed, checkpoint=f"checkpoints/step-{resumed:06d}", best=best))
    for number in steps:
        bodies += [step(number), saved(number)]
    answer = worker.records(packed(envelopes(bodies, first=first)))
    assert answer.json() == {"acked_seq": first - 1 + len(bodies)}


def needless(worker: AttemptCaller, *removed: int) -> list[int]:
    """Steps of the first attempt that the answer to a beat names, which says that those of `removed` are gone."""
    gone = [{"fence": 1, "path": f"checkpoints/step-{number:06d}"} for number in removed]
    answer = worker.post(f"{worker.at}/heartbeat", {"fence": worker.fence, "removed": gone})
    named = answer.json()["needless"]
    assert all(row["fence"] == 1 for row in named)
    return [int(row["path"].removeprefix("checkpoints/step-")) for row in named]


def moved(node: Caller, run: Run, worker: AttemptCaller, last: int) -> AttemptCaller:
    assert worker.finish("preempted", last_seq=last, code="worker_shutdown").status_code == 204
    return AttemptCaller(claim(node, run))


def removed_steps() -> list[int]:
    gone = Checkpoint.objects.filter(removed_at__isnull=False)
    return list(gone.order_by("step").values_list("step", flat=True))


@pytest.fixture
def first(run: Run, node: Caller) -> AttemptCaller:
    return AttemptCaller(claim(node, run))


def test_an_earlier_attempts_go_once_two_of_its_own_are_there(node: Caller, run: Run, first: AttemptCaller) -> None:
    trains(first, 1, 2, 3, 4, 5)
    assert needless(first) == [], "the first attempt's own"
    Checkpoint.objects.filter(step=2).update(pinned=True)
    Checkpoint.objects.filter(step=3).update(best=True)
    later = moved(node, run, first, 11)
    trains(later, 5, resumed=4, best=3)
    assert needless(later) == [], "with one of its own it might still need an older one"
    trains(later, 6, first=5)
    assert needless(later) == [1, 4, 5], "all but the pinned and the best, the superseded one too"
    assert needless(later, 1, 4) == [5]
    assert removed_steps() == [1, 4]


def test_a_config_of_an_earlier_version_keeps_two(node: Caller, run: Run, first: AttemptCaller) -> None:
    run.refresh_from_db()
    del run.config["checkpoints"]
    run.save(update_fields=["config"])
    trains(first, 1)
    later = moved(node, run, first, 3)
    trains(later, 2, 3, resumed=1)
    assert needless(later) == [1]


def test_what_lies_on_another_node_is_not_named_and_cannot_be_marked(run: Run, first: AttemptCaller) -> None:
    trains(first, 1, 2)
    Checkpoint.objects.update(stored_at=timezone.now())  # so that another node may take it
    later = moved(Caller(node_create(name="gpu-2")[1]), run, first, 5)
    trains(later, 3, 4, resumed=2)
    assert needless(later, 1) == []
    assert removed_steps() == []


def test_a_beat_reads_few_of_many_checkpoints(node: Caller, run: Run, first: AttemptCaller) -> None:
    """Rows that the database reads, by its own count, for what a beat asks of 5,000 checkpoints, of which 3 are still
    on the node and one of them is pinned."""
    trains(first, 1, 2, 3)
    moved(node, run, first, 7)
    attempt, now, count = Attempt.objects.get(fence=2), timezone.now(), 5_000
    fields = {"attempt": attempt, "run": run, "at": now, "files": {}}
    Checkpoint.objects.bulk_create(
        Checkpoint(
            **fields,
            seq=100 + number,
            step=number,
            path=f"checkpoints/step-{number:06d}",
            removed_at=None if number > count - 3 else now,
            pinned=number == count,
        )
        for number in range(1, count + 1)
    )
    counted = "SELECT seq_tup_read + idx_tup_fetch FROM pg_stat_xact_user_tables WHERE relname = 'runs_checkpoint'"
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE runs_checkpoint")
        cursor.execute(counted)
        before = cursor.fetchone()[0]
        assert pinned(run) == [count]
        assert len(needless_of(attempt)) == 3, "those of the first attempt, now that the second has enough"
        newest = resumable(run).first()
        assert newest is not None
        assert newest.step == count
        cursor.execute(counted)
        assert 0 < cursor.fetchone()[0] - before < 100
