"""Nodes: what each machine says of itself, what its sandbox can do, no word of another project's runs; made, drained,
rotated and revoked on pages and by `cohort node`. Who may do what is in tests/cases/access/nodes.yaml.
"""

from collections.abc import Callable
from contextlib import nullcontext
from datetime import timedelta
from typing import Any

import pytest
from django.core.exceptions import ValidationError
from django.test import Client
from django.utils import timezone

from cohort import __version__
from cohort.accounts.models import Project, User
from cohort.accounts.people import manages_server
from cohort.accounts.services import membership_set
from cohort.cli import main as cli
from cohort.cli.embedded import people
from cohort.cli.embedded.home import HomeError
from cohort.nodes import services as nodes
from cohort.nodes.engines import no_sandbox, sandbox_of
from cohort.nodes.models import Draining, Node
from cohort.nodes.services import node_create, node_present
from tests.factories.runs import Maker
from tests.factories.sandbox_reports import BROKEN, WORKS, node_info
from tests.factories.worker import NODE
from tests.tables import cases
from tests.web.control import fresh
from tests.web.pages import html
from tests.web.worker_calls import AttemptCaller, Caller, claim, refused

pytestmark = pytest.mark.django_db
ATTACK = "<script>alert(1)</script>"


@pytest.fixture
def node(ours: object) -> Node:
    return node_create(name="gpu-1")[0]


@pytest.fixture
def pages(admin: Client, node: Node) -> Callable[..., tuple[str, str]]:
    """The list and the page of the node, after it has said this of itself."""

    def tell(**reported: Any) -> tuple[str, str]:
        node_present(node=node, info=NODE.model_copy(update=reported))
        responses = [admin.get(f"/p/ours/nodes/{path}") for path in ("", f"{node.pk}/")]
        assert [response.status_code for response in responses] == [200, 200]
        listed, alone = (html(response) for response in responses)
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
    shown_pages = pages(
        hostname=ATTACK, devices=[device], labels=[ATTACK], versions={ATTACK: ATTACK}, sandbox_report=report
    )
    for page in shown_pages:
        assert ATTACK not in page
        assert "&lt;script&gt;" in page


@pytest.mark.parametrize(("report", "changed"), cases("nodes/odd_reports", "report", "changed"))
def test_a_report_that_cannot_be_read_counts_as_no_sandbox(
    pages: Callable[..., tuple[str, str]], node: Node, report: Any, changed: Any
) -> None:
    shown_pages = pages(sandbox="bubblewrap 9", sandbox_report={**WORKS, **changed} if changed else report)
    assert not sandbox_of(fresh(node)).works
    for page in shown_pages:
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
    listed = html(admin.get("/p/ours/nodes/"))
    assert f'href="/p/ours/runs/{run.pk}/">secret run</a>' in listed
    page = html(admin.get(f"/p/ours/nodes/{made.pk}/"))
    for text in ("secret run", "1.83\u00a0TB", "48.2\u00a0kB", "showing 1 of 1"):
        assert text in page
    for path in ("", f"{made.pk}/"):
        theirs = html(stranger.get(f"/p/theirs/nodes/{path}"))
        assert "secret run" not in theirs
        assert "busy for another project" in theirs


def test_silence_a_refreshed_part_and_an_empty_page(viewer: Client, node: Node) -> None:
    Node.objects.update(last_seen_at=timezone.now() - timedelta(minutes=5))
    page = html(viewer.get("/p/ours/nodes/"))
    assert "</span>silent</span>" in page
    assert "5\u00a0min ago" in page
    assert '<span id="count-nodes">0</span>' in page, "the sidebar counts those that are here"
    part = viewer.get("/p/ours/nodes/", headers={"HX-Request": "true"}).content
    assert (b"<html" in part, b"gpu-1" in part) == (False, True)
    for button in ("Drain", "New token", "Revoke", "Add a node"):
        assert button not in page + html(viewer.get(f"/p/ours/nodes/{node.pk}/")), "bob is a viewer"
    node.delete()
    assert b"cohort node NAME" in viewer.get("/p/ours/nodes/").content


Made = tuple[Node, str]


@pytest.fixture
def made(ours: Project) -> Made:
    return nodes.node_create(name="gpu-1")


def here(token: str) -> Any:
    return Caller(token).post("node", NODE.model_dump(mode="json"))


# ---------------------------------------------------------------------- who may


def test_admins_of_the_first_project_and_staff_may(ours: Project, alice: User, charlie: User, rita: User) -> None:
    assert manages_server(alice)
    assert not manages_server(charlie), "anyone can open a project and is its admin"
    assert not manages_server(rita)
    User.objects.filter(pk=rita.pk).update(is_staff=True)
    assert manages_server(rita)
    User.objects.filter(pk=charlie.pk).update(is_superuser=True)
    assert manages_server(charlie)
    membership_set(project=ours, actor=alice, user=charlie, role="operator")
    User.objects.filter(pk=charlie.pk).update(is_superuser=False)
    assert not manages_server(charlie)


def test_admins_of_other_projects_change_nothing_and_staff_may_at_home(
    made: Made, charlie: User, stranger: Client
) -> None:
    paths = ("new/", *(f"{made[0].pk}/{change}/" for change in ("drain", "undrain", "rotate", "revoke")))
    for path in paths:
        assert stranger.post(f"/p/theirs/nodes/{path}", {"name": "gpu-2"}).status_code == 403
    assert Node.objects.count() == 1
    User.objects.filter(pk=charlie.pk).update(is_staff=True)
    assert stranger.post(f"/p/theirs/nodes/{made[0].pk}/drain/").status_code == 302
    assert stranger.post(f"/p/ours/nodes/{made[0].pk}/undrain/").status_code == 404


# ---------------------------------------------------------------------- tokens

Act = Callable[..., Any]


@pytest.fixture
def act(admin: Client, made: Made) -> Act:
    """What the page answers when alice does this to the node."""
    return lambda change, data=None, **more: admin.post(f"/p/ours/nodes/{made[0].pk}/{change}/", data, **more)


def accepted(*tokens: str) -> list[bool]:
    """Whether the worker API takes each token; where it does not, it knows no such token."""
    answers = [here(token) for token in tokens]
    good = [answer.status_code == 200 for answer in answers]
    assert all(ok or refused(answer) == (401, "unknown_token") for ok, answer in zip(good, answers, strict=True))
    return good


def shown(answer: Any) -> str:
    """The token on the page that shows it."""
    token: str = html(answer).split('<pre class="text-box" id="token">')[1].split("</pre>")[0]
    return token


def test_a_node_is_made_and_its_token_shown_once(ours: Project, admin: Client, settings: Any) -> None:
    settings.BROKER_URL = "amqp://cohort:s3cr%40t@broker.example:5672/cohort"
    assert b"Add a node" in admin.get("/p/ours/nodes/").content
    answer = admin.post("/p/ours/nodes/new/", {"name": "gpu-7"})
    assert answer.status_code == 201
    assert "no-store" in answer.headers["Cache-Control"]
    token, page = shown(answer), html(answer)
    assert f"export COHORT_NODE_TOKEN={token}\n" in page
    assert "export COHORT_BROKER_URL=amqp://cohort:PASSWORD@broker.example:5672/cohort\n" in page
    assert ("s3cr" in page, "COHORT_HOME" in page) == (False, False)
    assert accepted(token) == [True]
    for path in ("", f"{Node.objects.get().pk}/"):
        assert token not in html(admin.get(f"/p/ours/nodes/{path}"))


@pytest.mark.parametrize("name", ["", "   ", "x" * 81, "gpu\u202e1", "a\nb", "gpu-1"], ids=ascii)
def test_a_name_must_be_one_and_new(made: Made, admin: Client, name: str) -> None:
    assert admin.post("/p/ours/nodes/new/", {"name": name}).status_code == 422
    assert Node.objects.count() == 1
    with pytest.raises(ValidationError):
        nodes.node_create(name=name)


def test_both_tokens_count_until_the_new_one_is_used(act: Act, made: Made, maker: Maker) -> None:
    node, old = made
    worker = AttemptCaller(claim(Caller(old), maker.run(state="queued")))
    lost, new = (shown(act("rotate")) for _ in range(2))
    assert accepted(lost, old, new, old, new) == [False, True, True, False, True]
    assert fresh(node).next_token_digest is None
    assert worker.beat().status_code == 200, "an attempt that runs continues"


def test_revoking_refuses_every_token_and_a_new_one_lets_it_in_again(act: Act, made: Made, maker: Maker) -> None:
    node, old = made
    pending = shown(act("rotate"))
    worker = AttemptCaller(claim(Caller(old), maker.run(state="queued")))
    assert act("revoke").status_code == 302
    assert accepted(old, pending) == [False, False]
    assert refused(worker.beat()) == (401, "unknown_token")
    page = act("revoke", follow=True).content
    assert b"gpu-1 is revoked already" in page
    assert b"Drain" not in page
    node.refresh_from_db()
    with pytest.raises(ValidationError, match="revoked"):
        nodes.node_drain(node=node, actor=None, how=Draining.FINISH)
    assert accepted(shown(act("rotate")), old, pending) == [True, False, False]


# ---------------------------------------------------------------------- draining


def test_a_draining_node_takes_nothing_until_it_is_undrained(act: Act, made: Made, maker: Maker) -> None:
    body = {"run_id": maker.run(state="queued").pk, "node": NODE.model_dump(mode="json")}
    worker = Caller(made[1])
    assert act("drain", {"list": ""}, headers={"HX-Request": "true"}).headers["HX-Redirect"] == "/p/ours/nodes/"
    assert refused(worker.post("claim", body)) == (409, "not_waiting")
    answer = act("undrain", headers={"HX-Request": "true"})
    assert answer.headers["HX-Redirect"] == f"/p/ours/nodes/{made[0].pk}/"
    assert worker.post("claim", body).status_code == 201
    act("drain", {"how": "move"})
    assert fresh(made[0]).draining == "move"
    act("undrain")
    assert b"gpu-1 is not draining" in act("undrain", follow=True).content


# ---------------------------------------------------------------------- by command


Command = Callable[..., tuple[int, str, str]]


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Command:
    """`cohort node …` on the tests' database: status, and what it prints as answer and as complaint."""
    monkeypatch.setattr("cohort.cli.embedded.visit.database", lambda home, purpose: nullcontext())

    def run(*words: str) -> tuple[int, str, str]:
        status = cli.main(["node", *words])
        captured = capsys.readouterr()
        return status, captured.out.strip(), captured.err

    return run


def test_cohort_node_does_what_the_page_does(command: Command, maker: Maker) -> None:
    def does(*words: str) -> str:
        status, out, complaint = command(*words)
        assert status == 0, complaint
        return out

    assert "There is no node yet" in does("--list")
    token = does("gpu-1")
    assert accepted(token) == [True]
    does("gpu-1", "--drain")
    assert Node.objects.get().draining == "finish"
    does("gpu-1", "--drain", "--move")
    assert Node.objects.get().draining == "move"
    does("gpu-1", "--undrain")
    assert Node.objects.get().draining == ""
    run = maker.run(state="queued")
    claim(Caller(token), run)
    does("gpu-2")
    lines = does("--list").splitlines()
    assert [line.split()[:2] for line in lines] == [["gpu-1", "working"], ["gpu-2", "never"]]
    assert lines[0].endswith(f"run {run.pk}, attempt 1")
    new = does("gpu-1", "--rotate")
    assert accepted(new, token) == [True, False]
    does("gpu-1", "--revoke")
    assert accepted(new) == [False]


@pytest.mark.parametrize(("words", "names"), cases("nodes/command_refused", "words", "names"))
def test_what_cohort_node_cannot_do_is_said(made: Made, command: Command, words: list[str], names: str) -> None:
    status, _, complaint = command(*words)
    assert status != 0
    assert names in complaint


def test_cohort_user_makes_staff(ours: Project) -> None:
    people.user_add(name="zoe", project=None, role=None, new_password=False, staff=True)
    zoe = User.objects.get(username="zoe")
    assert zoe.is_staff
    assert not zoe.is_superuser
    User.objects.filter(pk=zoe.pk).update(is_staff=False)
    password = zoe.password
    people.user_add(name="zoe", project=None, role=None, new_password=False, staff=True)
    assert (fresh(zoe).is_staff, zoe.password) == (True, password)
    with pytest.raises(HomeError, match="is here already"):
        people.user_add(name="zoe", project=None, role=None, new_password=False)
