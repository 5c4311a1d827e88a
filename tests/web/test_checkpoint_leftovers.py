"""What earlier attempts left on a node: named as needless once the present attempt has enough of its own, and marked
as removed when the node says so.
"""

import pytest
from django.db import connection
from django.utils import timezone

from cohort.runs.checkpoints import needless as needless_of
from cohort.runs.checkpoints import pinned, resumable
from cohort.runs.models import Attempt, Checkpoint, Run
from cohort.runs.nodes import node_create
from grpo_core import records
from tests.web.run_rows import Maker
from tests.web.worker_calls import AttemptCaller, Caller, claim, node
from tests.worker.making import envelopes, packed, phase, step

__all__ = ["node"]  # fixture

pytestmark = pytest.mark.django_db


@pytest.fixture
def run(maker: Maker) -> Run:
    return maker.run(state="queued")


def trains(worker: AttemptCaller, *steps: int, resumed: int | None = None, best: int | None = None) -> None:
    """The steps, each with its checkpoint."""
    bodies: list[records.Body] = [phase("training", 20)]
    if resumed is not None:
        bodies.append(records.Resumed(step=resumed, checkpoint=f"checkpoints/step-{resumed:06d}", best=best))
    for number in steps:
        file = records.FileEntry(size=3, sha256="cd" * 32)
        path = f"checkpoints/step-{number:06d}"
        bodies += [step(number), records.CheckpointManifest(step=number, path=path, files={"state.json": file})]
    answer = worker.records(packed(envelopes(bodies)))
    assert answer.json() == {"acked_seq": len(bodies)}


def needless(worker: AttemptCaller, *, removed: tuple[tuple[int, str], ...] = ()) -> list[tuple[int, str]]:
    told = [{"fence": fence, "path": path} for fence, path in removed]
    answer = worker.post(f"{worker.at}/heartbeat", {"fence": worker.fence, "removed": told})
    return [(one["fence"], one["path"]) for one in answer.json()["needless"]]


def moved(node: Caller, run: Run, worker: AttemptCaller, last: int) -> AttemptCaller:
    assert worker.finish("preempted", last_seq=last, code="worker_shutdown").status_code == 204
    return AttemptCaller(claim(node, run))


def test_the_first_attempt_left_nothing(node: Caller, run: Run) -> None:
    worker = AttemptCaller(claim(node, run))
    trains(worker, 1, 2, 3)
    assert needless(worker) == []


def test_an_earlier_attempts_go_once_two_of_its_own_are_there(node: Caller, run: Run) -> None:
    worker = AttemptCaller(claim(node, run))
    trains(worker, 1, 2, 3, 4, 5)
    Checkpoint.objects.filter(run=run, step=2).update(pinned=True)
    Checkpoint.objects.filter(run=run, step=3).update(best=True)
    later = moved(node, run, worker, 11)
    trains(later, 5, resumed=4, best=3)
    assert needless(later) == [], "with one of its own it might still need an older one"
    answer = later.records(
        packed(
            envelopes(
                [
                    step(6),
                    records.CheckpointManifest(
                        step=6,
                        path="checkpoints/step-000006",
                        files={"state.json": records.FileEntry(size=3, sha256="cd" * 32)},
                    ),
                ],
                first=5,
            )
        )
    )
    assert answer.json() == {"acked_seq": 6}
    expected = [(1, f"checkpoints/step-{number:06d}") for number in (1, 4, 5)]
    assert needless(later) == expected, "all but the pinned and the best, the superseded one too"

    assert needless(later, removed=tuple(expected[:2])) == expected[2:]
    rows = Checkpoint.objects.filter(run=run, attempt__fence=1).order_by("step")
    assert [one.step for one in rows if one.removed_at is not None] == [1, 4]


def test_a_config_of_an_earlier_version_keeps_two(node: Caller, run: Run) -> None:
    run.refresh_from_db()
    del run.config["checkpoints"]
    run.save(update_fields=["config"])
    worker = AttemptCaller(claim(node, run))
    trains(worker, 1)
    later = moved(node, run, worker, 3)
    trains(later, 2, 3, resumed=1)
    assert needless(later) == [(1, "checkpoints/step-000001")]


def test_what_lies_on_another_node_is_not_named_and_cannot_be_marked(node: Caller, run: Run) -> None:
    worker = AttemptCaller(claim(node, run))
    trains(worker, 1, 2)
    Checkpoint.objects.filter(run=run).update(stored_at="2026-11-21T12:00Z")  # so that another node may take it
    elsewhere = Caller(node_create(name="gpu-2")[1])
    later = moved(elsewhere, run, worker, 5)
    trains(later, 3, 4, resumed=2)
    assert needless(later, removed=((1, "checkpoints/step-000001"),)) == []
    assert not Checkpoint.objects.filter(run=run, removed_at__isnull=False).exists()


def test_a_beat_reads_few_of_many_checkpoints(node: Caller, run: Run) -> None:
    """Rows that the database reads, by its own count, for what a beat asks of 20,000 checkpoints, of which 3 are still
    on the node and one of them is pinned."""
    worker = AttemptCaller(claim(node, run))
    trains(worker, 1, 2, 3)
    worker = moved(node, run, worker, 7)
    attempt = Attempt.objects.get(run=run, fence=2)
    now = timezone.now()
    Checkpoint.objects.bulk_create(
        Checkpoint(
            attempt=attempt,
            run=run,
            seq=100 + number,
            step=number,
            at=now,
            path=f"checkpoints/step-{number:06d}",
            files={},
            removed_at=None if number > 19_997 else now,
            pinned=number == 20_000,
        )
        for number in range(1, 20_001)
    )
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE runs_checkpoint")

    def read() -> int:
        with connection.cursor() as cursor:
            cursor.execute(
                "SELECT sum(seq_tup_read) + sum(idx_tup_fetch) FROM pg_stat_xact_user_tables "
                "WHERE relname = 'runs_checkpoint'"
            )
            return int(cursor.fetchone()[0])

    before = read()
    assert pinned(run) == [20_000]
    assert len(needless_of(attempt)) == 3, "those of the first attempt, now that the second has enough"
    newest = resumable(run).first()
    assert newest is not None
    assert newest.step == 20_000
    assert 0 < read() - before < 100
