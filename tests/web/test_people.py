"""People of the server: disabled and enabled, sessions ended, by whom and with what left."""

from contextlib import nullcontext
from functools import partial

import pytest
from django.contrib.sessions.models import Session
from django.core.exceptions import ValidationError
from django.test import Client
from django.utils import timezone

from cohort.accounts.models import Project, Role, User
from cohort.accounts.people import managers, sessions_end, user_disable, user_enable
from cohort.accounts.services import membership_set, password_hand_out
from cohort.audit.models import AuditEntry
from cohort.background.tasks import clear_sessions
from cohort.cli import main as cli
from cohort.cli.embedded.home import HomeError
from cohort.cli.embedded.people import user_switch
from tests.web.conftest import PASSWORD, ClientFor
from tests.web.control import at_once, fresh
from tests.web.pages import html

pytestmark = pytest.mark.django_db


def signed_in(client: Client) -> bool:
    return client.get("/projects/").status_code == 200


def kinds_of(name: str) -> list[str]:
    """Of the entries about this person, oldest first."""
    return list(AuditEntry.objects.filter(subject=f"user:{name}").order_by("pk").values_list("kind", flat=True))


def sign_in(name: str, password: str = PASSWORD) -> Client | None:
    client = Client()
    return client if client.post("/login/", {"username": name, "password": password}).status_code == 302 else None


def test_disabled_while_signed_in(admin: Client, viewer: Client, bob: User) -> None:
    assert signed_in(viewer)
    admin.post(f"/people/{bob.pk}/disable/")
    assert viewer.get("/p/ours/runs/").url.startswith("/login/")
    refused = Client().post("/login/", {"username": "bob", "password": PASSWORD})
    assert "Name or password is wrong" in html(refused), "as for any other"
    assert bob.memberships.exists(), "what they are and made stays"
    assert "disabled" in html(admin.get(f"/people/{bob.pk}/"))
    assert "disabled" in html(admin.get("/p/ours/members/"))
    admin.post(f"/people/{bob.pk}/enable/")
    assert not signed_in(viewer), "a session of before does not come back"
    assert sign_in("bob")
    assert kinds_of("bob")[-4:] == ["user_disabled", "sign_in_failed", "user_enabled", "signed_in"]


def test_nobody_disables_the_last_who_manages_the_server_or_oneself(ours: Project, alice: User, bob: User) -> None:
    assert list(managers()) == [alice]
    with pytest.raises(ValidationError, match="last person who manages"):
        user_disable(user=alice, actor=None)
    User.objects.filter(pk=bob.pk).update(is_staff=True)
    with pytest.raises(ValidationError, match="your own account"):
        user_disable(user=fresh(bob), actor=fresh(bob))
    user_disable(user=alice, actor=fresh(bob))
    assert not fresh(alice).is_active
    assert list(managers()) == [bob]


def test_only_staff_change_staff(admin: Client, alice: User, bob: User) -> None:
    User.objects.filter(pk=bob.pk).update(is_staff=True)
    page = html(admin.post(f"/people/{bob.pk}/disable/", follow=True))
    assert "only staff may change that account" in page
    admin.post(f"/people/{bob.pk}/end-sessions/")
    assert (fresh(bob).is_active, fresh(bob).session_generation) == (True, 0)


def test_who_no_longer_manages_the_server_changes_nobody(alice: User, bob: User, charlie: User) -> None:
    for change in (user_disable, user_enable, sessions_end):
        with pytest.raises(ValidationError, match="do not manage this server"):
            change(user=bob, actor=charlie)


@pytest.mark.django_db(transaction=True)
def test_two_who_disable_each_other_at_once_leave_one(ours: Project, alice: User, bob: User) -> None:
    membership_set(project=ours, actor=None, user=bob, role=Role.ADMIN)
    pairs = ((fresh(alice), fresh(bob)), (fresh(bob), fresh(alice)))
    done = at_once(*(partial(user_disable, user=user, actor=actor) for user, actor in pairs))
    assert sorted(done) == [False, True]
    assert managers().count() == 1


def test_a_person_ends_their_other_sessions(client_for: ClientFor, alice: User) -> None:
    here, there = sign_in("alice"), sign_in("alice")
    assert here
    assert there
    here.post("/password/end-other-sessions/")
    assert (signed_in(here), signed_in(there)) == (True, False)


def test_another_password_ends_all_other_sessions(alice: User) -> None:
    here, there = sign_in("alice"), sign_in("alice")
    assert here
    assert there
    new = "another good sentence"
    here.post("/password/", {"old_password": PASSWORD, "new_password1": new, "new_password2": new})
    assert (signed_in(here), signed_in(there)) == (True, False)
    password_hand_out(user=fresh(alice))
    assert not signed_in(here), "one that was handed out ends this too"


def test_a_manager_ends_the_sessions_of_a_person(admin: Client, viewer: Client, bob: User) -> None:
    admin.post(f"/people/{bob.pk}/end-sessions/")
    assert not signed_in(viewer)
    assert sign_in("bob")
    assert kinds_of("bob")[-2:] == ["sessions_ended", "signed_in"]


def test_a_session_lasts_a_week_however_it_is_used(alice: User) -> None:
    client = sign_in("alice")
    assert client
    assert client.cookies["sessionid"]["max-age"] == 7 * 24 * 3600
    stored = Session.objects.get()
    assert signed_in(client)
    assert Session.objects.get().expire_date == stored.expire_date, "no request writes it"
    Session.objects.update(expire_date=timezone.now())
    assert not signed_in(client)


def test_people_are_listed_in_pages_and_searched(admin: Client) -> None:
    User.objects.bulk_create(User(username=f"person-{number:03}") for number in range(110))
    first, second = html(admin.get("/people/")), html(admin.get("/people/?page=2"))
    assert ("person-000" in first, "person-109" in first) == (True, False)
    assert ("person-000" in second, "person-109" in second) == (False, True)
    page = html(admin.get("/people/?q=person-10"))
    assert ("person-109" in page, "person-000" in page) == (True, False)
    for odd in ("page=x", "page=0", f"page={10**30}", "q=%00", "q=" + "x" * 300):
        assert admin.get(f"/people/?{odd}").status_code == 200


def test_only_who_manages_the_server_is_led_to_its_people(admin: Client, viewer: Client, stranger: Client) -> None:
    for page in ("/p/ours/members/", "/projects/"):
        assert ('href="/people/"' in html(admin.get(page)), 'href="/people/"' in html(viewer.get(page))) == (
            True,
            False,
        )
    assert 'href="/people/"' not in html(stranger.get("/p/theirs/members/"))


def test_cohort_user_disables_and_enables(alice: User, bob: User) -> None:
    assert "no longer sign in" in user_switch(name="bob", enable=False)
    assert sign_in("bob") is None
    assert "again" in user_switch(name="bob", enable=True)
    assert sign_in("bob")
    with pytest.raises(HomeError, match="no person Bob"):
        user_switch(name="Bob", enable=False)
    with pytest.raises(HomeError, match="last person"):
        user_switch(name="alice", enable=False)


def test_the_command_takes_no_other_change_with_it(
    bob: User, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("cohort.cli.embedded.visit.database", lambda home, purpose: nullcontext())
    assert cli.main(["user", "bob", "--disable", "--staff"]) != 0
    assert "--disable and --enable are given alone" in capsys.readouterr().err
    assert (fresh(bob).is_active, fresh(bob).is_staff) == (True, False)
    assert cli.main(["user", "bob", "--disable"]) == 0
    assert not fresh(bob).is_active


def test_sessions_that_are_over_are_deleted(alice: User) -> None:
    ended, live = sign_in("alice"), sign_in("alice")
    assert ended
    assert live
    Session.objects.filter(pk=ended.session.session_key).update(expire_date=timezone.now())
    clear_sessions()
    assert list(Session.objects.values_list("pk", flat=True)) == [live.session.session_key]
