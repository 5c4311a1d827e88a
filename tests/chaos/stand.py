"""A whole Cohort in parts that a test can kill one by one: PostgreSQL, broker, web server, platform worker, workers.

Unlike `cohort up` it takes several workers, starts again only what it is told to, and lives with any number of deaths.
Rows are read past Django by SQL, so that what is counted does not pass through the code under test; what a person
would do (launch, cancel, retry) is done by `hand`, a process of the platform with the platform's own settings.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import psycopg
from psycopg.rows import dict_row

from cohort.cli.embedded import children
from cohort.cli.embedded.postgres import Postgres
from tests.chaos.brokers import Broker
from tests.processes import DEADLINE, belonging_to, clean_environment, free_port, wait_for
from tests.worker.stand_in import ROOT, stand_in

ENDED = ("succeeded", "failed", "cancelled")


@dataclass
class Part:
    """One process of the stand, with its log."""

    name: str
    words: list[str]
    environment: Mapping[str, str]
    folder: Path
    process: "subprocess.Popen[bytes] | None" = None

    @property
    def log(self) -> Path:
        return self.folder / f"{self.name}.log"

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    def start(self) -> None:
        with self.log.open("ab") as log:
            words = children.command(self.words, death_signal=signal.SIGKILL)
            files: Any = {"stdin": subprocess.DEVNULL, "stdout": log, "stderr": log, "process_group": 0}
            self.process = subprocess.Popen(words, env=dict(self.environment), cwd=ROOT, **files)

    def stop(self, *, patience: float = 120.0) -> None:
        """SIGTERM to the first process alone; SIGKILL to its whole group when it takes too long."""
        process, self.process = self.process, None
        if process is None or process.poll() is not None:
            return
        process.terminate()
        try:
            process.wait(patience)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def kill(self) -> None:
        """SIGKILL to its whole group: a web server's own workers, Celery's beat."""
        process, self.process = self.process, None
        if process is not None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def tail(log: Path) -> str:
    """A log's last lines."""
    text = log.read_text(encoding="utf-8", errors="replace") if log.is_file() else ""
    return "\n".join([f"--- {log.stem}", *text.splitlines()[-40:]])


@dataclass
class Stand:
    """Made by `standing`."""

    home: Path
    postgres: Postgres
    broker: Broker
    port: int
    settings: dict[str, str]
    """More variables of the platform, such as COHORT_LEASE_SECONDS."""
    worker_settings: dict[str, str] = field(default_factory=dict)
    address: str = "127.0.0.1"
    """Where the web server listens."""
    workers: dict[str, Part] = field(default_factory=dict)
    web: Part = field(init=False)
    platform: Part = field(init=False)
    hand: "Hand" = field(init=False)

    def __post_init__(self) -> None:
        own = (self.platform_environment(), self.home)
        web = ["-m", "gunicorn", "--config", "python:cohort.server.gunicorn", "cohort.server.wsgi:application"]
        self.web = Part("web", [sys.executable, *web], *own)
        words = (
            "--queues platform,platform.seal --pool threads --concurrency 2 --hostname platform@%h --beat --schedule"
        )
        self.platform = Part(
            "platform", [*celery("cohort.background.worker"), *words.split(), str(self.home / "beat")], *own
        )
        self.hand = Hand(*own)

    @property
    def url(self) -> str:
        return f"http://{self.address}:{self.port}"

    # ------------------------------------------------------------------ what the parts are told

    def platform_environment(self) -> dict[str, str]:
        return clean_environment() | {
            "PYTHONPATH": f"{ROOT / 'platform'}{os.pathsep}{ROOT}",
            "DJANGO_SETTINGS_MODULE": "cohort.settings",
            "COHORT_MODE": "embedded",
            "COHORT_HOME": str(self.home),
            "COHORT_DATABASE_URL": self.postgres.url,
            "COHORT_BROKER_URL": self.broker.url,
            "COHORT_SECRET_KEY": "x" * 50,
            "COHORT_LISTEN": f"{self.address}:{self.port}",
            "COHORT_PUBLIC_URL": self.url,
            **self.settings,
        }

    def worker_environment(self, name: str, token: str) -> dict[str, str]:
        return clean_environment() | {
            "COHORT_URL": self.url,
            "COHORT_NODE_TOKEN": token,
            "COHORT_BROKER_URL": self.broker.url,
            "COHORT_HOME": str(self.home),
            "COHORT_RUNS_DIR": str(self.runs(name)),
            **self.worker_settings,
        }

    def runs(self, worker: str) -> Path:
        return self.home / "runs" / worker

    # ------------------------------------------------------------------ start and stop

    def start(self) -> None:
        self.postgres.start()
        self.broker.start()
        self.hand.do("prepare")
        self.web.start()
        self.platform.start()
        wait_for(self.answers, self.told, self.web.process)

    def add_worker(self, more: Mapping[str, str] | None = None, *, before: Sequence[str] = ()) -> Part:
        """A node of its own and a Celery worker on it, with a folder of its own; `more`: further variables; `before`:
        words before its command, such as those that run it on another host."""
        name = f"node-{len(self.workers) + 1}"
        token = str(self.hand.do("node", name=name))
        words = [*before, *celery("worker.celery_app"), "--hostname", f"{name}@%h"]
        environment = {**self.worker_environment(name, token), **(more or {})}
        part = self.workers[name] = Part(name, words, environment, self.home)
        part.start()
        return part

    def start_again(self, part: Part) -> None:
        """As a service manager does with a part that died."""
        part.stop()
        part.start()

    def launch(self, settings: Mapping[str, Any]) -> int:
        return int(self.hand.do("launch", settings=settings))

    def cancel(self, run_id: int) -> None:
        """Ask for it, and wait for its worker's word."""
        self.hand.do("press", run=run_id, service="cancel")
        self.wait(run_id, lambda row: row["state"] == "cancelled", "it is cancelled")

    def stop(self) -> None:
        for part in [*self.workers.values(), self.platform, self.web]:
            part.stop()
        self.hand.close()
        self.broker.stop()
        self.postgres.stop()

    def answers(self) -> bool:
        direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with suppress(OSError), direct.open(f"{self.url}/healthz", timeout=5) as reply:
            return bool(reply.status == 200)
        return False

    def told(self) -> str:
        parts = [self.web, self.platform, *self.workers.values()]
        return "\n".join(["", *(tail(part.log) for part in parts), tail(self.hand.log)])

    # ------------------------------------------------------------------ what is so

    def rows(self, query: str, *values: Any) -> list[dict[str, Any]]:
        with psycopg.connect(self.postgres.url, autocommit=True, row_factory=dict_row, connect_timeout=10) as link:
            return link.execute(query, values).fetchall()

    def one(self, query: str, *values: Any) -> Any:
        """The first column of the only row."""
        (row,) = self.rows(query, *values)
        return next(iter(row.values()))

    def run(self, run_id: int) -> dict[str, Any]:
        return self.rows("SELECT * FROM runs_run WHERE id = %s", run_id)[0]

    def attempts(self, run_id: int) -> list[dict[str, Any]]:
        return self.rows("SELECT * FROM runs_attempt WHERE run_id = %s ORDER BY fence", run_id)

    def live_attempt(self, run_id: int) -> dict[str, Any] | None:
        return next((row for row in self.attempts(run_id) if row["state"] == "running"), None)

    def story(self, run_id: int) -> str:
        """The run's events, for a test that failed."""
        events = self.rows("SELECT at, actor, kind, message FROM runs_runevent WHERE run_id = %s ORDER BY id", run_id)
        lines = [f"{row['at']:%H:%M:%S} {row['actor']} {row['kind']}: {row['message']}" for row in events]
        return "\n".join([str(self.run(run_id)), *lines[-60:], self.told()])

    def wait(self, run_id: int, true: Callable[[dict[str, Any]], Any], what: str) -> dict[str, Any]:
        """The run's row once it is so."""

        return wait_for(lambda: true(row := self.run(run_id)) and row, lambda: f"{what}\n{self.story(run_id)}")

    def wait_trained(self, run_id: int) -> dict[str, Any]:
        """The run's row once it has succeeded; a run that ended otherwise fails the test."""
        row = self.wait(run_id, lambda run: run["state"] in ENDED, "the run ends")
        assert row["state"] == "succeeded", self.story(run_id)
        return row

    # ------------------------------------------------------------------ processes

    def processes(self, kind: str, worker: str = "") -> list[psutil.Process]:
        """Live processes of a kind: trainer, reaper, supervisor; with a worker's name, those of that worker alone."""
        return [process for process in self.training_processes(worker) if kind_of(process) == kind]

    def training_processes(self, worker: str = "") -> list[psutil.Process]:
        """Every live process that came of a worker, but not Celery's own; whoever its parent is by now."""
        folder = self.runs(worker) if worker else self.home / "runs"
        mains = {part.process.pid for part in self.workers.values() if part.process}
        others = [process for process in belonging_to(folder) if process.pid not in mains]
        return [process for process in others if kind_of(process) not in ("celery", "gone")]


STUB = stand_in("steps")
"""Variables of a worker whose trainers start at once."""


def celery(app: str) -> list[str]:
    quiet = ("--without-gossip", "--without-mingle", "--without-heartbeat")
    return [sys.executable, "-m", "celery", "-A", app, "worker", "--loglevel", "INFO", *quiet]


def kind_of(process: psutil.Process) -> str:
    """What a process is, from its command line."""
    try:
        if process.status() == psutil.STATUS_ZOMBIE:
            return "gone"
        words = process.cmdline()
    except psutil.NoSuchProcess:
        return "gone"
    if "celery" in words:
        return "celery"
    if "worker.supervisor" in words or any(word.endswith("/supervisor/__main__.py") for word in words):
        return "supervisor"
    if any(word.endswith(("reaper.py", "launch.py")) for word in words):
        return "reaper"
    if "grpo_core.cli.main" in words:
        return "trainer"
    return "other"


class Hand:
    """A process of the platform that does what a person would, one thing after the other."""

    def __init__(self, environment: Mapping[str, str], folder: Path) -> None:
        self._environment = environment
        self.log = folder / "hand.log"
        self._process: subprocess.Popen[str] | None = None

    def do(self, what: str, **arguments: Any) -> Any:
        """The answer. Raises AssertionError with the traceback when it failed."""
        if self._process is None or self._process.poll() is not None:
            with self.log.open("ab") as log:
                words = children.command([sys.executable, "-m", "tests.chaos.hand"])
                files: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": log}
                self._process = subprocess.Popen(words, env=dict(self._environment), cwd=ROOT, text=True, **files)
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(json.dumps({"do": what, **arguments}), file=self._process.stdin, flush=True)
        answer = self._process.stdout.readline()
        assert answer, f"the hand died at {what}:\n{tail(self.log)}"
        reply = json.loads(answer)
        assert "failed" not in reply, reply.get("failed")
        return reply["answer"]

    def close(self) -> None:
        if self._process is not None and self._process.stdin is not None:
            self._process.stdin.close()
            self._process.wait(DEADLINE)


@contextmanager
def standing(
    *,
    model: Path,
    lease: float = 3.0,
    broker: Callable[[Path], Broker] = Broker,
    settings: Mapping[str, str] | None = None,
    worker_settings: Mapping[str, str] | None = None,
    database: tuple[str, ...] = (),
    address: str = "127.0.0.1",
) -> Iterator[Stand]:
    """Everything but workers, running in a new home; afterwards no process of it may be left.

    `model`: folder of the base model. `lease`: seconds; 0 leaves lease and heartbeat as they are by default.
    `database`: options of the server.
    """
    # Not pytest's own folder, which is closed to the database's user.
    folder = Path(tempfile.mkdtemp(prefix="cohort-tests-"))
    home = folder / "home"
    home.mkdir()
    shutil.copytree(model, home / "models" / "tiny")
    short = {"COHORT_LEASE_SECONDS": str(lease), "COHORT_HEARTBEAT_SECONDS": str(lease / 6)} if lease else {}
    stand = Stand(
        home=home,
        postgres=Postgres(home / "pg", home / "postgres.log", options=database),
        broker=broker(home),
        port=free_port(),
        settings={**short, **(settings or {})},
        worker_settings=dict(worker_settings or {}),
        address=address,
    )
    try:
        stand.start()
        yield stand
    finally:
        stand.stop()
        left = belonging_to(home)
        words = [f"{process.pid} {kind_of(process)}" for process in left]
        for process in left:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        shutil.rmtree(folder, ignore_errors=True)
    assert words == [], f"left behind: {words}"
