"""Adding a dataset: every line is read first, and a bad one stores nothing and is named; or made by a task of
reasoning-gym, through the real generator in its own process.
"""

import hashlib
import json
import re
from typing import Any

import pytest
from django.core.exceptions import ValidationError
from django.core.files.uploadedfile import SimpleUploadedFile
from django.db.models import Model
from django.test import Client

from cohort.accounts.models import Project, User
from cohort.base import artifacts
from cohort.catalog.models import BaseModel, EvalSuite, PromptDataset
from cohort.catalog.services import dataset_create
from cohort.catalog.tasks import dataset_from_task, task_reward
from tests.factories.suites import ITEMS
from tests.factories.suites import upload as suite_upload
from tests.needs import needs
from tests.tables import cases

GOOD = b'{"prompt": "what is 1 + 1?", "answer": "2"}\n{"prompt": "what is 1 + 22?", "answer": 23}\n'
NEW = "/p/ours/datasets/new/"
MODELS = "/p/ours/models/new/"


def upload(client: Client, content: bytes, **more: str) -> Any:
    file = SimpleUploadedFile("problems.jsonl", content)
    return client.post(NEW, {"name": "set", "format": "plain", "file": file, **more})


def signed_in(user: User) -> Client:
    """A browser whose CSRF token is checked."""
    client = Client(enforce_csrf_checks=True)
    client.force_login(user, backend="django.contrib.auth.backends.ModelBackend")
    return client


def test_operator_uploads_and_sees_it(operator: Client, ours: Project, oscar: User) -> None:
    response = upload(operator, GOOD, source="made by hand")
    dataset = PromptDataset.objects.get(project=ours)
    assert response.url == f"/p/ours/datasets/{dataset.pk}/"
    assert dataset.sha256 == hashlib.sha256(GOOD).hexdigest()
    assert (dataset.size, dataset.problems, dataset.created_by) == (len(GOOD), 2, oscar)
    assert dataset.prompt_chars == {"min": 14, "mean": 14.5, "max": 15}
    assert dataset.preview == [
        {"id": "line-1", "prompt": "what is 1 + 1?", "answer": "2"},
        {"id": "line-2", "prompt": "what is 1 + 22?", "answer": "23"},
    ]
    assert b"".join(artifacts.read_chunks(dataset.artifact)) == GOOD
    page = operator.get(response.url).content.decode()
    assert all(part in page for part in (dataset.sha256, "made by hand", "showing 2 of 2"))


def test_pasted_lines_are_taken_too(operator: Client) -> None:
    data = {"name": "set", "format": "gsm8k", "lines": '{"question": "3 * 4?", "answer": "12\\n#### 12"}'}
    operator.post(NEW, data)
    assert PromptDataset.objects.get().preview[0]["answer"] == "12"


BAD = ("page", "good_lines_first", "text", "content", "names")
PAGES: dict[str, tuple[Any, bytes, type[Model]]] = {
    "datasets": (upload, GOOD, PromptDataset),
    "suites": (lambda client, content: suite_upload(client, ("items.jsonl", content)), ITEMS, EvalSuite),
}
LONG = b'{"prompt": "' + b"x" * (1 << 20) + b'", "answer": "1"}\n'


@pytest.mark.parametrize(BAD, cases("catalog/bad_uploads", *BAD))
def test_a_bad_file_stores_nothing_and_says_where(
    operator: Client, page: str, good_lines_first: bool | None, text: str | None, content: bytes | None, names: str
) -> None:
    send_to, good, model = PAGES[page]
    bad = LONG if text == "LONG" else content or (text or "").encode()
    whole = good + bad if good_lines_first else bad
    response = send_to(operator, whole)
    assert response.status_code == 422
    (errors,) = response.context["form"].errors.values()
    assert names in str(errors)
    assert not model._default_manager.exists()
    assert not artifacts.exists(f"{page}/{hashlib.sha256(whole).hexdigest()}")


@pytest.mark.parametrize(("page", "given", "field"), cases("catalog/form_faults", "page", "given", "field"))
def test_a_suite_s_or_model_s_fault_stands_beside_it(
    operator: Client, page: str, given: dict[str, str], field: str
) -> None:
    suite = page == "suites"
    response: Any = suite_upload(operator, ("items.jsonl", ITEMS), **given) if suite else operator.post(MODELS, given)
    assert response.status_code == 422
    assert list(response.context["form"].errors) == [field]
    assert f'id="id_{field}_error"' in response.content.decode()
    assert not (EvalSuite if suite else BaseModel)._default_manager.exists()


def test_limits_of_size_and_problems(settings: Any, ours: Project, alice: User) -> None:
    def create() -> PromptDataset:
        return dataset_create(project=ours, actor=alice, name="large", format="plain", chunks=[GOOD])

    settings.COHORT_MAX_DATASET_BYTES = len(GOOD) - 1
    with pytest.raises(ValidationError, match=f"larger than {len(GOOD) - 1} bytes"):
        create()
    settings.COHORT_MAX_DATASET_BYTES, settings.COHORT_MAX_DATASET_PROBLEMS = len(GOOD), 1
    with pytest.raises(ValidationError, match="more than 1 problems"):
        create()
    settings.COHORT_MAX_DATASET_PROBLEMS = 2
    assert create().problems == 2
    chunks = [GOOD[at : at + 7] for at in range(0, len(GOOD), 7)]  # where it is cut does not matter
    cut = dataset_create(project=ours, actor=alice, name="cut", format="plain", chunks=chunks)
    assert (cut.sha256, cut.problems) == (hashlib.sha256(GOOD).hexdigest(), 2)


# ---------------------------------------------------------------- what is refused before it is read


class Unread:
    """A body that must not be read."""

    def read(self, *_: object) -> bytes:
        raise AssertionError("the body was read")

    readline = read


def send(client: Client, address: str, length: str, **more: str) -> Any:
    """A form's body of which only the length is sent, by somebody who holds a CSRF cookie."""
    client.get("/login/")
    return client.generic(
        "POST",
        address,
        b"",
        content_type="multipart/form-data; boundary=x",
        headers={"cookie": client.cookies.output(header="", sep=";")},
        **{"CONTENT_LENGTH": length, "wsgi.input": Unread(), **more},
    )


@pytest.mark.django_db
@pytest.mark.parametrize("address", ["/login/", "/projects/new/", "/p/ours/models/new/", "/nowhere/"])
def test_a_large_body_is_refused_unread_wherever_there_is_no_upload(address: str) -> None:
    assert send(Client(enforce_csrf_checks=True), address, str(1024 * 1024 + 1)).status_code == 413


@pytest.mark.parametrize("length", ["1050001", "9" * 40, "0" * 20 + "1050001", "-1", "٣"])
def test_an_upload_over_the_limit_is_refused_unread(settings: Any, operator: Client, length: str) -> None:
    settings.COHORT_MAX_DATASET_BYTES = 1_050_000 - 1024 * 1024
    assert send(operator, NEW, length).status_code == 413


def test_no_upload_is_read_without_its_length_or_before_the_role_is_checked(operator: Client, bob: User) -> None:
    assert send(operator, NEW, "", HTTP_TRANSFER_ENCODING="chunked").status_code == 411
    assert send(Client(enforce_csrf_checks=True), NEW, "1000").status_code == 302
    assert send(signed_in(bob), NEW, "1000").status_code == 403


def test_a_forged_upload_is_refused(ours: Project, oscar: User) -> None:
    client = signed_in(oscar)
    assert upload(client, GOOD).status_code == 403
    assert not PromptDataset.objects.exists()
    token = re.search(rb'name="csrfmiddlewaretoken" value="(\w+)"', client.get(NEW).content)
    assert token is not None
    assert upload(client, GOOD, csrfmiddlewaretoken=token[1].decode()).status_code == 302


@pytest.mark.django_db
def test_the_workers_calls_keep_their_own_limits() -> None:
    """32 MiB for what is large, as for a form else; the refusal is one that workers read."""
    large = b"x" * (1024 * 1024 + 1)
    digest = "a" * 64
    for path in ("attempts/1/records", f"attempts/1/uploads/{digest}", f"node/checkpoints/1/uploads/{digest}"):
        assert Client().generic("POST", f"/api/worker/v1/{path}", large).status_code == 401, path
    refused = Client().generic("POST", "/api/worker/v1/claim", large)
    assert (refused.status_code, refused.json()["code"]) == (413, "too_large")


def test_sources_format_and_name_are_checked(
    operator: Client, ours: Project, oscar: User, dataset: PromptDataset
) -> None:
    for response in (upload(operator, GOOD, lines="{}"), operator.post(NEW, {"name": "set", "format": "plain"})):
        assert "one of the two" in response.content.decode()
    for name, format_, match in (("x", "csv", "not a format"), ("additions", "plain", "already")):
        with pytest.raises(ValidationError, match=match):
            dataset_create(project=ours, actor=oscar, name=name, format=format_, chunks=[GOOD])


def test_preview_is_the_first_five_and_cuts_long_text(ours: Project, alice: User) -> None:
    lines = [json.dumps({"prompt": f"{n} " + "x" * 3000, "answer": "1"}).encode() + b"\n" for n in range(7)]
    dataset = dataset_create(project=ours, actor=alice, name="long", format="plain", chunks=lines)
    assert [len(problem["prompt"]) for problem in dataset.preview] == [2001] * 5
    assert dataset.preview[4]["prompt"].startswith("4 ")


def test_operator_makes_one_by_name(operator: Client, ours: Project, oscar: User) -> None:
    needs("reasoning-gym")
    response: Any = operator.post("/p/ours/datasets/task/", {"task": "chain_sum", "size": "12", "seed": "3"})
    dataset = PromptDataset.objects.get(project=ours)
    assert response.url == f"/p/ours/datasets/{dataset.pk}/"
    assert dataset.made is not None
    assert {key: dataset.made[key] for key in ("task", "size", "seed")} == {"task": "chain_sum", "size": 12, "seed": 3}
    assert dataset.columns == {"answer": 12, "task": 12}
    line = json.loads(b"".join(artifacts.read_chunks(dataset.artifact)).splitlines()[0])
    # The task asks for a sum; worked out here from the expression that it shows.
    shown = line["prompt"].partition(":")[2].rstrip("= ")
    numbers = shown.replace("- ", "-").replace("+ ", "").split()
    assert str(sum(map(int, numbers))) == line["answer"]
    given = {"project": ours, "actor": oscar, "task": "chain_sum", "size": 12}
    assert dataset_from_task(**given, seed=3) == dataset, "the same again"
    PromptDataset.objects.update(name="chain_sum, 12 problems, seed 4")
    other = dataset_from_task(**given, seed=4)
    assert (other.name, other.sha256 == dataset.sha256) == ("chain_sum, 12 problems, seed 4 (2)", False)


FAULTS = ("task", "size", "seed", "field", "names")


@pytest.mark.parametrize(FAULTS, cases("catalog/task_faults", *FAULTS))
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
