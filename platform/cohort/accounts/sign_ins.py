"""Who signed in and out, who failed, who was locked out, from Django's and axes' signals.

Neither the browser's address nor a name that nobody has is written down: the log keeps everything for ever, and people
type passwords where names belong. What floods the sign-in page does not flood the log, and the log says so.
"""

import logging
from typing import Any

from axes.signals import user_locked_out
from django.conf import settings
from django.contrib.auth.signals import user_logged_in, user_logged_out, user_login_failed
from django.db import transaction
from django.dispatch import receiver
from django.http import HttpRequest

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
    subject = _subject(str(credentials.get("username", "")))
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
                "others of this time stand in the web server's own log alone.",
            )


@receiver(user_locked_out)
def _locked(request: HttpRequest, username: str, **_: Any) -> None:
    """Axes says so at the failure that locks, and again at every attempt after it, which counts no failures."""
    if getattr(request, "axes_failures_since_start", 0) == settings.AXES_FAILURE_LIMIT:
        log(actor="platform", kind="sign_in_locked", subject=_subject(username))


def _subject(username: str) -> str:
    known = User.objects.filter(username=username.replace("\0", "")).values_list("username", flat=True).first()
    return "server:sign-in" if known is None else f"user:{known}"
