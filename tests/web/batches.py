"""Batches of records for one attempt, stored by ingest as the worker API has it done, and attempts that follow one."""

import pytest
from django.db.models import Model
from django.utils import timezone

from cohort.ingest.copy import BadRecord
from cohort.nodes.services import node_create
from cohort.review.models import Group, Sample, StepCommitments
from cohort.runs.attempts import attempt_claim
from cohort.runs.models import Attempt, Checkpoint, EvalItem, EvalResult, Run, RunEvent, StepMetric
from grpo_core.records import types as records
from tests.factories.runs import Maker
from tests.factories.sealed_run import send_batch
from tests.factories.worker import NODE, packed


@pytest.fixture
def run(maker: Maker) -> Run:
    return maker.launched("first", eval={"holdout": 5}, optim={"steps": 50})


@pytest.fixture
def attempt(run: Run) -> Attempt:
    node, _ = node_create(name="gpu-1")
    return attempt_claim(run_id=run.pk, node=node, info=NODE)[0]


def send(attempt: Attempt, *lines: records.Envelope | bytes) -> int:
    return send_batch(attempt, packed(lines))


def saved(number: int, *, best: bool = False) -> records.CheckpointManifest:
    entry = records.FileEntry(size=3, sha256="cd" * 32)
    return records.CheckpointManifest(
        step=number, path=f"checkpoints/step-{number:06d}", files={"state.json": entry}, best=best, seconds=0.5
    )


def resumed(number: int) -> records.Resumed:
    skipped = (records.SkippedCheckpoint(path="checkpoints/step-000003", reason="one byte is wrong"),)
    return records.Resumed(step=number, checkpoint=f"checkpoints/step-{number:06d}", skipped=skipped)


def follow(attempt: Attempt, run: Run) -> Attempt:
    """The attempt is lost and another one has claimed the run."""
    Attempt.objects.filter(pk=attempt.pk).update(state="lost")
    run.refresh_from_db()
    Run.objects.filter(pk=run.pk).update(state="queued")
    Run.objects.filter(pk=run.pk).update(state="starting", fence=run.fence + 1)
    now = timezone.now()
    return Attempt.objects.create(
        run=run,
        node=attempt.node,
        fence=run.fence + 1,
        token_digest=f"{run.fence + 1:064d}",
        claimed_at=now,
        lease_until=now,
    )


TABLES: tuple[type[Model], ...] = (StepMetric, Group, Sample, EvalItem, EvalResult, Checkpoint, StepCommitments)


def rows() -> list[int]:
    """Rows of each table, and events of trainers."""
    counts = [table._default_manager.count() for table in TABLES]
    return [*counts, RunEvent.objects.exclude(attempt=None).count()]


def refused(attempt: Attempt, *lines: records.Envelope | bytes) -> BadRecord:
    """Nothing of the batch is stored."""
    before = rows()
    with pytest.raises(BadRecord) as caught:
        send(attempt, *lines)
    assert rows() == before
    return caught.value
