"""Uploading a suite: every item is read first, a bad one stores nothing and is named; a version never changes. And the
starter suites: added once, each as it comes with Cohort, and never over a suite of the project's own."""

import gzip
import hashlib
import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from django.core.exceptions import ValidationError
from django.db import DatabaseError, connection, transaction
from django.test import Client

from cohort import artifacts
from cohort.accounts.models import Project, User
from cohort.audit.models import AuditEntry
from cohort.catalog import suites
from cohort.catalog.models import EvalSuite, EvalSuiteVersion
from cohort.catalog.suites import starters_add
from cohort.runs.services import suite_path
from grpo_core.evaluate.attacks import ATTACKS
from grpo_core.evaluate.suites import starters
from tests.cases import cases
from tests.web.run_page import words
from tests.web.suite_rows import CHOICES, HARMFUL, ITEMS, add_suite, upload

ClientFor = Callable[[User], Client]
PERU = b'{"id": "peru", "prompt": "What is the capital of peru?", "target": "Lima"}\n'
STARTERS = "/p/ours/suites/starters/"


@pytest.fixture
def client(client_for: ClientFor, ours: Project, oscar: User) -> Client:
    return client_for(oscar)


def test_operator_uploads_and_sees_it(client: Client, oscar: User) -> None:
    response = upload(client, ("capitals.jsonl", ITEMS), limits="Three items tell little.", source="by hand")
    assert response.status_code == 302
    version = EvalSuiteVersion.objects.get(suite__project__slug="ours")
    assert response.url == f"/p/ours/suites/{version.suite_id}/"
    assert (version.suite.name, version.number, version.items, version.created_by) == ("capitals", 1, 3, oscar)
    assert version.sha256 == hashlib.sha256(ITEMS).hexdigest()
    assert (version.scorer, version.margin) == ({"kind": "contains", "params": {}}, 0.1)
    assert b"".join(artifacts.read_chunks(version.artifact)) == ITEMS
    page = client.get(response.url).content.decode()
    for part in (version.sha256, "What is the capital of italy?", "Three items tell little.", "a fall of the score"):
        assert part in page
    entry = json.loads(bytes(AuditEntry.objects.get(kind="suite_version_added").body))
    assert (entry["actor"], entry["subject"]) == ("user:oscar", "suite:capitals")
    assert entry["after"]["sha256"] == version.sha256
    again = upload(client, ("capitals.jsonl", ITEMS))
    assert again.status_code == 422
    assert "Open it to add a version" in again.content.decode()


@pytest.mark.parametrize(
    ("content", "names"),
    [
        (ITEMS + ITEMS, "items.jsonl, line 4: the id"),
        (ITEMS + b'{"id": "x", "prompt": "y"}\n', "line 4: item"),
        (ITEMS + b'{"id": "x", "prompt": "y", "target": ""}\n', "line 4: item"),
        (ITEMS + b"\xff\xfe\n", "line 4: is not UTF-8"),
        (ITEMS + b"not json\n", "line 4: is not JSON"),
        (ITEMS + b'{"id": "x", "prompt": "y", "target": "z", "attack": "nuke"}\n', "line 4"),
        (b"", "items.jsonl"),
        (b"\n\n", "items.jsonl"),
        (gzip.compress(ITEMS, mtime=0), "line 1: is not UTF-8"),
    ],
    ids=["id twice", "no answer", "empty answer", "bytes", "text", "attack", "empty", "blank", "gzip"],
)
def test_a_bad_file_stores_nothing_and_says_where(client: Client, content: bytes, names: str) -> None:
    response = upload(client, ("items.jsonl", content))
    page = response.content.decode()
    assert response.status_code == 422
    assert 'id="id_upload_error"' in page
    assert names in page
    assert not EvalSuite.objects.exists()
    assert not artifacts.exists(f"suites/{hashlib.sha256(content).hexdigest()}")
    assert not AuditEntry.objects.filter(kind="suite_version_added").exists()


@pytest.mark.parametrize(
    ("limit", "most", "names"),
    [("MAX_SUITE_ITEMS", 3, "more than 3 items"), ("MAX_SUITE_BYTES", len(ITEMS), "The items made of it are")],
)
def test_what_is_made_of_a_file_is_bounded_too(
    client: Client, monkeypatch: pytest.MonkeyPatch, limit: str, most: int, names: str
) -> None:
    monkeypatch.setattr(f"cohort.catalog.suites.{limit}", most)
    response = upload(client, ("items.jsonl", ITEMS), attacks=["none", "base64"])
    assert response.status_code == 422
    assert names in response.content.decode()
    assert not EvalSuite.objects.exists()
    assert upload(client, ("items.jsonl", ITEMS)).status_code == 302


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({"name": "Capitals!"}, "name"),
        ({"name": "heldout"}, "name"),
        ({"scorer": ""}, "scorer"),
        ({"category": ""}, "category"),
        ({"params": "no_such: 1"}, "params"),
        ({"params": "- a"}, "params"),
        ({"margin": "1.5"}, "margin"),
        ({"title": ""}, "title"),
    ],
)
def test_a_wrong_word_is_named_beside_its_field(client: Client, given: dict[str, str], field: str) -> None:
    response = upload(client, ("items.jsonl", ITEMS), **given)
    assert response.status_code == 422
    assert f'id="id_{field}_error"' in response.content.decode()
    assert not EvalSuite.objects.exists()


PUBLIC = ("name", "files", "expected", "targets")


@pytest.mark.parametrize(PUBLIC, cases("catalog/public_suites", *PUBLIC))
def test_public_sets_are_converted_and_know_what_they_are(
    client: Client, name: str, files: dict[str, str], expected: dict[str, Any], targets: list[str] | None
) -> None:
    own = {"category": "", "scorer": "", "higher_is": "", "sensitive": ""}
    sent = [(file, text.encode()) for file, text in files.items()]
    assert upload(client, *sent, name=name, format=name, **own).status_code == 302
    version = EvalSuiteVersion.objects.get(suite__name=name)
    facts = {key: getattr(version, key) for key in expected if key != "scorer"}
    assert facts | {"scorer": version.scorer["kind"]} == expected
    assert version.files == [
        {"name": file, "sha256": hashlib.sha256(content).hexdigest(), "size": len(content)} for file, content in sent
    ], "each file as it was given is known by its digest"
    if targets:
        stored = b"".join(artifacts.read_chunks(version.artifact)).splitlines()
        assert [json.loads(line)["target"] for line in stored] == targets
    page = client.get(f"/p/ours/suites/{version.suite_id}/").content.decode()
    assert all(file in page for file in files)


def test_a_broken_public_set_is_refused_with_its_line(client: Client) -> None:
    bad = b'{"question": "3 * 4?", "answer": "#### 12"}\n{"question": "7 * 7?", "answer": "forty-nine"}\n'
    response = upload(client, ("test.jsonl", bad), format="gsm8k", category="", scorer="")
    assert response.status_code == 422
    assert "test.jsonl, line 2" in response.content.decode()
    assert not EvalSuite.objects.exists()


def test_a_new_version_leaves_the_old_one(client: Client, ours: Project, oscar: User) -> None:
    first = add_suite(ours, oscar)
    address = f"/p/ours/suites/{first.suite_id}/new-version/"
    assert "Three items tell little." in client.get(address).content.decode(), "it begins as the newest version is"
    for _ in range(2):  # the very same is no new version
        assert upload(client, ("more.jsonl", ITEMS + PERU), address=address).status_code == 302
    assert [(one.number, one.items) for one in first.suite.versions.order_by("number")] == [(1, 3), (2, 4)]
    assert "3 items" in client.get(f"/p/ours/suites/{first.suite_id}/", {"version": 1}).content.decode()
    for statement in ("UPDATE catalog_evalsuiteversion SET margin = 0.9", "DELETE FROM catalog_evalsuiteversion"):
        with pytest.raises(DatabaseError, match="only added"), transaction.atomic(), connection.cursor() as cursor:
            cursor.execute(statement)


def test_attacks_make_one_cluster_of_an_item(client: Client) -> None:
    names = ["none", *[name for name in ATTACKS if name != "none"][:2]]
    assert upload(client, ("items.jsonl", ITEMS), attacks=names).status_code == 302
    version = EvalSuiteVersion.objects.get()
    assert (version.items, version.clusters, len(version.slices)) == (9, 3, 3)
    assert version.taken == {"limit": None, "attacks": names}


def test_sensitive_items_are_folded_and_for_reviewers(
    client_for: ClientFor, ours: Project, oscar: User, rita: User, bob: User
) -> None:
    version = add_suite(ours, oscar, "locks", spec=HARMFUL, content=CHOICES)
    page = client_for(rita).get(f"/p/ours/suites/{version.suite_id}/").content.decode()
    assert "<details><summary>Show the first items" in page
    assert "SECRET question 0?" in page
    assert "SECRET" not in client_for(bob).get(f"/p/ours/suites/{version.suite_id}/").content.decode()


def test_hostile_items_are_shown_escaped(client: Client, ours: Project, alice: User) -> None:
    attack = "<img src=x onerror=alert(1)>\u202e"
    line = json.dumps({"id": attack, "prompt": attack, "target": attack, "slice": attack}).encode()
    version = add_suite(ours, alice, content=line)
    page = client.get(f"/p/ours/suites/{version.suite_id}/").content.decode()
    assert "<img" not in page
    assert "\u202e" not in page
    assert page.count("&lt;img src=x onerror=alert(1)&gt;") >= 4


def test_an_upload_over_the_limit_is_refused_unread(client: Client) -> None:
    form = "multipart/form-data; boundary=x"
    big = client.generic("POST", "/p/ours/suites/new/", b"", content_type=form, CONTENT_LENGTH=str(66 * 1024 * 1024))
    assert big.status_code == 413


# ---------------------------------------------------------------------- starter suites


def test_all_are_added_once_as_they_come(client: Client, ours: Project, oscar: User) -> None:
    own = add_suite(ours, oscar, "format")
    page = words(client.get("/p/ours/suites/").content.decode())
    assert all(" ".join(starter.limits.split()) in page for starter in starters()), "what each cannot tell"
    for _ in range(2):
        assert client.post(STARTERS).status_code == 302
    versions = {version.suite.name: version for version in EvalSuiteVersion.objects.select_related("suite")}
    assert set(versions) == {starter.name for starter in starters()}
    assert versions.pop("format") == own, "a suite of one's own stays"
    for starter in starters():
        if version := versions.get(starter.name):
            for field in ("sha256", "items", "category", "sensitive", "limits"):
                assert getattr(version, field) == getattr(starter, field)
            assert (version.builtin, suite_path(version)) == (starter.name, f"builtin:{starter.name}")
    assert AuditEntry.objects.filter(kind="suite_version_added").count() == len(versions) + 1


def test_one_is_added_by_its_name(client: Client, ours: Project, oscar: User) -> None:
    client.post(STARTERS, {"name": "format"})
    client.post(STARTERS, {"name": "nothing"})
    assert [version.suite.name for version in EvalSuiteVersion.objects.all()] == ["format"]
    with pytest.raises(ValidationError, match="nothing"):
        starters_add(project=ours, actor=oscar, names=["nothing"])


def test_a_newer_cohort_brings_a_new_version(monkeypatch: pytest.MonkeyPatch, ours: Project, oscar: User) -> None:
    """The version that runs used stays, and a run that uses it gets its file, which Cohort no longer brings."""
    (old,) = starters_add(project=ours, actor=oscar, names=["format"]).added
    now = {starter.name: starter for starter in starters()}["format"]
    other = replace(now, content=now.content.partition(b"\n")[2])
    monkeypatch.setattr(suites, "starters", lambda: (other,))
    (new,) = starters_add(project=ours, actor=oscar).added
    assert (new.suite_id, new.number, new.items) == (old.suite_id, 2, old.items - 1)
    assert suite_path(new) == f"inputs/{new.sha256}.jsonl", "these are not the bytes that this Cohort brings"
    assert suite_path(old) == "builtin:format"
