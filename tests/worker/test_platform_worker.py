"""The platform's own Celery worker, as a real process with beat and a pool of database connections."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import pytest
from django.conf import settings
from django.db import connection
from django.db.models.functions import Now
from psycopg.conninfo import make_conninfo

from cohort.alerts.models import AlertDelivery
from cohort.base.celery_app import app
from cohort.base.environment import environment
from cohort.nodes.models import Node
from cohort.runs.attempts import attempt_claim
from cohort.runs.dispatch import SEAL_QUEUE
from cohort.runs.models import Attempt, RunState, ServiceBeat
from grpo_core.protocol.queues import PLATFORM_QUEUE, TRAIN_QUEUE
from tests.core.rewards.judge_server import Server, http
from tests.factories.alerts import diagnosed, is_signed, webhook
from tests.factories.worker import NODE
from tests.processes import wait_for
from tests.worker.conftest import Site, logged
from tests.worker.queues import take_all


def test_what_beat_calls_exists_and_no_outage_of_a_broker_ends_a_worker() -> None:
    """How long it is away, or a channel that it closes alone."""
    app.loader.import_default_modules()
    assert {entry["task"] for entry in app.conf.beat_schedule.values()} <= set(app.tasks)
    assert (app.conf.broker_connection_max_retries, app.conf.broker_channel_error_retry) == (None, True)


@contextmanager
def platform_worker(folder: Path, *words: str, **variables: str) -> Iterator["subprocess.Popen[bytes]"]:
    database = make_conninfo(environment().database_url, dbname=connection.settings_dict["NAME"])
    own = {"COHORT_MODE": "embedded", "COHORT_DATABASE_URL": database, "COHORT_SECRET_KEY": "x" * 50}
    pool = ["--pool", "threads", "--concurrency", "2", "--loglevel", "INFO"]
    celery = [
        sys.executable,
        "-m",
        "celery",
        "-A",
        "cohort.background.worker",
        "worker",
        "--queues",
        PLATFORM_QUEUE,
        *pool,
    ]
    with logged([*celery, *words], folder / "log", os.environ | own | variables) as process:
        yield process
    assert "Traceback" not in (folder / "log").read_text()


@pytest.mark.parametrize(
    "address",
    ["redis://127.0.0.1:1/0", pytest.param("amqp://guest:guest@127.0.0.1:1//", marks=pytest.mark.slow)],
)
def test_a_lost_worker_is_found_without_any_broker(site: Site, tmp_path: Path, address: str) -> None:
    """One that is away from before the start, and for ever: what beat would send arrives nowhere."""
    lost = site.launch()
    attempt_claim(run_id=lost.pk, node=Node.objects.get(), info=NODE)
    ServiceBeat.objects.create(name="reconciler", beat_at=Now())
    with platform_worker(tmp_path, COHORT_BROKER_URL=address) as process:
        beat = ServiceBeat.objects.get().beat_at
        wait_for(lambda: ServiceBeat.objects.get().beat_at > beat, "it looks at the leases", process)
        Attempt.objects.update(lease_until=Now() - timedelta(seconds=1))
        wait_for(lambda: Attempt.objects.get().state == "lost", "the lease that is over ends its attempt", process)
        lost.refresh_from_db()
        assert lost.state == RunState.QUEUED


@pytest.mark.slow
def test_reconciling_in_a_worker_as_deployed(site: Site, tmp_path: Path) -> None:
    """A lost worker's run goes back to the queue, and a waiting run is offered again."""
    take_all(PLATFORM_QUEUE)
    lost, waiting = site.launch(), site.launch()
    attempt_claim(run_id=lost.pk, node=Node.objects.get(), info=NODE)
    Attempt.objects.update(lease_until=Now() - timedelta(seconds=1))
    ServiceBeat.objects.create(name="reconciler", beat_at=Now())  # it was here all the time
    waiting.queued_at = Now() - timedelta(minutes=1)
    waiting.save(update_fields=["queued_at"])
    take_all(TRAIN_QUEUE)
    app.send_task("cohort.background.reconcile", queue=PLATFORM_QUEUE)
    offered: list[object] = []

    def requeued() -> bool:
        lost.refresh_from_db()
        return lost.state == RunState.QUEUED

    def again() -> bool:
        offered.extend(take_all(TRAIN_QUEUE))
        return [lost.pk] in offered and [waiting.pk] in offered

    with platform_worker(tmp_path, "--beat", "--schedule", str(tmp_path / "beat")) as process:
        wait_for(requeued, "the lost run goes back to the queue", process)
        assert (lost.retries, Attempt.objects.get().state) == (1, "lost")
        wait_for(again, "both are offered again", process)


@pytest.mark.slow
def test_an_alert_reaches_its_webhook_by_the_workers_as_deployed(site: Site, tmp_path: Path) -> None:
    """From a trainer's event to a signed call; the receiver is down for the first one."""
    take_all(PLATFORM_QUEUE)
    take_all(SEAL_QUEUE)
    answers = iter([http("503 Busy", b""), http("204 No Content", b"")])
    run = site.launch()
    attempt, _ = attempt_claim(run_id=run.pk, node=Node.objects.get(), info=NODE)
    with Server(lambda _: next(answers)) as receiver:
        channel = webhook(site.project, site.actor, receiver.url, private=True)
        diagnosed(attempt)
        words = ("--queues", f"{PLATFORM_QUEUE},{SEAL_QUEUE}", "--beat", "--schedule", str(tmp_path / "beat"))
        with platform_worker(tmp_path, *words, COHORT_SECRET_KEY=settings.SECRET_KEY) as process:
            wait_for(lambda: len(receiver.seen) == 2, "the alert is sent, and again", process)
            delivered = AlertDelivery.objects.filter(delivered_at__isnull=False)
            wait_for(delivered.exists, "the answer is noted", process)
    first, second = receiver.seen
    assert (first.body["cause"], first.raw == second.raw) == ("part_unscored", True)
    assert first.headers["webhook-id"] == second.headers["webhook-id"]
    assert is_signed(second, channel.secret)
    assert (delivered.get().tries, delivered.get().status) == (2, 204)
