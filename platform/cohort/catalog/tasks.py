"""Datasets made by reasoning-gym's tasks, and the reward that scores them.

The problems are made in a separate process: a third party's generators, with numpy and more, do not belong
in the web process and may take long.
"""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from django.core.exceptions import ValidationError

from cohort.accounts.models import Project, User
from cohort.base.scratch import scratch_folder
from cohort.catalog.models import PromptDataset, VerifierVersion
from cohort.catalog.services import dataset_create, verifier_version_create
from grpo_core.data import gym
from grpo_core.errors import ConfigError

SECONDS = 60.0
"""Longest that making the problems may take, as somebody waits for the page."""
MOST = 20_000
REWARD = "reasoning-gym"
SPEC: dict[str, Any] = {"components": [{"name": "task", "kind": "reasoning_gym", "params": {"full_marks_only": True}}]}
"""One reward for every task: each problem names the task whose scorer it needs. Only full marks are paid: some tasks
reward a near answer, as chain_sum does a sum with a digit too many, and a policy would learn that."""


def dataset_from_task(*, project: Project, actor: User | None, task: str, size: int, seed: int) -> PromptDataset:
    """The project's dataset of these problems, made when there is none yet. Raises ValidationError keyed by `task`,
    `size` or `seed`."""
    try:
        gym.known(task)
    except ConfigError as error:
        raise ValidationError({"task": f"{str(error)[:1].upper()}{str(error)[1:]}."}) from None
    if not 1 <= size <= MOST:
        raise ValidationError({"size": f"Give 1 to {MOST:,} problems; `grpo tasks` on a command line makes more."})
    if not 0 <= seed < 2**31:
        raise ValidationError({"seed": "Give a whole number from 0 to 2,147,483,647."})
    made = {"task": task, "size": size, "seed": seed}
    there = PromptDataset.objects.filter(project=project, made__contains=made).order_by("pk").first()
    if there is not None:
        return there
    with scratch_folder("task") as folder:
        file = folder / "problems.jsonl"
        _make(task, size, seed, file)
        with file.open("rb") as handle:
            version = json.loads(handle.readline())[gym.META]["version"]
            handle.seek(0)
            return dataset_create(
                project=project,
                actor=actor,
                name=_free_name(project, f"{task}, {size:,} problems, seed {seed}"),
                format="plain",
                chunks=iter(lambda: handle.read(1 << 20), b""),
                source=f"Made by the task {task} of reasoning-gym {version}, seed {seed}.",
                file_name="The task's file",
                made={**made, "version": version},
            )


def task_reward(*, project: Project, actor: User | None) -> VerifierVersion:
    """The project's reward by which every task's problems are scored, made when there is none yet."""
    about = "Each problem's own task scores it, in the sandbox. Only right answers are rewarded."
    return verifier_version_create(project=project, actor=actor, name=REWARD, spec=SPEC, description=about)


def _make(task: str, size: int, seed: int, file: Path) -> None:
    words = [sys.executable, "-P", "-m", "grpo_core.cli.main", "tasks", task, "--size", str(size), "--seed", str(seed)]
    try:
        done = subprocess.run(
            [*words, "--out", str(file)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            timeout=SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise ValidationError(
            {
                "size": f"{task} made no {size:,} problems within {SECONDS:g} seconds. Ask for fewer, or make them "
                "with `grpo tasks` on a command line and upload the file."
            }
        ) from None
    if done.returncode != 0:
        tail = done.stderr.strip().splitlines()[-1:] or [f"status {done.returncode}"]
        raise ValidationError({"task": f"The problems could not be made: {tail[0].removeprefix('grpo: ')}"})


def _free_name(project: Project, name: str) -> str:
    """`name`, or with a number after it where the project has one of that name from elsewhere."""
    taken = set(PromptDataset.objects.filter(project=project, name__startswith=name).values_list("name", flat=True))
    return next(
        candidate for n in range(len(taken) + 1) if (candidate := name if n == 0 else f"{name} ({n + 1})") not in taken
    )
