"""Cohort's web server for a benchmark: its own database on a given PostgreSQL, runs that are training, points stored.

Knows nothing of what it is measured against. The rows of runs are made by hand, because no trainer is to run.
"""

import os
import secrets
import socket
import subprocess
import sys
import time
import urllib.request
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psycopg
import zstandard
from embedded import platform_environment

METRICS = (
    *("reward", "reward_std", "reward_group_std", "kl", "entropy", "loss", "grad_norm", "learning_rate"),
    *("completions/mean_length", "frac_reward_zero_std"),
)
HISTORY_STEPS = 10_000
"""Steps that each stored run has, the writers' own too."""
_STORED = """
    INSERT INTO runs_stepmetric (attempt_id, run_id, seq, step, at, metrics, seconds)
    SELECT attempt.id, attempt.run_id, step, step, now(), jsonb_object_agg(name, sin(step::float * place)),
           '{"sample": 1.25, "reward": 0.25, "update": 1.5, "total": 3.0}'
    FROM runs_attempt AS attempt, generate_series(1, %s) AS step, unnest(%s::text[]) WITH ORDINALITY AS m (name, place)
    WHERE attempt.id BETWEEN %s AND %s
    GROUP BY attempt.id, attempt.run_id, step ORDER BY attempt.id, step
"""


class CohortWeb:
    """gunicorn as `cohort up` starts it, over a fresh database."""

    def __init__(self, home: Path, database_url: str, port: int) -> None:
        self.home, self.port = home, port
        home.mkdir(parents=True, exist_ok=True)
        self.environment = {
            **platform_environment(home, database_url),
            "COHORT_PUBLIC_URL": f"http://127.0.0.1:{port}",
        }
        self.tokens: dict[int, str] = {}
        self._steps: dict[int, int] = {}
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        """Of the server's first process."""
        assert self._process is not None
        return self._process.pid

    def migrate(self) -> None:
        """Make the tables and collect the static files."""
        os.environ.update(self.environment)
        import django

        django.setup()
        from django.contrib.staticfiles.management.commands.collectstatic import Command
        from django.core.management import call_command

        call_command("migrate", interactive=False, verbosity=0)
        call_command(Command(), interactive=False, verbosity=0)

    def prepare(self, *, points: int, writers: int) -> None:
        """Migrate; make runs that are training, the first `writers` of them for the writers; store `points`."""
        self.migrate()
        from django.db import connection

        runs = max(writers, -(-points // (HISTORY_STEPS * len(METRICS))))
        self._make_runs(runs, writers)
        steps = HISTORY_STEPS if points else 0
        with psycopg.connect(self.environment["COHORT_DATABASE_URL"], autocommit=True) as link:
            for first in range(1, runs + 1, 10) if points else ():
                last = min(first + 9, runs)
                link.execute(_STORED, (HISTORY_STEPS, list(METRICS), first, last))
                print(f"  Cohort: {last * HISTORY_STEPS * len(METRICS):,} points stored", file=sys.stderr, flush=True)
            link.execute("UPDATE runs_attempt SET acked_seq = %s", (steps,))
            link.execute("UPDATE runs_run SET step = %s", (steps,))
            link.execute("VACUUM (ANALYZE)")
        connection.close()
        self._steps = dict.fromkeys(range(1, writers + 1), steps)

    def _make_runs(self, count: int, writers: int) -> None:
        from django.utils import timezone

        from cohort.accounts.models import Project, User
        from cohort.catalog.models import BaseModel, PromptDataset, Verifier, VerifierVersion
        from cohort.nodes.models import Node
        from cohort.nodes.services import token_new
        from cohort.runs.models import Attempt, Run

        project = Project.objects.create(slug="bench", name="bench")
        model = BaseModel.objects.create(project=project, name="none", path="none")
        dataset = PromptDataset.objects.create(
            project=project, name="none", format="plain", sha256="0" * 64, size=1, problems=1
        )
        verifier = Verifier.objects.create(project=project, name="none")
        version = VerifierVersion.objects.create(verifier=verifier, number=1, spec={}, digest="0" * 64)
        person = User.objects.create(username="bench")
        node = Node.objects.create(name="bench", token_digest=secrets.token_hex(32))
        for number in range(1, count + 1):
            run = Run.objects.create(
                pk=number,
                project=project,
                name=f"run {number}",
                state="training",
                config={"padding": "x" * 2000},
                config_digest="0" * 64,
                base_model=model,
                dataset=dataset,
                verifier_version=version,
                created_by=person,
                phase="training",
                fence=1,
                steps_total=10**6,
            )
            token, digest = token_new()
            now = timezone.now()
            Attempt.objects.create(
                pk=number, run=run, node=node, fence=1, token_digest=digest, claimed_at=now, lease_until=now
            )
            if number <= writers:
                self.tokens[number] = token

    def start(self) -> None:
        # fmt: off
        words = [
            sys.executable, "-m", "gunicorn", "--config", "python:cohort.server.gunicorn",
            "cohort.server.wsgi:application", "--bind", f"127.0.0.1:{self.port}", "--workers", "2",
            "--graceful-timeout", "5",
        ]
        # fmt: on
        with open(self.home / "web.log", "ab") as log:
            self._process = subprocess.Popen(
                words, env=self.environment, cwd=self.home, stdout=log, stderr=log, stdin=subprocess.DEVNULL
            )
        wait_for(f"http://127.0.0.1:{self.port}/healthz", self._process, self.home / "web.log")

    def close(self) -> None:
        if self._process is not None:
            self._process.terminate()
            self._process.wait(30)

    def target(self, writer: int) -> dict[str, object]:
        headers = {
            "Authorization": f"Bearer {self.tokens[writer]}",
            "X-Cohort-Fence": "1",
            "Content-Type": "application/zstd",
        }
        return {
            "host": "127.0.0.1",
            "port": self.port,
            "path": f"/api/worker/v1/attempts/{writer}/records",
            "headers": headers,
        }

    def batch(self, writer: int, points: int) -> bytes:
        """The next `points` of this writer, as its worker would send them: whole steps of ten metrics."""
        from grpo_core.records.types import Envelope, StepMetrics

        lines = []
        for _ in range(points // len(METRICS)):
            step = self._steps[writer] = self._steps[writer] + 1
            metrics = {name: 0.1234567 * (step % 97) / place for place, name in enumerate(METRICS, start=1)}
            seconds = {"sample": 1.25, "reward": 0.25, "update": 1.5, "total": 3.0}
            record = StepMetrics(step=step, metrics=metrics, seconds=seconds)
            lines.append(Envelope(seq=step, at=datetime.now(UTC), record=record).model_dump_json() + "\n")
        return zstandard.ZstdCompressor(level=3).compress("".join(lines).encode())


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def wait_for(url: str, process: "subprocess.Popen[bytes]", log: Path, seconds: float = 120) -> None:
    """Until the address answers. Raises RuntimeError with the log's end when the process ends or the time is over."""
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and process.poll() is None:
        try:
            with direct.open(url, timeout=5):
                return
        except OSError:
            time.sleep(0.2)
    raise RuntimeError(f"{url} does not answer; the end of {log}:\n{log.read_text(errors='replace')[-3000:]}")


def stock_maker() -> Any:
    """Maker of runs in the project `ours`, of the tests' people, model, problems and reward. Django must be set up."""
    from cohort.accounts.models import Project, User
    from cohort.base.environment import environment
    from cohort.catalog.models import BaseModel, PromptDataset, VerifierVersion
    from cohort.evidence import keys
    from tests.factories import stock
    from tests.factories.runs import Maker

    keys.generate(environment().log_name).write(environment().signing_key_path)
    stock.people()
    stock.catalog()
    ours, alice = Project.objects.get(slug="ours"), User.objects.get(username="alice")
    parts = (BaseModel.objects.get(), PromptDataset.objects.get(name="additions"), VerifierVersion.objects.get())
    return Maker(ours, alice, *parts)


def signed_in(username: str) -> tuple[str, Any]:
    """(cookie of a session of this person, a client of Django's that has it)."""
    from django.conf import settings
    from django.test import Client

    from cohort.accounts.models import User

    client = Client()
    client.force_login(User.objects.get(username=username), backend="django.contrib.auth.backends.ModelBackend")
    return client.cookies[settings.SESSION_COOKIE_NAME].value, client
