"""Making, draining, rotating and revoking nodes: who may, what follows, on pages and by `cohort node`."""

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
from django.core.exceptions import ValidationError
from django.test import Client

from cohort import cli
from cohort.access import keeps_nodes
from cohort.accounts.models import Project, User
from cohort.accounts.services import membership_set
from cohort.embedded import people
from cohort.embedded.home import HomeError
from cohort.runs import nodes
from cohort.runs.models import Draining, Node
from tests.factories.runs import Maker
from tests.factories.worker import NODE
from tests.tables import cases
from tests.web.control import fresh
from tests.web.worker_calls import AttemptCaller, Caller, claim, refused

pytestmark = pytest.mark.django_db


Made = tuple[Node, str]


@pytest.fixture
def made(ours: Project) -> Made:
    return nodes.node_create(name="gpu-1")


def here(token: str) -> Any:
    return Caller(token).post("node", NODE.model_dump(mode="json"))


# ---------------------------------------------------------------------- who may


def test_admins_of_the_first_project_and_staff_may(ours: Project, alice: User, charlie: User, rita: User) -> None:
    assert keeps_nodes(alice)
    assert not keeps_nodes(charlie), "anyone can open a project and is its admin"
    assert not keeps_nodes(rita)
    rita.is_staff = True
    assert keeps_nodes(rita)
    charlie.is_superuser = True
    assert keeps_nodes(charlie)
    membership_set(project=ours, actor=alice, user=charlie, role="operator")
    charlie.is_superuser = False
    assert not keeps_nodes(charlie)


def test_admins_of_other_projects_change_nothing_and_staff_may_where_they_belong(
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
    good = [answer.status_code == 204 for answer in answers]
    assert all(ok or refused(answer) == (401, "unknown_token") for ok, answer in zip(good, answers, strict=True))
    return good


def shown(answer: Any) -> str:
    """The token on the page that shows it."""
    token: str = answer.content.decode().split('<pre class="text-box" id="token">')[1].split("</pre>")[0]
    return token


def test_a_node_is_made_and_its_token_shown_once(ours: Project, admin: Client) -> None:
    assert b"Add a node" in admin.get("/p/ours/nodes/").content
    answer = admin.post("/p/ours/nodes/new/", {"name": "gpu-7"})
    assert answer.status_code == 201
    assert "no-store" in answer.headers["Cache-Control"]
    token = shown(answer)
    assert f"export COHORT_NODE_TOKEN={token}\n" in answer.content.decode()
    assert accepted(token) == [True]
    for path in ("", f"{Node.objects.get().pk}/"):
        assert token not in admin.get(f"/p/ours/nodes/{path}").content.decode()


@pytest.mark.parametrize("name", ["", "   ", "x" * 81, "gpu\u202e1", "a\nb", "gpu-1"], ids=ascii)
def test_a_name_must_be_one_and_new(made: Made, admin: Client, name: str) -> None:
    assert admin.post("/p/ours/nodes/new/", {"name": name}).status_code == 422
    assert Node.objects.count() == 1
    with pytest.raises(ValidationError):
        nodes.node_create(name=name)


def test_the_broker_s_password_is_not_shown(ours: Project, admin: Client, settings: Any) -> None:
    settings.BROKER_URL = "amqp://cohort:s3cr%40t@broker.example:5672/cohort"
    page = admin.post("/p/ours/nodes/new/", {"name": "gpu-7"}).content.decode()
    assert "export COHORT_BROKER_URL=amqp://cohort:PASSWORD@broker.example:5672/cohort\n" in page
    assert "s3cr" not in page
    assert "COHORT_HOME" not in page


def test_both_tokens_count_until_the_new_one_is_used(act: Act, made: Made, maker: Maker) -> None:
    node, old = made
    worker = AttemptCaller(claim(Caller(old), maker.run(state="queued")))
    lost, new = (shown(act("rotate")) for _ in range(2))
    assert accepted(lost, old, new, old, new) == [False, True, True, False, True]
    assert fresh(node).next_token_digest is None
    assert worker.beat().status_code == 200, "an attempt that runs goes on"


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
    assert b"gpu-1 is not draining" in act("undrain", follow=True).content


def test_runs_are_moved_away(act: Act, made: Made, maker: Maker) -> None:
    worker = AttemptCaller(claim(Caller(made[1]), maker.run(state="queued")))
    act("drain", {"how": "move"})
    assert worker.beat().json()["desired"] == "preempt"


# ---------------------------------------------------------------------- by command


Command = Callable[..., tuple[int, str, str]]


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Command:
    """`cohort node …` on the tests' database: status, and what it prints as answer and as complaint."""
    monkeypatch.setattr("cohort.embedded.visit.database", lambda home, purpose: nullcontext())

    def run(*words: str) -> tuple[int, str, str]:
        status = cli.main(["node", *words])
        said = capsys.readouterr()
        return status, said.out.strip(), said.err

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
