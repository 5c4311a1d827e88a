"""Who took what away."""

from typing import Any

from django.http import HttpRequest

from cohort.accounts.models import Project, User
from cohort.audit.entries import log, who


def downloaded(
    request: HttpRequest, *, kind: str, subject: str, project: Project | None, data: dict[str, Any] | None = None
) -> None:
    """Log that this user downloads this. A HEAD request, which sends no content, leaves no entry.

    Raises NotLoggable as `entries.log`.
    """
    if request.method == "HEAD":
        return
    actor = who(request.user) if isinstance(request.user, User) else "anonymous"
    log(actor=actor, kind=kind, subject=subject, project=project, data=data)
