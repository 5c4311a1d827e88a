"""Who is invited to a project belongs to it once they accept, and an invitation says nothing of who exists."""

import re
from collections.abc import Callable
from datetime import timedelta

import pytest
from django.core.exceptions import ValidationError
from django.test import Client
from django.utils import timezone

from cohort.accounts import invitations
from cohort.accounts.models import Invitation, Membership, Project, Role, User
from cohort.accounts.people import user_disable
from cohort.accounts.services import membership_remove, membership_set, user_create
from cohort.audit.models import AuditEntry
from tests.web.conftest import PASSWORD, ClientFor
from tests.web.control import at_once
from tests.web.pages import html

pytestmark = pytest.mark.django_db
MEMBERS = "/p/ours/members/"
VARIES = re.compile(r'csrfmiddlewaretoken" value="[^"]+"|x-csrftoken": "[^"]+"|invitations/\d+')


def invite(client: Client, name: str, role: str = "reviewer") -> Invitation:
    assert client.post(MEMBERS, {"username": name, "role": role}).status_code == 302
    return Invitation.objects.get(username=name)


def answer(client: Client, invitation: Invitation, given: str) -> str:
    return html(client.post(f"/invitations/{invitation.pk}/", {"answer": given}, follow=True))


def role_of(user: User) -> str | None:
    return Membership.objects.filter(user=user, project__slug="ours").values_list("role", flat=True).first()


def test_invite_accept_change_remove(admin: Client, stranger: Client, charlie: User) -> None:
    invitation = invite(admin, "charlie")
    assert "charlie" in html(admin.get(MEMBERS))
    assert stranger.get(MEMBERS).status_code == 404, "until then there is no access"
    assert stranger.get("/").url == "/projects/", "with one project, whose page would not show it"
    page = html(stranger.get("/projects/"))
    assert "<b>alice</b> invites you to <b>Our project</b> as reviewer." in page
    answer(stranger, invitation, "accept")
    assert role_of(charlie) == Role.REVIEWER
    assert stranger.get(MEMBERS).status_code == 200
    assert "invites you" not in html(stranger.get("/projects/"))
    membership = Membership.objects.get(user=charlie, project__slug="ours")
    admin.post(f"{MEMBERS}{membership.pk}/role/", {"role": "operator"})
    assert role_of(charlie) == Role.OPERATOR
    admin.post(f"{MEMBERS}{membership.pk}/remove/")
    assert stranger.get(MEMBERS).status_code == 404
    entries = AuditEntry.objects.filter(subject="user:charlie", project="ours").order_by("pk")
    kinds = ["member_invited", "invitation_accepted", "member_added", "member_role_changed", "member_removed"]
    assert list(entries.values_list("kind", flat=True)) == kinds


def test_declined_or_withdrawn_it_is_gone(admin: Client, stranger: Client, charlie: User) -> None:
    declined = invite(admin, "charlie")
    assert "charlie" in html(admin.get(MEMBERS))
    answer(stranger, declined, "decline")
    assert "charlie" not in html(admin.get(MEMBERS))
    withdrawn = invite(admin, "charlie")
    admin.post(f"{MEMBERS}invitations/{withdrawn.pk}/withdraw/")
    assert "no longer open" in answer(stranger, withdrawn, "accept")
    assert role_of(charlie) is None
    assert not Invitation.objects.exists()


def test_the_answer_is_the_same_whether_or_not_somebody_has_the_name(admin: Client, charlie: User) -> None:
    pages = []
    for name in ("charlie", "nobody1"):
        sent = admin.post(MEMBERS, {"username": name, "role": "viewer"}, follow=True)
        assert sent.redirect_chain == [(MEMBERS, 302)]
        again = admin.post(MEMBERS, {"username": name, "role": "viewer"})
        assert again.status_code == 422
        pages.append([VARIES.sub("", html(page)).replace(name, "NAME") for page in (sent, again)])
        admin.post(f"{MEMBERS}invitations/{Invitation.objects.get().pk}/withdraw/", follow=True)
    assert pages[0] == pages[1]


def test_an_invitation_waits_for_who_gets_the_name_later(admin: Client, client_for: ClientFor) -> None:
    invitation = invite(admin, "dora", "viewer")
    dora, _ = user_create(username="dora", password=PASSWORD)
    client = client_for(dora)
    answer(client, invitation, "accept")
    assert role_of(dora) == Role.VIEWER


@pytest.mark.parametrize("name", ["", "with space", "line\nbreak", "x" * 151, "\u202e"])
def test_a_name_that_nobody_can_have_is_refused(admin: Client, name: str) -> None:
    response = admin.post(MEMBERS, {"username": name, "role": "viewer"})
    assert (response.status_code, list(response.context["form"].errors)) == (422, ["username"])
    assert not Invitation.objects.exists()


def test_what_is_for_another_person_cannot_be_answered(admin: Client, viewer: Client, charlie: User) -> None:
    invitation = invite(admin, "charlie", "admin")
    assert "no longer open" in answer(viewer, invitation, "accept")
    assert "no longer open" in answer(viewer, invitation, "decline")
    assert Invitation.objects.exists()
    assert role_of(charlie) is None


def expire(invitation: Invitation) -> None:
    Invitation.objects.update(created_at=timezone.now() - invitations.OPEN_FOR - timedelta(seconds=1))


def disable_sender(invitation: Invitation) -> None:
    User.objects.filter(pk=invitation.invited_by_id).update(is_active=False)


def demote_sender(invitation: Invitation) -> None:
    second = User.objects.get(username="bob")
    for user, role in ((second, Role.ADMIN), (invitation.invited_by, Role.VIEWER)):
        membership_set(project=invitation.project, actor=None, user=user, role=role)


@pytest.mark.parametrize("end", [expire, disable_sender, demote_sender])
def test_it_ends_with_time_and_with_its_senders_role(
    admin: Client, stranger: Client, charlie: User, end: Callable[[Invitation], None]
) -> None:
    invitation = invite(admin, "charlie", "admin")
    end(invitation)
    assert "invites you" not in html(stranger.get("/projects/"))
    assert "no longer open" in answer(stranger, invitation, "accept")
    with pytest.raises(ValidationError, match="no longer open"):
        invitations.invitation_accept(invitation=invitation, actor=charlie)
    assert role_of(charlie) is None
    bob = User.objects.get(username="bob")
    membership_set(project=invitation.project, actor=None, user=bob, role=Role.ADMIN)
    given = {"project": invitation.project, "actor": bob, "username": "charlie"}
    assert invitations.invitation_make(**given, role="viewer").role == "viewer", "another takes its place"


def test_who_was_added_on_the_server_meanwhile_keeps_that_role(
    admin: Client, stranger: Client, ours: Project, charlie: User
) -> None:
    invitation = invite(admin, "charlie", "admin")
    membership_set(project=ours, actor=None, user=charlie, role=Role.VIEWER)
    answer(stranger, invitation, "accept")
    assert role_of(charlie) == Role.VIEWER


def test_only_admins_see_who_is_invited(admin: Client, viewer: Client) -> None:
    invite(admin, "charlie")
    assert "charlie" not in html(viewer.get(MEMBERS))


@pytest.mark.django_db(transaction=True)
def test_accepted_and_withdrawn_at_once_one_of_them_holds(ours: Project, alice: User, charlie: User) -> None:
    for _ in range(5):
        given = {"project": ours, "actor": alice, "username": "charlie"}
        for_charlie = invitations.invitation_make(**given, role="viewer")
        first, second = (Invitation.objects.select_related("project", "invited_by").get() for _ in range(2))
        accepted, withdrawn = at_once(
            lambda row=first: invitations.invitation_accept(invitation=row, actor=charlie),
            lambda row=second: invitations.invitation_withdraw(invitation=row, actor=alice),
        )
        assert accepted is not withdrawn
        assert (role_of(charlie) == for_charlie.role) is accepted
        if accepted:
            membership_remove(project=ours, actor=alice, user=charlie)


@pytest.mark.django_db(transaction=True)
def test_of_many_invited_at_once_no_more_than_the_quota_are(ours: Project, alice: User) -> None:
    Project.objects.update(max_members=invitations.people_in(ours) + 2)
    made = at_once(
        *(
            lambda n=number: invitations.invitation_make(project=ours, actor=alice, username=f"p{n}", role="viewer")
            for number in range(8)
        )
    )
    assert sum(made) == 2


def test_disabling_the_sender_is_seen_by_who_accepts(ours: Project, alice: User, bob: User, charlie: User) -> None:
    User.objects.filter(pk=bob.pk).update(is_staff=True)
    bob.refresh_from_db()
    invitation = invitations.invitation_make(project=ours, actor=alice, username="charlie", role="viewer")
    user_disable(user=alice, actor=bob)
    with pytest.raises(ValidationError, match="no longer open"):
        invitations.invitation_accept(invitation=invitation, actor=charlie)
