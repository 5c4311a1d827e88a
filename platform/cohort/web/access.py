"""Who may see and do what (one helper per noun, so that no view can forget it), and what holds for every request.

A person who does not belong to a project gets 404 for everything in it, as if it did not exist. A member whose role
does not reach gets 403.
"""

import json
import re
from collections.abc import Callable, Iterable
from itertools import islice
from typing import Any, Final, cast
from urllib.parse import urlencode, urlsplit, urlunsplit

from django.contrib import messages
from django.contrib.auth.middleware import LoginRequiredMiddleware
from django.contrib.auth.models import AnonymousUser
from django.core.exceptions import PermissionDenied, ValidationError
from django.db.models import QuerySet
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseBase, StreamingHttpResponse
from django.shortcuts import get_object_or_404, redirect, resolve_url
from django.template.loader import render_to_string
from django.urls import reverse
from django.views.decorators.http import require_http_methods
from django_htmx.http import HttpResponseClientRedirect

from cohort.accounts.models import Membership, Project, Role, User, reaches
from cohort.accounts.people import manages_server
from cohort.api.problems import Problem
from cohort.runs.models import Run
from cohort.server.limits import API, WORKERS, body_limit
from cohort.worker_api.records import refusal

STOP_POLLING = 286
"""Status: htmx swaps such an answer and polls no more."""

form_page = require_http_methods(["GET", "HEAD", "POST"])
"""Decorator for a view of a page with a form, which is sent to the same address."""


class BodyLimit:
    """Refuses a request's body that is too large before anything reads it.

    The CSRF check reads the whole body, and spools uploaded files to disk, before the user's role is looked at. So the
    length that the browser states is checked first; the web server reads no more than that length, and nothing of a
    body that is refused here.
    """

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        if "HTTP_TRANSFER_ENCODING" in request.META:
            return _refusal(
                request, 411, "The length is missing", "A body must be sent with its length (Content-Length)."
            )
        stated = request.META.get("CONTENT_LENGTH") or "0"
        limit = body_limit(request.path_info)
        if not re.fullmatch(r"[0-9]{1,18}", stated) or int(stated) > limit:
            text = f"This address takes at most {limit:,} bytes, with all that the form holds."
            if request.path_info == reverse("verify_page"):
                text += " Check a larger card on your own machine: `cohort verify CARD.zip`."
            return _refusal(request, 413, "Too much was sent", text)
        return self.get_response(request)


class NotStored:
    """No page is left in a cache, also not in the browser's, unless it says otherwise: the next person at the machine
    sees nothing of it. One with an ETag is kept by the browser alone, and asked for again each time."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        response = self.get_response(request)
        if not response.has_header("Cache-Control"):
            response["Cache-Control"] = "private, no-cache" if response.has_header("ETag") else "private, no-store"
        return response


def _refusal(request: HttpRequest, status: int, title: str, text: str) -> HttpResponse:
    code = {411: "length_required", 413: "too_large"}[status]
    if request.path_info.startswith(WORKERS):
        return refusal(status, code, text)
    if request.path_info.startswith(API):
        return Problem(status, code, text).response
    return HttpResponse(render_to_string("413.html", {"title": title, "text": text}), status=status)


class LoginRequired(LoginRequiredMiddleware):
    """Redirects people who are not signed in; a page that polls is redirected as a whole, so that the sign-in page does
    not replace a part of it. After a form, sign-in leads back to the page that it was sent from: its own address may
    answer to POST alone."""

    def process_view(self, request: HttpRequest, view_func: Any, *rest: Any) -> HttpResponseBase | None:
        if not getattr(view_func, "login_required", True):
            return None  # and no session is read: a web server for workers may not
        return super().process_view(request, view_func, *rest)

    def handle_no_permission(  # type: ignore[override]  # the base promises a redirect by the browser
        self, request: HttpRequest, view_func: Any
    ) -> HttpResponseBase:
        if request.method == "POST":
            messages.warning(request, "Nothing was changed: you are signed out. Sign in and send the form again.")
        htmx = request.htmx  # type: ignore[attr-defined]
        here = htmx.current_url_abs_path if htmx else _sent_from(request)  # None when it is another host's
        if not htmx and (here is None or request.method != "POST"):
            return super().handle_no_permission(request, view_func)
        address = reverse("login") + (f"?{urlencode({'next': here})}" if here else "")
        return HttpResponseClientRedirect(address) if htmx else redirect(address)


def _sent_from(request: HttpRequest) -> str | None:
    """Path and query of the page of this host that a form was sent from."""
    page = urlsplit(request.META.get("HTTP_REFERER", ""))
    return urlunsplit(("", "", page.path, page.query, "")) if page.netloc == request.get_host() else None


OVERRIDES_FLAGS: Final = Role.OPERATOR
"""Least role that overrides a monitor's flag, or withdraws an override, before the seal as after it: this person
accepts a risk on behalf of the run, as its operator answers for it. Reviewers record their objections."""


def redirect_to(request: HttpRequest, name: str, *args: Any) -> HttpResponse:
    """To the page with this name or address, also from a form that htmx sent."""
    if request.htmx:  # type: ignore[attr-defined]
        return HttpResponseClientRedirect(resolve_url(name, *args))
    return redirect(name, *args)


def file_response(content: str | bytes, kind: str, name: str) -> HttpResponse:
    """A file for the browser to keep; `kind` is its media type."""
    return HttpResponse(content, content_type=kind, headers={"Content-Disposition": f'attachment; filename="{name}"'})


def streamed(lines: Iterable[str | bytes], kind: str, name: str) -> StreamingHttpResponse:
    """As `file_response`, of a file that is made while it is sent, so that no more than a line of it is held."""
    headers = {"Content-Disposition": f'attachment; filename="{name}"'}
    return StreamingHttpResponse(lines, content_type=kind, headers=headers)


_TOKENS = 4096
"""Of JSON in one piece of a response."""


def streamed_json(content: Any, name: str) -> StreamingHttpResponse:
    """The same of JSON, indented. Raises ValueError, while it is sent, for a number that is not finite."""
    tokens = json.JSONEncoder(ensure_ascii=False, allow_nan=False, indent=2).iterencode(content)
    return streamed(iter(lambda: "".join(islice(tokens, _TOKENS)), ""), "application/json", name)


def call_service(
    request: HttpRequest, service: Callable[..., Any], done: str, *, refused: str = "", **arguments: Any
) -> bool:
    """Call a service as the signed-in person. Shows the message `done`, or after `refused` why it raised
    ValidationError; returns whether it was done."""
    try:
        service(actor=request.user, **arguments)
    except ValidationError as error:
        messages.error(request, refused + " ".join(error.messages))
        return False
    messages.success(request, done)
    return True


def project_for(request: HttpRequest, slug: str, *, at_least: Role = Role.VIEWER) -> Project:
    """The project, when the person belongs to it with at least this role; the request keeps both for templates."""
    if not request.user.is_authenticated:
        raise Http404
    members = Membership.objects.select_related("project")
    membership = get_object_or_404(members, project__slug=slug, user=request.user)
    if not reaches(membership.role, at_least):
        raise PermissionDenied(
            f"This needs the role {at_least.value}; yours in {membership.project.name} is {membership.role}. "
            "An admin of the project can change it."
        )
    request.membership, request.project = membership, membership.project  # type: ignore[attr-defined]  # for context
    return membership.project


def require_manager(request: HttpRequest, what: str) -> None:
    """Raises PermissionDenied unless the signed-in person manages the server; `what`: of it, as the message begins."""
    if not manages_server(cast("User", request.user)):
        raise PermissionDenied(
            f"{what} are managed by staff (`cohort user NAME --staff` on the server) and by the admins of the server's "
            "first project."
        )


def role_in(project: Project, user: User | AnonymousUser) -> str:
    """The person's role; empty for people outside the project."""
    return Membership.objects.filter(project=project, user=user.pk).values_list("role", flat=True).first() or ""


def may(request: HttpRequest, project: Project, at_least: Role) -> bool:
    """Whether the person has at least this role, for what a page shows or leaves out."""
    role = role_in(project, request.user)
    return bool(role) and reaches(role, at_least)


def run_for(request: HttpRequest, slug: str, run_id: int, *, at_least: Role = Role.VIEWER) -> Run:
    """Of the project, trained here: an imported run has none of the pages that need more than samples."""
    return _run_of(project_for(request, slug, at_least=at_least), Run.objects.all(), run_id)


def any_run_for(request: HttpRequest, slug: str, run_id: int, *, at_least: Role = Role.VIEWER) -> Run:
    """As `run_for`, an imported run as well."""
    return _run_of(project_for(request, slug, at_least=at_least), Run.every.all(), run_id)


def reviewed_run_for(request: HttpRequest, slug: str, run_id: int, *, at_least: Role = Role.VIEWER) -> Run:
    """As `any_run_for`, for the pages of samples: only of a run whose kind samples and scores."""
    run = any_run_for(request, slug, run_id, at_least=at_least)
    if not run.has_samples:
        raise Http404(f"{run.name} is of the kind {run.get_kind_display().lower()}, which samples no groups to review.")
    return run


def _run_of(project: Project, runs: QuerySet[Run], run_id: int) -> Run:
    shown = (
        "base_model",
        "dataset",
        "verifier_version__verifier",
        "eval_verifier_version__verifier",
        "cloned_from",
        "imported_from__by",
    )  # by every tab
    run = get_object_or_404(runs.select_related(*shown), project=project, pk=run_id)
    run.project = project
    return run


_POLLED = """
    SELECT run.id, run.project_id, run.name, run.state, run.desired, run.reason, run.error_code, run.phase, run.step,
           run.steps_total, run.priority, run.fence, run.ends, run.retries, run.not_before, run.stalled_at,
           run.queued_at, run.started_at, run.ended_at, run.resume_from_id, membership.role
    FROM runs_run AS run
    JOIN accounts_project AS project ON project.id = run.project_id
    JOIN accounts_membership AS membership ON membership.project_id = run.project_id
    WHERE run.id = %s AND project.slug = %s AND membership.user_id = %s AND run.origin = 'trained'
"""


def polled_run_for(request: HttpRequest, slug: str, run_id: int) -> tuple[Run, str]:
    """As `run_for`, in one query, with the person's role in its project: for a poll, which needs no settings and none
    of the rows that the run belongs to. In SQL: to put these words together takes Django longer than the query."""
    run = next(iter(Run.objects.raw(_POLLED, [run_id, slug, request.user.pk])), None)
    if run is None:
        raise Http404
    return run, vars(run)["role"]
