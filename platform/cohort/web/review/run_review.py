"""A run's page of review: how people and the verifier agree, step by step and by class, and what to look at again."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_safe

from cohort.evidence.judgements import review_figures
from cohort.records.document_tables import review_tables
from cohort.review.figures import judgements, newest_annotations
from cohort.review.models import Annotation, Sample, Verdict
from cohort.review.services import Success, right
from cohort.web.access import reviewed_run_for
from cohort.web.compare.curves import curves
from cohort.web.review.judging import shows_samples
from cohort.web.review.rates_chart import rates_drawn
from cohort.web.runs.header import Header

SHOWN = 20
"""Judgements in each list."""


@dataclass(frozen=True)
class Judged:
    annotation: Annotation
    sample: Sample
    """With its texts."""
    passed: bool | None
    """By the verifier."""


@require_safe
@shows_samples
def run_review(request: HttpRequest, slug: str, run_id: int) -> HttpResponse:
    header = Header(reviewed_run_for(request, slug, run_id))
    run, success = header.run, header.run.scored_by.success_of
    annotations = newest_annotations(run)
    figures = review_figures(judgements(annotations, run=run))
    context: dict[str, Any] = {"figures": figures, "verifier": figures["verifier"], "shown": SHOWN}
    if annotations:
        newest = annotations[::-1]
        wrong = [a for a in newest if a.verdict == Verdict.WRONG and right(a.sample, success)]
        newest_shown, wrong_shown = _with_texts([newest[:SHOWN], wrong[:SHOWN]], success)
        context |= {"newest": newest_shown, "wrong": wrong_shown, "wrong_total": len(wrong)}
        context |= {"tables": review_tables(figures), "total": len(annotations)}
    if figures["by_step"]:
        metric = f"rewards/{run.scored_by.success_component}/mean"
        context |= {"drawn": rates_drawn(figures["by_step"], curves([run], metric).by_run.get(run.pk))}
    return render(request, "review/run_review.html", header.context("review", **context))


def _with_texts(lists: Sequence[Sequence[Annotation]], success: Success) -> list[list[Judged]]:
    """Each list with its samples' texts. One query."""
    ids = {annotation.sample_id for annotations in lists for annotation in annotations}
    samples = Sample.objects.select_related("group").in_bulk(ids)
    return [
        [Judged(a, samples[a.sample_id], right(samples[a.sample_id], success)) for a in annotations]
        for annotations in lists
    ]
