"""What pages of groups and samples read from the database. Nothing here writes."""

import math
from dataclasses import dataclass

from django.db.models import BooleanField, Exists, Func, Max, Min, OuterRef, Prefetch, Q, QuerySet, Subquery

from cohort.review.arithmetic import batch_std
from cohort.review.models import Group, Sample
from cohort.runs.models import Run
from grpo_core.config import RunConfig

PAGE = 100
SHOWS = {"all": "all", "mixed": "mixed only", "errors": "with errors"}


class _HasError(Func):
    """Whether any reward component of a sample holds an error."""

    template = "jsonb_path_exists(%(expressions)s, '$.*.error ? (@ != null)')"
    output_field = BooleanField()


@dataclass(frozen=True)
class GroupRow:
    group: Group
    squares: tuple[bool | None, ...]
    """Right, wrong, or None: masked or not judged."""
    words: str
    """What is to say of it beside the numbers; empty for an ordinary group."""


@dataclass(frozen=True)
class StepGroups:
    """Some of the groups kept at one step."""

    step: int | None
    newest: int | None
    """Newest step with groups; None while there is none."""
    earlier: int | None
    later: int | None
    show: str
    rows: tuple[GroupRow, ...]
    matching: int
    kept: int
    following: int | None
    """`start` of the next page; None at the end."""


def right(sample: Sample, success: str) -> bool | None:
    """By the component that decides; None when the sample was masked or the component cannot say."""
    if sample.mask_cause:
        return None
    component = sample.components.get(success)
    passed = component.get("passed") if component else None
    return None if passed is None else bool(passed)


def current_groups(run: Run) -> QuerySet[Group]:
    """Groups in order, those of each step as the newest attempt that reached it has them."""
    same = Group.objects.filter(run=run, step=OuterRef("step")).order_by("-attempt_id").values("attempt_id")
    return Group.objects.filter(run=run, attempt_id=Subquery(same[:1])).order_by("step", "index")


def step_groups(
    run: Run, *, success: str, step: int | None = None, show: str = "all", start: int = 0, limit: int = PAGE
) -> StepGroups:
    """Groups of `step`, or of the newest step that has any. A constant number of queries."""
    held = Group.objects.filter(run=run)
    newest = held.aggregate(newest=Max("step"))["newest"]
    step = newest if step is None else step
    show = show if show in SHOWS else "all"
    if step is None:
        return StepGroups(None, None, None, None, show, (), 0, 0, None)
    around = held.aggregate(earlier=Max("step", filter=Q(step__lt=step)), later=Min("step", filter=Q(step__gt=step)))
    every = current_groups(run).filter(step=step)
    wanted = every
    if show == "mixed":
        wanted = every.filter(signal="mixed")
    elif show == "errors":
        bad = Sample.objects.filter(group=OuterRef("pk")).filter(
            Q(mask_cause="reward_error") | Q(_HasError("components"))
        )
        wanted = every.filter(Exists(bad))
    kept = every.count()
    matching = kept if show == "all" else wanted.count()
    samples = Sample.objects.only("group_id", "index", "components", "mask_cause", "advantage").order_by("index")
    groups = list(wanted.filter(index__gte=start).prefetch_related(Prefetch("samples", queryset=samples))[: limit + 1])
    return StepGroups(
        step=step,
        newest=newest,
        earlier=around["earlier"],
        later=around["later"],
        show=show,
        rows=_rows(groups[:limit], success),
        matching=matching,
        kept=kept,
        following=groups[limit].index if len(groups) > limit else None,
    )


def _rows(groups: list[Group], success: str) -> tuple[GroupRow, ...]:
    strongest = max((abs(sample.advantage) for group in groups for sample in group.samples.all()), default=0)
    rows = []
    for group in groups:
        samples = list(group.samples.all())
        words = {"all_equal": "no signal", "unscored": "not scored"}.get(group.signal, "")
        if not words and len(groups) > 1 and strongest and max(abs(s.advantage) for s in samples) == strongest:
            words, strongest = "highest |A|", math.inf  # said once
        rows.append(GroupRow(group, tuple(right(sample, success) for sample in samples), words))
    return tuple(rows)


@dataclass(frozen=True)
class Place:
    """Where a group stands among those of its step."""

    number: int
    of: int
    earlier: int | None
    """Id of the group before it."""
    later: int | None


def group_of(run: Run, group_id: int) -> Group | None:
    return Group.objects.filter(run=run, pk=group_id).prefetch_related("samples").first()


def place_of(group: Group) -> Place:
    beside = list(
        Group.objects.filter(run=group.run_id, step=group.step, attempt=group.attempt_id)
        .order_by("index")
        .values_list("pk", flat=True)
    )
    at = beside.index(group.pk)
    return Place(
        number=at + 1,
        of=len(beside),
        earlier=beside[at - 1] if at else None,
        later=beside[at + 1] if at + 1 < len(beside) else None,
    )


def step_std(group: Group, config: RunConfig) -> tuple[float | None, bool]:
    """(standard deviation of the step's rewards, whether every group of the step was kept).

    With groups left out it is that of the kept ones: close, and said so.
    """
    kept = Group.objects.filter(run=group.run_id, step=group.step, attempt=group.attempt_id)
    rewards = list(Sample.objects.filter(group__in=kept).values_list("reward", flat=True))
    whole = len(rewards) == config.completions_per_step
    return batch_std(rewards, ddof=config.algorithm.std_ddof), whole
