"""What the demo's run is made from: person, project, base model, datasets, verifier. Made once, reused later."""

import hashlib
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from django.db.models import QuerySet

from cohort.accounts.models import Project, Role, User
from cohort.accounts.services import membership_set, project_create
from cohort.catalog.model_folder import read_model_folder
from cohort.catalog.models import BaseModel, EvalSuiteVersion, PromptDataset, VerifierVersion
from cohort.catalog.run_inputs import ChosenSuite
from cohort.catalog.services import base_model_register, dataset_create, verifier_version_create
from cohort.catalog.suites import (
    DEFAULT_MARGIN,
    GivenFile,
    Spec,
    newest_version,
    starters_add,
    suite_version_create,
)
from cohort.cli.demo.tasks import DemoTask
from cohort.cli.embedded import children
from cohort.cli.embedded.home import Home, HomeError
from cohort.cli.embedded.people import password_renew
from cohort.cli.embedded.up import Up, say
from cohort.lab.models import OPEN, JobKind, JobState, LabJob, VerifierProbe
from cohort.lab.prompts import prompt_checks
from cohort.lab.services import config_job_request, job_request
from cohort.launch.configs import run_config
from cohort.launch.creation import run_launch
from cohort.runs.models import Run
from grpo_core.config.builtin_suites import names as starter_names
from grpo_core.config.run import RunConfig
from grpo_core.evaluate.suites.formats import FORMATS

USER = PROJECT = "demo"

# Of each public set so many items, or clusters of items, are evaluated, with completions of so many tokens.
PUBLIC_ITEMS, SUITE_TOKENS = 20, 128
PUBLIC_SETS: dict[str, tuple[str, ...]] = {
    "gsm8k": ("test.jsonl",),
    "mgsm": ("mgsm_en.tsv", "mgsm_de.tsv"),
    "xstest": ("xstest_prompts.csv",),
}
"""Files of each set that is evaluated where it is there."""


def person() -> tuple[User, Project, str]:
    """The demo's user with a new password, and the project that is theirs."""
    user, password = password_renew(USER)
    project = Project.objects.filter(slug=PROJECT).first()
    if project is None:
        project = project_create(slug=PROJECT, name="Demo", owner=user)
    membership_set(project=project, actor=None, user=user, role=Role.ADMIN)
    return user, project, password


def build_model(up: Up, task: DemoTask) -> None:
    """The base model in the models folder, unless it is there: `grpo cold-start`, or a copy of a pretrained one. A
    half-made model is never left."""
    folder = up.home.models / task.model_folder
    if folder.is_dir():
        return
    if task.pretrained is None:
        say("building the demo's base model, once (half a minute on two cores)")
        _grpo(up, ["cold-start", "--out", str(folder)])
        return
    if not task.pretrained.is_dir():
        raise HomeError(f"there is no model folder {task.pretrained}; `make demo-chat` makes it")
    say(f"copying the base model {task.pretrained}, once")
    with tempfile.TemporaryDirectory(dir=up.home.models, prefix=".copy-") as half_made:
        copy = shutil.copytree(task.pretrained, Path(half_made) / folder.name)
        copy.rename(folder)


def base_model(project: Project, user: User, home: Home, task: DemoTask) -> BaseModel:
    """The catalog's entry for exactly these weights; a new one when the folder holds others than before."""
    digest = read_model_folder(home.models, task.model_folder).weights_digest
    models = BaseModel.objects.filter(project=project)
    known = models.filter(weights_digest=digest, path=task.model_folder, archived_at=None).first()
    name = _free(task.model_name, models)
    return known or base_model_register(project=project, actor=user, name=name, path=task.model_folder)


def datasets(up: Up, project: Project, user: User, task: DemoTask) -> tuple[PromptDataset, PromptDataset]:
    """(training problems, held-out problems)."""
    folder = up.home.path / task.data_folder
    files = [folder / "add-train.jsonl", folder / "add-heldout.jsonl"]
    if not all(file.is_file() for file in files):
        _grpo(up, ["demo-data", *task.data_options, "--out", str(folder)])
    train, heldout = (
        _dataset(project, user, name, file, task) for name, file in zip(task.data_names, files, strict=True)
    )
    return train, heldout


def verifier(project: Project, user: User, task: DemoTask) -> VerifierVersion:
    return verifier_version_create(
        project=project, actor=user, name=task.verifier, spec=task.reward, description=task.description
    )


def suites(project: Project, user: User, task: DemoTask) -> list[ChosenSuite]:
    """Newest versions of the starter suites, and of the public sets whose files are there."""
    if not task.suites:
        return []
    names = starter_names()
    starters_add(project=project, actor=user, names=names)
    versions = [newest_version(project, name) for name in names]
    versions += [_public_set(project, user, name, files) for name, files in _public_files(task).items()]
    return [ChosenSuite(version, max_completion_tokens=SUITE_TOKENS) for version in versions if version is not None]


def _public_files(task: DemoTask) -> dict[str, list[Path]]:
    if task.public_sets is None:
        return {}
    sets = {name: [task.public_sets / name / file for file in files] for name, files in PUBLIC_SETS.items()}
    return {name: files for name, files in sets.items() if all(file.is_file() for file in files)}


def _public_set(project: Project, user: User, name: str, files: Sequence[Path]) -> EvalSuiteVersion:
    known = FORMATS[name]
    assert known.scorer is not None
    spec = Spec(
        title=known.title,
        category=known.category,
        scorer=known.scorer.model_dump(mode="json"),
        higher_is=known.higher_is,
        sensitive=known.sensitive,
        margin=DEFAULT_MARGIN,
        licence=known.licence,
    )
    given = [GivenFile(file.name, file.read_bytes()) for file in files]
    return suite_version_create(
        project=project, actor=user, name=name, spec=spec, format=name, files=given, limit=PUBLIC_ITEMS
    )


def probe(up: Up, project: Project, user: User, task: DemoTask) -> VerifierProbe:
    """Result of a worker's probe of the reward with the training problems; an earlier one where there is one."""
    train, _ = datasets(up, project, user, task)
    version = verifier(project, user, task)
    known = VerifierProbe.objects.filter(version=version, dataset=train).first()
    if known is not None:
        return known
    say("probing the reward: which wrong answers does it score as correct?")
    job = job_request(project=project, actor=user, kind="probe", version=version, dataset=train)
    _wait(up, job, "probe of the reward")
    return VerifierProbe.objects.get(job=job)


def _wait(up: Up, job: LabJob, what: str) -> None:
    """Until it is done. Raises HomeError when it ends otherwise."""
    while job.state in OPEN:
        up.watch()
        time.sleep(0.2)
        job.refresh_from_db()
    if job.state != JobState.DONE:
        raise HomeError(f"The {what} did not end well: {job.error or job.get_state_display()}")


def launch(up: Up, project: Project, user: User, task: DemoTask, *, steps: int | None) -> Run:
    """Have a worker check the prompts, unless that is known, and submit the run exactly as the form does."""
    model = base_model(project, user, up.home, task)
    train, heldout = datasets(up, project, user, task)
    settings: dict[str, Any] = {"preset": task.preset}
    if steps is not None:
        settings["optim"] = {"steps": steps}
    rows: dict[str, Any] = {
        "base_model": model,
        "dataset": train,
        "eval_dataset": heldout,
        "verifier_version": verifier(project, user, task),
        "suites": suites(project, user, task),
    }
    name = _free(task.run_name, Run.objects.filter(project=project))
    config = run_config(name=name, settings=settings, **rows)
    assert isinstance(config, RunConfig), "of kind grpo"
    if [check.state for check in prompt_checks(project, [config])] != ["checked"]:
        say("checking that every prompt fits the model")
        job = config_job_request(kind=JobKind.PREVIEW, project=project, actor=user, config=config, **rows)
        _wait(up, job, "check of the prompts")
    return run_launch(project=project, actor=user, name=name, settings=config, **rows)


def _dataset(project: Project, user: User, name: str, file: Path, task: DemoTask) -> PromptDataset:
    content = file.read_bytes()
    files = PromptDataset.objects.filter(project=project)
    known = files.filter(sha256=hashlib.sha256(content).hexdigest()).first()
    return known or dataset_create(
        project=project, actor=user, name=_free(name, files), format="plain", chunks=[content], source=task.source
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
