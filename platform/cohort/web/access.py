"""Who may see and do what: one helper per noun, so that no view can forget it.

A person who does not belong to a project gets 404 for everything in it, as if it did not exist. A member whose role
does not reach gets 403.
"""

from typing import Any, Final
from urllib.parse import urlencode

from django.contrib.auth.middleware import LoginRequiredMiddleware
from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, HttpResponseBase
from django.urls import reverse
from django_htmx.http import HttpResponseClientRedirect

from cohort.accounts.models import Membership, Project, Role, User, reaches
from cohort.runs.models import Run


class LoginRequired(LoginRequiredMiddleware):
    """Sends who is not signed in to the sign-in page; a page that polls as a whole, so that no part of it is replaced
    by that page."""

    def handle_no_permission(  # type: ignore[override]  # the base promises a redirect by the browser
        self, request: HttpRequest, view_func: Any
    ) -> HttpResponseBase:
        if not request.htmx:  # type: ignore[attr-defined]
            return super().handle_no_permission(request, view_func)
        here = request.htmx.current_url_abs_path  # type: ignore[attr-defined]  # None when it is another host's
        return HttpResponseClientRedirect(reverse("login") + (f"?{urlencode({'next': here})}" if here else ""))


OVERRIDES_FLAGS: Final = Role.OPERATOR
"""Least role that overrides a monitor's flag, or takes an override back, before the seal as after it: whoever does so
accepts a risk on behalf of the run, as its operator answers for it. Reviewers record their objections."""


def project_for(request: HttpRequest, slug: str, *, at_least: Role = Role.VIEWER) -> Project:
    """The project, when the person belongs to it with at least this role."""
    if not request.user.is_authenticated:
        raise Http404
    membership = Membership.objects.filter(project__slug=slug, user=request.user).select_related("project").first()
    if membership is None:
        raise Http404
    if not reaches(membership.role, at_least):
        raise PermissionDenied(
            f"This needs the role {at_least.value}; yours in {membership.project.name} is {membership.role}. "
            "An admin of the project can change it."
        )
    return membership.project


def may(request: HttpRequest, project: Project, at_least: Role) -> bool:
    """Whether the person has at least this role, for what a page shows or leaves out."""
    if not request.user.is_authenticated:
        return False
    membership = Membership.objects.filter(project=project, user=request.user).first()
    return membership is not None and reaches(membership.role, at_least)


def run_for(request: HttpRequest, slug: str, run_id: int, *, at_least: Role = Role.VIEWER) -> Run:
    project = project_for(request, slug, at_least=at_least)
    run = (
        Run.objects.filter(project=project, pk=run_id)
        .select_related(
            *("project", "base_model", "dataset", "eval_dataset", "verifier_version__verifier", "created_by"),
            *("cloned_from", "resume_from"),
        )
        .first()
    )
    if run is None:
        raise Http404
    return run


def keeps_nodes(user: User) -> bool:
    """Whether the person may make, drain and revoke nodes: staff, and the admins of the server's first project.

    Nodes serve every project, and whoever holds a node's token is given runs of all of them, so being admin somewhere
    is not enough: anyone signed in can open a project and is its admin. The first one was opened by whoever set the
    server up, so a small installation needs nothing more.
    """
    if user.is_staff or user.is_superuser:
        return True
    first = Project.objects.order_by("pk").values("pk")[:1]
    return Membership.objects.filter(user=user, role=Role.ADMIN, project__in=first).exists()
