"""Adding a dataset: every line is read first, and a bad one stores nothing and is named."""

import gzip
import hashlib
import json
import re
from collections.abc import Callable

import pytest
from django.core.exceptions import ValidationError
from django.core.files.uploadedfile import SimpleUploadedFile
from django.test import Client

from cohort import artifacts
from cohort.accounts.models import Project, User
from cohort.catalog.models import PromptDataset
from cohort.catalog.services import dataset_create

ClientFor = Callable[[User], Client]
GOOD = b'{"prompt": "what is 1 + 1?", "answer": "2"}\n{"prompt": "what is 1 + 22?", "answer": 23}\n'


def upload(client: Client, content: bytes, **more: str) -> object:
    file = SimpleUploadedFile("problems.jsonl", content)
    return client.post("/p/ours/datasets/new/", {"name": "set", "format": "jsonl", "file": file, **more})


def test_operator_uploads_and_sees_it(client_for: ClientFor, ours: Project, oscar: User) -> None:
    client = client_for(oscar)
    response = upload(client, GOOD, source="made by hand")
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
    page = client.get(response.url).content.decode()
    assert dataset.sha256 in page
    assert "made by hand" in page
    assert "showing 2 of 2" in page


def test_pasted_lines_are_taken_too(client_for: ClientFor, ours: Project, oscar: User) -> None:
    data = {"name": "set", "format": "gsm8k", "lines": '{"question": "3 * 4?", "answer": "12\\n#### 12"}'}
    client_for(oscar).post("/p/ours/datasets/new/", data)
    assert PromptDataset.objects.get().preview[0]["answer"] == "12"


def test_cuts_between_chunks_do_not_matter(ours: Project, alice: User) -> None:
    chunks = [GOOD[place : place + 7] for place in range(0, len(GOOD), 7)]
    dataset = dataset_create(project=ours, actor=alice, name="cut", format="jsonl", chunks=chunks)
    assert dataset.sha256 == hashlib.sha256(GOOD).hexdigest()
    assert dataset.problems == 2


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (GOOD + b"not json\n", "problems.jsonl, line 3: is not JSON"),
        (GOOD + b'{"prompt": "x"}\n', "problems.jsonl, line 3: has no field &#x27;answer&#x27;"),
        (GOOD + b"[1]\n", "problems.jsonl, line 3"),
        (GOOD + b"\xff\n", "problems.jsonl, line 3: is not UTF-8"),
        (GOOD + b'{"prompt": "a\\u0000b", "answer": "1"}\n', "problems.jsonl, line 3"),
        (GOOD + b'{"prompt": "' + b"x" * (1 << 20) + b'", "answer": "1"}\n', "line 3: is longer than 1,048,576 bytes"),
        (b"", "holds no problems"),
        (b"\n\n", "holds no problems"),
        (gzip.compress(GOOD, mtime=0), "This is a gzip file"),
        (b"PAR1xxxx", "This is a Parquet file"),
    ],
)
def test_a_bad_file_stores_nothing_and_says_where(
    client_for: ClientFor, ours: Project, oscar: User, content: bytes, said: str
) -> None:
    response = upload(client_for(oscar), content)
    assert response.status_code == 422
    page = response.content.decode()
    assert said in page
    assert 'id="id_file_error"' in page
    assert not PromptDataset.objects.exists()
    assert not artifacts.exists(f"datasets/{hashlib.sha256(content).hexdigest()}")


def test_too_large_a_file_is_refused(settings, ours: Project, alice: User) -> None:
    settings.COHORT_MAX_DATASET_BYTES = len(GOOD) - 1
    with pytest.raises(ValidationError, match=f"larger than {len(GOOD) - 1} bytes"):
        dataset_create(project=ours, actor=alice, name="large", format="jsonl", chunks=[GOOD])


def test_too_many_problems_are_refused(settings, client_for: ClientFor, ours: Project, oscar: User) -> None:
    settings.COHORT_MAX_DATASET_PROBLEMS = 1
    page = upload(client_for(oscar), GOOD)
    assert page.status_code == 422
    assert b"problems.jsonl holds more than 1 problems. Split it" in page.content
    settings.COHORT_MAX_DATASET_PROBLEMS = 2
    assert upload(client_for(oscar), GOOD).status_code == 302


# ---------------------------------------------------------------- what is refused before it is read


class Unread:
    """A body that must not be read."""

    def read(self, *_: object) -> bytes:
        raise AssertionError("the body was read")

    readline = read


def send(client: Client, address: str, length: str, **more: str) -> object:
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
    response = send(Client(enforce_csrf_checks=True), address, str(1024 * 1024 + 1))
    assert response.status_code == 413
    assert b"at most 1,048,576 bytes" in response.content


@pytest.mark.parametrize("length", ["1050001", "9" * 40, "0" * 20 + "1050001", "-1", "٣"])
def test_an_upload_over_the_limit_is_refused_unread(
    settings, client_for: ClientFor, ours: Project, oscar: User, length: str
) -> None:
    settings.COHORT_MAX_DATASET_BYTES = 1_050_000 - 1024 * 1024
    response = send(client_for(oscar), "/p/ours/datasets/new/", length)
    assert response.status_code == 413
    assert b"at most 1,050,000 bytes" in response.content


def test_a_body_without_its_length_is_refused(client_for: ClientFor, ours: Project, oscar: User) -> None:
    response = send(client_for(oscar), "/p/ours/datasets/new/", "", HTTP_TRANSFER_ENCODING="chunked")
    assert response.status_code == 411


def test_an_upload_is_not_read_before_the_role_is_checked(client_for: ClientFor, ours: Project, bob: User) -> None:
    address = "/p/ours/datasets/new/"
    assert send(Client(enforce_csrf_checks=True), address, "1000").status_code == 302
    viewer = Client(enforce_csrf_checks=True)
    viewer.force_login(bob, backend="django.contrib.auth.backends.ModelBackend")
    assert send(viewer, address, "1000").status_code == 403


def test_a_forged_upload_is_refused(ours: Project, oscar: User) -> None:
    client = Client(enforce_csrf_checks=True)
    client.force_login(oscar, backend="django.contrib.auth.backends.ModelBackend")
    response = upload(client, GOOD)
    assert response.status_code == 403
    assert b"This form is out of date" in response.content
    assert not PromptDataset.objects.exists()
    token = re.search(rb'name="csrfmiddlewaretoken" value="(\w+)"', client.get("/p/ours/datasets/new/").content)
    assert token is not None
    assert upload(client, GOOD, csrfmiddlewaretoken=token[1].decode()).status_code == 302


def test_the_workers_calls_keep_their_own_limits() -> None:
    response = Client().generic("POST", "/api/worker/v1/claim", b"x" * (1024 * 1024 + 1))
    assert response.status_code in {401, 403, 422}


def test_neither_or_both_sources_are_refused(client_for: ClientFor, ours: Project, oscar: User) -> None:
    client = client_for(oscar)
    assert "one of the two" in upload(client, GOOD, lines="{}").content.decode()
    neither = client.post("/p/ours/datasets/new/", {"name": "set", "format": "jsonl"})
    assert "one of the two" in neither.content.decode()


def test_unknown_format_and_used_name(ours: Project, alice: User, dataset: PromptDataset) -> None:
    with pytest.raises(ValidationError, match="'csv' is not a format; there are jsonl, gsm8k"):
        dataset_create(project=ours, actor=alice, name="x", format="csv", chunks=[GOOD])
    with pytest.raises(ValidationError, match="named additions already"):
        dataset_create(project=ours, actor=alice, name="additions", format="jsonl", chunks=[GOOD])


def test_preview_is_the_first_five_and_cuts_long_text(ours: Project, alice: User) -> None:
    lines = [json.dumps({"prompt": f"{n} " + "x" * 3000, "answer": "1"}).encode() + b"\n" for n in range(7)]
    dataset = dataset_create(project=ours, actor=alice, name="long", format="jsonl", chunks=lines)
    assert [len(problem["prompt"]) for problem in dataset.preview] == [2001] * 5
    assert dataset.preview[4]["prompt"].startswith("4 ")


def test_hostile_problems_are_shown_escaped(client_for: ClientFor, ours: Project, bob: User, alice: User) -> None:
    attack = "<img src=x onerror=alert(1)>\u202e\u200b"
    line = json.dumps({"id": attack, "prompt": attack, "answer": attack}).encode()
    dataset = dataset_create(project=ours, actor=alice, name="bad", format="jsonl", chunks=[line], source=attack)
    page = client_for(bob).get(f"/p/ours/datasets/{dataset.pk}/").content.decode()
    assert "<img" not in page
    assert page.count("&lt;img src=x onerror=alert(1)&gt;") == 4
    assert "\u202e" not in page
    assert ">\\u202e</span>" in page


@pytest.mark.parametrize("who", ["bob", "rita"])
def test_readers_look_and_do_not_add(
    client_for: ClientFor, request: pytest.FixtureRequest, dataset: PromptDataset, who: str
) -> None:
    client = client_for(request.getfixturevalue(who))
    assert client.get("/p/ours/datasets/").status_code == 200
    assert client.get(f"/p/ours/datasets/{dataset.pk}/").status_code == 200
    assert client.get("/p/ours/datasets/new/").status_code == 403
    assert upload(client, GOOD).status_code == 403
    assert PromptDataset.objects.count() == 1


def test_stranger_reaches_it_through_no_project(client_for: ClientFor, charlie: User, dataset: PromptDataset) -> None:
    for slug in ("ours", "theirs"):
        assert client_for(charlie).get(f"/p/{slug}/datasets/{dataset.pk}/").status_code == 404
    assert upload(client_for(charlie), GOOD).status_code == 404


def test_wrong_method(client_for: ClientFor, alice: User, dataset: PromptDataset) -> None:
    assert client_for(alice).post("/p/ours/datasets/").status_code == 405
    assert client_for(alice).delete(f"/p/ours/datasets/{dataset.pk}/").status_code == 405
