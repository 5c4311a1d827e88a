"""The pages of nodes: what each machine says of itself, what its sandbox can do, and no word of another project's runs;
who may do what is in tests/cases/access/nodes.yaml."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone

from cohort import __version__
from cohort.runs.models import Node
from cohort.runs.nodes import node_create, node_present
from cohort.runs.selectors.sandboxes import no_sandbox, sandbox_of
from tests.factories.runs import Maker
from tests.factories.sandbox_reports import BROKEN, WORKS, node_info
from tests.factories.worker import NODE
from tests.tables import cases
from tests.web.control import fresh
from tests.web.worker_calls import AttemptCaller, Caller, claim

pytestmark = pytest.mark.django_db
ATTACK = "<script>alert(1)</script>"


@pytest.fixture
def node(ours: object) -> Node:
    return node_create(name="gpu-1")[0]


@pytest.fixture
def pages(admin: Client, node: Node) -> Callable[..., tuple[str, str]]:
    """The list and the page of the node, after it has said this of itself."""

    def tell(**told: Any) -> tuple[str, str]:
        node_present(node=node, info=NODE.model_copy(update=told))
        found = [admin.get(f"/p/ours/nodes/{path}") for path in ("", f"{node.pk}/")]
        assert [response.status_code for response in found] == [200, 200]
        listed, alone = (response.content.decode() for response in found)
        return listed, alone

    return tell


def test_what_a_machine_is(pages: Callable[..., tuple[str, str]]) -> None:
    gpu = {"kind": "cuda", "name": "NVIDIA H200", "memory_bytes": 150_000_000_000}
    machine = {"devices": [gpu, gpu, {"kind": "cpu", "name": "EPYC", "memory_bytes": 8_000_000_000}], "cpus": 16}
    sandbox = {"sandbox": "bubblewrap 0.8.0", "sandbox_report": WORKS}
    versions = {"cohort-grpo": __version__, "torch": "2.13.0"}
    listed, alone = pages(**machine, **sandbox, labels=["h200"], versions=versions, refuses="<1 GiB free")
    for text in ("2 × NVIDIA H200", "150\u00a0GB each", "EPYC", "16 cores", "bubblewrap 0.8.0", "torch 2.13.0", "idle"):
        assert text in listed
    assert "takes no run now: &lt;1 GiB free" in listed
    assert "Install cohort-grpo" not in listed
    assert '<span id="count-nodes">1</span>' in listed
    assert "code rewards cannot run here" not in listed + alone
    assert (alone.count("<td>held</td>"), "failed</span>" in alone, WORKS["weaker"][0][:10] in alone) == (
        2,
        False,
        True,
    )
    listed, alone = pages(**machine, sandbox="", sandbox_report=BROKEN, versions={"cohort-grpo": "0.0.9"})
    assert "takes no run now" not in listed
    assert f"Install cohort-grpo {__version__} there" in listed
    assert "setting up uid map" in alone
    for page in (listed, alone):
        assert "code rewards cannot run here" in page
        assert "apparmor_restrict_unprivileged_userns=0" in page
    landlock = {**WORKS, "level": "landlock", "version": "Landlock ABI 7", "weaker": ["processes see each other"]}
    listed, alone = pages(sandbox="Landlock ABI 7", sandbox_report=landlock)
    assert "Landlock ABI 7 (weaker)" in listed
    assert "processes see each other" in alone


def test_what_a_machine_says_of_itself_is_text_and_breaks_no_page(pages: Callable[..., tuple[str, str]]) -> None:
    devices = [{"kind": None, "name": 7, "memory_bytes": "much"}, {"name": ["x"], "memory_bytes": True}, {}]
    pages(devices=[*devices, {"memory_bytes": -1}], cpus=-3, memory_bytes=-1, labels=[""])
    device = {"kind": ATTACK, "name": ATTACK}
    report = {**BROKEN, "fix": ATTACK, "weaker": [ATTACK]}
    found = pages(hostname=ATTACK, devices=[device], labels=[ATTACK], versions={ATTACK: ATTACK}, sandbox_report=report)
    for page in found:
        assert ATTACK not in page
        assert "&lt;script&gt;" in page


@pytest.mark.parametrize(("report", "changed"), cases("nodes/odd_reports", "report", "changed"))
def test_a_report_that_cannot_be_read_counts_as_no_sandbox(
    pages: Callable[..., tuple[str, str]], node: Node, report: Any, changed: Any
) -> None:
    found = pages(sandbox="bubblewrap 9", sandbox_report={**WORKS, **changed} if changed else report)
    assert not sandbox_of(fresh(node)).works
    for page in found:
        assert "code rewards cannot run here" in page
        assert "bubblewrap 9" not in page


def test_what_was_known_of_a_sandbox_holds_until_a_new_worker_has_tried(node: Node) -> None:
    for report, works in ((WORKS, True), (None, True), (BROKEN, False), (None, False)):
        node_present(node=node, info=node_info(report))
        node.refresh_from_db()
        assert sandbox_of(node).works == works
        assert node.info["sandbox"] == ("bubblewrap 0.8.0" if works else "")


def test_why_no_sandbox_works_names_each_node_with_its_fix(node: Node) -> None:
    assert no_sandbox().startswith("gpu-1: its worker has not said")
    other, _ = node_create(name="gpu-2")
    node_present(node=other, info=node_info(BROKEN))
    assert {line.partition(":")[0] for line in no_sandbox().split("; ")} >= {"gpu-1", "gpu-2"}
    assert BROKEN["fix"] in no_sandbox()
    node_present(node=node, info=node_info(WORKS))
    assert no_sandbox() == ""
    Node.objects.filter(pk=node.pk).update(revoked_at=timezone.now())
    assert "gpu-1" not in no_sandbox() != "", "a revoked one's does not count"
    Node.objects.update(revoked_at=timezone.now())
    assert "no node is registered" in no_sandbox()


def test_a_run_is_named_in_its_project_only(maker: Maker, admin: Client, stranger: Client, ours: object) -> None:
    made, token = node_create(name="gpu-1")
    run = maker.run("secret run", state="queued")
    worker = AttemptCaller(claim(Caller(token), run))
    worker.post(f"{worker.at}/heartbeat", {"fence": 1, "spooled_bytes": 48_213, "free_bytes": 1_832_000_000_000})
    listed = admin.get("/p/ours/nodes/").content.decode()
    assert f'href="/p/ours/runs/{run.pk}/">secret run</a>' in listed
    page = admin.get(f"/p/ours/nodes/{made.pk}/").content.decode()
    for text in ("secret run", "1.83\u00a0TB", "48.2\u00a0kB", "showing 1 of 1"):
        assert text in page
    for path in ("", f"{made.pk}/"):
        theirs = stranger.get(f"/p/theirs/nodes/{path}").content.decode()
        assert "secret run" not in theirs
        assert "busy for another project" in theirs


def test_silence_a_refreshed_part_and_an_empty_page(viewer: Client, node: Node) -> None:
    Node.objects.update(last_seen_at=timezone.now() - timedelta(minutes=5))
    page = viewer.get("/p/ours/nodes/").content.decode()
    assert "</span>silent</span>" in page
    assert "5\u00a0min ago" in page
    assert '<span id="count-nodes">0</span>' in page, "the sidebar counts those that are here"
    part = viewer.get("/p/ours/nodes/", headers={"HX-Request": "true"}).content
    assert (b"<html" in part, b"gpu-1" in part) == (False, True)
    for button in ("Drain", "New token", "Revoke", "Add a node"):
        assert button not in page + viewer.get(f"/p/ours/nodes/{node.pk}/").content.decode(), "bob is a viewer"
    node.delete()
    assert b"cohort node NAME" in viewer.get("/p/ours/nodes/").content
