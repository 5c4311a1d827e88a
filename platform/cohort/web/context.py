"""What every page's frame needs: the current project, the person's role in it, and the sidebar with its counts.

Lazy: a partial that shows no frame costs no query. A person who is not a member gets no trace of the project here.
"""

import hashlib
from collections.abc import Sequence
from functools import cached_property
from typing import Any

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.urls import reverse

from cohort.accounts.models import Membership, Project, Role, reaches
from cohort.nodes.services import nodes_here
from cohort.runs.models import Run, RunState

LIVE = (RunState.QUEUED, RunState.STARTING, RunState.EVALUATING, RunState.TRAINING, RunState.SEALING)


_GROUPS = {
    "": {"Runs": "run_list"},
    "Catalog": {
        "Base models": "base_model_list",
        "Datasets": "dataset_list",
        "Rewards": "verifier_list",
        "Reward lab": "lab_home",
        "Suites": "suite_list",
    },
    "Evidence": {"Records": "record_list", "Audit log": "audit_list"},
    "Machines": {"Queue": "queue", "Nodes": "node_list"},
    "People": {"Members": "member_list"},
}
_COUNTED = {"run_list": "runs", "queue": "waiting", "node_list": "nodes"}
"""Links with a number beside them."""


class Frame:
    def __init__(self, request: HttpRequest) -> None:
        self._request = request

    @cached_property
    def memberships(self) -> list[Membership]:
        if not self._request.user.is_authenticated:
            return []
        rows = Membership.objects.filter(user=self._request.user).select_related("project")
        return list(rows.order_by("project__name"))

    @cached_property
    def _membership(self) -> Membership | None:
        match = self._request.resolver_match
        slug = match.kwargs.get("slug") if match else None
        return next((membership for membership in self.memberships if membership.project.slug == slug), None)

    @property
    def project(self) -> Project | None:
        return self._membership.project if self._membership else None

    @property
    def role(self) -> str:
        return self._membership.role if self._membership else ""

    @property
    def may(self) -> dict[str, bool]:
        """By role: whether the person may do what needs it."""
        return {role.value: bool(self.role) and reaches(self.role, role) for role in Role}

    @property
    def others(self) -> list[Project]:
        return [membership.project for membership in self.memberships if membership.project != self.project]

    @cached_property
    def groups(self) -> list[dict[str, Any]]:
        if self.project is None:
            return []
        slug = self.project.slug
        return [
            {"title": title, "links": [self._link(label, name, slug) for label, name in links.items()]}
            for title, links in _GROUPS.items()
        ]

    def _link(self, label: str, name: str, slug: str) -> dict[str, Any]:
        href, count_of = reverse(name, args=[slug]), _COUNTED.get(name, "")
        return {"label": label, "href": href, "current": self._request.path.startswith(href), "count_of": count_of}

    @cached_property
    def live_runs(self) -> int:
        return Run.objects.filter(project=self.project, state__in=LIVE).count() if self.project else 0

    @cached_property
    def waiting(self) -> int:
        """Runs of the project that wait for a worker."""
        return Run.objects.filter(project=self.project, state=RunState.QUEUED).count() if self.project else 0

    @cached_property
    def nodes(self) -> int:
        """Nodes with a recent heartbeat."""
        return nodes_here().count()


def query_without(request: HttpRequest, *names: str) -> str:
    """The query of the page's address, without these parameters."""
    query = request.GET.copy()
    for name in names:
        query.pop(name, None)
    return query.urlencode()


def version_of(parts: Any) -> str:
    """Changes when one of the parts has changed."""
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:16]


def render_polled(request: HttpRequest, whole: str, part: str, context: dict[str, Any]) -> HttpResponse:
    """The page by the template `whole`. With `v`, the version that the browser shows: 204 when `page` of the context
    still has that version, else the polled part, by the template `part`."""
    if "v" not in request.GET:
        return render(request, whole, context)
    if request.GET["v"] == context["page"].version:
        return HttpResponse(status=204)
    return render(request, part, context)


def position(pks: Sequence[int], pk: int) -> dict[str, int | None]:
    """Of one page among those that a person steps through: its number, how many there are, and its neighbours."""
    at = pks.index(pk)
    return {
        "number": at + 1,
        "of": len(pks),
        "earlier": pks[at - 1] if at else None,
        "later": pks[at + 1] if at + 1 < len(pks) else None,
    }


def frame(request: HttpRequest) -> dict[str, Any]:
    """`project`: the one that the view has checked the person's role in (access.project_for)."""
    return {"frame": Frame(request), "project": getattr(request, "project", None)}
