"""People, projects and memberships: reads and writes. Each function checks and writes, or raises with the reason.

Who may call what is decided by the views through `cohort.web.access`; the rules that hold for everybody are here.
"""

import logging
import secrets

from django.core.exceptions import ValidationError
from django.db import IntegrityError, transaction
from django.db.models import Case, Count, QuerySet, Value, When
from django.db.models.functions import Now

from cohort.accounts.models import Membership, Project, Role, User
from cohort.accounts.quotas import lock_person, lock_project, over_person
from cohort.audit import services as audit


def projects_of(user: User) -> QuerySet[Membership]:
    """The person's memberships with their projects and how many runs each holds, by project name."""
    return (
        Membership.objects.filter(user=user)
        .select_related("project")
        .annotate(
            runs=Count("project__runs", distinct=True),
            people=Count("project__memberships", distinct=True),
        )
        .order_by("project__name")
    )


def members_of(project: Project) -> QuerySet[Membership]:
    """Admins first, then by name."""
    rank = Case(*(When(role=role, then=Value(rank)) for rank, role in enumerate(reversed(Role.values))))
    return Membership.objects.filter(project=project).select_related("user").order_by(rank, "user__username")


log = logging.getLogger(__name__)

# No letters that are easily confused (l, o, i): the password is copied from a terminal by hand.
_LETTERS = "abcdefghjkmnpqrstuvwxyz23456789"


def random_password() -> str:
    """Four groups of four of 31 characters: 79 bits, easy to read aloud."""
    return "-".join("".join(secrets.choice(_LETTERS) for _ in range(4)) for _ in range(4))


@transaction.atomic
def user_create(*, username: str, password: str | None = None, email: str = "") -> tuple[User, str]:
    """A new person and their password, which is generated when none is given.

    Raises ValidationError when the name is taken or not allowed.
    """
    given = password if password is not None else random_password()
    user = User(username=username, email=email, password_handed_out=password is None)
    user.set_password(given)
    user.full_clean()
    user.save()
    audit.log(actor="platform", kind="user_created", subject=f"user:{username}")
    log.info("user %r created", username)
    return user, given


@transaction.atomic
def password_hand_out(*, user: User) -> str:
    """Give the person a new password, which is returned here and never again; every page asks them to change it."""
    password = random_password()
    user.set_password(password)
    user.password_handed_out = True
    user.save(update_fields=["password", "password_handed_out"])
    audit.log(actor="platform", kind="password_handed_out", subject=f"user:{user.username}")
    log.info("user %r got a new password", user.username)
    return password


@transaction.atomic
def password_change(*, user: User, password: str) -> None:
    """Store the password that the person chose; it has been validated."""
    user.set_password(password)
    user.password_handed_out = False
    user.save(update_fields=["password", "password_handed_out"])
    audit.log(actor=audit.who(user), kind="password_changed", subject=f"user:{user.username}")
    log.info("user %r chose another password", user.username)


@transaction.atomic
def staff_make(*, user: User) -> None:
    """Let the person manage the server's nodes and read the server's own log, whatever their roles."""
    if user.is_staff:
        return
    user.is_staff = True
    user.save(update_fields=["is_staff"])
    audit.log(
        actor="platform",
        kind="staff_made",
        subject=f"user:{user.username}",
        before={"staff": False},
        after={"staff": True},
    )
    log.info("user %r is staff", user.username)


@transaction.atomic
def project_create(*, slug: str, name: str, owner: User) -> Project:
    """A new project with its first admin. Raises ValidationError on the field that is at fault, and when the owner has
    opened as many as a person may."""
    project = Project(slug=slug, name=name, opened_by=owner)
    project.full_clean()
    opened = Project.objects.filter(opened_by=lock_person(owner)).count()
    if words := over_person(owner, "max_projects", "projects that one person may open", used=opened):
        raise ValidationError(words)
    try:
        with transaction.atomic():
            project.save()
    except IntegrityError:  # between the check and now
        raise ValidationError({"slug": f"The URL name {slug} is taken. Choose another."}) from None
    Membership.objects.create(project=project, user=owner, role=Role.ADMIN)
    made = {"name": name, "admin": owner.username}
    audit.log(actor=audit.who(owner), kind="project_created", subject=f"project:{slug}", project=project, after=made)
    log.info("project %r created by %r", slug, owner.username)
    return project


@transaction.atomic
def membership_set(*, project: Project, actor: User | None, user: User, role: str) -> Membership:
    """Give `user` this role in the project, whether they belong to it already or not.

    Raises ValidationError when the role is unknown or the project would be left without an active admin. `actor` is
    None for commands run on the server.
    """
    role_checked(role)
    membership = _locked(project, user)
    before = None if membership is None else {"role": membership.role}
    if membership is None:
        membership = Membership(project=project, user=user)
    elif membership.role == role:
        return membership
    elif role != Role.ADMIN:
        _refuse_last_admin(membership)
    membership.role = role
    membership.save()
    audit.log(
        actor=audit.who(actor),
        kind="member_added" if before is None else "member_role_changed",
        subject=f"user:{user.username}",
        project=project,
        before=before,
        after={"role": role},
    )
    log.info("%r is %s in project %r, set by %r", user.username, role, project.slug, actor and actor.username)
    return membership


def role_checked(role: str) -> None:
    """Raises ValidationError for one that there is not."""
    if role not in Role.values:
        raise ValidationError({"role": f"{role!r} is not a role; there are {', '.join(Role.values)}."})


@transaction.atomic
def membership_remove(*, project: Project, actor: User | None, user: User) -> None:
    """End the membership. Raises ValidationError when `user` is the project's last admin or not a member."""
    membership = _locked(project, user)
    if membership is None:
        raise ValidationError(f"{user.username} does not belong to {project.name}.")
    _refuse_last_admin(membership)
    membership.delete()
    audit.log(
        actor=audit.who(actor),
        kind="member_removed",
        subject=f"user:{user.username}",
        project=project,
        before={"role": membership.role},
    )
    log.info("%r removed from project %r by %r", user.username, project.slug, actor and actor.username)


def _locked(project: Project, user: User) -> Membership | None:
    """One change of members at a time, so that two admins cannot remove each other at once."""
    lock_project(project)
    return Membership.objects.filter(project=project, user=user).first()


def _refuse_last_admin(membership: Membership) -> None:
    admins = Membership.objects.filter(project=membership.project, role=Role.ADMIN, user__is_active=True)
    others = admins.exclude(pk=membership.pk)
    if membership.role == Role.ADMIN and not others.exists():
        raise ValidationError(
            f"{membership.user.username} is the last admin of {membership.project.name}. "
            "Make another member admin first."
        )


def home_seen(*, membership: Membership) -> None:
    """The person has seen what the project's first page shows."""
    Membership.objects.filter(pk=membership.pk).update(seen_at=Now())
