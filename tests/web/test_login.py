"""Signing in and out: no hint which half was wrong, CSRF checked. How guessing is slowed: test_sign_in_delays."""

import logging
import re
import threading

import pytest
from django.test import Client

from cohort.accounts import hashing
from cohort.accounts.models import Project, User
from cohort.accounts.services import password_hand_out, user_create
from tests.processes import wait_for
from tests.web.conftest import PASSWORD
from tests.web.control import fresh

pytestmark = pytest.mark.django_db


def sign_in(client: Client, name: str, password: str, **more: str) -> object:
    return client.post("/login/", {"username": name, "password": password, **more})


def test_right_password_leads_to_the_only_project(ours: Project, alice: User, make_user) -> None:
    client = Client()
    assert sign_in(client, "alice", PASSWORD).url == "/"
    assert client.get("/").url == "/p/ours/"
    make_user("dora")
    other = Client()
    sign_in(other, "dora", PASSWORD)
    assert other.get("/").url == "/projects/", "who belongs to none"


def test_wrong_name_and_wrong_password_read_the_same(alice: User) -> None:
    hide = re.compile(rb'csrfmiddlewaretoken" value="[^"]+"|x-csrftoken": "[^"]+"|value="(alice|nobody)"')
    wrong_password = sign_in(Client(), "alice", "wrong")
    wrong_name = sign_in(Client(), "nobody", "wrong")
    assert wrong_password.status_code == wrong_name.status_code == 200
    assert hide.sub(b"", wrong_password.content) == hide.sub(b"", wrong_name.content)


def test_passwords_made_here_are_random_readable_and_work() -> None:
    made, password = user_create(username="one")
    assert made.password.startswith("argon2$argon2id$")
    assert password != user_create(username="two")[1]
    assert re.fullmatch(r"([a-hjkmnp-z2-9]{4}-){3}[a-hjkmnp-z2-9]{4}", password)
    assert sign_in(Client(), "one", password).status_code == 302


def test_a_new_password_is_not_stored_while_too_many_wait_to_be_hashed(
    admin: Client, alice: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    def busy(*_: object) -> str:
        raise hashing.HashingBusy("Too many people are signing in at once.")

    new = "another good sentence"
    monkeypatch.setattr(hashing.BoundedArgon2, "encode", busy)
    answer = admin.post("/password/", {"old_password": PASSWORD, "new_password1": new, "new_password2": new})
    assert b"Too many people are signing in at once." in answer.content
    assert fresh(alice).check_password(PASSWORD)


def test_every_page_asks_to_change_a_password_that_was_handed_out(ours: Project, alice: User) -> None:
    client, asks = Client(), b"You are using a temporary password."
    sign_in(client, "alice", PASSWORD)
    assert asks not in client.get("/p/ours/members/").content
    made = password_hand_out(user=alice)
    sign_in(client, "alice", made)
    for page in ("/p/ours/members/", "/projects/"):
        assert asks in client.get(page).content
    new = "another good sentence"
    client.post("/password/", {"old_password": made, "new_password1": new, "new_password2": new})
    assert asks not in client.get("/p/ours/members/").content
    assert not fresh(alice).password_handed_out
    assert user_create(username="dora")[0].password_handed_out


def test_next_leads_only_within_this_server(ours: Project, alice: User) -> None:
    assert sign_in(Client(), "alice", PASSWORD, next="/p/ours/members/").url == "/p/ours/members/"
    assert sign_in(Client(), "alice", PASSWORD, next="https://evil.example/").url == "/"


def test_a_form_that_is_sent_signed_out_leads_back_to_its_page(ours: Project, alice: User) -> None:
    """Its own address answers to POST alone: sign-in must not end there."""
    client, address = Client(), f"/p/ours/members/{ours.memberships.get(user=alice).pk}/role/"
    sent = client.post(address, {"role": "viewer"}, headers={"Referer": "http://testserver/p/ours/members/?page=2"})
    assert sent.url == "/login/?next=%2Fp%2Fours%2Fmembers%2F%3Fpage%3D2"
    assert "Nothing was changed: you are signed out." in client.get(sent.url).content.decode()
    elsewhere = client.post(address, {"role": "viewer"}, headers={"Referer": "https://evil.example/p/"})
    assert elsewhere.url.startswith("/login/?next=/p/ours/members/")


def test_form_without_token_is_refused_with_an_explanation(alice: User) -> None:
    client = Client(enforce_csrf_checks=True)
    response = sign_in(client, "alice", PASSWORD)
    assert response.status_code == 403
    assert b"This form is out of date" in response.content


def test_password_change(admin: Client) -> None:
    new = "another good sentence"
    for old, password in (("no", new), (PASSWORD, "short")):
        refused = admin.post("/password/", {"old_password": old, "new_password1": password, "new_password2": password})
        assert refused.context["form"].errors
    right = admin.post("/password/", {"old_password": PASSWORD, "new_password1": new, "new_password2": new})
    assert right.status_code == 302
    assert admin.get("/projects/").status_code == 200, "the person stays signed in here"
    assert sign_in(Client(), "alice", new).status_code == 302


def test_of_many_sign_ins_at_once_few_wait_and_the_others_are_refused_in_words(alice: User) -> None:
    """A refused one counts as no failure, and none of them costs a hash."""
    hasher, hashed = hashing.BoundedArgon2(), []
    threads = [
        threading.Thread(target=lambda: hashed.append(hasher.encode("x", "12345678"))) for _ in range(hashing.MOST)
    ]
    with hashing._turn:
        for thread in threads:
            thread.start()
        wait_for(lambda: hashing._slots._value == 0, "all wait")
        for name in ("alice", "nobody", "alice", "alice", "alice", "alice"):
            refused = sign_in(Client(), name, PASSWORD)
            assert (refused.status_code, b"Too many people are signing in at once" in refused.content) == (200, True)
        assert hashed == []
    for thread in threads:
        thread.join()
    assert len(hashed) == hashing.MOST
    assert sign_in(Client(), "alice", PASSWORD).status_code == 302


def test_no_page_stays_in_a_cache_unless_it_says_so(ours: Project, alice: User) -> None:
    client = Client()
    assert "no-store" in client.get("/login/")["Cache-Control"]
    sign_in(client, "alice", PASSWORD)
    for path, kept in (("/p/ours/runs/", "private, no-store"), ("/verify/verify.pyz", "private, no-cache")):
        assert client.get(path)["Cache-Control"] == kept
    assert "public" in client.get("/static/cohort/app.css")["Cache-Control"]


def test_what_is_refused_takes_one_line_of_the_log(ours: Project, bob: User) -> None:
    """Django logs a 403 with its exception; a fault of our own keeps its traceback."""
    (handler,) = [handler for handler in logging.getLogger().handlers if handler.filters]
    lines = {}
    for status in (403, 404, 500):
        record = logging.LogRecord("django.request", logging.WARNING, "", 0, "refused", (), (OSError, OSError(), None))
        record.status_code = status
        assert handler.filter(record)
        lines[status] = len(handler.format(record).splitlines())
    assert (lines[403], lines[404], lines[500] > 1) == (1, 1, True)
