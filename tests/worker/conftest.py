"""A live web server with a project, a registered node and one queued run; what a worker on this machine would need."""

import subprocess
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from cohort.accounts.models import Project, User
from cohort.accounts.services import project_create, user_create
from cohort.catalog.models import BaseModel, PromptDataset, VerifierVersion
from cohort.catalog.services import base_model_register, dataset_create, verifier_version_create
from cohort.environment import environment
from cohort.runs.models import Checkpoint, Run, StepMetric
from cohort.runs.nodes import node_create
from cohort.runs.services import run_launch
from grpo_core.wire import ClaimReply, Finish
from tests.processes import DEADLINE, wait_for
from tests.web.conftest import PASSWORD, PROBLEMS, R1_EXACT, write_safetensors
from tests.worker.cable import Cable
from tests.worker.life import OURS, TRAINER, Life, claimed
from tests.worker.queues import take_all
from tests.worker.stand_in import child
from worker.client import Platform
from worker.keeper import Process, process
from worker.supervisor import Limits, Supervisor

Attempting = Callable[..., "Attempted"]


@dataclass
class Site:
    """The platform as a worker meets it."""

    url: str
    node_token: str
    project: Project
    user: User
    base_model: BaseModel
    dataset: PromptDataset
    verifier_version: VerifierVersion

    def launch(self, **settings: Any) -> Run:
        return run_launch(
            project=self.project,
            actor=self.user,
            name="a run",
            base_model=self.base_model,
            dataset=self.dataset,
            verifier_version=self.verifier_version,
            settings={"eval": {"holdout": 4}, **settings},
        )


@pytest.fixture
def site(transactional_db: None, live_server: Any, settings: Any) -> Site:
    settings.COHORT_HEARTBEAT_SECONDS = 0.2
    take_all("train")
    user = user_create(username="alice", password=PASSWORD)[0]
    project = project_create(slug="ours", name="Our project", owner=user)
    folder = environment().models_folder / "zeros"
    folder.mkdir(parents=True, exist_ok=True)
    write_safetensors(folder / "model.safetensors", {"embed": [5, 4]})
    (folder / "config.json").write_text('{"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2"}')
    return Site(
        url=live_server.url,
        node_token=node_create(name="gpu-1")[1],
        project=project,
        user=user,
        base_model=base_model_register(project=project, actor=user, name="zeros", path="zeros"),
        dataset=dataset_create(
            project=project, actor=user, name="additions", format="jsonl", chunks=[PROBLEMS], source="tests"
        ),
        verifier_version=verifier_version_create(project=project, actor=user, name="r1", spec=R1_EXACT),
    )


@pytest.fixture
def life(tmp_path: Path) -> Iterator[Any]:
    made: list[Life] = []

    def make(
        claim: ClaimReply | None = None, *also: str, runs: str = "runs", node: str = OURS, trainer: str = TRAINER
    ) -> Life:
        claim = claim or claimed()
        folder = tmp_path / runs / f"run-{claim.run_id}" / f"attempt-{claim.fence}"
        made.append(Life(folder, claim, *also, node=node, trainer=trainer))
        return made[-1]

    yield make
    for one in made:
        one.end()


@pytest.fixture
def tiny(site: Site) -> Site:
    """The site with a model that can really be trained and sampled."""
    from grpo_core.model.tiny import TinyShape, make_tiny

    folder = environment().models_folder / "tiny-real"
    model, tokenizer = make_tiny(seed=0, shape=TinyShape(hidden=16, layers=1, heads=2, feed_forward=32, context=16384))
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    site.base_model = base_model_register(project=site.project, actor=site.user, name="tiny", path="tiny-real")
    return site


@pytest.fixture
def cable(site: Site) -> Iterator[Cable]:
    """What lies between a worker and the platform."""
    with Cable(site.url) as cable:
        yield cable


@pytest.fixture
def bystander() -> Iterator[Process]:
    """A process that has nothing to do with any attempt, in a session of its own."""
    with subprocess.Popen(["sleep", "600"], start_new_session=True) as started:
        found = process(started.pid)
        assert found is not None
        yield found
        started.kill()


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

    run: Run
    supervisor: Supervisor
    done: "Future[Finish | None]"

    @property
    def folder(self) -> Path:
        return self.supervisor.runs / f"run-{self.run.pk}" / "attempt-1"

    @property
    def pid(self) -> int:
        return int((self.folder / "pid").read_text())

    def end(self) -> tuple[str, str] | None:
        """How it ended and by which code, None when it was taken from its worker; the run is as it is then."""
        finish = self.done.result(timeout=DEADLINE)
        self.run.refresh_from_db()
        return (finish.end, finish.code) if finish else None


@pytest.fixture
def attempt(site: Site, tmp_path: Path, shutdown: threading.Event, background: Any) -> Iterator[Attempting]:
    """Begins an attempt with a given mode of the stand-in trainer and quick turns; one that goes on until it is asked
    to stop has stored its steps, or its checkpoints, by then."""
    with Platform(site.url, site.node_token) as platform:

        def begin(
            mode: str, *, run: Run | None = None, ready: bool = True, limits: Any = None, **changes: Any
        ) -> Attempted:
            run = run or site.launch()
            supervisor = Supervisor(
                platform,
                tmp_path / "runs",
                environment().models_folder,
                child(mode),
                stop=shutdown,
                limits=Limits(**{"tick": 0.05, "grace": 30.0, **(limits or {})}),
            )
            supervisor = replace(supervisor, **changes)
            attempted = Attempted(run, supervisor, background(lambda: supervisor.run(run.pk)))
            if ready and mode in ("obey", "deaf", "wait-for-file"):
                wait_for(lambda: StepMetric.objects.filter(run=run).count() == 3, "three steps are stored")
            if ready and mode == "checkpoints":
                wait_for(lambda: Checkpoint.objects.filter(run=run).count() >= 2, "its checkpoints are known")
            return attempted

        yield begin
