"""What every page's frame needs: the current project, the person's role in it, and the sidebar with its counts.

Lazy: a partial that shows no frame costs no query. A person who is not a member gets no trace of the project here.
"""

import hashlib
import secrets
import threading
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any, cast

from django.core.cache import cache
from django.core.paginator import Page, Paginator
from django.db import connection
from django.http import HttpRequest, HttpResponse
from django.middleware.csrf import get_token
from django.shortcuts import render
from django.template.loader import render_to_string
from django.urls import reverse

from cohort.accounts.invitations import invitations_for
from cohort.accounts.models import Membership, Project, Role, User, reaches
from cohort.accounts.people import manages_server
from cohort.nodes.services import SILENT_AFTER
from cohort.runs.models import RunState
from cohort.web.readiness import disk_short

LIVE = (RunState.QUEUED, RunState.STARTING, RunState.EVALUATING, RunState.TRAINING, RunState.SEALING)


_GROUPS = {
    "": {
        "Home": "project_home",
        "Runs": "run_list",
        "Pipelines": "pipeline_list",
        "Review": "review_queue_list",
        "Alerts": "alert_list",
    },
    "Catalog": {
        "Base models": "base_model_list",
        "Datasets": "dataset_list",
        "Rewards": "verifier_list",
        "Reward lab": "lab_home",
        "Suites": "suite_list",
    },
    "Evidence": {"Records": "record_list", "Policy": "policy_page", "Audit log": "audit_list"},
    "Machines": {"Queue": "queue", "Nodes": "node_list"},
    "People": {"Members": "member_list"},
}
_COUNTED = {
    "run_list": "runs",
    "review_queue_list": "queues",
    "alert_list": "alerts",
    "queue": "waiting",
    "node_list": "nodes",
}
"""Links with a number beside them."""


_COUNTS = """
    SELECT state, count(*) FROM runs_run WHERE project_id = %(project)s AND state = ANY(%(live)s) GROUP BY state
    UNION ALL
    SELECT 'alerts', count(*) FROM alerts_alert
    WHERE project_id = %(project)s AND closed_at IS NULL AND acknowledged_at IS NULL
    UNION ALL
    SELECT 'queues', count(*) FROM review_reviewqueue WHERE project_id = %(project)s AND done_at IS NULL
    UNION ALL
    SELECT 'nodes', count(*) FROM nodes_node
    WHERE revoked_at IS NULL AND last_seen_at > statement_timestamp() - %(silent)s
"""
# In SQL, because every page asks for it: to put these words together takes Django longer than the query. An alert is
# open as alerts.selectors has it, and a node is counted as in nodes.services.nodes_here.
MOST_OTHERS = 20
"""Projects that the sidebar offers."""


class ProjectFrame:
    """What the frame shows of a project to everybody who has one role in it."""

    def __init__(self, project: Project | None, role: str) -> None:
        self.project, self.role = project, role

    @property
    def may(self) -> dict[str, bool]:
        """By role: whether the person may do what needs it."""
        return {role.value: bool(self.role) and reaches(self.role, role) for role in Role}

    @cached_property
    def _counts(self) -> dict[str, int]:
        """Of live runs by state, of open alerts, of open review queues and of nodes, in one query."""
        assert self.project is not None, "only what is a project's is counted"
        named: dict[str, Any] = {"project": self.project.pk, "live": list(LIVE), "silent": SILENT_AFTER}
        with connection.cursor() as cursor:
            cursor.execute(_COUNTS, named)
            return dict(cursor.fetchall())

    @property
    def live_runs(self) -> int:
        return sum(self._counts.get(state, 0) for state in LIVE)

    @property
    def waiting(self) -> int:
        """Runs of the project that wait for a worker."""
        return self._counts.get(RunState.QUEUED, 0)

    @property
    def open_alerts(self) -> int:
        return self._counts["alerts"]

    @property
    def open_queues(self) -> int:
        """Review queues with samples that are not judged."""
        return self._counts["queues"]

    @property
    def nodes(self) -> int:
        """Nodes with a recent heartbeat."""
        return self._counts["nodes"]


class Frame(ProjectFrame):
    def __init__(self, request: HttpRequest) -> None:
        self._request = request

    @cached_property
    def memberships(self) -> list[Membership]:
        if not self._request.user.is_authenticated:
            return []
        rows = Membership.objects.filter(user=self._request.user).select_related("project")
        return list(rows.order_by("project__name")[:MOST_OTHERS])

    @cached_property
    def _membership(self) -> Membership | None:
        checked: Membership | None = getattr(self._request, "membership", None)
        if checked is not None:
            return checked
        match = self._request.resolver_match
        slug = match.kwargs.get("slug") if match else None
        if slug is None or not self._request.user.is_authenticated:
            return None
        rows = Membership.objects.filter(user=self._request.user, project__slug=slug)
        return rows.select_related("project").first()

    @property
    def project(self) -> Project | None:  # type: ignore[override]  # looked up when a page shows it
        return self._membership.project if self._membership else None

    @property
    def role(self) -> str:  # type: ignore[override]
        return self._membership.role if self._membership else ""

    @cached_property
    def invitations(self) -> int:
        """How many wait for the person's answer."""
        return invitations_for(self._user).count()

    @cached_property
    def manages_server(self) -> bool:
        return manages_server(self._user)

    @property
    def _user(self) -> User:
        return cast("User", self._request.user)  # the sidebar is shown to people who are signed in

    @property
    def others(self) -> list[Project]:
        """Some projects to change to; the list of projects has all."""
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
        path = self._request.path
        of_record = "/record/" in path.partition("/runs/")[2]  # pages of a run's record are among the records
        current = (
            name == "record_list" if of_record else path == href if name == "project_home" else path.startswith(href)
        )
        return {"label": label, "href": href, "current": current, "count_of": count_of}

    @property
    def disk_short(self) -> bool:
        return disk_short()


POLLED = ("v", "tab", "evals")
"""Parameters of a poll that its page does not have."""


def query_without(request: HttpRequest, *names: str) -> str:
    """The query of the page's address, without these parameters."""
    query = request.GET.copy()
    for name in names:
        query.pop(name, None)
    return query.urlencode()


ROWS = 100
"""Of one page of a list, where the list does not say otherwise."""


class ListPage(Page[Any]):
    """Some rows of a list, for the template partials/_pages.html."""

    link = ""
    """Address of another page, without its number."""

    @property
    def total(self) -> int:
        return self.paginator.count


def listed(
    request: HttpRequest,
    rows: Any,
    size: int = ROWS,
    *,
    name: str = "page",
    row: Callable[[list[Any]], Sequence[Any]] = list,
) -> ListPage:
    """The page of a list (a queryset or a sequence) that the address names by the parameter `name`: the first without
    one, the nearest where there is no such page. `row` makes rows of what was read."""
    read = Paginator(rows, size).get_page(request.GET.get(name))
    page = ListPage(row(list(read.object_list)), read.number, read.paginator)
    query = query_without(request, name, *POLLED)
    page.link = f"?{query}&{name}=" if query else f"?{name}="
    return page


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


SHARED_SECONDS = 5
"""For so long a web process gives what it prepared for one viewer to others of the same role."""
_PREPARING = tuple(threading.Lock() for _ in range(64))
"""By name: what many want at once, one prepares, and the others wait for it."""
_own = threading.local()
"""`preparing`: whether this thread holds one of them. It then waits for no other, so none waits for ever."""
_TOKEN = secrets.token_hex(16)
"""Marks where a prepared part needs the viewer's CSRF token. Random, so that no text of a run can contain it."""


def prepared(name: str, prepare: Callable[[], str]) -> str:
    """What is kept under the name, which holds all that the text depends on; else what `prepare` makes, kept for
    SHARED_SECONDS. `prepare` may use this function too."""
    text: str | None = cache.get(name)
    if text is not None:
        return text
    if getattr(_own, "preparing", False):
        return _prepare(name, prepare)
    with _PREPARING[hash(name) % len(_PREPARING)]:
        _own.preparing = True
        try:
            text = cache.get(name)
            return text if text is not None else _prepare(name, prepare)
        finally:
            _own.preparing = False


def _prepare(name: str, prepare: Callable[[], str]) -> str:
    text = prepare()
    cache.set(name, text, SHARED_SECONDS)
    return text


def shared_part(
    request: HttpRequest,
    role: str,
    template: str,
    key: Sequence[Any],
    context: Callable[[], dict[str, Any]],
    *,
    status: int = 200,
) -> HttpResponse:
    """A part of a page, prepared once for all viewers with one role and one `key`, which holds all else that it depends
    on. `context` checks the person's role (access.project_for) and gives what the template needs, which sees neither
    the request nor the person; the CSRF token is put in for each."""

    def prepare() -> str:
        shown = context()
        project: Project = request.project  # type: ignore[attr-defined]
        frame = ProjectFrame(project, role)
        return render_to_string(template, {**shown, "frame": frame, "project": project, "csrf_token": _TOKEN})

    text = prepared(version_of((template, role, *key)), prepare)
    return HttpResponse(text.replace(_TOKEN, get_token(request)) if _TOKEN in text else text, status=status)


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
