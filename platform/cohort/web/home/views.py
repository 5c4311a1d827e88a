"""The first page of a project, and that a person has seen it."""

from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.views.decorators.http import require_POST, require_safe

from cohort.accounts.models import Membership
from cohort.accounts.services import home_seen
from cohort.web.access import project_for
from cohort.web.accounts.views import person
from cohort.web.context import render_polled
from cohort.web.home.selectors import Home


@require_safe
def project_home(request: HttpRequest, slug: str) -> HttpResponse:
    """With `v` the polled part alone."""
    return render_polled(request, "home/home.html", "home/_home.html", {"page": Home(_membership(request, slug))})


@require_POST
def project_seen(request: HttpRequest, slug: str) -> HttpResponse:
    """What has ended until now is no longer marked as new to this person."""
    home_seen(membership=_membership(request, slug))
    return redirect("project_home", slug)


def _membership(request: HttpRequest, slug: str) -> Membership:
    project = project_for(request, slug)
    return Membership.objects.select_related("project", "user").get(project=project, user=person(request))
