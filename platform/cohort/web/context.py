"""What every page's frame needs: the current project, the person's role in it, and the sidebar with its counts.

Lazy: a partial that shows no frame costs no query. A person who is not a member gets no trace of the project here.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

from django.http import HttpRequest
from django.urls import reverse

from cohort.accounts.models import Membership, Project, Role, reaches
from cohort.nodes.services import nodes_here
from cohort.runs.models import Run, RunState

LIVE = (RunState.QUEUED, RunState.STARTING, RunState.EVALUATING, RunState.TRAINING, RunState.SEALING)


@dataclass(frozen=True)
class Link:
    label: str
    href: str
    current: bool
    count_of: str = ""


@dataclass(frozen=True)
class LinkGroup:
    title: str
    links: list[Link]


_GROUPS: tuple[tuple[str, tuple[tuple[str, str, str], ...]], ...] = (
    ("", (("Runs", "run_list", "runs"),)),
    (
        "Catalog",
        (
            ("Base models", "base_model_list", ""),
            ("Datasets", "dataset_list", ""),
            ("Rewards", "verifier_list", ""),
            ("Reward lab", "lab_home", ""),
            ("Suites", "suite_list", ""),
        ),
    ),
    ("Evidence", (("Records", "record_list", ""), ("Audit log", "audit_list", ""))),
    ("Machines", (("Queue", "queue", "waiting"), ("Nodes", "node_list", "nodes"))),
    ("People", (("Members", "member_list", ""),)),
)


class Frame:
    def __init__(self, request: HttpRequest) -> None:
        self._request = request

    @cached_property
    def memberships(self) -> list[Membership]:
        if not self._request.user.is_authenticated:
            return []
        return list(
            Membership.objects.filter(user=self._request.user).select_related("project").order_by("project__name")
        )

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
    def may_review(self) -> bool:
        return bool(self.role) and reaches(self.role, Role.REVIEWER)

    @property
    def may_operate(self) -> bool:
        return bool(self.role) and reaches(self.role, Role.OPERATOR)

    @property
    def may_admin(self) -> bool:
        return bool(self.role) and reaches(self.role, Role.ADMIN)

    @property
    def others(self) -> list[Project]:
        return [membership.project for membership in self.memberships if membership.project != self.project]

    @cached_property
    def groups(self) -> list[LinkGroup]:
        if self.project is None:
            return []
        slug, path = self.project.slug, self._request.path
        groups = []
        for title, entries in _GROUPS:
            links = []
            for label, name, count_of in entries:
                href = reverse(name, args=[slug])
                links.append(Link(label, href, path.startswith(href), count_of))
            groups.append(LinkGroup(title, links))
        return groups

    @cached_property
    def live_runs(self) -> int:
        return Run.objects.filter(project=self.project, state__in=LIVE).count() if self.project else 0

    @cached_property
    def waiting(self) -> int:
        """Runs of the project that wait for a worker."""
        return Run.objects.filter(project=self.project, state=RunState.QUEUED).count() if self.project else 0

    @cached_property
    def nodes(self) -> int:
        """Machines that are here."""
        return nodes_here().count()


def frame(request: HttpRequest) -> dict[str, Any]:
    return {"frame": Frame(request)}
