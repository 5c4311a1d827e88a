"""What a node's self-test found, on its pages, and what hostile or old workers say of it."""

from typing import Any

import pytest
from django.test import Client

from cohort.accounts.models import User
from cohort.runs.models import Node
from cohort.runs.nodes import node_create, node_present
from cohort.runs.selectors.sandboxes import no_sandbox, sandbox_of
from tests.web.sandbox_reports import BROKEN, WORKS, node_info
from tests.web.worker_calls import Caller

pytestmark = pytest.mark.django_db


@pytest.fixture
def made(ours: object) -> tuple[Node, str]:
    return node_create(name="gpu-1")


def pages(client: Client, node: Node) -> tuple[str, str]:
    listed, alone = client.get("/p/ours/nodes/"), client.get(f"/p/ours/nodes/{node.pk}/")
    assert (listed.status_code, alone.status_code) == (200, 200)
    return listed.content.decode(), alone.content.decode()


def test_checks_and_weaker_points_are_shown(client_for: Any, made: tuple[Node, str], alice: User) -> None:
    Caller(made[1]).post("node", node_info(WORKS).model_dump(mode="json"))
    listed, alone = pages(client_for(alice), made[0])
    assert "bubblewrap 0.8.0" in listed
    for text in (
        "bubblewrap 0.8.0",
        "fork bomb",
        "stopped at 16 processes",
        "What it does not keep apart",
        "the sum of",
    ):
        assert text in alone
    assert "code rewards cannot run here" not in listed + alone
    assert alone.count("<td>held</td>") == 2
    assert "failed</span>" not in alone


def test_one_that_does_not_work_is_told_with_its_fix(client_for: Any, made: tuple[Node, str], alice: User) -> None:
    Caller(made[1]).post("node", node_info(BROKEN).model_dump(mode="json"))
    for page in pages(client_for(alice), made[0]):
        assert "code rewards cannot run here" in page
        assert "apparmor_restrict_unprivileged_userns=0" in page
    assert "failed</span>" in page
    assert "setting up uid map" in page


def test_a_weaker_level_says_so(client_for: Any, made: tuple[Node, str], alice: User) -> None:
    told = {**WORKS, "level": "landlock", "version": "Landlock ABI 7", "weaker": ["processes see each other"]}
    Caller(made[1]).post("node", node_info(told).model_dump(mode="json"))
    listed, alone = pages(client_for(alice), made[0])
    assert "Landlock ABI 7 (weaker)" in listed
    assert "processes see each other" in alone


@pytest.mark.parametrize(
    "told",
    [
        {},
        {"level": "perfect"},
        {**WORKS, "checks": [{"name": 7, "passed": "yes", "detail": None}]},
        {**WORKS, "weaker": 3},
        {**WORKS, "version": None},
        {**WORKS, "checks": "many"},
    ],
)
def test_what_cannot_be_read_counts_as_none(
    client_for: Any, made: tuple[Node, str], alice: User, told: dict[str, Any]
) -> None:
    sent = {**node_info(None).model_dump(mode="json"), "sandbox_report": told, "sandbox": "bubblewrap 9"}
    assert Caller(made[1]).post("node", sent).status_code == 204
    made[0].refresh_from_db()
    assert not sandbox_of(made[0]).works
    for page in pages(client_for(alice), made[0]):
        assert "code rewards cannot run here" in page
        assert "bubblewrap 9" not in page


def test_markup_in_a_report_is_text(client_for: Any, made: tuple[Node, str], alice: User) -> None:
    told = {**BROKEN, "fix": "<script>alert(1)</script>", "weaker": ["<b>x</b>"]}
    Caller(made[1]).post("node", node_info(told).model_dump(mode="json"))
    for page in pages(client_for(alice), made[0]):
        assert "<script>alert" not in page
        assert "<b>x</b>" not in page


def test_what_was_known_holds_until_a_new_worker_has_tried(made: tuple[Node, str]) -> None:
    node = made[0]
    for report, works in ((WORKS, True), (None, True), (BROKEN, False), (None, False)):
        node_present(node=node, info=node_info(report))
        node.refresh_from_db()
        assert sandbox_of(node).works == works
        assert node.info["sandbox"] == ("bubblewrap 0.8.0" if works else "")


def test_why_none_works_names_each_with_its_fix(made: tuple[Node, str]) -> None:
    assert (
        no_sandbox() == "gpu-1: its worker has not said whether its sandbox works: start a worker of this version there"
    )
    other, _ = node_create(name="gpu-2")
    node_present(node=other, info=node_info(BROKEN))
    assert "gpu-2: Ubuntu's AppArmor" in no_sandbox()
    assert "gpu-1: " in no_sandbox()
    node_present(node=made[0], info=node_info(WORKS))
    assert no_sandbox() == ""
    Node.objects.filter(pk=made[0].pk).update(revoked_at="2026-01-01T00:00:00Z")
    assert "gpu-1" not in no_sandbox() != "", "a revoked one's does not count"
    Node.objects.update(revoked_at="2026-01-01T00:00:00Z")
    assert "no node is registered" in no_sandbox()
