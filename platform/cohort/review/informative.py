"""Which samples of a run teach most when a person judges them."""

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from django.db.models import BooleanField, Count, Max, Min, Q
from django.db.models.fields.json import KeyTextTransform, KeyTransform
from django.db.models.functions import Abs, Cast

from cohort.review.filters import SampleFilter
from cohort.review.models import Annotation, Sample
from cohort.review.services import judges, right
from cohort.runs.models import Run

CANDIDATES = 20_000
"""So many of what fits the filter are weighed: those with the highest |advantage|."""
HELP = (
    "First what people judged against the verifier or differ on; then what is least sure, which is where the reward "
    "lies in the middle of its group, half of the group is right, or |advantage| is high. Every problem comes once "
    f"before any comes twice. Weighed are the {CANDIDATES:,} samples with the highest |advantage|."
)


class Candidate(NamedTuple):
    pk: int
    problem: str
    disputed: bool
    """People differ on it, or judged it against the verifier."""
    doubt: float
    """0 to 1: mean of how near the reward is to the middle of its group's range, how near the group's pass rate is to a
    half, and |advantage| as a share of the highest."""


def by_information(candidates: Sequence[Candidate]) -> list[int]:
    """Ids in the order that HELP describes; of equals the earlier sample first."""
    turn: Counter[tuple[bool, str]] = Counter()
    placed = []
    for candidate in sorted(candidates, key=lambda candidate: (-candidate.doubt, candidate.pk)):
        stratum = (candidate.disputed, candidate.problem)
        placed.append((not candidate.disputed, turn[stratum], -candidate.doubt, candidate.pk))
        turn[stratum] += 1
    return [pk for *_, pk in sorted(placed)]


def most_informative(run: Run, samples: SampleFilter, size: int) -> list[int]:
    """Ids of the `size` samples that fit the filter and teach most. Four queries."""
    component = KeyTransform(run.scored_by.success_component, "components")  # a name may hold two underscores
    passed = Cast(KeyTextTransform("passed", component), BooleanField())
    fields = ("pk", "group_id", "group__problem_id", "reward", "advantage", "passed", "mask_cause")
    fitting = samples.samples(run).filter(redacted_at=None).annotate(passed=passed).values_list(*fields, named=True)
    disputed = _disputed(run)
    rows = {row.pk: row for row in fitting.order_by(Abs("advantage").desc(nulls_last=True), "pk")[:CANDIDATES]}
    rows |= {row.pk: row for row in fitting.filter(pk__in=disputed)}
    stored = Sample.objects.filter(group__in={row.group_id for row in rows.values()}).annotate(passed=passed)
    groups = {
        group: figures
        for group, *figures in stored.order_by()
        .values_list("group_id")
        .annotate(
            low=Min("reward"),
            high=Max("reward"),
            passing=Count("pk", filter=Q(passed=True)),
            known=Count("passed"),
        )
    }
    strongest = max((abs(row.advantage or 0.0) for row in rows.values()), default=0.0) or 1.0
    candidates = []
    for row in rows.values():
        low, high, passing, known = groups[row.group_id]
        spread = high - low if row.reward is not None else 0.0
        middle = 1 - abs(2 * (row.reward - low) / spread - 1) if spread else 0.0
        share = passing / known if known else 0.0
        doubt = (middle + 4 * share * (1 - share) + abs(row.advantage or 0.0) / strongest) / 3
        candidates.append(Candidate(row.pk, row.group__problem_id, row.pk in disputed, doubt))
    return by_information(candidates)[:size]


def _disputed(run: Run) -> set[int]:
    """Ids of samples on which people differ, or that they judged against the verifier."""
    by_sample: dict[int, list[Annotation]] = {}
    for row in Annotation.objects.filter(sample__group__run=run).order_by("pk").select_related("sample"):
        by_sample.setdefault(row.sample_id, []).append(row)
    success = run.scored_by.success_of
    disputed = set()
    for pk, rows in by_sample.items():
        verdicts = {row.verdict for row in judges(rows).values()}
        against = {True: "wrong", False: "right", None: None}[right(rows[0].sample, success)]
        if len(verdicts) > 1 or against in verdicts:
            disputed.add(pk)
    return disputed
