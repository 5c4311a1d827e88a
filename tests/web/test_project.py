"""Opening a project, and who belongs to it."""

from collections.abc import Callable

import pytest
from django.core.exceptions import ValidationError
from django.test import Client

from cohort.accounts.models import Membership, Project, Role, User
from cohort.accounts.services import membership_remove, membership_set, project_create

ClientFor = Callable[[User], Client]


def role_of(user: User, project: Project) -> str | None:
    return Membership.objects.filter(user=user, project=project).values_list("role", flat=True).first()


# ---------------------------------------------------------------- opening


def test_anyone_signed_in_opens_a_project_and_is_its_admin(client_for: ClientFor, charlie: User) -> None:
    response = client_for(charlie).post("/projects/new/", {"name": "Word problems"})
    assert response.url == "/p/word-problems/"
    assert role_of(charlie, Project.objects.get(slug="word-problems")) == Role.ADMIN


@pytest.mark.parametrize(
    ("given", "field", "said"),
    [
        ({"name": ""}, "name", "required"),
        ({"name": "漢字"}, "slug", "No address can be made from this name"),
        ({"name": "x", "slug": "ours"}, "slug", "is taken"),
        ({"name": "x", "slug": "api"}, "slug", "used by Cohort itself"),
        ({"name": "x", "slug": "a/b"}, "slug", "valid"),
    ],
)
def test_faults_stand_beside_their_field(
    client_for: ClientFor, ours: Project, alice: User, given: dict[str, str], field: str, said: str
) -> None:
    response = client_for(alice).post("/projects/new/", given)
    assert response.status_code == 422
    assert said in str(response.context["form"].errors[field])
    assert f'id="id_{field}_error"' in response.content.decode()
    assert Project.objects.count() == 1


def test_service_refuses_a_taken_address(ours: Project, alice: User) -> None:
    with pytest.raises(ValidationError, match="already exists"):
        project_create(slug="ours", name="again", owner=alice)


def test_list_shows_own_projects_with_roles(client_for: ClientFor, ours: Project, bob: User, charlie: User) -> None:
    assert b"Our project" in client_for(bob).get("/projects/").content
    assert b"Our project" not in client_for(charlie).get("/projects/").content


# ---------------------------------------------------------------- members


def test_admin_adds_changes_and_removes(client_for: ClientFor, ours: Project, alice: User, charlie: User) -> None:
    client = client_for(alice)
    client.post("/p/ours/members/", {"username": "charlie", "role": "reviewer"})
    assert role_of(charlie, ours) == Role.REVIEWER
    membership = Membership.objects.get(user=charlie, project=ours)
    client.post(f"/p/ours/members/{membership.pk}/role/", {"role": "operator"})
    assert role_of(charlie, ours) == Role.OPERATOR
    client.post(f"/p/ours/members/{membership.pk}/remove/")
    assert role_of(charlie, ours) is None


def test_removing_asks_first_and_says_what_is_lost(
    client_for: ClientFor, ours: Project, alice: User, bob: User
) -> None:
    client = client_for(alice)
    membership = Membership.objects.get(user=bob, project=ours)
    members = client.get("/p/ours/members/").content.decode()
    assert f'href="/p/ours/members/{membership.pk}/remove/"' in members
    asked = client.get(f"/p/ours/members/{membership.pk}/remove/").content.decode()
    assert "Remove bob from Our project?" in asked
    assert "They lose the role viewer" in asked
    assert role_of(bob, ours) == Role.VIEWER
    own = client.get(f"/p/ours/members/{Membership.objects.get(user=alice, project=ours).pk}/remove/").content.decode()
    assert "Remove alice (you) from Our project?" in own
    assert "You lose your role admin" in own


def test_adding_a_member_again_changes_nothing_and_says_where_the_role_is(
    client_for: ClientFor, ours: Project, alice: User, rita: User
) -> None:
    for name, role in (("rita", Role.REVIEWER), ("alice", Role.ADMIN)):
        response = client_for(alice).post("/p/ours/members/", {"username": name, "role": "viewer"})
        assert response.status_code == 422
        said = str(response.context["form"].errors["username"])
        assert f"{name} belongs to the project already, as {role}" in said
        assert "the list of members has a control for the role" in said
    assert role_of(rita, ours) == Role.REVIEWER
    assert role_of(alice, ours) == Role.ADMIN


def test_unknown_name_is_said_beside_the_field(client_for: ClientFor, ours: Project, alice: User) -> None:
    response = client_for(alice).post("/p/ours/members/", {"username": "nobody", "role": "viewer"})
    assert response.status_code == 422
    assert "Nobody signs in as nobody" in str(response.context["form"].errors["username"])


def test_unknown_role_changes_nothing(client_for: ClientFor, ours: Project, alice: User, bob: User) -> None:
    membership = Membership.objects.get(user=bob, project=ours)
    response = client_for(alice).post(f"/p/ours/members/{membership.pk}/role/", {"role": "owner"}, follow=True)
    assert b"Nothing was changed" in response.content
    assert role_of(bob, ours) == Role.VIEWER


def test_last_admin_stays(client_for: ClientFor, ours: Project, alice: User) -> None:
    membership = Membership.objects.get(user=alice, project=ours)
    for act, data in (("role", {"role": "viewer"}), ("remove", {})):
        response = client_for(alice).post(f"/p/ours/members/{membership.pk}/{act}/", data, follow=True)
        assert b"alice is the last admin of Our project" in response.content
        assert role_of(alice, ours) == Role.ADMIN


def test_an_admin_may_leave_when_there_is_another(ours: Project, alice: User, bob: User) -> None:
    membership_set(project=ours, actor=alice, user=bob, role=Role.ADMIN)
    membership_remove(project=ours, actor=alice, user=alice)
    assert role_of(alice, ours) is None
    with pytest.raises(ValidationError, match="last admin"):
        membership_remove(project=ours, actor=bob, user=bob)


@pytest.mark.parametrize("who", ["bob", "rita", "oscar"])
def test_members_see_members_and_change_nothing(
    client_for: ClientFor, ours: Project, alice: User, request: pytest.FixtureRequest, who: str
) -> None:
    client = client_for(request.getfixturevalue(who))
    membership = Membership.objects.get(user=alice, project=ours)
    page = client.get("/p/ours/members/")
    assert page.status_code == 200
    assert b"Add a member" not in page.content
    assert b"Remove" not in page.content
    assert client.post("/p/ours/members/", {"username": who, "role": "admin"}).status_code == 403
    assert client.get(f"/p/ours/members/{membership.pk}/remove/").status_code == 403
    assert client.post(f"/p/ours/members/{membership.pk}/role/", {"role": "viewer"}).status_code == 403
    assert client.post(f"/p/ours/members/{membership.pk}/remove/").status_code == 403
    assert role_of(alice, ours) == Role.ADMIN


def test_admin_of_another_project_reaches_no_membership_of_ours(
    client_for: ClientFor, ours: Project, bob: User, charlie: User
) -> None:
    membership = Membership.objects.get(user=bob, project=ours)
    for slug in ("ours", "theirs"):
        assert client_for(charlie).post(f"/p/{slug}/members/{membership.pk}/remove/").status_code == 404
    assert role_of(bob, ours) == Role.VIEWER


def test_changes_need_post(client_for: ClientFor, ours: Project, alice: User, bob: User) -> None:
    membership = Membership.objects.get(user=bob, project=ours)
    assert client_for(alice).get(f"/p/ours/members/{membership.pk}/role/").status_code == 405
    assert client_for(alice).put(f"/p/ours/members/{membership.pk}/remove/").status_code == 405
    assert client_for(alice).get(f"/p/ours/members/{membership.pk}/remove/").status_code == 200
    assert role_of(bob, ours) == Role.VIEWER
