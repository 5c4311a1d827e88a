"""The rows that most tests start from: people with each role in one project, a catalog to start runs from, and a
sealed run.

They are made once for a pytest process, as databases to copy (tests/database.py); the fixtures of tests/web/conftest.py
read them.
"""

import json
import struct
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

from django.db import connection

from cohort.accounts.models import Project, Role, User
from cohort.accounts.services import membership_set, project_create, user_create
from cohort.base.environment import environment
from cohort.catalog.models import BaseModel, PromptDataset, VerifierVersion
from cohort.catalog.services import base_model_register, dataset_create, verifier_version_create
from tests.factories import sealed_run

PASSWORD = "correct horse battery"
R1_EXACT: dict[str, Any] = {
    "components": [
        {"name": "format", "kind": "r1_format", "weight": 0.2},
        {"name": "answer", "kind": "exact", "weight": 1.0},
    ]
}
PROBLEMS = b"".join(
    json.dumps({"id": f"add-{a}", "prompt": f"what is {a} + 7?", "answer": str(a + 7)}).encode() + b"\n"
    for a in range(10, 30)
)
HELDOUT = b'{"prompt": "WHAT is 10 +  7?", "answer": "17"}\n{"prompt": "what is 1 + 7?", "answer": "8"}\n'
"""Two problems; the first is one of the training problems in other capitals."""


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


def tiny_model() -> str:
    """A model folder of 24 parameters, relative to the models folder. Good to register, not to train."""
    folder = environment().models_folder / "tiny"
    folder.mkdir(parents=True, exist_ok=True)
    write_safetensors(folder / "model.safetensors", {"embed": [5, 4], "norm": [4]})
    (folder / "config.json").write_text(json.dumps({"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2"}))
    (folder / "provenance.json").write_text(json.dumps({"task": "add-two-digits", "steps": 250, "seed": 0}))
    return folder.name


def people() -> None:
    """alice, the admin of the project `ours`, its viewer bob, reviewer rita and operator oscar; charlie, a stranger
    with the project `theirs`."""
    alice, bob, rita, oscar, charlie = (
        user_create(username=name, password=PASSWORD)[0] for name in ("alice", "bob", "rita", "oscar", "charlie")
    )
    ours = project_create(slug="ours", name="Our project", owner=alice)
    for user, role in ((bob, Role.VIEWER), (rita, Role.REVIEWER), (oscar, Role.OPERATOR)):
        membership_set(project=ours, actor=alice, user=user, role=role)
    project_create(slug="theirs", name="Their project", owner=charlie)


def catalog() -> None:
    """In `ours`: the model `tiny`, the datasets `held out` and, newest, `additions` (20 problems), one verifier."""
    ours, alice = Project.objects.get(slug="ours"), User.objects.get(username="alice")
    base_model_register(project=ours, actor=alice, name="tiny", path=tiny_model())
    for name, content, source in (("held out", HELDOUT, ""), ("additions", PROBLEMS, "made for the tests")):
        dataset_create(project=ours, actor=alice, name=name, format="plain", chunks=[content], source=source)
    verifier_version_create(project=ours, actor=alice, name="r1 + exact", spec=R1_EXACT)


def sealed() -> None:
    """A run of alice's that finished as `sealed_run.whole` says, and its record. The cards lie in the home of all
    databases, by the run's id, and whoever seals a run removes what else lies there by its id: no other may have it."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT setval(pg_get_serial_sequence('runs_run', 'id'), %s)", [10**9])
    run = sealed_run.launch(
        project=Project.objects.get(slug="ours"),
        actor=User.objects.get(username="alice"),
        base_model=BaseModel.objects.get(),
        dataset=PromptDataset.objects.get(name="additions"),
        heldout=PromptDataset.objects.get(name="held out"),
        verifier_version=VerifierVersion.objects.get(),
    )
    sealed_run.sealed(run)


STOCKS: dict[str, tuple[str, Callable[[], None]]] = {
    "people": ("", people),
    "catalog": ("people", catalog),
    "sealed": ("catalog", sealed),
}
"""By name: the stock that it adds to (the empty name: migrated tables without rows), and what adds it."""
PEOPLE = {"alice", "bob", "rita", "oscar", "charlie", "ours"}
CATALOG = {"base_model", "dataset", "heldout", "verifier_version", "world"}
SEALED = {"sealed", "sealed_site"}


def stock_of(fixtures: Collection[str]) -> str:
    """The stock that a test with these fixtures starts from."""
    stocks = {"sealed": SEALED, "catalog": CATALOG, "people": PEOPLE}
    return next((stock for stock, names in stocks.items() if names & set(fixtures)), "")
