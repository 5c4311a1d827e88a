"""What the demo's run is made from: person, project, base model, datasets, verifier. Made once, reused later."""

import hashlib
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from django.db.models import QuerySet

from cohort.accounts.models import Project, Role, User
from cohort.accounts.services import membership_set, project_create
from cohort.catalog.model_folder import read_model_folder
from cohort.catalog.models import BaseModel, PromptDataset, VerifierVersion
from cohort.catalog.services import base_model_register, dataset_create, verifier_version_create
from cohort.cli.embedded import children
from cohort.cli.embedded.home import Home, HomeError
from cohort.cli.embedded.people import password_renew
from cohort.cli.embedded.up import Up, say
from cohort.lab.models import JobState, VerifierProbe
from cohort.lab.services import job_request
from cohort.launch.creation import run_launch
from cohort.runs.models import Run

USER = PROJECT = "demo"
MODEL_FOLDER = "demo-adder"
SOURCE = "Made by `grpo demo-data`: all two-digit additions, 512 of them held out."

# A completion that is right in form and answer is paid 1.0; the form alone 0.2.
REWARD: dict[str, Any] = {
    "components": [
        {"name": "correct", "kind": "exact", "weight": 0.8, "params": {"extract": "answer_tag"}},
        {"name": "format", "kind": "r1_format", "weight": 0.2},
    ]
}


def person() -> tuple[User, Project, str]:
    """The demo's user with a new password, and the project that is theirs."""
    user, password = password_renew(USER)
    project = Project.objects.filter(slug=PROJECT).first()
    if project is None:
        project = project_create(slug=PROJECT, name="Demo", owner=user)
    membership_set(project=project, actor=None, user=user, role=Role.ADMIN)
    return user, project, password


def build_model(up: Up) -> None:
    """`grpo cold-start` into the models folder, unless it is there; the command never leaves a half-made model."""
    folder = up.home.models / MODEL_FOLDER
    if folder.is_dir():
        return
    say("building the demo's base model, once (half a minute on two cores)")
    _grpo(up, ["cold-start", "--out", str(folder)])


def base_model(project: Project, user: User, home: Home) -> BaseModel:
    """The catalog's entry for exactly these weights; a new one when the folder holds others than before."""
    digest = read_model_folder(home.models, MODEL_FOLDER).weights_digest
    models = BaseModel.objects.filter(project=project)
    known = models.filter(weights_digest=digest, path=MODEL_FOLDER).first()
    name = _free("two-digit adder, 0.4 M", models)
    return known or base_model_register(project=project, actor=user, name=name, path=MODEL_FOLDER)


def datasets(up: Up, project: Project, user: User) -> tuple[PromptDataset, PromptDataset]:
    """(training problems, held-out problems)."""
    folder = up.home.path / "demo-data"
    files = [folder / "add-train.jsonl", folder / "add-heldout.jsonl"]
    if not all(file.is_file() for file in files):
        _grpo(up, ["demo-data", "--out", str(folder)])
    names = ("two-digit additions", "two-digit additions, held out")
    train, heldout = (_dataset(project, user, name, file) for name, file in zip(names, files, strict=True))
    return train, heldout


def verifier(project: Project, user: User) -> VerifierVersion:
    return verifier_version_create(
        project=project,
        actor=user,
        name="r1-format + exact",
        spec=REWARD,
        description="0.8 for the right sum between answer tags, 0.2 for the form of think and answer tags.",
    )


def probe(up: Up, project: Project, user: User) -> VerifierProbe:
    """Result of a worker's probe of the reward with the training problems; an earlier one where there is one."""
    train, _ = datasets(up, project, user)
    version = verifier(project, user)
    known = VerifierProbe.objects.filter(version=version, dataset=train).first()
    if known is not None:
        return known
    say("probing the reward: which wrong answers does it pay?")
    job = job_request(project=project, actor=user, kind="probe", version=version, dataset=train)
    while job.state in (JobState.WAITING, JobState.RUNNING):
        up.watch()
        time.sleep(0.2)
        job.refresh_from_db()
    if job.state != JobState.DONE:
        raise HomeError(f"The probe of the reward did not end well: {job.error or job.get_state_display()}")
    return VerifierProbe.objects.get(job=job)


def launch(up: Up, project: Project, user: User, *, steps: int | None) -> Run:
    """Submit the run exactly as the form does."""
    model = base_model(project, user, up.home)
    train, heldout = datasets(up, project, user)
    settings: dict[str, Any] = {"preset": "demo"}
    if steps is not None:
        settings["optim"] = {"steps": steps}
    return run_launch(
        project=project,
        actor=user,
        name=_free("Two-digit addition", Run.objects.filter(project=project)),
        base_model=model,
        dataset=train,
        eval_dataset=heldout,
        verifier_version=verifier(project, user),
        settings=settings,
    )


def _dataset(project: Project, user: User, name: str, file: Path) -> PromptDataset:
    content = file.read_bytes()
    files = PromptDataset.objects.filter(project=project)
    known = files.filter(sha256=hashlib.sha256(content).hexdigest()).first()
    return known or dataset_create(
        project=project, actor=user, name=_free(name, files), format="jsonl", chunks=[content], source=SOURCE
    )


def _free(name: str, rows: QuerySet[Any]) -> str:
    """`name`, or `name 2`, `name 3` … when one of the rows has it."""
    taken = set(rows.values_list("name", flat=True))
    numbered = (name if number == 1 else f"{name} {number}" for number in range(1, len(taken) + 2))
    return next(candidate for candidate in numbered if candidate not in taken)


def _grpo(up: Up, argv: Sequence[str]) -> None:
    """Run the trainer's command while watching over the rest; its output is shown as it comes."""
    command = children.command([sys.executable, "-P", "-m", "grpo_core.cli.main", *argv])
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, process_group=0)
    up.helpers.append(process)
    try:
        while process.poll() is None:
            up.watch()
            time.sleep(0.1)
    finally:
        if process.poll() is None:
            process.terminate()
            process.wait()
    if process.returncode != 0:
        raise HomeError(f"`grpo {' '.join(argv)}` ended with status {process.returncode}; see above for the reason.")
