"""Who calls, and what of a project they may do. A session's cookie is no way in: a call carries a token, which no
other site can have a browser send.
"""

from typing import cast

from django.http import HttpRequest
from ninja.security import HttpBearer

from cohort.accounts.api_tokens import api_token_use
from cohort.accounts.models import ApiScope, ApiToken, Membership, Project, Role, User, reaches
from cohort.api.problems import Problem


class PersonalToken(HttpBearer):
    """A personal token with at least this scope. Raises Problem: 403 for one that works and has a smaller one."""

    def __init__(self, scope: ApiScope) -> None:
        super().__init__()
        self._scope = scope

    def __call__(self, request: HttpRequest) -> ApiToken | None:
        """Not ninja's own, which logs what came with another scheme while debugging."""
        scheme, _, token = request.headers.get(self.header, "").partition(" ")
        return self.authenticate(request, token) if scheme.lower() == self.openapi_scheme else None

    def authenticate(self, request: HttpRequest, token: str) -> ApiToken | None:
        known = api_token_use(token)
        if known is not None and ApiScope.values.index(known.scope) < ApiScope.values.index(self._scope):
            detail = f"This needs a token with the scope {self._scope.value}; {known.name} has {known.scope}."
            raise Problem(403, "scope_too_small", detail)
        return known


def signed_in(request: HttpRequest) -> User | None:
    """The person of a session; only for what shows nothing of a project."""
    return request.user if request.user.is_authenticated else None


def token_of(request: HttpRequest) -> ApiToken:
    return cast("ApiToken", request.auth)  # type: ignore[attr-defined]


def project_for(request: HttpRequest, slug: str, *, at_least: Role = Role.VIEWER) -> Project:
    """The project, when the token's person belongs to it with at least this role. Raises Problem: 404 for anybody
    else's project as for none, 403 for a lower role."""
    membership = Membership.objects.select_related("project").filter(
        project__slug=slug.replace("\0", ""), user=token_of(request).user
    )
    if (member := membership.first()) is None:
        raise Problem(404, "not_found", f"No project of yours is called {slug[:60]!a}.")
    if not reaches(member.role, at_least):
        detail = f"This needs the role {at_least.value}; yours in {member.project.name} is {member.role}."
        raise Problem(403, "role_too_low", detail)
    return member.project
