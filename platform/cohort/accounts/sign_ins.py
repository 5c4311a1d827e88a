"""Who signed in and out, and who failed, from Django's signals.

Neither the browser's address nor an unknown user name is logged: the log keeps everything for ever, and people
type passwords where names belong. Beyond a limit further sign-ins are left out, with one entry that notes it.
"""

import logging
from typing import Any

from django.contrib.auth.signals import user_logged_in, user_logged_out, user_login_failed
from django.db import transaction
from django.dispatch import receiver

from cohort.accounts.models import User
from cohort.audit.entries import MOST, WITHIN, log, many, who

_log = logging.getLogger(__name__)


@receiver(user_logged_in)
def _signed_in(user: User, **_: Any) -> None:
    log(actor=who(user), kind="signed_in", subject=f"user:{user.username}")


@receiver(user_logged_out)
def _signed_out(user: User | None, **_: Any) -> None:
    if user is not None:  # a session that had ended already
        log(actor=who(user), kind="signed_out", subject=f"user:{user.username}")


@receiver(user_login_failed)
def _failed(credentials: dict[str, Any], **_: Any) -> None:
    subject = sign_in_subject(str(credentials.get("username", "")))
    with transaction.atomic():
        if not many(MOST, kind="sign_in_failed"):
            log(actor="anonymous", kind="sign_in_failed", subject=subject)
            return
        _log.warning("a sign-in failed (%s); there are too many to enter each into the audit log", subject)
        if not many(1, kind="sign_ins_flooded"):
            log(
                actor="platform",
                kind="sign_ins_flooded",
                subject="server:sign-in",
                reason=f"More than {MOST} sign-ins failed within {WITHIN.total_seconds() / 60:.0f} minutes; the "
                "others of this time are in the web server's own log alone.",
            )


def sign_in_subject(username: str) -> str:
    """What an entry about a sign-in under this name is about; a name that nobody has is in no entry."""
    known = User.objects.filter(username=username.replace("\0", "")).values_list("username", flat=True).first()
    return "server:sign-in" if known is None else f"user:{known}"
