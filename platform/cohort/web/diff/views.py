"""Two records of a project side by side: a page, and the same as a file."""

import json
from dataclasses import dataclass

from django.db.models import QuerySet
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_safe

from cohort.accounts.models import Project
from cohort.base.formatting import natural
from cohort.records.diff.compare import Diff, diff
from cohort.records.diff.config import sealed_config
from cohort.records.models import Record
from cohort.web.access import project_for
from cohort.web.audit.downloads import downloaded
from cohort.web.diff.export import to_json, to_markdown
from cohort.web.diff.shown import shown

CHOICES = 200
"""Records in each of the two lists to choose from; older ones are reached from the list of records."""
_FILES = {"json": ("application/json", to_json), "md": ("text/markdown; charset=utf-8", to_markdown)}


@dataclass(frozen=True)
class Choice:
    record: Record

    @property
    def words(self) -> str:
        one = self.record
        end = f", end {one.end}" if one.end > 1 else ""
        version = f", version {one.version}" if one.version > 1 else ""
        return f"{one.run.name}{end}{version} · {one.sealed_at:%Y-%m-%d %H:%M} · {one.short_digest[:9]}"


@require_safe
def record_compare(request: HttpRequest, slug: str) -> HttpResponse:
    """`record` twice: the first and the second. With fewer, the page asks; `format` json or md gives a file."""
    project = project_for(request, slug)
    asked = [one for one in map(natural, request.GET.getlist("record")) if one is not None]
    chosen = _chosen(project, asked)
    two = chosen if len(chosen) == 2 else None
    wanted = request.GET.get("format", "")
    if wanted:
        if two is None or wanted not in _FILES:
            raise Http404("two records and the format json or md make a file")
        seals = {"first": two[0].seal, "second": two[1].seal}
        downloaded(
            request,
            kind="diff_downloaded",
            subject=f"record:{two[1].pk}",
            project=project,
            data={**seals, "against": f"record:{two[0].pk}", "format": wanted},
        )
        return _file(wanted, two)
    newest = list(_records(project).defer("document").order_by("-pk")[:CHOICES])
    choices = sorted({one.pk: one for one in [*newest, *chosen]}.values(), key=lambda one: -one.pk)
    found, with_configs = _diff(two) if two else (None, False)
    context = {
        "project": project,
        "with_configs": with_configs,
        "choices": [Choice(one) for one in choices],
        "total": _records(project).count(),
        "chosen": chosen,
        "first": chosen[0] if chosen else None,
        "second": chosen[1] if len(chosen) > 1 else None,
        "shown": shown(found) if found else None,
        "same_twice": len(asked) == 2 and len(set(asked)) == 1,
    }
    return render(request, "diff/diff_page.html", context)


def _records(project: Project) -> QuerySet[Record]:
    return Record.objects.filter(run__project=project).select_related("run")


def _chosen(project: Project, asked: list[int]) -> list[Record]:
    """In the order asked for. Raises Http404 for one that is not the project's."""
    wanted = list(dict.fromkeys(asked))
    rows = _records(project).filter(pk__in=wanted)
    found = {one.pk: one for one in (rows if len(wanted) == 2 else rows.defer("document"))}
    if len(found) != len(wanted):
        raise Http404("there is no such record")
    return [found[pk] for pk in wanted]


def _diff(two: list[Record]) -> tuple[Diff, bool]:
    """Also whether the configs themselves were compared; without a card that holds one, only their digests are."""
    first, second = (json.loads(one.document) for one in two)
    before, after = sealed_config(two[0], first), sealed_config(two[1], second)
    if before is None or after is None:
        return diff(first, second), False
    return diff(first, second, (before, after)), True


def _file(wanted: str, two: list[Record]) -> HttpResponse:
    kind, write = _FILES[wanted]
    response = HttpResponse(write(_diff(two)[0]), content_type=kind)
    name = f"record-diff-{two[0].seal[:8]}-{two[1].seal[:8]}.{wanted}"
    response["Content-Disposition"] = f'attachment; filename="{name}"'
    return response
