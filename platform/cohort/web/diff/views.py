"""Two records of a project side by side: a page, and the same as a file."""

import json

from django.db.models import QuerySet
from django.http import Http404, HttpRequest, HttpResponseBase, StreamingHttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_safe

from cohort.accounts.models import Project
from cohort.base.formatting import natural
from cohort.records.diff.compare import Diff, diff, sealed_config
from cohort.records.models import Record
from cohort.web.access import project_for, streamed, streamed_json
from cohort.web.audit.selectors import downloaded
from cohort.web.diff.export import to_document, to_markdown
from cohort.web.diff.shown import shown

CHOICES = 200
"""Records in each of the two lists to choose from; older ones are reached from the list of records."""
_FORMATS = ("json", "md")


def _words(record: Record) -> str:
    end = f", end {record.end}" if record.end > 1 else ""
    version = f", version {record.version}" if record.version > 1 else ""
    return f"{record.run.name}{end}{version} · {record.sealed_at:%Y-%m-%d %H:%M} · {record.short_digest[:9]}"


@require_safe
def record_compare(request: HttpRequest, slug: str) -> HttpResponseBase:
    """`record` twice: first and second. With fewer, the page offers choices; `format` json or md gives a file."""
    project = project_for(request, slug)
    requested = [pk for pk in map(natural, request.GET.getlist("record")) if pk is not None]
    chosen = _chosen(project, requested)
    two = chosen if len(chosen) == 2 else None
    file_format = request.GET.get("format", "")
    if file_format:
        if two is None or file_format not in _FORMATS:
            raise Http404("two records and the format json or md make a file")
        seals = {"first": two[0].seal, "second": two[1].seal}
        downloaded(
            request,
            kind="diff_downloaded",
            subject=f"record:{two[1].pk}",
            project=project,
            data={**seals, "against": f"record:{two[0].pk}", "format": file_format},
        )
        return _file(two, file_format)
    newest = list(_records(project).defer("document").order_by("-pk")[:CHOICES])
    choices = sorted({record.pk: record for record in [*newest, *chosen]}.values(), key=lambda record: -record.pk)
    comparison, with_configs = _diff(two) if two else (None, False)
    context = {
        "with_configs": with_configs,
        "choices": [{"record": record, "words": _words(record)} for record in choices],
        "total": _records(project).count(),
        "chosen": chosen,
        "shown": shown(comparison) if comparison else None,
        "same_twice": len(requested) == 2 and len(set(requested)) == 1,
    }
    return render(request, "diff/diff_page.html", context)


def _file(two: list[Record], file_format: str) -> StreamingHttpResponse:
    comparison, _ = _diff(two)
    name = f"record-diff-{two[0].seal[:8]}-{two[1].seal[:8]}.{file_format}"
    if file_format == "json":
        return streamed_json(to_document(comparison), name)
    return streamed(to_markdown(comparison), "text/markdown; charset=utf-8", name)


def _records(project: Project) -> QuerySet[Record]:
    return Record.objects.filter(run__project=project).select_related("run")


def _chosen(project: Project, requested: list[int]) -> list[Record]:
    """In the requested order. Raises Http404 for a record of another project."""
    pks = list(dict.fromkeys(requested))
    rows = _records(project).filter(pk__in=pks)
    by_pk = {record.pk: record for record in (rows if len(pks) == 2 else rows.defer("document"))}
    if len(by_pk) != len(pks):
        raise Http404("there is no such record")
    return [by_pk[pk] for pk in pks]


def _diff(two: list[Record]) -> tuple[Diff, bool]:
    """Also whether the configs themselves were compared; without a card that holds one, only their digests are."""
    first, second = (json.loads(record.document) for record in two)
    before, after = sealed_config(two[0], first), sealed_config(two[1], second)
    if before is None or after is None:
        return diff(first, second), False
    return diff(first, second, (before, after)), True
