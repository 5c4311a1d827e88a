"""A live web server with a project, a registered node and one queued run; what a worker on this machine would need."""

import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from cohort.accounts.models import Project, User
from cohort.background.reconcile import queued_republish
from cohort.base.environment import environment
from cohort.catalog.models import BaseModel, PromptDataset, VerifierVersion
from cohort.catalog.run_inputs import ChosenSuite
from cohort.catalog.services import base_model_register
from cohort.lab.jobs import jobs_republish
from cohort.nodes.services import node_create
from cohort.runs.models import Checkpoint, Run, StepMetric
from cohort.runs.services import run_cancel, run_pause
from grpo_core.protocol.messages import ClaimReply, Finish
from grpo_core.protocol.queues import TRAIN_QUEUE
from tests.factories.runs import Maker
from tests.processes import DEADLINE, clean_environment, wait_for
from tests.worker.cable import Cable
from tests.worker.life import OURS, TRAINER, Life, claimed
from tests.worker.queues import take_all
from tests.worker.stand_in import child
from worker import devices
from worker.environment import Environment
from worker.platform_client.client import Platform
from worker.processes.reaper import Process, process
from worker.supervisor.loop import Limits, Supervisor
from worker.supervisor.run import run_attempt

Attempting = Callable[..., "Attempted"]


@dataclass
class Site(Maker):
    """The platform as a worker meets it, with the project `ours` and its catalog."""

    url: str
    node_token: str

    def launch(self, *suites: ChosenSuite, **settings: Any) -> Run:
        return self.launched("a run", *suites, **{"eval": {"holdout": 4}, **settings})


@pytest.fixture
def base_model(transactional_db: None) -> BaseModel:
    """Of the people and the catalog in tests/factories/stock.py."""
    return BaseModel.objects.get()


@pytest.fixture
def site(base_model: BaseModel, live_server: Any, settings: Any) -> Site:
    settings.COHORT_HEARTBEAT_SECONDS = 0.2
    take_all(TRAIN_QUEUE)
    catalog = (base_model, PromptDataset.objects.get(name="additions"), VerifierVersion.objects.get())
    token = node_create(name="gpu-1")[1]
    return Site(Project.objects.get(slug="ours"), User.objects.get(username="alice"), *catalog, live_server.url, token)


@pytest.fixture
def tiny(site: Site) -> Site:
    """The site with a model that can really be trained and sampled."""
    from grpo_core.model.tiny import TinyShape, save_tiny

    shape = TinyShape(hidden=16, layers=1, heads=2, feed_forward=32, context=16384)
    save_tiny(environment().models_folder / "real", seed=0, shape=shape)
    site.base_model = base_model_register(project=site.project, actor=site.actor, name="real", path="real")
    return site


def celery_worker(
    site: Site, folder: Path, *words: str, **variables: str
) -> AbstractContextManager["subprocess.Popen[bytes]"]:
    """`celery -A worker.celery_app worker` with its runs in this folder, as an operator starts it; logs to worker.log,
    ended by SIGTERM."""
    own = {
        "COHORT_URL": site.url,
        "COHORT_NODE_TOKEN": site.node_token,
        "COHORT_BROKER_URL": environment().broker_url,
        "COHORT_HOME": str(environment().home_folder),
        "COHORT_RUNS_DIR": str(folder / "runs"),
    }
    command = [sys.executable, "-m", "celery", "-A", "worker.celery_app", "worker", "--loglevel", "INFO", *words]
    return logged(command, folder / "worker.log", clean_environment() | own | variables)


def wait_offering(
    true: Callable[[], bool], tell: str | Callable[[], str], process: "subprocess.Popen[Any] | None" = None
) -> None:
    """`wait_for`, in which what waits is published again as by the platform's reconciler: a worker whose claim had no
    answer for a minute, as on a busy machine, leaves it to that."""

    def now() -> bool:
        queued_republish()
        jobs_republish()
        return true()

    wait_for(now, tell, process)


@contextmanager
def logged(words: list[str], log: Path, variables: dict[str, str]) -> Iterator["subprocess.Popen[bytes]"]:
    """A process that writes to this log, in whose folder it is; ended by SIGTERM."""
    with log.open("ab") as out:
        process = subprocess.Popen(words, env=variables, cwd=log.parent, stdout=out, stderr=subprocess.STDOUT)
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(DEADLINE)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


@pytest.fixture
def life(tmp_path: Path) -> Iterator[Any]:
    made: list[Life] = []

    def make(
        *also: str, claim: ClaimReply | None = None, runs: str = "runs", node: str = OURS, trainer: str = TRAINER
    ) -> Life:
        claim = claim or claimed()
        folder = tmp_path / runs / f"run-{claim.run_id}" / f"attempt-{claim.fence}"
        made.append(Life(folder, claim, *also, node=node, trainer=trainer))
        return made[-1]

    yield make
    for family in made:
        family.end()


@pytest.fixture
def cable(site: Site) -> Iterator[Cable]:
    """What lies between a worker and the platform."""
    with Cable(site.url) as cable:
        yield cable


@pytest.fixture
def bystander() -> Iterator[Process]:
    """A process that has nothing to do with any attempt, in a session of its own."""
    with subprocess.Popen(["sleep", "600"], start_new_session=True) as started:
        row = process(started.pid)
        assert row is not None
        yield row
        started.kill()


@pytest.fixture
def nvidia_smi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Path]:
    """Makes a program of this name that runs the given lines of shell; none has shown a GPU yet."""
    monkeypatch.setattr(devices, "_shown", False)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return lambda code: shell_program(tmp_path / "bin" / "nvidia-smi", code)


def shell_program(path: Path, code: str) -> Path:
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"#!/bin/sh\n{code}\n")
    path.chmod(0o755)
    return path


@pytest.fixture
def shutdown() -> threading.Event:
    """Tells every supervisor of the test to stop."""
    return threading.Event()


@pytest.fixture
def background(shutdown: threading.Event) -> Iterator[Callable[[Callable[[], Any]], "Future[Any]"]]:
    """Runs a call in a thread that lives to the end of the test, as the worker's pool thread does."""
    with ThreadPoolExecutor(max_workers=1) as pool:
        yield pool.submit
        shutdown.set()  # or a test that failed would wait here for ever


@dataclass
class Attempted:
    """An attempt of a run that a supervisor sees through in the background."""

    actor: User
    run: Run
    supervisor: Supervisor
    done: "Future[Finish | None]"

    @property
    def folder(self) -> Path:
        return self.supervisor.settings.runs_folder / f"run-{self.run.pk}" / "attempt-1"

    @property
    def pid(self) -> int:
        return int((self.folder / "pid").read_text())

    def pause(self) -> None:
        run_pause(run=self.run, actor=self.actor)

    def cancel(self) -> None:
        run_cancel(run=self.run, actor=self.actor)

    def end(self) -> tuple[str, str] | None:
        """How it ended and by which code, None when it was taken from its worker; the run is as it is then."""
        finish = self.done.result(timeout=DEADLINE)
        self.run.refresh_from_db()
        return (finish.end, finish.code) if finish else None


def worker_settings(folder: Path, **changes: Any) -> Environment:
    """Of a worker on this machine with its runs in `folder`."""
    own = {"runs_dir": folder / "runs", "models_dir": environment().models_folder, "min_free_bytes": 0}
    return Environment(**own | changes)


@pytest.fixture
def attempt(
    site: Site, cable: Cable, tmp_path: Path, shutdown: threading.Event, background: Any
) -> Iterator[Attempting]:
    """Begins an attempt with a given mode of the stand-in trainer and quick turns; one that continues until it is asked
    to stop has stored its steps, or its checkpoints, by then."""
    with Platform(cable.url, site.node_token) as platform:

        def begin(
            mode: str, *, run: Run | None = None, ready: bool = True, limits: Any = None, **changes: Any
        ) -> Attempted:
            run = run or site.launch()
            quick = Limits(**{"tick": 0.05, "grace": 30.0, **(limits or {})})
            supervisor = Supervisor(platform, worker_settings(tmp_path, **changes), child(mode), shutdown, limits=quick)
            attempted = Attempted(site.actor, run, supervisor, background(lambda: run_attempt(supervisor, run.pk)))
            if ready and mode in ("obey", "deaf", "wait-for-file"):
                wait_for(lambda: StepMetric.objects.filter(run=run).count() == 3, "three steps are stored")
            if ready and mode == "checkpoints":
                wait_for(lambda: Checkpoint.objects.filter(run=run).count() >= 2, "its checkpoints are known")
            return attempted

        yield begin
