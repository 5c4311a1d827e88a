"""Pages of the log: the public ones, for anyone who wants to audit this platform; a project's entries,
for its members; the server's own, for its staff."""

from django.contrib.auth.decorators import login_not_required
from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, HttpResponse, JsonResponse
from django.http.response import HttpResponseBase
from django.shortcuts import get_object_or_404, render
from django.urls import reverse
from django.views.decorators.http import require_safe

from cohort.accounts.models import Project
from cohort.audit.models import AuditEntry, LogCheckpoint
from cohort.audit.services import keys_file, model_key_notes, proof_of
from cohort.base.formatting import natural
from cohort.evidence import merkle
from cohort.evidence.model_signing import KEY
from cohort.web.access import file_response, project_for, streamed
from cohort.web.accounts.views import person
from cohort.web.audit import selectors
from cohort.web.audit.selectors import downloaded
from cohort.web.context import query_without

FEED = 200
"""Checkpoints on one page of the feed."""


# ---------------------------------------------------------------------- for anyone


@login_not_required
@require_safe
def log_page(request: HttpRequest) -> HttpResponse:
    context = {
        "head": selectors.newest_head(),
        "keys": selectors.key_rows(),
        "model_keys": list(model_key_notes()),
        "cosignatures": selectors.newest_cosignatures(),
        "pushes": selectors.pushes(),
        "checkpoints": LogCheckpoint.objects.count(),
    }
    return render(request, "audit/log.html", context)


@login_not_required
@require_safe
def log_checkpoint(request: HttpRequest) -> HttpResponse:
    """The newest checkpoint, as it was signed; or the one of `?size=`."""
    rows = LogCheckpoint.objects.order_by("-size")
    if "size" in request.GET:
        size = natural(request.GET["size"])
        rows = rows.none() if size is None else rows.filter(size=size)
    row = rows.first()
    if row is None:
        raise Http404("there is no such checkpoint")
    return HttpResponse(row.note, content_type="text/plain; charset=utf-8")


@login_not_required
@require_safe
def log_keys(request: HttpRequest) -> JsonResponse:
    """keys.json as cards have it."""
    return JsonResponse(keys_file())


@login_not_required
@require_safe
def log_model_key(request: HttpRequest, hint: str | None = None) -> HttpResponse:
    """The newest model signing key, or the one of `hint`, as the log's key vouches for it: a note that is a PEM file
    too."""
    notes = model_key_notes()
    note = next(iter(notes.values()), None) if hint is None else notes.get(hint)
    if note is None:
        raise Http404("there is no such model signing key; the first one is made when a record is sealed")
    return file_response(note.encode(), "application/x-pem-file", KEY)


@login_not_required
@require_safe
def log_checkpoints(request: HttpRequest) -> JsonResponse:
    """Every checkpoint, the smallest first; `?after=` resumes from a size."""
    following = LogCheckpoint.objects.filter(size__gt=natural(request.GET.get("after")) or -1).order_by("size")
    rows = list(following.prefetch_related("cosignatures")[: FEED + 1])
    shown = rows[:FEED]
    listed = [
        {
            "size": row.size,
            "at": row.at.isoformat(),
            "note": row.note,
            "cosignatures": [cosignature.line for cosignature in row.cosignatures.all()],
        }
        for row in shown
    ]
    more = f"{reverse('log_checkpoints')}?after={shown[-1].size}" if len(rows) > FEED else None
    return JsonResponse({"checkpoints": listed, "next": more})


# ---------------------------------------------------------------------- entries


def _url(slug: str, name: str, *more: int) -> str:
    return reverse(f"audit{name or '_list'}", args=[slug, *more]) if slug else reverse(f"log_server{name}", args=more)


def _project(request: HttpRequest, slug: str) -> Project | None:
    """Whose entries: a project's; without a slug the server's own."""
    if slug:
        return project_for(request, slug)
    if not (person(request).is_staff or person(request).is_superuser):
        raise PermissionDenied("The server's own log is for its staff: `cohort user NAME --staff` makes somebody so.")
    return None


@require_safe
def entries(request: HttpRequest, slug: str = "") -> HttpResponse:
    _project(request, slug)
    filters = selectors.Filters(request.GET)
    page = selectors.page(filters.entries(slug), before=natural(request.GET.get("before")))
    context = {
        "filters": filters,
        "page": page,
        "kinds": selectors.kinds(slug),
        "pushes": [] if slug else selectors.pushes(),
        "here": _url(slug, ""),
        "query": query_without(request, "before"),
        "exports": {form: _url(slug, f"_{form}") for form in ("jsonl", "csv")},
        "rows": [(row, *(_url(slug, name, row["entry"].pk) for name in ("_entry", "_proof"))) for row in page["rows"]],
    }
    return render(request, "audit/entries.html", context, status=422 if filters.errors else 200)


@require_safe
def entries_file(request: HttpRequest, slug: str = "", *, form: str) -> HttpResponseBase:
    """The entries that the filters leave, newest first: the exact bytes of each in a line (`jsonl`), or a table
    (`csv`)."""
    project = _project(request, slug)
    filters = selectors.Filters(request.GET)
    if not filters.is_valid():
        return HttpResponse(filters.errors.as_text(), content_type="text/plain; charset=utf-8", status=422)
    newest = AuditEntry.objects.order_by("-pk").values_list("pk", flat=True).first()
    rows = filters.entries(slug).filter(pk__lte=newest or 0)  # an export does not hold its own entry
    owner = slug or "server"
    criteria = {name: str(value) for name, value in filters.cleaned_data.items() if value}
    downloaded(
        request,
        kind="audit_exported",
        subject=f"project:{owner}" if slug else "server:log",
        project=project,
        data={"form": form, "filters": criteria},
    )
    lines = selectors.json_lines(rows) if form == "jsonl" else selectors.csv_lines(rows)
    kind = "application/jsonl" if form == "jsonl" else "text/csv; charset=utf-8"
    return streamed(lines, kind, f"audit-{owner}.{form}")


@require_safe
def entry_body(request: HttpRequest, entry_id: int, slug: str = "") -> HttpResponse:
    """The entry's exact bytes, which its leaf is the hash of."""
    entry = _entry(request, slug, entry_id)
    return file_response(bytes(entry.body), "application/json", f"entry-{entry.pk}.json")


@require_safe
def entry_proof(request: HttpRequest, entry_id: int, slug: str = "") -> HttpResponse:
    """Proof that the entry is in the log, as c2sp.org/tlog-proof. 409 until a checkpoint is signed over it."""
    entry = _entry(request, slug, entry_id)
    proof = proof_of(entry)
    if proof is None:
        return HttpResponse(
            "No checkpoint has been signed over this entry yet. The platform's worker signs one within a minute; try "
            "again then.\n",
            content_type="text/plain; charset=utf-8",
            status=409,
        )
    text = merkle.write(proof.index, proof.path, proof.checkpoint)
    return file_response(text, "text/plain; charset=utf-8", f"entry-{entry.pk}.tlog-proof")


def _entry(request: HttpRequest, slug: str, entry_id: int) -> AuditEntry:
    _project(request, slug)
    return get_object_or_404(AuditEntry, pk=entry_id, project=slug)
