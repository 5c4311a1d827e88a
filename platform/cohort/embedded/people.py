"""People, their first project, and nodes, made from the command line of the machine that Cohort runs on."""

from django.core.exceptions import ValidationError
from django.db import transaction
from django.db.models.functions import Now

from cohort.accounts.models import Membership, Project, Role, User
from cohort.accounts.services import membership_set, password_hand_out, project_create, user_create
from cohort.embedded.home import HomeError
from cohort.runs.models import Node
from cohort.runs.nodes import node_create


def password_renew(username: str) -> tuple[User, str]:
    """The person of this name, made when missing, with a new password; it is returned here and never again."""
    user = User.objects.filter(username=username).first()
    if user is None:
        return user_create(username=username)
    return user, password_hand_out(user=user)


def user_add(*, name: str, project: str | None, role: str | None, new_password: bool) -> list[str]:
    """Make a person, or give one a new password, and put them in a project. Returns the lines to show.

    Without a role a member keeps the one they have, and anyone else becomes an operator.
    """
    if role is not None and project is None:
        raise HomeError("--role is of no use alone: say with --project where it is to hold.")
    known = User.objects.filter(username=name).exists()
    if known and not new_password and project is None:
        raise HomeError(f"{name} is here already. --new-password gives them another password.")
    lines = []
    try:
        with transaction.atomic():
            if known and not new_password:
                user = User.objects.get(username=name)
            else:
                user, password = password_renew(name)
                lines.append(f"{name} can log in with the password {password}")
            if project is not None:
                lines.append(_join(user, project, role))
    except ValidationError as fault:
        raise HomeError(" ".join(fault.messages)) from None
    return lines


def node_add(*, name: str) -> str:
    """Register a machine that may train; returns its token, which is not shown again."""
    if Node.objects.filter(name=name).exists():
        raise HomeError(f"there is a node {name} already. Give this one another name.")
    if not 1 <= len(name) <= 80:
        raise HomeError("a node's name has 1 to 80 characters.")
    _, token = node_create(name=name)
    return token


def node_revoke(*, name: str) -> None:
    """Refuse the node's token, and those of its attempts, from now on. Its name stays taken, for the record."""
    if not Node.objects.filter(name=name, revoked_at=None).update(revoked_at=Now()):
        raise HomeError(f"there is no node {name} with a token that is accepted.")


def _join(user: User, slug: str, role: str | None) -> str:
    project = Project.objects.filter(slug=slug).first()
    if project is None:
        if role not in (None, "admin"):
            raise HomeError(
                f"there is no project {slug!r}, and a new one's first member is its admin. Leave out --role."
            )
        project_create(slug=slug, name=slug, owner=user)
        return f"made the project {slug}; {user.username} is its admin"
    has = Membership.objects.filter(project=project, user=user).values_list("role", flat=True).first()
    chosen = role or has or Role.OPERATOR.value
    membership_set(project=project, actor=None, user=user, role=chosen)
    return f"{user.username} is {chosen} in {slug}"
