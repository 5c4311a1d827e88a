"""The people and the catalog of tests/factories/stock.py, and what makes runs of them."""

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from django.test import Client
from django.utils import timezone

from cohort.accounts.api_tokens import api_token_create
from cohort.accounts.models import Project, User
from cohort.accounts.services import user_create
from cohort.base.database_roles import WEB
from cohort.base.environment import environment
from cohort.catalog.models import BaseModel, PromptDataset, VerifierVersion
from cohort.nodes.models import Node
from cohort.nodes.services import node_create
from cohort.pipelines.models import Pipeline
from cohort.pipelines.services import pipeline_create, pipeline_start
from cohort.runs.models import Run
from tests.browser import chromium
from tests.database import as_role
from tests.factories import sealed_run
from tests.factories.pipelines import TEXT, stage_succeed
from tests.factories.runs import UNPROBED, Maker, add_checkpoint, add_steps
from tests.factories.stock import PASSWORD, PROBLEMS, R1_EXACT, tiny_model, write_safetensors
from tests.web import control
from tests.web.api_calls import ApiCaller, ApiCallerFor
from tests.web.worker_calls import Caller

__all__ = ["PASSWORD", "PROBLEMS", "R1_EXACT", "write_safetensors"]

if TYPE_CHECKING:
    from playwright.sync_api import Browser

ClientFor = Callable[[User], Client]


@pytest.fixture(scope="module")
def browser() -> Iterator["Browser"]:
    with chromium() as opened:
        yield opened


@pytest.fixture
def make_user(db: None) -> Callable[[str], User]:
    return lambda name: user_create(username=name, password=PASSWORD)[0]


def person(name: str) -> Any:
    @pytest.fixture(name=name)
    def fetched(db: None) -> User:
        return User.objects.get(username=name)

    return fetched


alice, bob, rita, oscar, charlie = map(person, ("alice", "bob", "rita", "oscar", "charlie"))
"""Admin, viewer, reviewer and operator of `ours`; and a stranger to it, with a project of his own."""


@pytest.fixture
def ours(db: None) -> Project:
    return Project.objects.get(slug="ours")


class Browser(Client):
    """Pages are answered with the rights that a web server has in the database."""

    def request(self, **request: Any) -> Any:
        with as_role(WEB):
            return super().request(**request)


@pytest.fixture
def client_for() -> ClientFor:
    """A browser in which this person is signed in; CSRF is not checked (test_login checks it)."""

    def make(user: User) -> Client:
        client = Browser()
        client.force_login(user, backend="django.contrib.auth.backends.ModelBackend")
        return client

    return make


@pytest.fixture
def viewer(client_for: ClientFor, bob: User) -> Client:
    return client_for(bob)


@pytest.fixture
def reviewer(client_for: ClientFor, rita: User) -> Client:
    return client_for(rita)


@pytest.fixture
def operator(client_for: ClientFor, oscar: User) -> Client:
    return client_for(oscar)


@pytest.fixture
def admin(client_for: ClientFor, alice: User) -> Client:
    return client_for(alice)


@pytest.fixture
def stranger(client_for: ClientFor, charlie: User) -> Client:
    """An admin of `theirs`."""
    return client_for(charlie)


@pytest.fixture
def models_folder() -> Path:
    folder = environment().models_folder
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@pytest.fixture
def tiny_model_folder() -> str:
    return tiny_model()


@pytest.fixture
def base_model(db: None) -> BaseModel:
    return BaseModel.objects.get(name="tiny")


@pytest.fixture
def dataset(db: None) -> PromptDataset:
    """20 additions."""
    return PromptDataset.objects.get(name="additions")


@pytest.fixture
def heldout(db: None) -> PromptDataset:
    """Two problems; the first is one of the training problems in other capitals."""
    return PromptDataset.objects.get(name="held out")


@pytest.fixture
def verifier_version(db: None) -> VerifierVersion:
    """R1 format at weight 0.2 and the exact answer at 1."""
    return VerifierVersion.objects.get()


@pytest.fixture
def launch(maker: Maker, heldout: PromptDataset) -> Callable[..., Run]:
    """`sealed_run.launch` with everything given; what a test gives itself goes before it."""
    return lambda **other: sealed_run.launch(**{**vars(maker), "heldout": heldout, **other})


@pytest.fixture
def maker(
    ours: Project, alice: User, base_model: BaseModel, dataset: PromptDataset, verifier_version: VerifierVersion
) -> Maker:
    """Makes runs of `ours`, and what their trainers reported."""
    return Maker(ours, alice, base_model, dataset, verifier_version)


@pytest.fixture
def trained(maker: Maker) -> Run:
    """Six of 120 steps trained by attempt 1 on node-a, with checkpoints before step 1 and at 2, 4 and 6."""
    run = maker.run(state="training", optim={"steps": 120})
    attempt = maker.attempt(run)
    add_steps(attempt, [{"reward": 0.1 * step} for step in range(6)])
    for step in (0, 2, 4, 6):
        add_checkpoint(attempt, step, best=step == 4, removed=step == 2)
    Node.objects.update(last_seen_at=timezone.now())
    return run


@pytest.fixture
def chosen(maker: Maker) -> dict[str, str]:
    """The least that a page sends for a run that can start."""
    return {
        "name": "adder",
        "base_model": str(maker.base_model.pk),
        "dataset": str(maker.dataset.pk),
        "verifier_version": str(maker.verifier_version.pk),
        "eval.holdout": "4",
        "probe_override": UNPROBED,
    }


@pytest.fixture
def gpu1(db: None) -> Node:
    return control.node("gpu-1")


@pytest.fixture
def node(db: None) -> Caller:
    """The worker of gpu-1, by hand."""
    return Caller(node_create(name="gpu-1")[1])


@pytest.fixture
def committed(django_capture_on_commit_callbacks: Any) -> Callable[[], Any]:
    """A block after which everything is done that waited for the commit."""
    return lambda: django_capture_on_commit_callbacks(execute=True)


@pytest.fixture
def caller_for() -> ApiCallerFor:
    """Scripts of this person, with a token that can launch."""

    def make(user: User, scope: str = "launch", name: str = "ci") -> ApiCaller:
        return ApiCaller(api_token_create(user=user, name=name, scope=scope)[1], Browser())

    return make


@pytest.fixture
def caller(caller_for: ApiCallerFor, oscar: User, maker: Maker) -> ApiCaller:
    """A script of the operator's."""
    return caller_for(oscar)


@pytest.fixture
def run_body(maker: Maker) -> dict[str, Any]:
    """The least that launches a run."""
    return {
        "name": "adder",
        "base_model": "tiny",
        "dataset": "additions",
        "verifier": "r1 + exact@1",
        "settings": {"eval": {"holdout": 4}},
        "probe_override": UNPROBED,
        "launch": True,
    }


@pytest.fixture
def pipeline(ours: Project, oscar: User) -> Pipeline:
    return pipeline_create(project=ours, actor=oscar, text=TEXT)


@pytest.fixture
def started(pipeline: Pipeline, oscar: User) -> Pipeline:
    pipeline_start(pipeline=pipeline, actor=oscar, override=UNPROBED)
    return pipeline


@pytest.fixture
def succeed(maker: Maker) -> Callable[..., Run]:
    return partial(stage_succeed, maker)
