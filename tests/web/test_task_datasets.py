"""Datasets made by reasoning-gym's tasks: by name, size and seed, through the real generator in its own process."""

import json
from collections.abc import Callable

import pytest
from django.core.exceptions import ValidationError
from django.test import Client

from cohort import artifacts
from cohort.accounts.models import Project, User
from cohort.catalog.models import PromptDataset
from cohort.catalog.tasks import dataset_from_task, task_reward
from tests.needs import needs

ClientFor = Callable[[User], Client]


def test_operator_makes_one_by_name(client_for: ClientFor, ours: Project, oscar: User) -> None:
    needs("reasoning-gym")
    response = client_for(oscar).post("/p/ours/datasets/task/", {"task": "chain_sum", "size": "12", "seed": "3"})
    dataset = PromptDataset.objects.get(project=ours)
    assert response.url == f"/p/ours/datasets/{dataset.pk}/"
    assert dataset.made is not None
    assert {key: dataset.made[key] for key in ("task", "size", "seed")} == {"task": "chain_sum", "size": 12, "seed": 3}
    assert dataset.columns == {"task": 12}
    line = json.loads(b"".join(artifacts.read_chunks(dataset.artifact)).splitlines()[0])
    # The task asks for a sum; worked out here from the expression that it shows.
    shown = line["prompt"].partition(":")[2].rstrip("= ")
    numbers = shown.replace("- ", "-").replace("+ ", "").split()
    assert str(sum(map(int, numbers))) == line["answer"]


def test_the_same_again_is_the_same_dataset_and_a_taken_name_gets_a_number(ours: Project, alice: User) -> None:
    needs("reasoning-gym")
    first = dataset_from_task(project=ours, actor=alice, task="gcd", size=3, seed=0)
    assert dataset_from_task(project=ours, actor=alice, task="gcd", size=3, seed=0) == first
    PromptDataset.objects.update(name="gcd, 3 problems, seed 1")
    other = dataset_from_task(project=ours, actor=alice, task="gcd", size=3, seed=1)
    assert other.sha256 != first.sha256
    assert other.name == "gcd, 3 problems, seed 1 (2)"


@pytest.mark.parametrize(
    ("task", "size", "seed", "field", "names"),
    [
        ("chain_sums", 5, 0, "task", "did you mean chain_sum?"),
        ("Chain Sum", 5, 0, "task", "did you mean chain_sum?"),
        ("zzzz", 5, 0, "task", "zzzz"),
        ("rush_hour", 5, 0, "task", "reference answer"),
        ("chain_sum", 0, 0, "size", "1 to 20,000"),
        ("chain_sum", 20_001, 0, "size", "1 to 20,000"),
        ("chain_sum", 5, -1, "seed", "from 0"),
    ],
)
def test_what_cannot_be_made_is_said_beside_its_field(
    ours: Project, alice: User, task: str, size: int, seed: int, field: str, names: str
) -> None:
    with pytest.raises(ValidationError) as caught:
        dataset_from_task(project=ours, actor=alice, task=task, size=size, seed=seed)
    assert list(caught.value.message_dict) == [field]
    assert names in caught.value.message_dict[field][0]
    assert not PromptDataset.objects.exists()


def test_the_reward_is_made_once(ours: Project, alice: User) -> None:
    version = task_reward(project=ours, actor=alice)
    assert version.spec["components"][0]["kind"] == "reasoning_gym"
    assert task_reward(project=ours, actor=alice) == version
