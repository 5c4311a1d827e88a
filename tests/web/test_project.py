"""Opening a project, and who belongs to it."""

import pytest
from django.core.exceptions import ValidationError
from django.test import Client

from cohort.accounts.models import Membership, Project, Role, User
from cohort.accounts.services import membership_remove, membership_set, project_create
from tests.tables import cases


def role_of(user: User, project: Project) -> str | None:
    return Membership.objects.filter(user=user, project=project).values_list("role", flat=True).first()


# ---------------------------------------------------------------- opening


def test_anyone_signed_in_opens_a_project_and_is_its_admin(charlie: User, stranger: Client) -> None:
    response = stranger.post("/projects/new/", {"name": "Word problems"})
    assert response.url == "/p/word-problems/"
    assert role_of(charlie, Project.objects.get(slug="word-problems")) == Role.ADMIN


def test_a_name_taken_since_the_form_was_checked_is_a_fault_of_its_field(
    monkeypatch: pytest.MonkeyPatch, alice: User, charlie: User
) -> None:
    """As by a second press, or by another person at the same time."""
    check = Project.full_clean

    def checked(project: Project) -> None:
        check(project)
        Project.objects.create(slug=project.slug, name="of another", opened_by=charlie)

    monkeypatch.setattr(Project, "full_clean", checked)
    with pytest.raises(ValidationError) as caught:
        project_create(slug="sums", name="Sums", owner=alice)
    assert list(caught.value.message_dict) == ["slug"]


@pytest.mark.parametrize(("given", "field"), cases("accounts/project_faults", "given", "field"))
def test_faults_stand_beside_their_field(admin: Client, alice: User, given: dict[str, str], field: str) -> None:
    response = admin.post("/projects/new/", given)
    assert response.status_code == 422
    assert list(response.context["form"].errors) == [field]
    assert f'id="id_{field}_error"' in response.content.decode()
    assert Project.objects.count() == 2
    with pytest.raises(ValidationError):
        project_create(slug="ours", name="again", owner=alice)


# ---------------------------------------------------------------- members


def test_an_admin_changes_and_removes(ours: Project, admin: Client, charlie: User) -> None:
    membership_set(project=ours, actor=None, user=charlie, role=Role.REVIEWER)
    membership = Membership.objects.get(user=charlie, project=ours)
    admin.post(f"/p/ours/members/{membership.pk}/role/", {"role": "operator"})
    assert role_of(charlie, ours) == Role.OPERATOR
    admin.post(f"/p/ours/members/{membership.pk}/remove/")
    assert role_of(charlie, ours) is None


def test_removing_asks_first(ours: Project, admin: Client, bob: User) -> None:
    address = f"/p/ours/members/{Membership.objects.get(user=bob, project=ours).pk}/remove/"
    assert f'href="{address}"' in admin.get("/p/ours/members/").content.decode()
    page = admin.get(address).content.decode()
    assert "bob" in page
    assert "viewer" in page
    assert role_of(bob, ours) == Role.VIEWER


def test_inviting_a_member_changes_nothing(ours: Project, alice: User, rita: User, admin: Client) -> None:
    for name, role in (("rita", Role.REVIEWER), ("alice", Role.ADMIN)):
        response = admin.post("/p/ours/members/", {"username": name, "role": "viewer"})
        assert response.status_code == 422
        assert f"as {role}" in str(response.context["form"].errors["username"])
    assert role_of(rita, ours) == Role.REVIEWER
    assert role_of(alice, ours) == Role.ADMIN


def test_an_unknown_role_changes_nothing(ours: Project, admin: Client, bob: User) -> None:
    membership = Membership.objects.get(user=bob, project=ours)
    response = admin.post(f"/p/ours/members/{membership.pk}/role/", {"role": "owner"}, follow=True)
    assert b"Nothing was changed" in response.content
    assert role_of(bob, ours) == Role.VIEWER


def test_last_admin_stays(ours: Project, alice: User, admin: Client) -> None:
    membership = Membership.objects.get(user=alice, project=ours)
    for act, data in (("role", {"role": "viewer"}), ("remove", {})):
        response = admin.post(f"/p/ours/members/{membership.pk}/{act}/", data, follow=True)
        assert b"last admin" in response.content
        assert role_of(alice, ours) == Role.ADMIN


def test_an_admin_may_leave_when_there_is_another(ours: Project, alice: User, bob: User) -> None:
    membership_set(project=ours, actor=alice, user=bob, role=Role.ADMIN)
    membership_remove(project=ours, actor=alice, user=alice)
    assert role_of(alice, ours) is None
    with pytest.raises(ValidationError, match="last admin"):
        membership_remove(project=ours, actor=bob, user=bob)


def test_a_disabled_admin_is_no_admin_that_is_left(ours: Project, alice: User, bob: User) -> None:
    membership_set(project=ours, actor=alice, user=bob, role=Role.ADMIN)
    User.objects.filter(pk=bob.pk).update(is_active=False)
    with pytest.raises(ValidationError, match="last admin"):
        membership_remove(project=ours, actor=alice, user=alice)


def test_members_who_are_no_admins_see_no_controls(ours: Project, viewer: Client) -> None:
    page = viewer.get("/p/ours/members/").content
    assert b"Invite a person" not in page
    assert b"Remove" not in page
