"""What the first page of a project shows, in a fixed number of queries however many runs there are."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import cached_property
from typing import Any

from django.db.models import Count, Exists, OuterRef, QuerySet
from django.utils import timezone

from cohort.accounts.models import Membership, Role, reaches
from cohort.alerts.models import Alert, Condition
from cohort.alerts.selectors import alerts_of, badges_with_alerts
from cohort.catalog.models import BaseModel, PromptDataset, VerifierVersion
from cohort.evidence.plain_text import counted
from cohort.records.after_seal.rules import State
from cohort.records.models import Record, StatementDraft
from cohort.records.statements.services import required_unanswered
from cohort.review.models import ReviewQueue
from cohort.review.queue_figures import own_queues
from cohort.runs.models import EvalResult, Run, RunState, RunValue
from cohort.runs.node_status import NodeStatus, node_status_rows
from cohort.runs.run_values import VERDICT
from cohort.runs.transitions import ENDED, ON_A_WORKER
from cohort.web.after_seal.offers import signable
from cohort.web.context import version_of
from cohort.web.records.listing import RecordRow, record_rows
from grpo_core.config.evaluation import HELDOUT
from grpo_core.stats.unscored import scored_share

SHOWN = 8
"""Most runs of a list."""
RECORDS = 5
RECENT = timedelta(days=14)
"""How long a run that failed stays among what needs somebody."""


@dataclass(frozen=True)
class RunLine:
    run: Run
    health: tuple[str, ...] = ()
    """What is wrong with it, in short: its open alerts, and what the trainer reports."""
    before: float | None = None
    after: float | None = None
    """Shares of the held-out problems, or else of the first suite, before and after training."""
    suite: str = ""
    verdict: str = ""
    """What the newest record says of that suite."""
    new: bool = False
    """Ended since the person last marked the page as seen."""


@dataclass(frozen=True)
class Need:
    """Something that waits for a person."""

    run: Run
    what: str
    why: str
    link: str
    """Name of the URL that it is done at, which takes the project and the run."""
    alert: Alert | None = None
    """That is open, and acknowledged from here."""
    unanswered: int = 0
    """Required questions about the run that nobody has answered."""


@dataclass(frozen=True)
class Step:
    """Of the way to a first run."""

    title: str
    text: str
    done: bool
    links: tuple[tuple[str, str], ...]
    """(label, name of the URL)."""


class Home:
    def __init__(self, membership: Membership) -> None:
        self.membership, self.project, self.role = membership, membership.project, membership.role
        self.now = timezone.now()

    @property
    def _runs(self) -> QuerySet[Run]:
        slim = Run.objects.filter(project=self.project).defer("config", "log_tail", "first_metrics")
        return slim.select_related("base_model", "created_by")

    @cached_property
    def running(self) -> list[RunLine]:
        runs = list(self._runs.filter(state__in=ON_A_WORKER).order_by("-pk")[: SHOWN + 1])
        ids = [run.pk for run in runs]
        health = badges_with_alerts(ids, live=ids)
        return [RunLine(run, health=tuple(health[run.pk])) for run in runs]

    @cached_property
    def waiting(self) -> list[Run]:
        return list(self._runs.filter(state=RunState.QUEUED).order_by("queued_at")[: SHOWN + 1])

    @cached_property
    def finished(self) -> list[RunLine]:
        """Those that ended last, with what changed."""
        runs = list(self._runs.filter(state__in=ENDED).order_by("-ended_at", "-pk")[:SHOWN])
        scores = _scores(runs)
        seen = self.membership.seen_at or self.membership.created_at
        return [
            RunLine(run, **scores.get(run.pk, {}), new=run.ended_at is not None and run.ended_at > seen) for run in runs
        ]

    @property
    def has_new(self) -> bool:
        return any(line.new for line in self.finished)

    @cached_property
    def needs(self) -> list[Need]:
        """What the person, in their role, can do something about; the newest first."""
        needs: list[Need] = []
        if reaches(self.role, Role.OPERATOR):
            for alert in self.alerts[:SHOWN]:
                needs.append(Need(alert.run, alert.title, alert.text, "run_detail", alert))
            runs = self._runs.filter(state__in=[RunState.FAILED, RunState.PAUSED, RunState.DRAFT])
            alerted = Alert.objects.filter(run=OuterRef("pk"), condition=Condition.ENDED, closed_at=None)
            runs = runs.exclude(Exists(alerted))  # open above, or acknowledged
            for run in runs.filter(created_at__gte=self.now - RECENT).order_by("-pk")[:SHOWN]:
                what = {"failed": "failed", "paused": "paused", "draft": "draft, not launched"}[run.state]
                needs.append(Need(run, what, run.reason, "run_detail"))
        needs += self._records_that_wait()
        needs += self._answers_not_saved()
        return needs

    @cached_property
    def reviews(self) -> list[tuple[ReviewQueue, int]]:
        """The person's open review queues, with how many samples wait for them."""
        return own_queues(self.project, self.membership.user) if reaches(self.role, Role.REVIEWER) else []

    def _records_that_wait(self) -> list[Need]:
        """Of the newest records: those that the person may sign, or whose required questions they may answer."""
        newest = [row for row in self.records if row.newest and row.standing.state != State.REVOKED]
        may_state = reaches(self.role, Role.REVIEWER)
        missing = required_unanswered([row.record.run_id for row in newest]) if may_state else {}
        needs = []
        for row in newest:
            run, unanswered = row.record.run, len(missing.get(row.record.run_id, ()))
            if row in self.unsigned:
                what = f"record {row.standing.words}"
                needs.append(Need(run, what, "It waits for your sign-off.", "record_detail", unanswered=unanswered))
            elif unanswered:
                needs.append(Need(run, "record with open questions", "", "record_detail", unanswered=unanswered))
        return needs

    def _answers_not_saved(self) -> list[Need]:
        """Runs with answers that the person typed and did not save."""
        if not reaches(self.role, Role.REVIEWER):
            return []
        drafts = StatementDraft.objects.filter(project=self.project, user=self.membership.user, run__isnull=False)
        counts = dict(drafts.values_list("run").annotate(count=Count("pk")).order_by("-run")[:SHOWN])
        runs = self._runs.filter(pk__in=counts).order_by("-pk")
        return [Need(run, f"{counted(counts[run.pk], 'answer')} not saved", "", "run_statements") for run in runs]

    @cached_property
    def alerts(self) -> list[Alert]:
        """Open ones, one more than are shown."""
        runs = alerts_of(self.project).select_related("run").defer("run__config", "run__log_tail", "run__first_metrics")
        return list(runs[: SHOWN + 1])

    @cached_property
    def records(self) -> list[RecordRow]:
        every = Record.objects.filter(run__project=self.project).order_by("-pk")
        return record_rows(list(every.values_list("pk", flat=True)[:RECORDS]))

    @cached_property
    def unsigned(self) -> list[RecordRow]:
        """Of the newest records those that the person may sign."""
        open_states = (State.NONE, State.OPERATOR, State.REVIEWER)
        user, role = self.membership.user, self.role
        return [
            row
            for row in self.records
            if row.newest
            and row.standing.state in open_states
            and not any(entry.by_id == user.pk for entry in row.standing.signed)
            and signable(record=row.record, standing=row.standing, user=user, role=role)[0]
        ]

    @cached_property
    def nodes(self) -> list[NodeStatus]:
        """All but those that are revoked or were never here."""
        return [status for status in node_status_rows() if status.status not in ("revoked", "never")]

    @property
    def nodes_ready(self) -> int:
        """Nodes with a recent heartbeat."""
        return sum(status.current for status in self.nodes)

    @property
    def node_lines(self) -> list[tuple[NodeStatus, list[Run], int]]:
        """(node, this project's runs on it, how many of other projects)."""
        lines = []
        for status in self.nodes[:SHOWN]:
            runs = [attempt.run for attempt in status.attempts if attempt.run.project_id == self.project.pk]
            lines.append((status, runs, len(status.attempts) - len(runs)))
        return lines

    @cached_property
    def empty(self) -> bool:
        return not Run.objects.filter(project=self.project).exists()

    @cached_property
    def steps(self) -> list[Step]:
        """The way to a first run."""
        model = BaseModel.objects.filter(project=self.project).exists()
        data = PromptDataset.objects.filter(project=self.project).exists()
        reward = VerifierVersion.objects.filter(verifier__project=self.project).exists()
        return [
            Step(
                "A machine that trains",
                "A worker on this machine or another takes runs from the queue. The command cohort up starts one here.",
                self.nodes_ready > 0,
                (("Nodes", "node_list"),),
            ),
            Step(
                "Model, problems and reward",
                "A base model, a dataset of problems, and what completions are scored by. The run form can make "
                "problems and their reward from a ready-made task.",
                model and data and reward,
                (("Base models", "base_model_list"), ("Datasets", "dataset_list"), ("Rewards", "verifier_list")),
            ),
            Step(
                "Define the run",
                "Start from a paper's preset; everything is checked before it is launched.",
                False,
                (("New run", "run_new"),),
            ),
        ]

    @property
    def version(self) -> str:
        """Changes when anything that is shown does."""
        lines = [(line.run.pk, line.run.state, line.run.step, line.health) for line in self.running]
        ended = [(line.run.pk, line.run.state, line.new, line.after) for line in self.finished]
        needs = [(need.run.pk, need.what, need.alert and need.alert.pk, need.unanswered) for need in self.needs]
        nodes = [(line.node.pk, line.status, [attempt.pk for attempt in line.attempts]) for line in self.nodes]
        records = [(row.record.pk, row.standing.state) for row in self.records]
        return version_of((lines, [run.pk for run in self.waiting], ended, needs, records, nodes, self.reviews))


def _scores(runs: Sequence[Run]) -> dict[int, dict[str, Any]]:
    """Of each run's held-out problems, or else of its first suite: {suite, verdict, before, after}; a later attempt's
    result takes the place of an earlier one's."""
    results: dict[int, dict[str, dict[str, float | None]]] = defaultdict(lambda: defaultdict(dict))
    shown = [run.pk for run in runs]
    rows = EvalResult.objects.filter(run__in=shown, phase__in=("before", "after")).order_by("pk")
    totals = ("correct", "problems", "errors")
    for run, suite, phase, correct, problems, errors in rows.values_list("run_id", "suite", "phase", *totals):
        results[run][suite][phase] = scored_share(correct, problems, errors)
    verdicts = RunValue.objects.filter(run__in=shown, key__startswith=VERDICT).values_list("run_id", "key", "text")
    stored = {(run, key.removeprefix(VERDICT)): text for run, key, text in verdicts}
    return {
        run: {
            "suite": suite,
            "verdict": stored.get((run, suite), ""),
            **{phase: suites[suite].get(phase) for phase in ("before", "after")},
        }
        for run, suites in results.items()
        for suite in [HELDOUT if HELDOUT in suites else next(iter(suites))]
    }
