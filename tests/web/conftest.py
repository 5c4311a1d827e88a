"""People with each role in one project, and a catalog to start runs from; all made through the services."""

import json
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from django.contrib.auth.hashers import Argon2PasswordHasher
from django.test import Client
from django.utils import timezone

from cohort.accounts.models import Project, Role, User
from cohort.accounts.services import membership_set, project_create, user_create
from cohort.catalog.models import BaseModel, PromptDataset, VerifierVersion
from cohort.catalog.services import base_model_register, dataset_create, verifier_version_create
from cohort.environment import environment
from cohort.runs.models import Node, Run
from tests import sealed_run
from tests.browser import chromium
from tests.web.run_rows import Maker, add_checkpoint, add_steps

if TYPE_CHECKING:
    from playwright.sync_api import Browser

PASSWORD = "correct horse battery"

R1_EXACT = {
    "components": [
        {"name": "format", "kind": "r1_format", "weight": 0.2},
        {"name": "answer", "kind": "exact", "weight": 1.0},
    ]
}
PROBLEMS = b"".join(
    json.dumps({"id": f"add-{a}", "prompt": f"what is {a} + 7?", "answer": str(a + 7)}).encode() + b"\n"
    for a in range(10, 30)
)


def write_safetensors(path: Path, shapes: dict[str, list[int]]) -> None:
    """A valid file of float32 zeros, written by hand: 8 bytes of header length, the JSON header, the numbers."""
    header, offset = {}, 0
    for name, shape in shapes.items():
        size = 4
        for edge in shape:
            size *= edge
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [offset, offset + size]}
        offset += size
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + bytes(offset))


@pytest.fixture(autouse=True)
def _quick_hashing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Argon2 as in use, with the least work: each test makes people, and none is to resist guessing."""
    monkeypatch.setattr(Argon2PasswordHasher, "time_cost", 1)
    monkeypatch.setattr(Argon2PasswordHasher, "memory_cost", 64)


@pytest.fixture(scope="module")
def browser() -> Iterator["Browser"]:
    with chromium() as opened:
        yield opened


@pytest.fixture
def make_user(db: None) -> Callable[[str], User]:
    return lambda name: user_create(username=name, password=PASSWORD)[0]


@pytest.fixture
def alice(make_user: Callable[[str], User]) -> User:
    """Admin of `ours`."""
    return make_user("alice")


@pytest.fixture
def ours(alice: User) -> Project:
    return project_create(slug="ours", name="Our project", owner=alice)


@pytest.fixture
def bob(make_user: Callable[[str], User], ours: Project, alice: User) -> User:
    """Viewer in `ours`."""
    return membership_set(project=ours, actor=alice, user=make_user("bob"), role=Role.VIEWER).user


@pytest.fixture
def rita(make_user: Callable[[str], User], ours: Project, alice: User) -> User:
    """Reviewer in `ours`."""
    return membership_set(project=ours, actor=alice, user=make_user("rita"), role=Role.REVIEWER).user


@pytest.fixture
def oscar(make_user: Callable[[str], User], ours: Project, alice: User) -> User:
    """Operator in `ours`."""
    return membership_set(project=ours, actor=alice, user=make_user("oscar"), role=Role.OPERATOR).user


@pytest.fixture
def charlie(make_user: Callable[[str], User]) -> User:
    """A stranger to `ours`, with a project of his own."""
    user = make_user("charlie")
    project_create(slug="theirs", name="Their project", owner=user)
    return user


@pytest.fixture
def client_for() -> Callable[[User], Client]:
    """A browser in which this person is signed in; CSRF is not checked (test_login checks it)."""

    def make(user: User) -> Client:
        client = Client()
        client.force_login(user, backend="django.contrib.auth.backends.ModelBackend")
        return client

    return make


@pytest.fixture
def models_folder() -> Path:
    folder = environment().models_folder
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@pytest.fixture
def tiny_model_folder(models_folder: Path) -> str:
    """A model folder of 24 parameters, relative to the models folder. Good to register, not to train."""
    folder = models_folder / "tiny"
    folder.mkdir(exist_ok=True)
    write_safetensors(folder / "model.safetensors", {"embed": [5, 4], "norm": [4]})
    (folder / "config.json").write_text(json.dumps({"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2"}))
    (folder / "cold_start.json").write_text(json.dumps({"task": "add-two-digits", "steps": 250, "seed": 0}))
    return folder.name


@pytest.fixture
def base_model(ours: Project, alice: User, tiny_model_folder: str) -> BaseModel:
    return base_model_register(project=ours, actor=alice, name="tiny", path=tiny_model_folder)


@pytest.fixture
def dataset(ours: Project, alice: User) -> PromptDataset:
    """20 additions."""
    return dataset_create(
        project=ours, actor=alice, name="additions", format="jsonl", chunks=[PROBLEMS], source="made for the tests"
    )


@pytest.fixture
def heldout(ours: Project, alice: User) -> PromptDataset:
    """Two problems; the first is one of the training problems in other capitals."""
    lines = b'{"prompt": "WHAT is 10 +  7?", "answer": "17"}\n{"prompt": "what is 1 + 7?", "answer": "8"}\n'
    return dataset_create(project=ours, actor=alice, name="held out", format="jsonl", chunks=[lines], source="")


@pytest.fixture
def verifier_version(ours: Project, alice: User) -> VerifierVersion:
    """R1 format at weight 0.2 and the exact answer at 1."""
    return verifier_version_create(project=ours, actor=alice, name="r1 + exact", spec=R1_EXACT)


@pytest.fixture
def launch(
    ours: Project,
    alice: User,
    base_model: BaseModel,
    dataset: PromptDataset,
    heldout: PromptDataset,
    verifier_version: VerifierVersion,
) -> Callable[..., Run]:
    """`sealed_run.launch` with everything given; what a test gives itself goes before it."""
    given: dict[str, Any] = {
        "project": ours,
        "actor": alice,
        "base_model": base_model,
        "dataset": dataset,
        "heldout": heldout,
        "verifier_version": verifier_version,
    }
    return lambda **other: sealed_run.launch(**{**given, **other})


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
    }
