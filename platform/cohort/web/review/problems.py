"""A run's problems, and one of them through time: its curve, its groups, and completions of two steps compared."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from django.db.models import QuerySet
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_safe

from cohort.accounts.models import Role
from cohort.base.formatting import natural
from cohort.review.models import Group, Sample
from cohort.review.problems import PAGE, SORTS, Problems, base_answers, groups_of, squares_of
from cohort.review.services import Success, right
from cohort.runs.models import Run
from cohort.web.access import may, reviewed_run_for
from cohort.web.context import listed
from cohort.web.diff.shown import Piece, marked
from cohort.web.review.curve import Curve
from cohort.web.review.judging import shows_samples
from cohort.web.runs.header import Header

GROUPS = 300
"""Of one problem on its page, the newest."""
PICKS = {"best": "best", "median": "median", "worst": "worst"}
"""Which of a group's samples is compared, by reward."""


@dataclass(frozen=True)
class GroupRow:
    group: Group
    passed: tuple[bool | None, ...]
    """Of each sample, in order."""

    @property
    def pass_rate(self) -> float | None:
        """Of the samples that were judged."""
        judged = [value for value in self.passed if value is not None]
        return sum(judged) / len(judged) if judged else None


@dataclass(frozen=True)
class Side:
    """One of the two completions that are compared."""

    row: GroupRow
    sample: Sample
    pick: str
    pieces: Sequence[Piece]
    listed: bool
    """Whether its group is in the table."""

    @property
    def number(self) -> int:
        return self.sample.index + 1

    @property
    def passed(self) -> bool | None:
        return self.row.passed[self.place - 1]

    @property
    def place(self) -> int:
        """Of the sample in its group, from 1 on."""
        return [sample.pk for sample in self.row.group.samples.all()].index(self.sample.pk) + 1

    @property
    def picked(self) -> int | None:
        """The place that was chosen by its number."""
        return None if self.pick in PICKS else self.place


class ProblemKey:
    """A problem's key in an address, for `register_converter`. Ids may hold anything: line ends, slashes, and `..`
    between them, which a browser would follow."""

    regex = "(?s:.+)"

    def to_python(self, value: str) -> str:
        return value.replace("%2F", "/").replace("%25", "%")

    def to_url(self, value: str) -> str:
        return value.replace("%", "%25").replace("/", "%2F")


@require_safe
@shows_samples
def run_problems(request: HttpRequest, slug: str, run_id: int) -> HttpResponse:
    header = Header(reviewed_run_for(request, slug, run_id))
    sort = request.GET.get("sort", "change")
    sort = sort if sort in SORTS else "change"
    page = listed(request, Problems(header.run, sort), PAGE)
    ids = [pk for problem in page for pk in (problem.first_group, problem.newest_group)]
    rows = {row.group.pk: row for row in _rows(Group.objects.filter(pk__in=ids).only("pk"), header)}
    problems = [(problem, rows[problem.first_group], rows[problem.newest_group]) for problem in page]
    context = header.context("groups", page=page, problems=problems, sort=sort, sorts=SORTS)
    return render(request, "review/problems.html", context)


@require_safe
@shows_samples
def run_problem(request: HttpRequest, slug: str, run_id: int, key: str) -> HttpResponse:
    """`a` and `b` are ids of the groups that are compared, the first and the newest without; `pick` and `pick_b` which
    sample of each: best, median, worst or its number."""
    run = reviewed_run_for(request, slug, run_id)
    header = Header(run)
    every = groups_of(run, key).order_by("-step", "-index")
    total = every.count()
    if not total:
        raise Http404("The run has not sampled this problem, or what it sampled is superseded.")
    rows = _rows(every.defer("prompt")[:GROUPS], header)
    newest = every[0]
    chosen = _chosen(request, rows, every, header)[: min(total, 2)]
    sides = _sides(request, chosen, rows)
    context = header.context(
        "groups",
        key=key,
        problem=newest,
        rows=rows,
        total=total,
        curve=Curve.of([(row.group.step, row.pass_rate, row.group.reward_mean) for row in reversed(rows)]),
        sides=sides,
        picks=PICKS,
        chosen=[row.group.pk for row in chosen],
        too_long=_unmarked(sides),
        **_base(request, run, newest),
    )
    return render(request, "review/problem.html", context)


def _rows(groups: QuerySet[Group], header: Header) -> list[GroupRow]:
    success: Success = header.run.scored_by.success_of
    return [
        GroupRow(group, tuple(right(sample, success) for sample in group.samples.all()))
        for group in groups.prefetch_related(squares_of())
    ]


def _chosen(request: HttpRequest, rows: list[GroupRow], every: QuerySet[Group], header: Header) -> list[GroupRow]:
    """The two groups that are compared, the first and the newest without a choice."""
    first, newest = every.last(), rows[0].group  # the first may be beyond the newest GROUPS
    assert first is not None, "there is one"
    wanted = (natural(request.GET.get("a")), natural(request.GET.get("b")))
    by_id = {row.group.pk: row for row in rows}
    others = {pk for pk in (*wanted, first.pk) if pk is not None and pk not in by_id}
    by_id |= {row.group.pk: row for row in _rows(every.filter(pk__in=others), header)} if others else {}
    pairs = zip(wanted, (first.pk, newest.pk), strict=True)
    pks = [pk if pk is not None and pk in by_id else usual for pk, usual in pairs]
    return [by_id[pk] for pk in pks]


def _sides(request: HttpRequest, chosen: list[GroupRow], rows: list[GroupRow]) -> list[Side]:
    picks = [request.GET.get(name, "") for name in ("pick", "pick_b")]
    picked = [(row, *_picked(row, pick)) for row, pick in zip(chosen, picks, strict=False)]
    texts = [sample.completion for _, sample, _ in picked]
    pieces = marked(*texts) if len(texts) == 2 else ([Piece(text, False)] for text in texts)
    return [
        Side(row, sample, pick, part, any(row is other for other in rows))
        for (row, sample, pick), part in zip(picked, pieces, strict=True)
    ]


def _picked(row: GroupRow, pick: str) -> tuple[Sample, str]:
    """(the sample of the group, how it was picked). Those without a reward come after the worst, and only by number."""
    samples = list(Sample.objects.filter(group=row.group.pk).order_by("index"))
    place = natural(pick)
    if place is not None and 1 <= place <= len(samples):
        return samples[place - 1], pick
    scored = [sample for sample in samples if sample.reward is not None] or samples
    scored.sort(key=lambda sample: -(sample.reward or 0.0))
    places = {"best": 0, "median": (len(scored) - 1) // 2, "worst": len(scored) - 1}
    pick = pick if pick in places else "best"
    return scored[places[pick]], pick


def _unmarked(sides: list[Side]) -> bool:
    """Whether the two differ and were too long to mark where."""
    texts = {side.sample.completion for side in sides}
    return len(texts) == 2 and not any(piece.differs for side in sides for piece in side.pieces)


def _base(request: HttpRequest, run: Run, group: Group) -> dict[str, Any]:
    """The base model's answers. Those of a sensitive suite are for reviewers and above."""
    if run.imported:
        return {"base_answers": [], "withheld": 0}
    sensitive = {suite.name for suite in run.parsed_config.eval.suites if suite.sensitive}
    answers = list(base_answers(run, group))
    shown = [item for item in answers if item.suite not in sensitive or may(request, run.project, Role.REVIEWER)]
    return {"base_answers": shown, "withheld": len(answers) - len(shown)}
