"""All platform data on an ended run, read once when the record is made. Writes nothing.

Superseded work is only counted (`history`); everything else here is current work.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from itertools import islice
from typing import Any, Literal

from django.db.models.functions import Now

from cohort.catalog.models import DatasetContent, PromptDataset
from cohort.catalog.run_inputs import dataset_problems
from cohort.contamination.selectors import at_launch
from cohort.evaluations.during import BestShown, best_shown, times_evaluated
from cohort.evaluations.selectors import newest_results, result_items, suites
from cohort.evidence.judgements import Judgement
from cohort.evidence.merkle import HASH_BYTES, root
from cohort.lab.estimates import launch_estimate, step_figures
from cohort.lab.models import LaunchEstimate
from cohort.records.models import PolicyVersion, RecordEntry, Statement
from cohort.records.policies.services import policy_in_force
from cohort.records.schema_types import Comparison
from cohort.records.sections.absence_facts import Absent, absent
from cohort.records.sections.earlier_stages import EarlierStage, earlier_stages
from cohort.records.sections.history_facts import History, Lineage, comparisons, history, lineage
from cohort.records.sections.monitors import watched
from cohort.records.sections.overrides import AlertsAnswered, alerts_of, overrides_added
from cohort.records.sections.preregistered import Registered, registered
from cohort.records.sections.probe import Probed, probed
from cohort.records.sections.rescored import rescored
from cohort.records.sections.stage_facts import StageFacts, stage_facts
from cohort.records.statements.services import newest_statements
from cohort.records.traces.tree import step_leaves
from cohort.review.figures import judgements, newest_annotations
from cohort.review.models import Sample
from cohort.review.services import current_groups
from cohort.runs.models import Attempt, Checkpoint, EvalItem, ImportedResult, Run, RunEvent, RunState, StepMetric
from cohort.runs.transitions import current_rows, current_steps
from grpo_core.config.kinds import AnyConfig, ScoredConfig
from grpo_core.config.sample import SampleConfig
from grpo_core.monitors.recorded import Flag


@dataclass(frozen=True)
class Committed:
    steps: int
    leaves: int
    superseded: int
    """Leaves of steps that a later attempt did again."""
    root: str
    """Hex; empty where there are no commitments."""


def committed(run: Run) -> Committed:
    steps = leaves = superseded = 0
    hashes: list[bytes] = []
    for step in step_leaves(run):
        steps, leaves = steps + 1, leaves + step.count
        superseded += step.count if step.superseded else 0
        hashes += [step.leaves[at : at + HASH_BYTES] for at in range(0, len(step.leaves), HASH_BYTES)]
    return Committed(steps, leaves, superseded, root(hashes).hex() if hashes else "")


State = Literal["succeeded", "failed", "cancelled"]


@dataclass(frozen=True)
class Overlap:
    """Held-out prompts that are in the training file too, ignoring letter case and white space."""

    heldout: int
    shared: int


@dataclass(frozen=True)
class TracesInCard:
    """Kept groups that went into the card."""

    groups: int
    samples: int
    cut_at: int | None
    """Step of the first group that was left out; None when all are in."""


@dataclass(frozen=True)
class Facts:
    run: Run
    launched_by: str
    """Name of the person who put the draft into the queue."""
    state: State
    sealed_at: datetime
    config: AnyConfig
    history: History
    newest_attempt: Attempt | None
    """The newest attempt with current work; a later one that failed to start has none."""
    last_message: str
    """The trainer's last message, when the run ended with an attempt and not while queued for another."""
    first: StepMetric | None
    last: StepMetric | None
    comparisons: list[Comparison]
    checkpoint: Checkpoint | None
    """The newest current final weights."""
    during: dict[str, int]
    """Current evaluations while training, by suite."""
    best: BestShown | None
    """None where the best checkpoint is not kept."""
    snapshots: list[Checkpoint]
    """Stored policies that a later step sampled with: checkpoints before the last step, whether still kept or not."""
    groups_kept: int
    samples_kept: int
    events: int
    last_event: int
    """Id of the newest event in the record; sealing itself adds one."""
    overlap: Overlap | None
    """None when there is no separate held-out file, no problems were trained on, or a file is no longer stored."""
    seen_at_launch: dict[str, Any] | None
    """Overlaps that the platform's own search had found by then, and who launched; None without any."""
    lineage: Lineage
    earlier: list[EarlierStage]
    """Every earlier run that this one depends on."""
    stage: StageFacts
    committed: Committed
    flags: list[Flag]
    judgements: list[Judgement]
    """People's, of current completions."""
    rescores: list[dict[str, Any]]
    """Entries of `sections.rescored`."""
    imported: list[ImportedResult]
    probed: Probed
    estimate: LaunchEstimate | None
    """The estimate measured for the config before the run's last launch."""
    step_seconds: list[float]
    """Duration of each current step."""
    step_memory: list[float]
    """Peak memory in bytes of each step that reported it."""
    absent: Absent
    """What the record leaves out, counted."""
    registered: Registered
    """What the audit log says was fixed before the first step."""
    policy: PolicyVersion | None
    """The newest version of the project's policy; None where it has none."""
    overrides_added: list[RecordEntry]
    """Overrides of flags added to earlier records of the run."""
    alerts: AlertsAnswered
    statements: dict[str, Statement]
    """Field (`section.field`, with `:flag` for an override) → the newest statement, without those withdrawn."""

    @property
    def manifest(self) -> dict[str, Any] | None:
        return self.newest_attempt.manifest if self.newest_attempt else None

    @property
    def outcome(self) -> dict[str, Any] | None:
        return self.newest_attempt.outcome if self.newest_attempt else None

    @property
    def totals(self) -> dict[str, float]:
        """Sums over the current work; empty when none were reported. Zero samples with steps done means that the
        trainer ended before it restored the earlier totals, so they count as not reported. Kinds that score nothing
        have no samples."""
        totals = dict(self.outcome["totals"]) if self.outcome else {}
        if not isinstance(self.config, ScoredConfig):
            return totals
        return totals if "samples" in totals and (totals["samples"] or not self.steps_done) else {}

    @property
    def tokens(self) -> float | None:
        """Sampled in the current steps, with prompts: from the totals, else as counted at the last step."""
        if tokens := self.totals.get("tokens"):
            return tokens
        counted = self.last.metrics.get("num_tokens") if self.last else None
        return None if counted is None else float(counted)

    @property
    def steps_done(self) -> int:
        return self.last.step if self.last else 0

    @property
    def steps_planned(self) -> int | None:
        """None where the number of problems decides it and the trainer ended before it had read them."""
        if not isinstance(self.config, SampleConfig):
            return self.config.steps
        planned = (self.outcome or {}).get("steps_planned") or self.run.steps_total
        return int(planned) if planned else None


def collect(run: Run, *, state: State) -> Facts:
    config = run.parsed_config
    attempts = list(run.attempts.order_by("-fence"))
    steps = current_steps(run)
    groups = current_groups(run)
    events = list(RunEvent.objects.filter(run=run).values_list("pk", flat=True))
    newest_attempt = _newest_current(run, attempts)
    compared = comparisons(suites(run, config))
    step_seconds, step_memory = step_figures(run)
    saved, kept = (current_rows(Checkpoint.objects.filter(run=run, final=final)) for final in (True, False))
    last = steps.last()
    before = kept.filter(step__lt=last.step if last else 0)
    launch = RunEvent.objects.filter(run=run, kind="state", data__to=RunState.QUEUED).earliest("pk")
    return Facts(
        run=run,
        launched_by=launch.actor.removeprefix("user:"),
        state=state,
        sealed_at=Run.objects.annotate(moment=Now()).values_list("moment", flat=True).get(pk=run.pk),
        config=config,
        history=history(run),
        newest_attempt=newest_attempt,
        last_message=_last_message(run, attempts),
        first=steps.first(),
        last=last,
        comparisons=compared,
        checkpoint=saved.select_related("attempt__node").order_by("-attempt__fence", "-seq").first(),
        during=times_evaluated(run),
        best=best_shown(run, config),
        snapshots=list(before.order_by("step", "-attempt__fence").distinct("step")),
        groups_kept=groups.count(),
        samples_kept=Sample.objects.filter(group__in=groups.values("pk")).count(),
        events=len(events),
        last_event=max(events, default=0),
        overlap=_overlap(run, config),
        seen_at_launch=at_launch(run),
        lineage=lineage(run, newest_attempt.manifest if newest_attempt else None),
        earlier=earlier_stages(run, newest_attempt.manifest if newest_attempt else None),
        stage=stage_facts(run),
        committed=committed(run),
        flags=watched(run, compared),
        judgements=judgements(newest_annotations(run), run=run) if run.has_samples else [],
        rescores=rescored(run),
        imported=list(ImportedResult.objects.filter(run=run).select_related("by")),
        probed=probed(run),
        estimate=launch_estimate(run),
        step_seconds=step_seconds,
        step_memory=step_memory,
        absent=absent(run, before=launch.at),
        registered=registered(run),
        policy=policy_in_force(run.project),
        overrides_added=overrides_added(run),
        alerts=alerts_of(run),
        statements=newest_statements(run),
    )


def _newest_current(run: Run, attempts: list[Attempt]) -> Attempt | None:
    """Of attempts, newest first: the first that resumed from a checkpoint, has a current step, or had no earlier work
    to resume."""
    stepped = set(current_steps(run).order_by().values_list("attempt_id", flat=True).distinct())
    for index, attempt in enumerate(attempts, start=1):
        before = (earlier.valid_through for earlier in attempts[index:])
        alone = all(through is not None and through < 0 for through in before)
        if alone or attempt.resumed_step is not None or attempt.pk in stepped:
            return attempt
    return None


def _last_message(run: Run, attempts: list[Attempt]) -> str:
    newest = attempts[0] if attempts else None
    if newest is None or newest.outcome is None or newest.ended_at is None:
        return ""
    queued_since = run.queued_at is not None and run.queued_at > newest.ended_at
    return "" if queued_since else str(newest.outcome["message"])


def eval_items(run: Run, phase: str) -> Iterator[EvalItem]:
    """Items of the newest evaluation of each suite in this phase."""
    for result in newest_results(run).filter(phase=phase):
        yield from result_items(result).iterator(chunk_size=500)


def _overlap(run: Run, config: AnyConfig) -> Overlap | None:
    if run.eval_dataset is None or run.dataset.content != DatasetContent.PROBLEMS:
        return None
    try:
        heldout = list(_prompts(run.eval_dataset, config.eval.limit))
        heldout_prompts = set(heldout)
        shared = {prompt for prompt in _prompts(run.dataset, config.data.limit) if prompt in heldout_prompts}
    except FileNotFoundError:
        return None
    return Overlap(heldout=len(heldout), shared=sum(prompt in shared for prompt in heldout))


def _prompts(dataset: PromptDataset, limit: int | None) -> Iterator[str]:
    for problem in islice(dataset_problems(dataset), limit):
        yield " ".join(problem.text.casefold().split())
