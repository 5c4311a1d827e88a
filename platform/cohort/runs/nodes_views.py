"""The page of machines: which are here, what they have, what they run. Read only.

Nodes serve every project. Of an attempt that belongs to a project the person is no member of, only the fact that the
node is busy is shown. A worker says every 20 s that it is here, busy or not, so silence means that it is gone.
"""

from dataclasses import dataclass
from typing import Any

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_safe

from cohort.access import project_for
from cohort.accounts.models import Project
from cohort.runs.models import Attempt, AttemptState, Node
from cohort.runs.selectors.nodes import nodes_here


@dataclass(frozen=True)
class NodeRow:
    node: Node
    status: str
    """working, idle, silent (not heard of any more), never (heard of) or revoked."""
    busy: int
    """Attempts running on it, of whatever project."""
    attempts: list[Attempt]
    """Those of them that this project may see."""


@require_safe
def node_list(request: HttpRequest, slug: str) -> HttpResponse:
    project = project_for(request, slug)
    context: dict[str, Any] = {"project": project, "nodes": _rows(project)}
    template = "nodes/_list.html" if request.headers.get("HX-Request") else "nodes/nodes.html"
    return render(request, template, context)


def _rows(project: Project) -> list[NodeRow]:
    running: dict[int, list[Attempt]] = {}
    for attempt in Attempt.objects.filter(state=AttemptState.RUNNING).select_related("run"):
        running.setdefault(attempt.node_id, []).append(attempt)
    here = set(nodes_here().values_list("pk", flat=True))
    return [
        NodeRow(
            node=node,
            status=_status(node, busy=node.pk in running, here=node.pk in here),
            busy=len(running.get(node.pk, [])),
            attempts=[one for one in running.get(node.pk, []) if one.run.project_id == project.pk],
        )
        for node in Node.objects.all()
    ]


def _status(node: Node, *, busy: bool, here: bool) -> str:
    if node.revoked_at is not None:
        return "revoked"
    if node.last_seen_at is None:
        return "never"
    if not here:
        return "silent"
    return "working" if busy else "idle"
