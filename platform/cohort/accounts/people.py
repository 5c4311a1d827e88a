"""People of the server: who manages it, who is disabled, whose sessions are ended.

A disabled person is refused at sign-in and signed out at once; what they made stays, with their name. Who may call what
is decided here, as these rules hold for pages and commands alike; `actor` is None for commands run on the server.
"""

import logging
from typing import Any

from django.core.exceptions import ValidationError
from django.db import transaction
from django.db.models import F, Q, QuerySet
from django.db.models.functions import Now

from cohort.accounts.models import ApiToken, Membership, Project, Role, User
from cohort.audit import services as audit

log = logging.getLogger(__name__)


def managers() -> QuerySet[User]:
    """Active people who manage the server, its nodes and its people: staff, and the admins of its first project.

    Nodes serve every project, so being admin somewhere is not enough: anyone signed in can open a project and is its
    admin. The first one was opened by those who set the server up, so a small installation needs nothing more.
    """
    first = Project.objects.order_by("pk").values("pk")[:1]
    admins = Membership.objects.filter(role=Role.ADMIN, project__in=first).values("user")
    return User.objects.filter(Q(is_staff=True) | Q(is_superuser=True) | Q(pk__in=admins), is_active=True)


def manages_server(user: User) -> bool:
    return managers().filter(pk=user.pk).exists()


@transaction.atomic
def user_disable(*, user: User, actor: User | None) -> None:
    """Refuse the person's sign-ins from now on, end their sessions and revoke their API tokens.

    Raises ValidationError for the last person who manages the server, for oneself, and without the right to.
    """
    others = _lock_managers(user, actor) - {user.pk}
    user.refresh_from_db()
    if user == actor:
        raise ValidationError("You cannot disable your own account. Another person who manages the server can.")
    if not others:
        raise ValidationError(
            f"{user.username} is the last person who manages this server. Make another one staff first, on the "
            "server: `cohort user NAME --staff`."
        )
    if user.is_active:
        user.is_active = False
        user.session_generation += 1  # sessions of before do not come back with the account
        user.save(update_fields=["is_active", "session_generation"])
        ApiToken.objects.filter(user=user, revoked_at=None).update(revoked_at=Now())  # nor do tokens
        _logged(user, actor, "user_disabled", before={"active": True}, after={"active": False})


@transaction.atomic
def user_enable(*, user: User, actor: User | None) -> None:
    """Let a disabled person sign in again. Raises ValidationError without the right to."""
    _lock_managers(user, actor)
    user.refresh_from_db()
    if not user.is_active:
        user.is_active = True
        user.save(update_fields=["is_active"])
        _logged(user, actor, "user_enabled", before={"active": False}, after={"active": True})


@transaction.atomic
def sessions_end(*, user: User, actor: User | None) -> None:
    """Sign the person out in every browser. Raises ValidationError for another person without the right to."""
    if user != actor:
        _lock_managers(user, actor)
    User.objects.filter(pk=user.pk).update(session_generation=F("session_generation") + 1)
    user.refresh_from_db(fields=["session_generation"])
    _logged(user, actor, "sessions_ended")


def _lock_managers(user: User, actor: User | None) -> set[int]:
    """The ids of those who manage the server, one change of them at a time. Raises ValidationError when `actor` is
    none of them any more, or is no staff and `user` is."""
    locked = {manager.pk for manager in managers().order_by("pk").select_for_update(of=["self"], no_key=True)}
    if actor is not None:
        actor.refresh_from_db(fields=["is_staff", "is_superuser", "is_active"])
        if actor.pk not in locked:
            raise ValidationError("You do not manage this server any more. Nothing was changed.")
        if (user.is_staff or user.is_superuser) and not (actor.is_staff or actor.is_superuser):
            raise ValidationError(
                f"{user.username} is staff, and only staff may change that account: `cohort user` on the server can."
            )
    return locked


def _logged(user: User, actor: User | None, kind: str, **change: Any) -> None:
    audit.log(actor=audit.who(actor), kind=kind, subject=f"user:{user.username}", **change)
    log.info("%s of %r by %r", kind, user.username, actor and actor.username)
