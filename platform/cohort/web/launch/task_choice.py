"""A task by name in the run form: makes its problems, and chooses them together with the reward that scores them."""

from dataclasses import dataclass

from django.core.exceptions import ValidationError

from cohort.accounts.models import User
from cohort.base.formatting import natural
from cohort.catalog.tasks import MOST, dataset_from_task, task_reward
from cohort.web.launch.run_form import RunForm
from grpo_core.data import gym

FIELDS = {"task": "", "task_size": "1000", "task_seed": "0"}
"""What the form says of it, and how it begins. Nothing of it is part of a run: what it chooses is."""


@dataclass(frozen=True)
class TasksShown:
    """The panel's choices."""

    fields: tuple[tuple[str, tuple[str, ...]], ...] = tuple(gym.TASKS.items())
    """(field of knowledge, names)."""
    count: int = len(gym.NAMES)
    most: int = MOST


def choose_task(form: RunForm, actor: User) -> None:
    """Make the task's dataset and reward, unless the project has them, and choose both. What is wrong is put beside the
    fields `task`, `task_size` and `task_seed`."""
    size, seed = natural(form.texts["task_size"].strip()), natural(form.texts["task_seed"].strip())
    faults = {}
    if not form.texts["task"]:
        faults["task"] = ["Choose a task."]
    if size is None:
        faults["task_size"] = ["Give a whole number of problems."]
    if seed is None:
        faults["task_seed"] = ["Give a whole number."]
    if faults:
        form.problems |= faults
        return
    assert size is not None
    assert seed is not None
    try:
        dataset = dataset_from_task(project=form.project, actor=actor, task=form.texts["task"], size=size, seed=seed)
        version = task_reward(project=form.project, actor=actor)
    except ValidationError as error:
        names = {"size": "task_size", "seed": "task_seed"}
        form.problems |= {names.get(field, "task"): told for field, told in error.message_dict.items()}
        return
    form.texts |= {"dataset": str(dataset.pk), "verifier_version": str(version.pk), "eval_dataset": ""}
    form.texts["eval.holdout"] = str(min(256, dataset.problems // 5))
