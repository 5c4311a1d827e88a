"""The page of nodes: what each is, and no word of another project's runs."""

from collections.abc import Callable
from datetime import timedelta

import pytest
from django.test import Client
from django.utils import timezone

from cohort.accounts.models import Project, User
from cohort.catalog.models import BaseModel, PromptDataset, VerifierVersion
from cohort.runs.models import Attempt, Node, Run

ClientFor = Callable[[User], Client]


@pytest.fixture
def node(db: None) -> Node:
    info = {
        "hostname": "gpu-1.example",
        "devices": [{"kind": "cuda", "name": "NVIDIA H200", "memory_bytes": 150_000_000_000}],
        "cpus": 16,
        "memory_bytes": 128_000_000_000,
        "versions": {"torch": "2.13.0"},
    }
    return Node.objects.create(name="node-a", token_digest="a" * 64, info=info, last_seen_at=timezone.now())


@pytest.fixture
def attempt(
    ours: Project, alice: User, node: Node, base_model: BaseModel, dataset: PromptDataset,
    verifier_version: VerifierVersion,
) -> Attempt:  # fmt: skip
    run = Run.objects.create(
        project=ours, name="secret run", state="training", config={}, config_digest="0" * 64, base_model=base_model,
        dataset=dataset, verifier_version=verifier_version, created_by=alice,
    )  # fmt: skip
    now = timezone.now()
    return Attempt.objects.create(
        run=run, node=node, fence=1, token_digest="b" * 64, claimed_at=now, lease_until=now + timedelta(minutes=1)
    )


def test_idle_node_with_its_devices(client_for: ClientFor, ours: Project, bob: User, node: Node) -> None:
    page = client_for(bob).get("/p/ours/nodes/").content.decode()
    for text in (
        "node-a",
        "gpu-1.example",
        "NVIDIA H200",
        "150\u00a0GB",
        "16 cores",
        "torch 2.13.0",
        "idle",
        "for 1\u00a0min counts",
    ):
        assert text in page
    assert '<span id="count-nodes">1</span>' in page


def test_running_attempt_is_named_in_its_project_only(
    client_for: ClientFor, bob: User, charlie: User, attempt: Attempt
) -> None:
    ours = client_for(bob).get("/p/ours/nodes/").content.decode()
    assert f'href="/p/ours/runs/{attempt.run_id}/">secret run</a>' in ours
    theirs = client_for(charlie).get("/p/theirs/nodes/").content.decode()
    assert "secret run" not in theirs
    assert "busy for another project" in theirs


def test_a_node_that_is_not_heard_of_is_silent(client_for: ClientFor, bob: User, node: Node) -> None:
    assert "</span>silent</span>" not in client_for(bob).get("/p/ours/nodes/").content.decode()
    Node.objects.filter(pk=node.pk).update(last_seen_at=timezone.now() - timedelta(minutes=5))
    page = client_for(bob).get("/p/ours/nodes/").content.decode()
    assert "</span>silent</span>" in page
    assert "5\u00a0min ago" in page
    assert '<span id="count-nodes">0</span>' in page, "the sidebar counts those that are here"


def test_refresh_is_a_partial(client_for: ClientFor, bob: User, node: Node) -> None:
    page = client_for(bob).get("/p/ours/nodes/", headers={"HX-Request": "true"}).content
    assert b"<html" not in page
    assert b"node-a" in page


def test_empty_page_says_how_to_get_one(client_for: ClientFor, ours: Project, bob: User) -> None:
    assert b"cohort node NAME" in client_for(bob).get("/p/ours/nodes/").content


def test_hostile_node_info_is_escaped(client_for: ClientFor, ours: Project, bob: User, node: Node) -> None:
    attack = "<script>alert(1)</script>"
    Node.objects.filter(pk=node.pk).update(
        info={"hostname": attack, "devices": [{"kind": attack, "name": attack}], "versions": {attack: attack}}
    )
    page = client_for(bob).get("/p/ours/nodes/").content.decode()
    assert attack not in page
    assert page.count("&lt;script&gt;") == 4


def test_reading_only(client_for: ClientFor, ours: Project, alice: User) -> None:
    assert client_for(alice).post("/p/ours/nodes/").status_code == 405
