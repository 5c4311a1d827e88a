"""Nodes, attempts and their ends for the tests of run control, by the services that workers' calls reach; and what
people do to a run, by its pages."""

import re
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from types import ModuleType
from typing import Any, TypeVar

import pytest
from django.core.exceptions import ValidationError
from django.db import connection
from django.db.models import DateTimeField, F, Model, Value
from django.db.models.functions import Now
from django.test import Client
from django.utils import timezone

from cohort.background import reconcile
from cohort.nodes.models import Node
from cohort.nodes.services import node_create
from cohort.runs.attempts import attempt_beat, attempt_claim, attempt_finish
from cohort.runs.checkpoints import offers
from cohort.runs.models import Attempt, Run
from cohort.runs.schedule import queue
from cohort.runs.waiting import waiting_rows
from grpo_core.errors import ConfigError
from grpo_core.protocol.messages import Beat, CheckpointOffer, Finish, NodeInfo, Progress
from grpo_core.records import types as records
from tests.factories.runs import Maker
from tests.factories.sealed_run import ingest
from tests.factories.worker import VERSIONS
from tests.processes import DEADLINE
from tests.web.run_page import words

Row = TypeVar("Row", bound=Model)


def fresh(row: Row) -> Row:
    """As the database has it now."""
    row.refresh_from_db()
    return row


def at_once(*acts: Callable[[], object]) -> list[bool]:
    """Whether each was done, and not refused; each in a thread with its own connection."""
    begin = threading.Barrier(len(acts))

    def act(of: Callable[[], object]) -> bool:
        begin.wait(timeout=DEADLINE)
        try:
            of()
        except (ValidationError, ConfigError):
            return False
        finally:
            connection.close()
        return True

    with ThreadPoolExecutor(len(acts)) as pool:
        return list(pool.map(act, acts))


def info(*, gpus: int = 0, labels: tuple[str, ...] = (), **more: Any) -> NodeInfo:
    devices = [{"kind": "cuda", "name": "H200", "memory_bytes": 1} for _ in range(gpus)] or [{"kind": "cpu"}]
    return NodeInfo(
        hostname="host", cpus=2, memory_bytes=1, devices=devices, labels=list(labels), **{"versions": VERSIONS, **more}
    )


def node(name: str, *, gpus: int = 0, labels: tuple[str, ...] = ()) -> Node:
    """A machine that is here."""
    made = node_create(name=name)[0]
    reported = info(gpus=gpus, labels=labels).model_dump(mode="json")
    Node.objects.filter(pk=made.pk).update(info=reported, last_seen_at=Now())
    made.refresh_from_db()
    return made


@dataclass(frozen=True)
class Claimed:
    attempt: Attempt
    resume: list[CheckpointOffer]


def claimed(on: Node, run_id: int = 0) -> Claimed:
    attempt, _ = attempt_claim(run_id=run_id, node=on, info=NodeInfo.model_validate(on.info))
    return Claimed(attempt, offers(attempt.run))


def claim(on: Node, run_id: int = 0) -> Attempt:
    return claimed(on, run_id).attempt


def beat(attempt: Attempt, done: int | None = None, **more: Any) -> tuple[str, list[int]]:
    progress = None if done is None else Progress(phase="training", done=done, total=100)
    return attempt_beat(attempt=attempt, beat=Beat(fence=attempt.fence, progress=progress, **more))


def finish(attempt: Attempt, end: str, code: str = "", message: str = "it happened") -> Run:
    body = {"fence": attempt.fence, "end": end, "code": code or end, "message": message, "log_tail": f"tail of {code}"}
    attempt_finish(attempt=attempt, finish=Finish.model_validate({**body, "last_seq": attempt.acked_seq}))
    return Run.objects.get(pk=attempt.run_id)


def ended(attempt: Attempt, state: str, **fields: Any) -> None:
    """The attempt's row as its end leaves it, and nothing of what follows for its run."""
    Attempt.objects.filter(pk=attempt.pk).update(state=state, ended_at=timezone.now(), **fields)
    attempt.refresh_from_db()


def checkpoint(step: int, *, final: bool = False) -> records.CheckpointManifest:
    files = {"weights.safetensors": records.FileEntry(size=96, sha256=f"{step:064d}")}
    path = "checkpoints/final" if final else f"checkpoints/step-{step:06d}"
    return records.CheckpointManifest(step=step, path=path, files=files, final=final)


def resumed(step: int) -> records.Resumed:
    return records.Resumed(step=step, checkpoint=f"checkpoints/step-{step:06d}")


def steps(first: int, last: int) -> list[records.Record]:
    return [
        records.StepMetrics(step=step, metrics={"reward": step / 100}, seconds={"total": 1.0})
        for step in range(first, last + 1)
    ]


def train(attempt: Attempt, *bodies: records.Record) -> Attempt:
    """Store what the trainer of a run in training reported."""
    ingest(attempt, [records.PhaseStarted(phase="training", total=100), *bodies])
    return attempt


def let_pass(run: Run) -> None:
    """The time that the run was to wait for its next try has gone by."""
    Run.objects.filter(pk=run.pk).update(not_before=None)


def waited_for_its_record(run: Run) -> Run:
    """The run as if it had ended so long ago that its record is waited for no more: a person may have it continue."""
    Run.objects.filter(pk=run.pk).update(ended_at=F("ended_at") - timedelta(minutes=11))
    run.refresh_from_db()
    return run


def age(attempt: Attempt, seconds: float, *fields: str) -> None:
    """Times of the attempt as if so many seconds more had gone by."""
    back = timedelta(seconds=seconds)
    Attempt.objects.filter(pk=attempt.pk).update(**{field: F(field) - back for field in fields})


def database_now() -> datetime:
    with connection.cursor() as cursor:
        cursor.execute("SELECT STATEMENT_TIMESTAMP()")
        moment: datetime = cursor.fetchone()[0]
    return moment


def stop_clock(monkeypatch: pytest.MonkeyPatch, *parts: ModuleType) -> datetime:
    """The database's clock stands still for these parts of the platform, so that what is a second short of a limit
    stays so on a machine that pauses. Returns the moment."""
    moment = database_now()
    for part in parts:
        monkeypatch.setattr(part, "Now", lambda: Value(moment, DateTimeField()))
    return moment


def queue_at(monkeypatch: pytest.MonkeyPatch, moment: datetime) -> None:
    """The reconciler comes to the queue at this moment."""
    monkeypatch.setattr(reconcile, "queue", lambda: replace(queue(), now=moment))


def waiting(maker: Maker, minutes: float = 0, **fields: object) -> Run:
    """A run that has waited so long."""
    run = maker.run(state="queued")
    Run.objects.filter(pk=run.pk).update(queued_at=Now() - timedelta(minutes=minutes), **fields)
    run.refresh_from_db()
    return run


def why(run: Run) -> str:
    return {row.run.pk: row for row in waiting_rows()}[run.pk].why


def do(client: Client, run: Run, action: str, **data: str) -> str:
    response = client.post(f"/p/ours/runs/{run.pk}/{action}/", data, follow=True)
    run.refresh_from_db()
    return words(response.content.decode())


def poll_of(page: str) -> str:
    match = re.search(r'data-poll hx-get="([^"]+)"', page)
    assert match is not None
    return match[1].replace("&amp;", "&")
