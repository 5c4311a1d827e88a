"""Datasets of conversations and preferences, and runs of the kinds that learn from them."""

import json
from collections.abc import Mapping
from typing import Any

from cohort.accounts.models import Project, User
from cohort.catalog.models import BaseModel, PromptDataset
from cohort.catalog.services import dataset_create
from cohort.launch.configs import FurtherData
from cohort.launch.creation import run_create
from cohort.runs.models import Run
from tests.factories.runs import put_in


def lines(*rows: Mapping[str, Any]) -> bytes:
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


def conversation(number: int) -> dict[str, Any]:
    question = {"role": "user", "content": f"what is {number} + 1?"}
    return {"messages": [question, {"role": "assistant", "content": str(number + 1)}]}


def pair(number: int) -> dict[str, Any]:
    return {"prompt": f"what is {number} + 1?", "chosen": str(number + 1), "rejected": str(number + 2)}


CONVERSATIONS = lines(*map(conversation, range(20)))
PAIRS = lines(*map(pair, range(20)))


def conversations(project: Project, actor: User, name: str = "chats", content: bytes = CONVERSATIONS) -> PromptDataset:
    return dataset_create(project=project, actor=actor, name=name, content="conversations", chunks=[content])


def preferences(project: Project, actor: User, name: str = "pairs", content: bytes = PAIRS) -> PromptDataset:
    return dataset_create(project=project, actor=actor, name=name, content="preferences", chunks=[content])


def sft_run(
    project: Project,
    actor: User,
    base_model: BaseModel,
    dataset: PromptDataset,
    *,
    name: str = "tuned",
    state: str = "draft",
    further: FurtherData | None = None,
    **settings: Any,
) -> Run:
    run = run_create(
        kind="sft",
        project=project,
        actor=actor,
        name=name,
        base_model=base_model,
        dataset=dataset,
        further=further or FurtherData(),
        settings={"optim": {"steps": 5, "batch_size": 4}, **settings},
    )
    put_in(run, state)
    return run
