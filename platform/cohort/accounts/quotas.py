"""How much a person or a project may have, so that nobody can fill the server: checked where something is made, under
a lock, so that of two requests at once one is refused.

The server's settings (COHORT_MAX_…) hold for every project; whoever manages the server may set another number for a
project, on its page Limits.
"""

from typing import Final

from django.conf import settings
from django.core.exceptions import ValidationError

from cohort.accounts.models import Project, User

PROJECT_QUOTAS: Final = {
    "max_members": "members and open invitations",
    "max_upload_bytes": "bytes of datasets and suites",
    "max_waiting_runs": "runs that wait in the queue",
    "max_open_jobs": "jobs of the reward lab that wait or run",
}
"""What each field of a project, and the setting of the same name, counts."""
_FREE_BY: Final = {
    "max_members": "Remove a member or withdraw an invitation",
    "max_upload_bytes": "Upload less, such as a sample of it",
    "max_waiting_runs": "Wait until one of them runs, or cancel one",
    "max_open_jobs": "Wait until one of them ends, or cancel one",
}


def lock_project(project: Project) -> Project:
    """The project as it is now, locked until the end of the transaction; rows that refer to it can still be added."""
    return Project.objects.select_for_update(no_key=True).get(pk=project.pk)


def lock_person(user: User) -> User:
    return User.objects.select_for_update(no_key=True).get(pk=user.pk)


def quota(project: Project, name: str) -> int:
    own: int | None = getattr(project, name)
    return server_quota(name) if own is None else own


def server_quota(name: str) -> int:
    most: int = getattr(settings, f"COHORT_{name.upper()}")
    return most


def over_project(project: Project, name: str, *, used: int, more: int = 1) -> str:
    """Why `more` than the `used` are too many, and what can be done; empty when they are not."""
    most = quota(project, name)
    if used + more <= most:
        return ""
    adds = f", and this has {more:,}" if more > 1 else ""
    return (
        f"{project.name} has {used:,} of at most {most:,} {PROJECT_QUOTAS[name]}{adds}. {_FREE_BY[name]}. A person who "
        "manages the server can raise the limit of this project."
    )


def over_person(user: User, name: str, what: str, *, used: int) -> str:
    """Why one more is too many for the person; empty when it is not."""
    most = server_quota(name)
    if used < most:
        return ""
    return (
        f"{user.username} has {used:,} of at most {most:,} {what}. The person who runs the server can raise the limit "
        f"(COHORT_{name.upper()})."
    )


def require_within(project: Project, name: str, *, used: int, more: int = 1, field: str) -> None:
    """Raises ValidationError of `field`. The caller has locked the project."""
    if words := over_project(project, name, used=used, more=more):
        raise ValidationError({field: words})
