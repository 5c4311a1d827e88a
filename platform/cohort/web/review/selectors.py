"""What pages of groups and samples read from the database. Nothing here writes."""

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from django.db.models import BooleanField, Count, Exists, Func, OuterRef, Prefetch, Q, QuerySet

from cohort.review.filters import DISCARD_WORDS
from cohort.review.models import Group, Sample
from cohort.review.services import Success, current_groups, right
from cohort.runs.models import Run, RunKind, StepMetric
from cohort.web.context import position
from cohort.web.review.arithmetic import group_scores
from cohort.web.review.texts import prompt_turns, question_of
from grpo_core.advantages.base import GroupScores
from grpo_core.config.kinds import ScoredConfig

PAGE = 100
SHOWS = {"all": "all", "mixed": "mixed only", "errors": "with errors", "truncated": "truncated"}
DISCARDED = {"discarded": "discarded"}
"""Offered for runs with dynamic sampling."""
SIGNAL_WORDS = {"phantom": "shaping alone", "all_equal": "no signal", "unscored": "not scored"}


class _HasError(Func):
    """Whether any reward component of a sample holds an error."""

    template = "jsonb_path_exists(%(expressions)s, '$.*.error ? (@ != null)')"
    output_field = BooleanField()


@dataclass(frozen=True)
class GroupRow:
    group: Group
    squares: tuple[bool | None, ...]
    """Right, wrong, or None: masked or not judged."""
    words: tuple[str, ...]
    """Remarks besides the numbers; empty for an ordinary group."""

    @property
    def question(self) -> str:
        return question_of(prompt_turns(self.group.prompt))


@dataclass(frozen=True)
class StepGroups:
    """Some of the groups kept at one step."""

    steps: QuerySet[Group, int]
    """Of every group of the run."""
    step: int | None
    newest: int | None
    """Newest step with groups; None while there is none."""
    show: str
    rows: tuple[GroupRow, ...] = ()
    matching: int = 0
    kept: int = 0
    following: int | None = None
    """`start` of the next page; None at the end."""
    discarded: int = 0
    """Of the kept, those that dynamic sampling left out of training."""

    @cached_property
    def earlier(self) -> int | None:
        return self.steps.filter(step__lt=self.step).order_by("-step").first()

    @cached_property
    def later(self) -> int | None:
        return self.steps.filter(step__gt=self.step).order_by("step").first()


def step_groups(
    run: Run, *, success: Success, step: int | None = None, show: str = "all", start: int = 0, limit: int = PAGE
) -> StepGroups:
    """Groups of `step`, or of the newest step that has any. A constant number of queries, each over one step."""
    steps = current_groups(run).values_list("step", flat=True)
    newest = steps.order_by("-step").first()  # by the index's end; an aggregate would read every group
    step = newest if step is None else step
    show = show if show in SHOWS | DISCARDED else "all"
    if step is None:
        return StepGroups(steps, None, None, show)
    every = current_groups(run).filter(step=step)
    filtered = every
    if show == "mixed":
        filtered = every.filter(signal="mixed")
    elif show == "errors":
        bad = Q(mask_cause="reward_error") | Q(_HasError("components"))
        filtered = every.filter(Exists(Sample.objects.filter(bad, group=OuterRef("pk"))))
    elif show == "truncated":
        filtered = every.filter(Exists(Sample.objects.filter(finish_reason="length", group=OuterRef("pk"))))
    elif show == "discarded":
        filtered = every.exclude(discarded="")
    samples = Sample.objects.only("group_id", "index", "components", "mask_cause", "advantage").order_by("index")
    listed = filtered.filter(index__gte=start).prefetch_related(Prefetch("samples", queryset=samples))
    groups = list(listed[: limit + 1])
    counts = every.aggregate(kept=Count("pk"), discarded=Count("pk", filter=~Q(discarded="")))
    kept = counts["kept"]
    return StepGroups(
        steps=steps,
        step=step,
        newest=newest,
        show=show,
        rows=_rows(groups[:limit], success, learned=run.kind != RunKind.SAMPLE),
        matching=kept if show == "all" else filtered.count(),
        kept=kept,
        following=groups[limit].index if len(groups) > limit else None,
        discarded=counts["discarded"],
    )


def _rows(groups: list[Group], success: Success, *, learned: bool) -> tuple[GroupRow, ...]:
    """`learned`: whether an update learned from them; without one there is no signal to speak of."""
    strongest = max((abs(sample.advantage or 0.0) for group in groups for sample in group.samples.all()), default=0)
    rows = []
    for group in groups:
        samples = list(group.samples.all())
        words = list(remarks(group)) if learned or group.signal == "unscored" else []
        if (
            learned
            and not words
            and len(groups) > 1
            and strongest
            and max(abs(s.advantage or 0.0) for s in samples) == strongest
        ):
            words, strongest = ["highest |A|"], math.inf  # shown once
        rows.append(GroupRow(group, tuple(right(sample, success) for sample in samples), tuple(words)))
    return tuple(rows)


def remarks(group: Group) -> tuple[str, ...]:
    """What distinguishes the group from an ordinary one of its step."""
    signal = DISCARD_WORDS.get(group.discarded) or SIGNAL_WORDS.get(group.signal)
    older = f"sampled at step {group.sampled_at}" if group.sampled_at is not None else None
    return tuple(filter(None, (signal, older)))


def position_of(group: Group) -> dict[str, int | None]:
    """Among the groups of its step."""
    groups = Group.objects.filter(run=group.run_id, step=group.step, attempt=group.attempt_id)
    return position(list(groups.order_by("index").values_list("pk", flat=True)), group.pk)


def whole_step(group: Group, config: ScoredConfig) -> tuple[list[GroupScores], bool]:
    """(the groups that the step compared, whether every group of the step was kept).

    With groups left out they are the kept ones, and the page notes it. What dynamic sampling discarded was no part of
    the step. Two queries.
    """
    kept = Group.objects.filter(run=group.run_id, step=group.step, attempt=group.attempt_id, discarded="")
    samples = Sample.objects.filter(group__in=kept).order_by("group", "index")
    by_group: dict[int, list[Sample]] = {}
    for sample in samples.only("group_id", "index", "reward", "shaped_reward", "tokens", "components"):
        by_group.setdefault(sample.group_id, []).append(sample)
    groups = kept.count()
    # A step that dynamic sampling could not fill is whole when fewer groups are stored than could have been kept.
    short = config.algorithm.dynamic_sampling.enabled and groups < config.traces.groups_per_step
    whole = groups == config.sampling.prompts_per_step or short
    return [group_scores(own, config) for own in by_group.values()], whole


def sampling_of_step(group: Group) -> dict[str, Any]:
    """What dynamic sampling did in the group's step: how many groups are stored by why they were discarded (empty:
    trained on), and its metrics. Two queries."""
    stored = Group.objects.filter(run=group.run_id, step=group.step, attempt=group.attempt_id)
    counts = stored.values_list("discarded").annotate(count=Count("pk")).order_by("discarded")
    metrics = StepMetric.objects.filter(attempt=group.attempt_id, step=group.step).values_list("metrics", flat=True)
    own = {name: int(value) for name, value in (metrics.first() or {}).items() if name.startswith("dynamic_sampling/")}
    return {
        "trained": dict(counts).get("", 0),
        "discarded": [(DISCARD_WORDS[why].removeprefix("discarded: "), count) for why, count in counts if why],
        "batches": own.get("dynamic_sampling/batches"),
        "discarded_groups": own.get("dynamic_sampling/discarded_groups"),
        "surplus_groups": own.get("dynamic_sampling/surplus_groups"),
    }
