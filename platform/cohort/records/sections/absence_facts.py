"""Counts of what exists of a run and its record leaves out. Read once when the record is made. Writes nothing."""

from collections import Counter
from dataclasses import dataclass
from datetime import datetime

from django.db.models import Q

from cohort.evaluations.selectors import newest_results
from cohort.lab.models import JobKind, JobState, LabJob, LaunchProbe, ModelEvalResult, VerifierProbe
from cohort.records.models import Statement
from cohort.records.statements.services import newest_statements
from cohort.review.models import Annotation, PairVote, Sample
from cohort.review.services import current_groups
from cohort.runs.models import EvalResult, Run
from cohort.runs.transitions import current_evaluations


@dataclass(frozen=True)
class Evaluations:
    while_training: int
    repeated: int
    """Current ones before or after training that a newer one of the same suite replaced."""
    superseded: int
    of_checkpoints: int
    """Of the lab, on registered checkpoints of this run."""
    of_base_model: int
    """Of the lab, on the base model that it began from."""
    sweep_runs: int
    """Other runs of the same sweep."""


@dataclass(frozen=True)
class Judgements:
    """People's judgements that are in no figure of the record."""

    revised: int
    """Replaced by a later one of the same person on the same completion."""
    withdrawn: int
    superseded: int
    """On completions of superseded work."""
    pair_votes: int
    counted: int
    """Those that are in the figures."""


@dataclass(frozen=True)
class Statements:
    made: int
    in_force: int
    withdrawn: int
    """Fields whose newest statement was withdrawn."""


@dataclass(frozen=True)
class Probes:
    """Of the reward, before the run was put into the queue."""

    verdicts: dict[str, int]
    """Of this version, by verdict."""
    other_versions: dict[str, int]
    """Of other versions of the same reward, by verdict."""
    unfinished: int
    """Of this version, failed or cancelled without a result."""
    overridden: int
    """Launches of this run in spite of what was known, or not known, of its reward."""


@dataclass(frozen=True)
class Absent:
    evaluations: Evaluations
    judgements: Judgements
    statements: Statements
    probes: Probes
    redacted: int
    """Stored completions of the run, superseded ones too, whose texts were deleted."""
    stored: int
    """All stored completions of the run."""


def absent(run: Run, *, before: datetime) -> Absent:
    """`before`: when the run was first put into the queue."""
    samples = Sample.objects.filter(group__run=run)
    return Absent(
        evaluations=_evaluations(run),
        judgements=_judgements(run),
        statements=_statements(run),
        probes=_probes(run, before),
        redacted=samples.exclude(redacted_at=None).count(),
        stored=samples.count(),
    )


def _evaluations(run: Run) -> Evaluations:
    every = EvalResult.objects.filter(run=run)
    current = current_evaluations(every)
    during = current.filter(phase="during").count()
    lab = ModelEvalResult.objects.all()
    return Evaluations(
        while_training=during,
        repeated=current.count() - during - newest_results(run).count(),
        superseded=every.count() - current.count(),
        of_checkpoints=lab.filter(base_model__checkpoint__run=run).count(),
        of_base_model=lab.filter(base_model=run.base_model).count(),
        sweep_runs=run.sweep.runs.exclude(pk=run.pk).count() if run.sweep is not None else 0,
    )


def _judgements(run: Run) -> Judgements:
    rows = Annotation.objects.filter(sample__group__run=run).exclude(sample=None)
    current = rows.filter(sample__group__in=current_groups(run).values("pk")).order_by("sample_id", "by_id", "pk")
    by_person: dict[tuple[int, int], list[str]] = {}
    for sample_id, by_id, verdict in current.values_list("sample_id", "by_id", "verdict"):
        by_person.setdefault((sample_id, by_id), []).append(verdict)
    given = {key: [verdict for verdict in verdicts if verdict] for key, verdicts in by_person.items()}
    in_force = {key for key, verdicts in by_person.items() if verdicts[-1]}
    total = sum(map(len, given.values()))
    withdrawn = sum(1 for key, verdicts in given.items() if verdicts and key not in in_force)
    everything = rows.exclude(verdict="").count()
    return Judgements(
        revised=total - len(in_force) - withdrawn,
        withdrawn=withdrawn,
        superseded=everything - total,
        pair_votes=PairVote.objects.filter(left__group__run=run).count(),
        counted=len(in_force),
    )


def _statements(run: Run) -> Statements:
    rows = Statement.objects.filter(run=run)
    in_force = len(newest_statements(run))
    stating = rows.exclude(Q(text="") & Q(value=None))
    fields = rows.values("field").distinct().count()
    return Statements(made=stating.count(), in_force=in_force, withdrawn=fields - in_force)


def _probes(run: Run, before: datetime) -> Probes:
    if run.verifier_version_id is None:
        return Probes({}, {}, 0, 0)
    version = run.verifier_version
    earlier = VerifierProbe.objects.filter(at__lt=before)
    jobs = LabJob.objects.filter(kind=JobKind.PROBE, version=version, created_at__lt=before)
    others = earlier.filter(version__verifier=version.verifier).exclude(version=version)
    return Probes(
        verdicts=dict(Counter(earlier.filter(version=version).values_list("verdict", flat=True))),
        other_versions=dict(Counter(others.values_list("verdict", flat=True))),
        unfinished=jobs.filter(state__in=[JobState.FAILED, JobState.CANCELLED]).count(),
        overridden=LaunchProbe.objects.filter(run=run, overridden=True).count(),
    )
