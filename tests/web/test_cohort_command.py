"""What `cohort user`, `cohort demo` and the start of `cohort up` do on the way: people and their roles, the local node,
the question whether the web server answers, and what is drawn while a run trains.
"""

import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from cohort.accounts.models import Membership, Project, User
from cohort.cli.demo.report import line_of
from cohort.cli.embedded.home import Home, HomeError
from cohort.cli.embedded.people import node_revoke, user_add
from cohort.cli.embedded.up import _answers, make_node
from cohort.nodes.models import Node
from cohort.nodes.services import node_create, token_digest
from cohort.runs.models import Run
from tests.processes import wait_for

pytestmark = pytest.mark.django_db


def add(name: str, *, project: str | None = None, role: str | None = None, new_password: bool = False) -> list[str]:
    return user_add(name=name, project=project, role=role, new_password=new_password)


def role_of(name: str, project: str) -> str:
    return Membership.objects.get(user__username=name, project__slug=project).role


def test_a_member_keeps_their_role_when_none_is_given(ours: Project, alice: User) -> None:
    Membership.objects.create(project=ours, user=User.objects.create(username="zoe"), role="admin")
    add("zoe", project="ours", new_password=True)
    assert role_of("zoe", "ours") == "admin"
    add("zoe", project="ours", role="viewer")
    add("zoe", project="ours")
    assert role_of("zoe", "ours") == "viewer"


def test_a_new_member_is_an_operator_unless_said_otherwise(ours: Project) -> None:
    add("yan", project="ours")
    add("xia", project="ours", role="reviewer")
    assert (role_of("yan", "ours"), role_of("xia", "ours")) == ("operator", "reviewer")


def test_a_role_needs_a_project() -> None:
    with pytest.raises(HomeError, match="--project"):
        add("yan", role="admin")
    assert not User.objects.filter(username="yan").exists()


@pytest.mark.parametrize(
    ("name", "project", "words"),
    [
        ("", None, "NAME: This field cannot be blank."),
        ("yan", "", "--project: This field cannot be blank."),
        ("yan", "two words", "--project: Enter a valid “slug”"),
        ("yan", "new", "--project: The URL name new is used by Cohort itself. Choose another."),
    ],
)
def test_what_is_refused_names_the_argument(name: str, project: str | None, words: str) -> None:
    with pytest.raises(HomeError) as refused:
        add(name, project=project)
    assert str(refused.value).startswith(words)
    assert str(refused.value).count("blank") <= 1
    assert not User.objects.filter(username="yan").exists()


def token_is_accepted(home: Home) -> bool:
    digest = token_digest(home.node_token.read_text())
    return Node.objects.filter(token_digest=digest, revoked_at=None).exists()


def test_the_local_node_is_made_once_and_again_when_its_token_is_refused(tmp_path: Path) -> None:
    home = Home(tmp_path)
    make_node(home)
    first = home.node_token.read_text()
    make_node(home)
    assert home.node_token.read_text() == first
    node_create(name="another machine")  # its token says nothing of ours
    node_revoke(name="local-1")
    make_node(home)
    assert token_is_accepted(home)
    Node.objects.filter(name__startswith="local").delete()  # as when the database is another one
    make_node(home)
    assert token_is_accepted(home)


def test_the_own_web_server_is_asked_past_any_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTP_PROXY", "http_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            return

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:  # as `cohort up` does: one question waits 5 s, which a busy machine may take longer than
            wait_for(lambda: _answers(f"http://127.0.0.1:{server.server_port}/healthz"), "the server answers")
        finally:
            server.shutdown()
            thread.join()


def test_a_line_tells_step_reward_and_time_left() -> None:
    """7 of 28 marks for 30 of 120 steps; 90 steps of 1.5 s are 2 min 15 s."""
    run = Run(
        state="training",
        phase="training",
        step=30,
        steps_total=120,
        latest_metrics={"reward": 0.41234},
        seconds_per_step=1.5,
    )
    bar = "#" * 7 + "." * 21
    assert line_of(run) == f"training          [{bar}] step 30 of 120  reward 0.412  2 min 15 s left"
