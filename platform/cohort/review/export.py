"""A run's samples as rows of plain data, for files and scripts: every column declared once, with its type and meaning.

Which samples there are is settled when the export begins; each is read when it is its turn, so that a million take no
more memory than a few, and a text that is deleted meanwhile is not sent.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

from django.db.models import Min

from cohort.base.storable import Refused
from cohort.review.facets import FLAGS, VERIFIER
from cohort.review.filters import SampleFilter
from cohort.review.models import Annotation, Sample
from cohort.review.services import newest_by_person
from cohort.runs.models import Run

AT_ONCE = 100
"""Samples in memory."""


class NotFitting(Refused, code="not_fitting"):
    """A page is to follow on a sample that is not among those looked for."""


@dataclass(frozen=True)
class Column:
    """`type` is Arrow's name, or the fields of the structs that a list holds."""

    name: str
    type: str | dict[str, str]
    holds: str


COLUMNS = (
    Column("run", "int64", "Id of the run."),
    Column("attempt", "int64", "Number of the attempt that recorded it, from 1."),
    Column("step", "int64", "Step, from 1."),
    Column("sampled_at", "int64", "Step whose policy sampled it, where that is an earlier one."),
    Column("group_id", "int64", "Id of the group, as in the address of its page."),
    Column("group", "int64", "Index of the group in its step, from 0."),
    Column("sample", "int64", "Index of the sample in its group, from 0."),
    Column("problem", "string", "Id of the problem."),
    Column("prompt", "string", "What the model was given."),
    Column("reference", "string", "Reference answer."),
    Column("completion", "string", "What it sampled; null where the text was redacted."),
    Column("redacted", "bool", "Whether the text was deleted."),
    Column("tokens", "int64", "Tokens of the completion; null where an imported file does not state it."),
    Column("finish", "string", "eos, stop or length; null where an imported file does not state it."),
    Column("reward", "double", "Weighted sum of the components; null where it could not be computed."),
    Column("shaped_reward", "double", "The reward as the group compared it, where a KL penalty is on it; else null."),
    Column("advantage", "double", "As it was trained with; the mean where it differs from token to token."),
    Column("mask", "string", "Why the sample was left out of the update; null where it was used."),
    Column("discarded", "string", "Why dynamic sampling left the group out of training; null where it did not."),
    Column("verifier", "string", "right or wrong by the component that means right; null where it cannot say."),
    Column("flags", {"": "string"}, "What reviewers look for, of: " + ", ".join(FLAGS) + "."),
    Column("clipped", "double", "Share of its tokens whose ratio was clipped."),
    Column("logprob_mean", "double", "Mean log-probability of a token under the policy that sampled it."),
    Column(
        "components",
        {"name": "string", "value": "double", "passed": "bool", "detail": "string", "error": "string"},
        "Each component of the reward, before weighting.",
    ),
    Column(
        "judgements",
        {"reviewer": "int64", "name": "string", "verdict": "string", "note": "string", "at": "string"},
        "The newest of each reviewer. Reviewers are numbered by their first judgement in the run; their names are null "
        "unless names were chosen.",
    ),
)


def sample_rows(run: Run, looked_for: SampleFilter, *, names: bool = False) -> Iterator[dict[str, Any]]:
    """Of each sample that fits, in the filter's order, the values of COLUMNS. `names`: with those of reviewers."""
    return _rows(run, looked_for.ordered(run).values_list("pk", flat=True).iterator(chunk_size=2000), names)


def sample_page(
    run: Run, looked_for: SampleFilter, *, after: int, size: int
) -> tuple[list[dict[str, Any]], int | None]:
    """(rows that follow on the sample with the id `after`, or the first for 0; the id to continue after, None at the
    end). Raises NotFitting."""
    fitting = looked_for.ordered(run)
    if after:
        last = fitting.filter(pk=after).first()
        if last is None:
            raise NotFitting(f"The sample {after} does not fit the filter, or does not any more.")
        fitting = looked_for.order(run).after(fitting, (vars(last)["sort_value"], after))
    ids = list(fitting.values_list("pk", flat=True)[: size + 1])
    return list(_rows(run, iter(ids[:size]), False)), ids[size - 1] if len(ids) > size else None


def _rows(run: Run, ids: Iterator[int], names: bool) -> Iterator[dict[str, Any]]:
    numbers = reviewer_numbers(run)
    for chunk in iter(lambda: list(islice(ids, AT_ONCE)), []):
        samples = Sample.objects.select_related("group", "attempt").in_bulk(chunk)
        judged: dict[int, list[Annotation]] = {}
        for annotation in Annotation.objects.filter(sample__in=chunk).select_related("by").order_by("pk"):
            judged.setdefault(annotation.sample_id, []).append(annotation)
        for sample_id in chunk:
            if (sample := samples.get(sample_id)) is not None:
                yield _row(sample, judged.get(sample_id, []), numbers, names)


def reviewer_numbers(run: Run) -> dict[int, int]:
    """User id → their number among the run's reviewers, from 1, by their first judgement."""
    first = Annotation.objects.filter(sample__run=run).order_by().values("by").annotate(first=Min("pk"))
    return {row["by"]: number for number, row in enumerate(first.order_by("first"), start=1)}


def _row(sample: Sample, annotations: list[Annotation], numbers: dict[int, int], names: bool) -> dict[str, Any]:
    group = sample.group
    redacted = sample.redacted_at is not None
    return {
        "run": sample.run_id,
        "attempt": sample.attempt.fence,
        "step": sample.step,
        "sampled_at": group.sampled_at,
        "group_id": group.pk,
        "group": group.index,
        "sample": sample.index,
        "problem": group.problem_id,
        "prompt": group.prompt,
        "reference": group.answer,
        "completion": None if redacted else sample.completion,
        "redacted": redacted,
        "tokens": sample.tokens,
        "finish": sample.finish_reason or None,
        "reward": sample.reward,
        "shaped_reward": sample.shaped_reward,
        "advantage": sample.advantage,
        "mask": sample.mask_cause or None,
        "discarded": group.discarded or None,
        "verifier": VERIFIER.read(sample.facets) or None,
        "flags": [name for name, facet in FLAGS.items() if facet.read(sample.facets)],
        "clipped": sample.clipped,
        "logprob_mean": sample.logprob_mean,
        "components": [
            {
                "name": name,
                "value": score["value"],
                "passed": score.get("passed"),
                "detail": score.get("detail", ""),
                "error": score.get("error"),
            }
            for name, score in sample.components.items()
        ],
        "judgements": [
            {
                "reviewer": numbers.setdefault(by, len(numbers) + 1),
                "name": annotation.by.username if names else None,
                "verdict": annotation.verdict,
                "note": annotation.note,
                "at": annotation.at.isoformat(),
            }
            for by, annotation in newest_by_person(annotations).items()
        ],
    }
