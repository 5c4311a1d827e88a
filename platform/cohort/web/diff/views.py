"""Records of a project side by side: a page, and the same as a file."""

import json
from collections.abc import Sequence
from typing import Any

from django.db.models import QuerySet
from django.http import Http404, HttpRequest, HttpResponseBase, StreamingHttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_safe

from cohort.accounts.models import Project
from cohort.base.formatting import natural
from cohort.records.diff.compare import Diff, diff, read, sealed_config
from cohort.records.diff.side_by_side import SideBySide, side_by_side
from cohort.records.models import Record
from cohort.web.access import project_for, streamed, streamed_json
from cohort.web.audit.selectors import downloaded
from cohort.web.diff import export
from cohort.web.diff.settings_rows import settings_rows
from cohort.web.diff.shown import shown, table_shown
from cohort.web.diff.table_export import table_document, table_markdown

CHOICES = 200
"""Records in each of the lists to choose from; older ones are reached from the list of records."""
MOST = 6
"""Records side by side."""
_FORMATS = ("json", "md")
MARKDOWN = "text/markdown; charset=utf-8"


def _words(record: Record) -> str:
    end = f", end {record.end}" if record.end > 1 else ""
    version = f", version {record.version}" if record.version > 1 else ""
    return f"{record.run.name}{end}{version} · {record.sealed_at:%Y-%m-%d %H:%M} · {record.short_digest[:9]}"


@require_safe
def record_compare(request: HttpRequest, slug: str) -> HttpResponseBase:
    """`record` twice to six times, in the order of the columns. With fewer, the page offers choices; `format` json or
    md gives a file."""
    project = project_for(request, slug)
    requested = [pk for pk in map(natural, request.GET.getlist("record")) if pk is not None]
    chosen = _chosen(project, requested)
    compared = chosen if 2 <= len(chosen) <= MOST else []
    file_format = request.GET.get("format", "")
    if file_format:
        if not compared or file_format not in _FORMATS:
            raise Http404(f"two to {MOST} records and the format json or md make a file")
        _log(request, project, compared, file_format)
        return _file(compared, file_format)
    newest = list(_records(project).defer("document").order_by("-pk")[:CHOICES])
    choices = sorted({record.pk: record for record in [*newest, *chosen]}.values(), key=lambda record: -record.pk)
    context: dict[str, Any] = {
        "choices": [{"record": record, "words": _words(record)} for record in choices],
        "total": _records(project).count(),
        "chosen": chosen,
        "slots": [*chosen[:MOST], *[None] * max(1 if len(chosen) < MOST else 0, 2 - len(chosen))],
        "same_twice": len(requested) > len(set(requested)),
        "most": MOST,
        "link": "&".join(f"record={record.pk}" for record in chosen),
        "runs_link": "&".join(f"run={record.run_id}" for record in chosen),
    }
    if compared:
        documents, configs = _read(compared)
        context |= {"with_configs": configs is not None, "table": table_shown(_table(documents, configs))}
        context |= {"shown": shown(_diff(documents, configs)) if len(compared) == 2 else None}
    return render(request, "diff/diff_page.html", context)


def _log(request: HttpRequest, project: Project, compared: Sequence[Record], file_format: str) -> None:
    """The last record is the entry's subject, and the others are what it was compared with."""
    *others, last = compared
    data = {
        "seals": [record.seal for record in compared],
        "against": [f"record:{record.pk}" for record in others],
        "format": file_format,
    }
    downloaded(request, kind="diff_downloaded", subject=f"record:{last.pk}", project=project, data=data)


def _file(compared: Sequence[Record], file_format: str) -> StreamingHttpResponse:
    documents, configs = _read(compared)
    name = f"record-diff-{'-'.join(record.seal[:8] for record in compared)}.{file_format}"
    if len(compared) == 2:
        difference = _diff(documents, configs)
        if file_format == "json":
            return streamed_json(export.to_document(difference), name)
        return streamed(export.to_markdown(difference), MARKDOWN, name)
    table = _table(documents, configs)
    if file_format == "json":
        return streamed_json(table_document(table), name)
    return streamed(table_markdown(table), MARKDOWN, name)


def _records(project: Project) -> QuerySet[Record]:
    return Record.objects.filter(run__project=project).select_related("run")


def _chosen(project: Project, requested: list[int]) -> list[Record]:
    """In the requested order. Raises Http404 for a record of another project."""
    pks = list(dict.fromkeys(requested))
    rows = _records(project).filter(pk__in=pks)
    by_pk = {record.pk: record for record in (rows if 2 <= len(pks) <= MOST else rows.defer("document"))}
    if len(by_pk) != len(pks):
        raise Http404("there is no such record")
    return [by_pk[pk] for pk in pks]


def _read(compared: Sequence[Record]) -> tuple[list[dict[str, Any]], list[dict[str, Any]] | None]:
    """Their documents, and their configs as they were sealed; None where a card that holds one cannot be read for each,
    as then only digests of them are known."""
    documents = [json.loads(record.document) for record in compared]
    configs = [sealed_config(record, document) for record, document in zip(compared, documents, strict=True)]
    known = [config for config in configs if config is not None]
    return documents, known if len(known) == len(configs) else None


def _diff(documents: list[dict[str, Any]], configs: list[dict[str, Any]] | None) -> Diff:
    first, second = documents
    return diff(first, second, (configs[0], configs[1]) if configs else None)


def _table(documents: list[dict[str, Any]], configs: list[dict[str, Any]] | None) -> SideBySide:
    return side_by_side([read(document) for document in documents], settings_rows(configs) if configs else ())
