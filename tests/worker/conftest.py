"""A live web server with a project, a registered node and one queued run; what a worker on this machine would need."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from cohort.accounts.models import Project, User
from cohort.accounts.services import project_create, user_create
from cohort.catalog.models import BaseModel, PromptDataset, VerifierVersion
from cohort.catalog.services import base_model_register, dataset_create, verifier_version_create
from cohort.environment import environment
from cohort.runs.models import Run, StepMetric
from cohort.runs.nodes import node_create
from cohort.runs.services import run_launch
from grpo_core.wire import ClaimReply, Finish
from tests.web.conftest import PASSWORD, PROBLEMS, R1_EXACT, write_safetensors
from tests.worker.life import OURS, Life, claimed
from tests.worker.queues import take_all
from worker.client import Platform
from worker.run_folder import Command
from worker.supervisor import Limits, Supervisor

Making = Callable[..., Supervisor]


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

    def make(claim: ClaimReply | None = None, *also: str, runs: str = "runs", node: str = OURS) -> Life:
        claim = claim or claimed()
        folder = tmp_path / runs / f"run-{claim.run_id}" / f"attempt-{claim.fence}"
        made.append(Life(folder, claim, *also, node=node))
        return made[-1]

    yield make
    for one in made:
        one.end()


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


@pytest.fixture
def supervisor(site: Site, tmp_path: Path, shutdown: threading.Event) -> Iterator[Callable[..., Supervisor]]:
    """Makes a supervisor with a given child program and quick turns."""
    with Platform(site.url, site.node_token) as platform:

        def make(command: Command, **limits: float) -> Supervisor:
            return Supervisor(
                platform,
                tmp_path / "runs",
                environment().models_folder,
                command,
                stop=shutdown,
                limits=Limits(**{"tick": 0.05, "grace": 30.0, **limits}),
            )

        yield make


@pytest.fixture
def see_through(background: Any) -> Callable[[Supervisor, Run], Finish | None]:
    """Sees one attempt through; a supervisor that does not come to an end fails the test."""
    return lambda made, run: background(lambda: made.run(run.pk)).result(timeout=120)


def folder_of(supervisor: Supervisor, run: Run) -> Path:
    return supervisor.runs / f"run-{run.pk}" / "attempt-1"


def pid_of(supervisor: Supervisor, run: Run) -> int:
    return int((folder_of(supervisor, run) / "pid").read_text())


def three_steps_stored(run: Run) -> Callable[[], bool]:
    return lambda: StepMetric.objects.filter(run=run).count() == 3
