"""Datasets made by reasoning-gym's tasks: by name, size and seed, through the real generator in its own process."""

import json
from collections.abc import Callable

import pytest
from django.core.exceptions import ValidationError
from django.test import Client

from cohort import artifacts
from cohort.accounts.models import Project, User
from cohort.catalog.models import PromptDataset
from cohort.catalog.services import dataset_create
from cohort.catalog.tasks import SPEC, dataset_from_task, task_reward
from tests.needs import needs

ClientFor = Callable[[User], Client]


def test_operator_makes_one_by_name(client_for: ClientFor, ours: Project, oscar: User) -> None:
    needs("reasoning-gym")
    client = client_for(oscar)
    response = client.post("/p/ours/datasets/task/", {"task": "chain_sum", "size": "12", "seed": "3"})
    dataset = PromptDataset.objects.get(project=ours)
    assert response.url == f"/p/ours/datasets/{dataset.pk}/"
    assert dataset.name == "chain_sum, 12 problems, seed 3"
    assert dataset.made is not None
    assert {key: dataset.made[key] for key in ("task", "size", "seed")} == {"task": "chain_sum", "size": 12, "seed": 3}
    assert dataset.columns == {"task": 12}
    line = json.loads(b"".join(artifacts.read_chunks(dataset.artifact)).splitlines()[0])
    # The task asks for a sum; worked out here from the expression that it shows.
    shown = line["prompt"].partition(":")[2].rstrip("= ")
    numbers = shown.replace("- ", "-").replace("+ ", "").split()
    assert str(sum(map(int, numbers))) == line["answer"]
    page = client.get(response.url).content.decode()
    assert "of reasoning-gym" in page


def test_the_same_again_is_the_same_dataset(ours: Project, alice: User) -> None:
    needs("reasoning-gym")
    one = dataset_from_task(project=ours, actor=alice, task="gcd", size=3, seed=0)
    assert dataset_from_task(project=ours, actor=alice, task="gcd", size=3, seed=0) == one
    other = dataset_from_task(project=ours, actor=alice, task="gcd", size=3, seed=1)
    assert other.sha256 != one.sha256


def test_a_name_that_is_taken_gets_a_number(ours: Project, alice: User) -> None:
    needs("reasoning-gym")
    line = b'{"prompt": "1 + 1?", "answer": "2"}\n'
    dataset_create(project=ours, actor=alice, name="gcd, 2 problems, seed 0", format="jsonl", chunks=[line])
    assert (
        dataset_from_task(project=ours, actor=alice, task="gcd", size=2, seed=0).name == "gcd, 2 problems, seed 0 (2)"
    )


@pytest.mark.parametrize(
    ("task", "size", "seed", "field", "told"),
    [
        ("chain_sums", 5, 0, "task", "There is no task 'chain_sums'; did you mean chain_sum?"),
        ("Chain Sum", 5, 0, "task", "did you mean chain_sum?"),
        ("zzzz", 5, 0, "task", "There is no task 'zzzz'; `grpo tasks` lists all 97."),
        ("rush_hour", 5, 0, "task", "it gives no reference answer"),
        ("chain_sum", 0, 0, "size", "Give 1 to 20,000 problems"),
        ("chain_sum", 20_001, 0, "size", "Give 1 to 20,000 problems"),
        ("chain_sum", 5, -1, "seed", "Give a whole number from 0"),
    ],
)
def test_what_cannot_be_made_is_said_beside_its_field(
    ours: Project, alice: User, task: str, size: int, seed: int, field: str, told: str
) -> None:
    with pytest.raises(ValidationError) as caught:
        dataset_from_task(project=ours, actor=alice, task=task, size=size, seed=seed)
    assert told in caught.value.message_dict[field][0]
    assert not PromptDataset.objects.exists()


def test_the_form_says_what_is_wrong(client_for: ClientFor, ours: Project, oscar: User) -> None:
    response = client_for(oscar).post("/p/ours/datasets/task/", {"task": "nothing", "size": "x", "seed": "0"})
    assert response.status_code == 422
    page = response.content.decode()
    assert "Select a valid choice" in page
    assert "Enter a whole number" in page


def test_reviewer_and_stranger_make_none(client_for: ClientFor, ours: Project, rita: User, charlie: User) -> None:
    data = {"task": "chain_sum", "size": "2", "seed": "0"}
    assert client_for(rita).post("/p/ours/datasets/task/", data).status_code == 403
    assert client_for(charlie).post("/p/ours/datasets/task/", data).status_code == 404
    assert not PromptDataset.objects.exists()


def test_the_reward_is_made_once(ours: Project, alice: User) -> None:
    version = task_reward(project=ours, actor=alice)
    assert version.spec["components"][0]["kind"] == SPEC["components"][0]["kind"] == "reasoning_gym"
    assert task_reward(project=ours, actor=alice) == version
