"""What a person does from the list of runs: to many at once, to its saved views, and to one run's tags and note."""

from collections.abc import Sequence
from urllib.parse import urlencode

from django.contrib import messages
from django.core.exceptions import ValidationError
from django.http import HttpRequest, HttpResponse, QueryDict
from django.shortcuts import get_object_or_404, redirect, render
from django.urls import reverse
from django.views.decorators.http import require_POST

from cohort.accounts.models import Membership, Project, Role, reaches
from cohort.base.formatting import natural
from cohort.base.storable import storable
from cohort.runs import marks, saved_views
from cohort.runs.marks import MOST_AT_ONCE, Outcome
from cohort.runs.models import Run, SavedView
from cohort.runs.search.filters import search
from cohort.runs.search.syntax import SearchError
from cohort.runs.services import NotPossible
from cohort.web.access import call_service, form_page, project_for, redirect_to, run_for
from cohort.web.accounts.views import person
from cohort.web.runs.header import Header

COMPARE = "/p/{slug}/runs/compare/"
"""Address of the page that compares runs, each as a parameter `run`."""
NAMED = 5
"""Runs that a message names; of more it gives the number."""
ACTIONS = {
    "cancel": ("Cancelled, or asked to stop", "ended already or asked to stop"),
    "archive": ("Archived", "archived already"),
    "unarchive": ("Back in the list", "in the list already"),
    "tag": ("Tagged", "tagged so already"),
    "untag": ("Tag removed", "without that tag already"),
}
"""Action → (what was done, what of others)."""


# ---------------------------------------------------------------------- many at once


@require_POST
def run_bulk(request: HttpRequest, slug: str) -> HttpResponse:
    """`action` on the runs `run`, or with `all` on every one that matches `q`."""
    action = request.POST.get("action", "")
    project = project_for(request, slug, at_least=Role.VIEWER if action == "compare" else Role.OPERATOR)
    back = _list_address(slug, request.POST.get("query", ""))
    runs = _chosen(request, project)
    if runs is None:
        return redirect(back)
    if action == "compare":
        if len(runs) < 2:
            messages.error(request, "Nothing was compared: choose two runs or more.")
            return redirect(back)
        return redirect(f"{COMPARE.format(slug=slug)}?{urlencode([('run', run.pk) for run in runs])}")
    if action not in ACTIONS:
        messages.error(request, "Nothing was done: choose what to do.")
        return redirect(back)
    if action == "cancel" and "confirmed" not in request.POST:
        context = {"runs": runs, "query": storable(request.POST.get("query", ""))}
        return render(request, "runs/cancel_many.html", context)
    try:
        outcome = _act(request, action, runs)
    except NotPossible as error:
        messages.error(request, f"Nothing was done: {error}.")
        return redirect(back)
    _report(request, action, outcome)
    return redirect(back)


def _list_address(slug: str, query: str) -> str:
    """Only ever a query of the list's own address."""
    return f"{reverse('run_list', args=[slug])}?{storable(query).replace(chr(10), '').replace(chr(13), '') or 'q='}"


def _chosen(request: HttpRequest, project: Project) -> list[Run] | None:
    """None, with a message, for none and for too many."""
    if request.POST.get("all"):
        try:
            runs = search(project, storable(request.POST.get("q", "").strip())).runs
        except SearchError as error:
            messages.error(request, f"Nothing was done: {error}")
            return None
    else:
        numbers = [pk for text in request.POST.getlist("run") if (pk := natural(text)) is not None]
        runs = Run.objects.filter(project=project, pk__in=numbers)
    count = runs.count()
    if not 0 < count <= MOST_AT_ONCE:
        words = (
            "choose runs first"
            if not count
            else (f"{count:,} runs were chosen, and at most {MOST_AT_ONCE} are changed at once. Narrow the search")
        )
        messages.error(request, f"Nothing was done: {words}.")
        return None
    return list(runs.order_by("-pk"))


def _act(request: HttpRequest, action: str, runs: Sequence[Run]) -> Outcome:
    """Raises NotPossible for tags that cannot be."""
    actor = person(request)
    match action:
        case "cancel":
            return marks.runs_cancel(runs=runs, actor=actor)
        case "archive" | "unarchive":
            return marks.runs_archive(runs=runs, actor=actor, archived=action == "archive")
    tags = marks.tags_of(request.POST.get("tags", ""))
    if not tags:
        raise NotPossible("write the tag first", code="no_tag")
    add, remove = (tags, []) if action == "tag" else ([], tags)
    return marks.runs_tag(runs=runs, actor=actor, add=add, remove=remove)


def _report(request: HttpRequest, action: str, outcome: Outcome) -> None:
    done, unchanged, refused = outcome
    did, already = ACTIONS[action]
    if done:
        messages.success(request, f"{did}: {_runs(done)}.")
    if unchanged:
        messages.info(request, f"Nothing to do for {_runs(len(unchanged))}, {already}: {_names(unchanged)}.")
    if refused:
        reasons = "; ".join(f"{run.name}: {reason}" for run, reason in refused[:NAMED])
        more = f"; and {_runs(len(refused) - NAMED)} more" if len(refused) > NAMED else ""
        messages.error(request, f"Not possible for {_runs(len(refused))}. {reasons}{more}.")


def _runs(count: int) -> str:
    return f"{count:,} run{'' if count == 1 else 's'}"


def _names(runs: Sequence[Run]) -> str:
    more = f" and {len(runs) - NAMED} more" if len(runs) > NAMED else ""
    return ", ".join(run.name for run in runs[:NAMED]) + more


# ---------------------------------------------------------------------- saved views


@require_POST
def view_save(request: HttpRequest, slug: str) -> HttpResponse:
    """The page's address as it is, under a name: the list's, or with `run` that of this run's samples. Sharing it with
    the project takes an operator."""
    shared = request.POST.get("shared") == "on"
    project = project_for(request, slug, at_least=Role.OPERATOR if shared else Role.VIEWER)
    query, name = request.POST.get("query", ""), request.POST.get("name", "")
    page = SavedView.Page.SAMPLES if "run" in request.POST else SavedView.Page.RUNS
    given = {"project": project, "name": name, "query": query, "page": page, "shared": shared}
    default = request.POST.get("default") == "on"
    call_service(
        request, saved_views.view_save, "The view is saved.", refused="Nothing was saved: ", **given, default=default
    )
    return _back(request, slug, query)


@require_POST
def view_change(request: HttpRequest, slug: str, view_id: int) -> HttpResponse:
    """Rename, share or make default, or with `delete` remove: the person's own views, and for an admin shared ones."""
    project = project_for(request, slug)
    page = SavedView.Page.SAMPLES if "run" in request.POST else SavedView.Page.RUNS
    view = get_object_or_404(saved_views.views_for(project=project, user=person(request), page=page), pk=view_id)
    shared = request.POST.get("shared") == "on"
    if not _may_change(request, view) or (shared and not view.shared and not _reaches(request, Role.OPERATOR)):
        project_for(request, slug, at_least=Role.ADMIN)
    if "delete" in request.POST:
        saved_views.view_delete(view=view)
        messages.success(request, f"The view {view.name} is deleted.")
        return _back(request, slug, "")
    try:
        name, default = request.POST.get("name", ""), request.POST.get("default") == "on"
        saved_views.view_change(view=view, name=name, shared=shared, default=default)
    except ValidationError as error:
        messages.error(request, "Nothing was saved: " + " ".join(error.messages))
    else:
        messages.success(request, "The view is saved.")
    return _back(request, slug, view.query)


def _back(request: HttpRequest, slug: str, query: str) -> HttpResponse:
    """To the page that the view is of."""
    run_id = natural(request.POST.get("run"))
    if run_id is None:
        return redirect_to(request, _list_address(slug, query))
    address = reverse("run_samples", args=[slug, run_id])
    return redirect_to(request, f"{address}?{QueryDict(storable(query)).urlencode()}")


def _may_change(request: HttpRequest, view: SavedView) -> bool:
    return view.owner_id == request.user.pk


def _reaches(request: HttpRequest, role: Role) -> bool:
    membership: Membership = request.membership  # type: ignore[attr-defined]  # project_for keeps it there
    return reaches(membership.role, role)


# ---------------------------------------------------------------------- one run


@form_page
def run_marks(request: HttpRequest, slug: str, run_id: int) -> HttpResponse:
    """Tags and note; with `archived` alone that."""
    run = run_for(request, slug, run_id, at_least=Role.OPERATOR)
    tags, note, fault = " ".join(run.tags), run.note, ""
    if request.method == "POST":
        try:
            if "archived" in request.POST:
                return _archive(request, run, archived=request.POST["archived"] == "true")
            tags, note = storable(request.POST.get("tags", "")), storable(request.POST.get("note", ""))
            chosen = marks.tags_of(tags)
            if len(chosen) > marks.MOST_TAGS:
                raise NotPossible(f"a run has at most {marks.MOST_TAGS} tags; these are {len(chosen)}")
            actor = person(request)
            changed = marks.run_note_set(run=run, actor=actor, note=note)
            add, remove = set(chosen) - set(run.tags), set(run.tags) - set(chosen)
            changed = marks.run_tags_change(run=run, actor=actor, add=add, remove=remove) or changed
            messages.success(request, "Tags and note are saved." if changed else "Tags and note are as they were.")
            return redirect_to(request, "run_detail", slug, run_id)
        except NotPossible as error:
            fault = f"Nothing was saved: {error}."
    dialog = bool(request.htmx) and request.method == "GET"  # type: ignore[attr-defined]
    most = {"most_tags": marks.MOST_TAGS, "most_characters": marks.NOTE_CHARACTERS}
    context = Header(run).context("", dialog=dialog, fault=fault, tags=tags, note=note, **most)
    return render(
        request, "runs/_marks_form.html" if dialog else "runs/marks.html", context, status=422 if fault else 200
    )


def _archive(request: HttpRequest, run: Run, *, archived: bool) -> HttpResponse:
    """Raises NotPossible."""
    marks.run_archive(run=run, actor=person(request), archived=archived)
    words = "is archived: the list leaves it out" if archived else "is in the list again"
    messages.success(request, f"{run.name} {words}.")
    return redirect_to(request, "run_detail", run.project.slug, run.pk)
