"""Pages of machines: which are here, what they have and run; drain them, make them, change their tokens.

Nodes serve every project. Of an attempt that belongs to a project the person is no member of, only the fact that the
node is busy is shown. Everyone in a project may look; `access.require_manager` decides who may change something.
"""

import shlex
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from django import forms
from django.conf import settings
from django.db.models import DurationField, ExpressionWrapper, F
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, render
from django.views.decorators.http import require_POST, require_safe

from cohort import __version__
from cohort.accounts.models import Project
from cohort.background import revoke
from cohort.base.environment import environment
from cohort.nodes import services as nodes
from cohort.nodes.models import Draining, Node
from cohort.nodes.services import SILENT_AFTER
from cohort.runs.node_status import NodeStatus, node_status, node_status_rows
from cohort.runs.schedule import SEARCHED
from cohort.web.access import call_service, form_page, project_for, redirect_to, require_manager
from cohort.web.accounts.views import person
from cohort.web.context import listed
from cohort.web.fields import ServiceForm

ATTEMPTS_SHOWN = 10


class NodeForm(ServiceForm):
    name = forms.CharField(
        max_length=nodes.NAME_CHARS,
        help_text="What people call the machine, such as its host name. It stays taken, because records name it.",
    )


@require_safe
def node_list(request: HttpRequest, slug: str) -> HttpResponse:
    project = project_for(request, slug)
    context = {
        "nodes": listed(
            request, node_status_rows(), row=lambda statuses: [_row(project, status) for status in statuses]
        ),
        "platform_version": __version__,
        "silent_after": SILENT_AFTER,
    }
    template = "nodes/_list.html" if request.htmx else "nodes/nodes.html"  # type: ignore[attr-defined]
    return render(request, template, context)


@require_safe
def node_detail(request: HttpRequest, slug: str, node_id: int) -> HttpResponse:
    project = project_for(request, slug)
    node = get_object_or_404(Node, pk=node_id)
    took = ExpressionWrapper(F("ended_at") - F("claimed_at"), output_field=DurationField())
    attempts = node.attempts.select_related("run").defer("manifest", "outcome", "run__config").annotate(took=took)
    context = {
        "row": _row(project, node_status(node)),
        "platform_version": __version__,
        "attempts": attempts.order_by("-claimed_at")[:ATTEMPTS_SHOWN],
        "attempts_made": attempts.count(),
    }
    return render(request, "nodes/node.html", context)


@form_page
def node_new(request: HttpRequest, slug: str) -> HttpResponse:
    """A free name is answered by the page with the token, which is not stored and cannot be shown again."""
    project_for(request, slug)
    require_manager(request, "Nodes, which serve every project,")
    form = NodeForm(request.POST or None)
    if request.method == "POST" and form.is_valid():
        created = form.call(nodes.node_create, name=form.cleaned_data["name"], actor=person(request))
        if created:
            return _token_page(request, *created, made=True)
    return render(request, "nodes/node_new.html", {"form": form}, status=form.status)


@require_POST
def node_drain(request: HttpRequest, slug: str, node_id: int) -> HttpResponse:
    how = Draining.MOVE if request.POST.get("how") == Draining.MOVE else Draining.FINISH
    return _do(request, slug, node_id, nodes.node_drain, f"is draining. {how.label}.", how=how)


@require_POST
def node_undrain(request: HttpRequest, slug: str, node_id: int) -> HttpResponse:
    return _do(request, slug, node_id, nodes.node_undrain, "takes runs again.")


@require_POST
def node_rotate(request: HttpRequest, slug: str, node_id: int) -> HttpResponse:
    node = _to_change(request, slug, node_id)
    token = nodes.node_rotate(node=node, actor=person(request))
    return _token_page(request, node, token, made=False)


@require_POST
def node_revoke(request: HttpRequest, slug: str, node_id: int) -> HttpResponse:
    return _do(
        request,
        slug,
        node_id,
        revoke.node_revoke,
        "is revoked: its token is refused from now on, and what ran there has been put back into the "
        "queue. It resumes on a node that can have one of its checkpoints. A run whose checkpoints are on this machine "
        f"alone waits {SEARCHED.total_seconds() / 60:.0f} minutes for it to be let in again by a new token, and then "
        "fails; cancel such a run and retry it from the first step, if the machine is not to come back.",
    )


# ---------------------------------------------------------------------- what they share


def _to_change(request: HttpRequest, slug: str, node_id: int) -> Node:
    project_for(request, slug)
    node = get_object_or_404(Node, pk=node_id)
    require_manager(request, "Nodes, which serve every project,")
    return node


def _do(
    request: HttpRequest, slug: str, node_id: int, service: Callable[..., None], done: str, **arguments: Any
) -> HttpResponse:
    """Call the service, report the outcome, go back to the page of the button."""
    node = _to_change(request, slug, node_id)
    call_service(request, service, f"{node.name} {done}", refused="Nothing was done: ", node=node, **arguments)
    back = ("node_list", slug) if "list" in request.POST else ("node_detail", slug, node.pk)
    return redirect_to(request, *back)


def _row(project: Project, status: NodeStatus) -> dict[str, Any]:
    """The node with the attempts on it that the project may see, and how many others there are."""
    attempts = [attempt for attempt in status.attempts if attempt.run.project_id == project.pk]
    return {"status": status, "attempts": attempts, "elsewhere": len(status.attempts) - len(attempts)}


def _token_page(request: HttpRequest, node: Node, token: str, *, made: bool) -> HttpResponse:
    broker, hidden = _without_password(settings.BROKER_URL)
    context = {
        "node": node,
        "token": token,
        "made": made,
        "url": environment().public_url,
        "broker": broker,
        "broker_hidden": hidden,
        "one_machine": settings.BROKER_URL.startswith("filesystem:"),
        "home": shlex.quote(str(environment().home_folder)),
    }
    return render(request, "nodes/token.html", context, status=201 if made else 200)


def _without_password(address: str) -> tuple[str, bool]:
    """(the address with its password replaced by PASSWORD, whether it had one)."""
    parts = urlsplit(address)
    if parts.password is None:
        return address, False
    netloc = parts.netloc.replace(f":{parts.password}@", ":PASSWORD@", 1)
    return urlunsplit(parts._replace(netloc=netloc)), True
