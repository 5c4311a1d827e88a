"""Adding a member: an admin invites a name, and whoever signs in with it accepts or declines.

Nothing here says whether somebody has the name. An invitation is open for 30 days, as long as the person who sent it is
an admin of the project. Changes of one project's invitations and members wait for each other.
"""

from datetime import timedelta
from typing import Any

from django.core.exceptions import ValidationError
from django.db import transaction
from django.db.models import Exists, OuterRef, QuerySet
from django.db.models.functions import Now

from cohort.accounts.models import Invitation, Membership, Project, Role, User
from cohort.accounts.quotas import lock_project, require_within
from cohort.accounts.services import membership_set, role_checked
from cohort.audit import services as audit

OPEN_FOR = timedelta(days=30)


def open_invitations() -> QuerySet[Invitation]:
    """Newest first, with project and sender."""
    still_admin = Membership.objects.filter(project=OuterRef("project"), user=OuterRef("invited_by"), role=Role.ADMIN)
    invitations = Invitation.objects.filter(Exists(still_admin), invited_by__is_active=True)
    return invitations.filter(created_at__gt=Now() - OPEN_FOR).select_related("project", "invited_by").order_by("-pk")


def invitations_for(user: User) -> QuerySet[Invitation]:
    return open_invitations().filter(username=user.username)


@transaction.atomic
def invitation_make(*, project: Project, actor: User, username: str, role: str) -> Invitation:
    """Invite whoever signs in with this name. Raises ValidationError by field: for a name that nobody can have, that is
    a member's or invited already, for an unknown role, and when the project may have no more members."""
    role_checked(role)
    username = User.normalize_username(username)
    try:
        User.username_validator(username)
    except ValidationError as error:
        raise ValidationError({"username": error.messages}) from None
    project = lock_project(project)
    member = Membership.objects.filter(project=project, user__username=username).first()
    if member is not None:
        raise ValidationError(
            {
                "username": f"{username} belongs to the project already, as {member.role}. Nothing was changed; the "
                "list of members has a control for the role."
            }
        )
    if (earlier := open_invitations().filter(project=project, username=username).first()) is not None:
        raise ValidationError(
            {"username": f"{username} is invited already, as {earlier.role}. Withdraw that invitation first."}
        )
    require_within(project, "max_members", used=people_in(project), field="username")
    Invitation.objects.filter(project=project, username=username).delete()  # one that is open no longer
    invitation = Invitation.objects.create(project=project, username=username, role=role, invited_by=actor)
    _logged(invitation, actor, "member_invited", after={"role": role})
    return invitation


@transaction.atomic
def invitation_accept(*, invitation: Invitation, actor: User) -> Membership:
    """The invited person joins the project. Raises ValidationError when the invitation is open no longer."""
    _lock_open(invitation)
    invitation.delete()
    _logged(invitation, actor, "invitation_accepted", data={"invited_by": invitation.invited_by.username})
    member = Membership.objects.filter(project=invitation.project, user=actor).first()
    if member is not None:  # added on the server meanwhile, with a role that stays
        return member
    return membership_set(project=invitation.project, actor=actor, user=actor, role=invitation.role)


@transaction.atomic
def invitation_decline(*, invitation: Invitation, actor: User) -> None:
    """Raises ValidationError when the invitation is open no longer."""
    _lock_open(invitation)
    invitation.delete()
    _logged(invitation, actor, "invitation_declined")


@transaction.atomic
def invitation_withdraw(*, invitation: Invitation, actor: User) -> None:
    """Raises ValidationError when the invitation is open no longer."""
    _lock_open(invitation)
    invitation.delete()
    _logged(invitation, actor, "invitation_withdrawn")


def people_in(project: Project) -> int:
    """Members and open invitations, which the quota of members counts."""
    return project.memberships.count() + open_invitations().filter(project=project).count()


def _lock_open(invitation: Invitation) -> None:
    lock_project(invitation.project)
    if not open_invitations().filter(pk=invitation.pk).exists():
        raise ValidationError(
            "This invitation is no longer open: it was answered or withdrawn, or it is older than 30 days."
        )


def _logged(invitation: Invitation, actor: User, kind: str, **more: Any) -> None:
    subject = f"user:{invitation.username}"
    audit.log(actor=audit.who(actor), kind=kind, subject=subject, project=invitation.project, **more)
