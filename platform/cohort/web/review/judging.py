"""Judging a sample where it is shown: what its form offers and holds, and what it sends."""

from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any, TypeVar, cast

from django.core.exceptions import ValidationError
from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from django.shortcuts import get_object_or_404, redirect, render
from django.urls import reverse
from django.views.decorators.http import require_POST

from cohort.accounts.models import Project, Role, User, reaches
from cohort.review import services
from cohort.review.labels import label_words, labels_of
from cohort.review.models import Annotation, ReviewQueue, Sample, Verdict
from cohort.review.services import newest_by_person
from cohort.review.waiting import blind_queues
from cohort.web.access import reviewed_run_for
from cohort.web.accounts.views import person

View = TypeVar("View", bound=Callable[..., HttpResponseBase])


def closed_page(request: HttpRequest, slug: str, *run_ids: int) -> HttpResponse | None:
    """What a person who is to judge samples of one of the runs blind gets in place of what the verifier or people think
    of them; None where nothing is closed to the person."""
    queues = blind_queues(person(request), *run_ids)
    if not queues:
        return None
    run = reviewed_run_for(request, slug, queues[0].run_id)
    if not reaches(request.membership.role, Role.REVIEWER):  # type: ignore[attr-defined]
        return None
    return render(request, "review/blind.html", {"run": run, "queues": queues}, status=403)


def shows_samples(view: View) -> View:
    """Decorator for each view of a run that shows what the verifier or people think of its samples."""

    @wraps(view)
    def checked(request: HttpRequest, slug: str, run_id: int, *args: Any, **named: Any) -> HttpResponseBase:
        return closed_page(request, slug, run_id) or view(request, slug, run_id, *args, **named)

    return cast("View", checked)


@require_POST
@shows_samples
def sample_judge(request: HttpRequest, slug: str, run_id: int, group_id: int, index: int) -> HttpResponse:
    """Store what a person thinks of a sample, whatever its score. Answers a part of the page to htmx, else
    redirects."""
    run = reviewed_run_for(request, slug, run_id, at_least=Role.REVIEWER)
    samples = Sample.objects.select_related("group__run__project")
    sample = get_object_or_404(samples, group__run=run, group=group_id, index=index)
    actor = person(request)
    fault = fault_of(request, services.sample_judge, services.sample_undo, sample=sample, actor=actor)
    if not request.htmx and fault is None:  # type: ignore[attr-defined]
        page = reverse("group_detail", args=[slug, run_id, group_id])
        return redirect(f"{page}?sample={index + 1}#sample-{index + 1}")
    opinions = opinions_of([sample], actor, run.project)[sample.pk]
    context = {"run": run, "group": sample.group, "sample": sample, "may": True, "open": "toggle" in request.POST}
    context |= {"fault": fault, "stored": fault is None and stored_words(sample, opinions["own"])}
    context |= {**form_choices(run.project), **opinions}
    return render(request, "review/_judgement.html", context, status=422 if fault else 200)


def fault_of(
    request: HttpRequest, judge: Callable[..., Any], undo: Callable[..., Any], **arguments: Any
) -> dict[str, str] | None:
    """Have one of the two services store what the form sends; why it was refused, with the note that was typed."""
    sent = request.POST
    try:
        if not {"undo", "verdict", "toggle", "note"} & {*sent}:
            raise ValidationError("Nothing was sent: no verdict, no label and no note.")
        if "undo" in sent:
            undo(**arguments)
        else:
            judge(**arguments, **{name: sent.get(name) for name in ("verdict", "toggle", "note")})
    except ValidationError as error:
        return {"words": " ".join(error.messages), "note": sent.get("note", "")}
    return None


def form_choices(project: Project) -> dict[str, Any]:
    return {"verdicts": Verdict.choices, "labels": labels_of(project)}


def opinions_of(
    samples: Sequence[Sample], reader: User, project: Project, *, queue: ReviewQueue | None = None
) -> dict[int, dict[str, Any]]:
    """Sample id → the reader's `own` newest opinion, None before there is one, and those of `others`; with `queue`, of
    those given in it."""
    by_sample: dict[int, list[Annotation]] = {sample.pk: [] for sample in samples}
    given = Annotation.objects.filter(sample__in=samples)
    rows = list((given.filter(queue=queue) if queue else given).select_related("by"))
    words = label_words(project) if any(row.labels for row in rows) else {}
    for row in rows:
        row.label_words = [words[key] for key in row.labels]
        by_sample[row.sample_id].append(row)
    opinions: dict[int, dict[str, Any]] = {}
    for sample_id, of_sample in by_sample.items():
        newest = newest_by_person(of_sample)
        own = newest.pop(reader.pk, None)
        others = [row for row in newest.values() if row.verdict or row.labels or row.note]
        opinions[sample_id] = {"own": own, "others": sorted(others, key=lambda row: row.pk)}
    return opinions


def stored_words(sample: Sample, own: Annotation | None) -> str:
    """What a screen reader says after a change."""
    parts = [own.get_verdict_display().lower() or "not judged", *own.label_words] if own else ["not judged"]
    return f"Sample {sample.index + 1}: {', '.join(parts)}" + ("; note saved." if own and own.note else ".")
