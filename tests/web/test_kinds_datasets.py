"""Datasets of conversations and preferences: recognised or chosen, every row read, shown with their roles."""

import json
from typing import Any

import pytest
from django.core.exceptions import ValidationError
from django.core.files.uploadedfile import SimpleUploadedFile
from django.test import Client

from cohort.accounts.models import Project, User
from cohort.catalog.models import PromptDataset
from cohort.catalog.run_inputs import dataset_texts
from cohort.catalog.services import dataset_create
from tests.factories.kinds import CONVERSATIONS, PAIRS, conversations, lines, preferences
from tests.factories.runs import HOSTILE, HOSTILE_SHOWN
from tests.web.pages import html

NEW = "/p/ours/datasets/new/"
ASKED = {"role": "user", "content": "what is 1 + 1?"}
ANSWERED = {"role": "assistant", "content": "2"}


def upload(client: Client, file_content: bytes, **more: str) -> Any:
    file = SimpleUploadedFile("rows.jsonl", file_content)
    return client.post(NEW, {"name": "set", "format": "auto", "file": file, **more})


@pytest.mark.parametrize(
    ("rows", "chosen", "content", "layout"),
    [
        ([{"prompt": "1 + 1?", "completion": "2"}], "auto", "conversations", "prompt_completion"),
        ([{"messages": [ASKED, ANSWERED]}], "conversations", "conversations", "messages"),
        ([{"messages": [ASKED, ANSWERED]}], "auto", "problems", "messages"),
        ([{"instruction": "add", "input": "1, 1", "output": "2"}], "conversations", "conversations", "alpaca"),
        ([{"prompt": "1 + 1?", "chosen": "2", "rejected": "3"}], "auto", "preferences", "pairs"),
        ([{"prompt": "1 + 1?", "completion": "2", "score": 1}], "auto", "preferences", "scores"),
        ([{"prompt": "1 + 1?", "answer": "2"}], "auto", "problems", "plain"),
    ],
)
def test_the_first_row_or_the_person_says_what_it_is(
    operator: Client, ours: Project, rows: list[dict[str, Any]], chosen: str, content: str, layout: str
) -> None:
    response = upload(operator, lines(*rows), content=chosen)
    dataset = PromptDataset.objects.get(project=ours, name="set")
    assert response.url == f"/p/ours/datasets/{dataset.pk}/"
    assert (dataset.content, dataset.format, dataset.problems) == (content, layout, 1)
    assert operator.get(response.url).status_code == 200


@pytest.mark.parametrize(
    ("content", "row", "part"),
    [
        ("conversations", {"messages": [ASKED]}, "line 2"),
        ("conversations", {"messages": [ASKED, ANSWERED, ASKED]}, "ends with the user's turn"),
        ("conversations", {"messages": [{"role": "user", "content": "x"}, {"role": "user", "content": "y"}]}, "line 2"),
        ("preferences", {"prompt": "1 + 1?", "chosen": "2", "rejected": " 2 "}, "same text"),
        ("preferences", {"prompt": "1 + 1?", "chosen": "2"}, "'rejected'"),
    ],
)
def test_a_bad_row_stores_nothing_and_is_named(
    ours: Project, oscar: User, content: str, row: dict[str, Any], part: str
) -> None:
    good = {"messages": [ASKED, ANSWERED]} if content == "conversations" else json.loads(PAIRS.splitlines()[0])
    before = PromptDataset.objects.count()
    with pytest.raises(ValidationError) as refused:
        dataset_create(project=ours, actor=oscar, name="set", content=content, chunks=[lines(good, row)])
    [message] = refused.value.message_dict["file"]
    assert "line 2" in message
    assert part in message
    assert PromptDataset.objects.count() == before


def test_an_unknown_content_is_refused(ours: Project, oscar: User) -> None:
    with pytest.raises(ValidationError) as refused:
        dataset_create(project=ours, actor=oscar, name="set", content="poems", chunks=[CONVERSATIONS])
    assert list(refused.value.message_dict) == ["content"]


def test_the_check_before_storing_says_what_it_read(operator: Client) -> None:
    file = SimpleUploadedFile("rows.jsonl", PAIRS)
    data = {"format": "auto", "content": "auto", "file": file, "action": "check"}
    page = html(operator.post(NEW, data, headers={"HX-Request": "true"}))
    assert "20 preferences, every row read" in page
    assert "As preferences" in page
    assert 'name="column-answer"' not in page, "columns are of problems"
    assert not PromptDataset.objects.filter(content="preferences").exists()


def test_a_page_shows_turns_with_their_roles_and_nothing_of_them_runs(
    operator: Client, viewer: Client, stranger: Client, ours: Project, oscar: User
) -> None:
    hostile = {"messages": [{"role": "user", "content": HOSTILE}, ANSWERED]}
    dataset = conversations(ours, oscar, content=lines(hostile))
    address = f"/p/ours/datasets/{dataset.pk}/"
    page = html(operator.get(address))
    assert HOSTILE_SHOWN in page
    assert HOSTILE not in page
    assert all(part in page for part in ("user:", "assistant:", "1 conversations", "Chat messages"))
    assert f"?kind=sft&amp;dataset={dataset.pk}" in page
    assert "?kind=grpo" not in page, "conversations are no problems"
    assert f"?kind=sft&amp;dataset={dataset.pk}" not in html(viewer.get(address)), "viewers launch nothing"
    assert stranger.get(address).status_code == 404


def test_a_page_shows_pairs_and_the_list_their_content(viewer: Client, ours: Project, oscar: User) -> None:
    dataset = preferences(ours, oscar)
    page = html(viewer.get(f"/p/ours/datasets/{dataset.pk}/"))
    assert all(part in page for part in ("chosen:", "rejected:", "20 preferences"))
    assert "Preferences" in html(viewer.get("/p/ours/datasets/"))


def test_texts_of_every_content_can_be_compared_with_evaluations(ours: Project, oscar: User) -> None:
    """All of a row: an item may be in an answer that is learned, or in the prompt."""
    chats, pairs = conversations(ours, oscar), preferences(ours, oscar)
    assert next(dataset_texts(chats)) == ("line-1", "what is 0 + 1?\n\n1")
    assert next(dataset_texts(pairs)) == ("line-1", "what is 0 + 1?\n\n1\n\n2")
