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
from cohort.runs.revoke import node_revoke
from tests.web.run_rows import Maker
from tests.web.worker_calls import AttemptCaller, Caller, claim, refused
from tests.worker.making import NODE

pytestmark = pytest.mark.django_db
ClientFor = Callable[[User], Client]


@pytest.fixture
def made(ours: Project) -> tuple[Node, str]:
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
    client_for: ClientFor, made: tuple[Node, str], charlie: User
) -> None:
    paths = ("new/", *(f"{made[0].pk}/{change}/" for change in ("drain", "undrain", "rotate", "revoke")))
    for path in paths:
        assert client_for(charlie).post(f"/p/theirs/nodes/{path}", {"name": "gpu-2"}).status_code == 403
    assert Node.objects.count() == 1
    User.objects.filter(pk=charlie.pk).update(is_staff=True)
    assert client_for(charlie).post(f"/p/theirs/nodes/{made[0].pk}/drain/").status_code == 302
    assert client_for(charlie).post(f"/p/ours/nodes/{made[0].pk}/undrain/").status_code == 404


# ---------------------------------------------------------------------- tokens


def shown(page: str) -> str:
    """The token on the page that shows it."""
    return page.split('<pre class="text-box" id="token">')[1].split("</pre>")[0]


def test_a_node_is_made_and_its_token_shown_once(client_for: ClientFor, ours: Project, alice: User) -> None:
    client = client_for(alice)
    assert b"Add a node" in client.get("/p/ours/nodes/").content
    answer = client.post("/p/ours/nodes/new/", {"name": "gpu-7"})
    assert answer.status_code == 201
    assert "no-store" in answer.headers["Cache-Control"]
    page = answer.content.decode()
    token = shown(page)
    assert f"export COHORT_NODE_TOKEN={token}\n" in page
    assert here(token).status_code == 204
    again = client.post("/p/ours/nodes/new/", {"name": "gpu-7"})
    assert again.status_code == 422
    assert "There is a node gpu-7 already" in again.content.decode()
    node = Node.objects.get()
    for path in ("", f"{node.pk}/"):
        assert token not in client.get(f"/p/ours/nodes/{path}").content.decode()


@pytest.mark.parametrize("name", ["", "   ", "x" * 81, "gpu\u202e1", "a\nb"])
def test_a_name_must_be_one(client_for: ClientFor, ours: Project, alice: User, name: str) -> None:
    assert client_for(alice).post("/p/ours/nodes/new/", {"name": name}).status_code == 422
    assert not Node.objects.exists()
    with pytest.raises(ValidationError):
        nodes.node_create(name=name)


def test_the_broker_s_password_is_not_shown(client_for: ClientFor, ours: Project, alice: User, settings: Any) -> None:
    settings.BROKER_URL = "amqp://cohort:s3cr%40t@broker.example:5672/cohort"
    page = client_for(alice).post("/p/ours/nodes/new/", {"name": "gpu-7"}).content.decode()
    assert "export COHORT_BROKER_URL=amqp://cohort:PASSWORD@broker.example:5672/cohort\n" in page
    assert "s3cr" not in page
    assert "COHORT_HOME" not in page


def test_both_tokens_count_until_the_new_one_is_used(
    client_for: ClientFor, made: tuple[Node, str], alice: User
) -> None:
    node, old = made
    new = shown(client_for(alice).post(f"/p/ours/nodes/{node.pk}/rotate/").content.decode())
    assert here(old).status_code == 204
    assert "has not been used yet" in client_for(alice).get("/p/ours/nodes/").content.decode()
    assert here(new).status_code == 204
    assert refused(here(old)) == (401, "unknown_token")
    assert here(new).status_code == 204
    node.refresh_from_db()
    assert node.next_token_digest is None


def test_a_new_token_that_was_lost_is_made_again(made: tuple[Node, str], alice: User) -> None:
    node, old = made
    lost, new = (nodes.node_rotate(node=node, actor=alice) for _ in range(2))
    assert refused(here(lost)) == (401, "unknown_token")
    assert [here(token).status_code for token in (old, new)] == [204, 204]


def test_rotation_leaves_a_running_attempt_alone(made: tuple[Node, str], maker: Maker, alice: User) -> None:
    node, old = made
    worker = AttemptCaller(claim(Caller(old), maker.run(state="queued")))
    here(nodes.node_rotate(node=node, actor=alice))
    assert worker.beat().status_code == 200


def test_revoking_refuses_every_token_and_a_new_one_lets_it_in_again(
    client_for: ClientFor, made: tuple[Node, str], maker: Maker, alice: User
) -> None:
    (node, old), client = made, client_for(alice)
    pending = nodes.node_rotate(node=node, actor=alice)
    worker = AttemptCaller(claim(Caller(old), maker.run(state="queued")))
    assert client.post(f"/p/ours/nodes/{node.pk}/revoke/").status_code == 302
    for answer in (here(old), here(pending), worker.beat()):
        assert refused(answer) == (401, "unknown_token")
    assert b"Drain" not in client.get(f"/p/ours/nodes/{node.pk}/").content
    assert b"gpu-1 is revoked already" in client.post(f"/p/ours/nodes/{node.pk}/revoke/", follow=True).content
    new = shown(client.post(f"/p/ours/nodes/{node.pk}/rotate/").content.decode())
    assert here(new).status_code == 204
    assert refused(here(old)) == (401, "unknown_token")
    assert refused(here(pending)) == (401, "unknown_token")


# ---------------------------------------------------------------------- draining


def test_a_draining_node_takes_nothing_until_it_is_undrained(
    client_for: ClientFor, made: tuple[Node, str], maker: Maker, alice: User
) -> None:
    (node, token), client = made, client_for(alice)
    run = maker.run(state="queued")
    here(token)
    assert client.post(f"/p/ours/nodes/{node.pk}/drain/").status_code == 302
    body = {"run_id": run.pk, "node": NODE.model_dump(mode="json")}
    assert refused(Caller(token).post("claim", body)) == (409, "not_waiting")
    assert b"</span>draining</span>" in client.get("/p/ours/nodes/").content
    assert client.post(f"/p/ours/nodes/{node.pk}/undrain/").status_code == 302
    assert Caller(token).post("claim", body).status_code == 201
    assert b"gpu-1 is not draining" in client.post(f"/p/ours/nodes/{node.pk}/undrain/", follow=True).content


def test_runs_are_moved_away(client_for: ClientFor, made: tuple[Node, str], maker: Maker, alice: User) -> None:
    node, token = made
    worker = AttemptCaller(claim(Caller(token), maker.run(state="queued")))
    client_for(alice).post(f"/p/ours/nodes/{node.pk}/drain/", {"how": "move"})
    assert worker.beat().json()["desired"] == "preempt"


def test_the_button_s_answer_takes_the_page_back(client_for: ClientFor, made: tuple[Node, str], alice: User) -> None:
    node, client = made[0], client_for(alice)
    answer = client.post(f"/p/ours/nodes/{node.pk}/drain/", {"list": ""}, headers={"HX-Request": "true"})
    assert answer.headers["HX-Redirect"] == "/p/ours/nodes/"
    answer = client.post(f"/p/ours/nodes/{node.pk}/undrain/", headers={"HX-Request": "true"})
    assert answer.headers["HX-Redirect"] == f"/p/ours/nodes/{node.pk}/"


def test_a_revoked_node_is_not_drained(made: tuple[Node, str], alice: User) -> None:
    node_revoke(node=made[0], actor=alice)
    with pytest.raises(ValidationError, match="revoked"):
        nodes.node_drain(node=made[0], actor=alice, how=Draining.FINISH)


# ---------------------------------------------------------------------- by command


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[int, str, str]]:
    """`cohort node …` on the tests' database: status, and what it prints as answer and as complaint."""
    monkeypatch.setattr("cohort.embedded.visit.database", lambda home, purpose: nullcontext())

    def run(*words: str) -> tuple[int, str, str]:
        status = cli.main(["node", *words])
        said = capsys.readouterr()
        return status, said.out.strip(), said.err

    return run


def test_cohort_node_does_what_the_page_does(command: Callable[..., tuple[int, str, str]], maker: Maker) -> None:
    def does(*words: str) -> str:
        status, out, complaint = command(*words)
        assert status == 0, complaint
        return out

    assert "There is no node yet" in does("--list")
    token = does("gpu-1")
    assert here(token).status_code == 204
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
    assert here(new).status_code == 204
    assert refused(here(token)) == (401, "unknown_token")
    does("gpu-1", "--revoke")
    assert refused(here(new)) == (401, "unknown_token")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["gpu-9", "--drain"], "there is no node gpu-9"),
        (["gpu-1", "--undrain"], "gpu-1 is not draining"),
        (["gpu-1"], "there is a node gpu-1 already"),
        (["gpu-1", "--move"], "--move is of no use alone"),
        ([], "give the node's name"),
        (["gpu-1", "--list"], "--list alone"),
    ],
)
def test_what_cohort_node_cannot_do_is_said(
    made: tuple[Node, str], command: Callable[..., tuple[int, str, str]], words: list[str], said: str
) -> None:
    status, _, complaint = command(*words)
    assert status != 0
    assert said in complaint


def test_cohort_user_makes_staff(ours: Project) -> None:
    people.user_add(name="zoe", project=None, role=None, new_password=False, staff=True)
    zoe = User.objects.get(username="zoe")
    assert zoe.is_staff
    assert not zoe.is_superuser
    User.objects.filter(pk=zoe.pk).update(is_staff=False)
    password = zoe.password
    people.user_add(name="zoe", project=None, role=None, new_password=False, staff=True)
    zoe.refresh_from_db()
    assert (zoe.is_staff, zoe.password) == (True, password)
    with pytest.raises(HomeError, match="is here already"):
        people.user_add(name="zoe", project=None, role=None, new_password=False)
