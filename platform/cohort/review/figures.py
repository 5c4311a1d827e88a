"""Reviewers' judgements of a run's samples next to the verifier's, as they stand now: how often it rewarded what is
wrong, and how often it did not reward what is right. Reads only; `cohort.evidence.judgements` has the arithmetic."""

from collections.abc import Sequence
from typing import Any

from cohort.evidence.judgements import Judgement, review_figures
from cohort.review.labels import label_words
from cohort.review.models import Annotation, Sample
from cohort.review.services import current_groups, right
from cohort.runs.models import Run

NOT_REWARDED = "nothing"
"""Class of samples that no component gave anything."""
_TEXTS = ("sample__completion", "sample__group__prompt", "sample__group__answer")


def newest_annotations(run: Run) -> list[Annotation]:
    """Of each reviewer and current sample the newest, where it says right, wrong or unsure; by id. With sample and
    group, which load their texts only when read, and reviewer. One query."""
    rows = Annotation.objects.filter(sample__group__in=current_groups(run).values("pk"))
    newest = rows.order_by("sample_id", "by_id", "-pk").distinct("sample_id", "by_id")
    newest = newest.select_related("sample__group", "by").defer(*_TEXTS)
    return sorted((annotation for annotation in newest if annotation.verdict), key=lambda annotation: annotation.pk)


def judgements(annotations: Sequence[Annotation], *, run: Run) -> list[Judgement]:
    """Of the run's `newest_annotations`, by step, group, sample and reviewer. Reviewers get numbers instead of names. A
    sample has the labels of all its reviewers. One query."""
    success, words = run.scored_by.success_of, label_words(run.project)
    labels: dict[int, set[str]] = {}
    for annotation in annotations:
        labels.setdefault(annotation.sample_id, set()).update(words[key] for key in annotation.labels)
    reviewers: dict[int, int] = {}
    rows = []
    for annotation in annotations:
        sample, group = annotation.sample, annotation.sample.group
        rows.append(
            Judgement(
                step=group.step,
                group=group.index,
                sample=sample.index,
                reviewer=reviewers.setdefault(annotation.by_id, len(reviewers) + 1),
                verdict=annotation.verdict,
                passed=right(sample, success),
                classes=_classes(sample) | {"label": sorted(labels[sample.pk])},
            )
        )
    return sorted(rows, key=lambda row: (*row.key, row.reviewer))


def _classes(sample: Sample) -> dict[str, list[str]]:
    rewarded = [name for name in sorted(sample.components) if (sample.components[name].get("value") or 0) > 0]
    return {
        "finish_reason": [sample.finish_reason or "not stated"],
        "rewarded_by": [" + ".join(rewarded) or NOT_REWARDED],
    }


def run_figures(run: Run) -> dict[str, Any]:
    """`review_figures` of the run's current judgements."""
    return review_figures(judgements(newest_annotations(run), run=run))
