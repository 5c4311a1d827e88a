"""Reads of people and projects."""

from django.db.models import Count, Q, QuerySet

from cohort.accounts.models import Membership, Project, Role, User

_RANK = {role: rank for rank, role in enumerate(reversed(Role.values))}


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


def members_of(project: Project) -> list[Membership]:
    """Admins first, then by name."""
    memberships = Membership.objects.filter(project=project).select_related("user")
    return sorted(memberships, key=lambda membership: (_RANK[membership.role], membership.user.username))


def person_named(username: str) -> User | None:
    """An active person by exact name; one match or none."""
    return User.objects.filter(Q(username=username), is_active=True).first()
