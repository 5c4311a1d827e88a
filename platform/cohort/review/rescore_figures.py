"""The figures of a finished re-score: how often both rewards agree, the curves of both, and the advantages that the
samples would have had by the second, where the run's estimator makes them from rewards alone.

One pass over the rows, step by step, so that a million samples need no more memory than the largest step. Records
and pages read what is stored.
"""

import heapq
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from operator import attrgetter
from typing import Any, NamedTuple

from django.db.models import Count, F, QuerySet
from django.db.models.functions import Coalesce

from cohort.review.facets import VERIFIER
from cohort.review.models import Change, Group, Rescore, RescoredSample
from cohort.review.services import current_groups
from grpo_core.advantages.base import GroupScores
from grpo_core.advantages.explain import explain
from grpo_core.config.algorithm import AlgorithmConfig
from grpo_core.config.kinds import AnyConfig
from grpo_core.config.run import RunConfig
from grpo_core.stats.agreement import agreement_figures

VERDICTS = ("right", "wrong", "")
"""Of either reward; "": it cannot say, or there is no score."""
MOST_PARTED = 200
"""Samples that a re-score's page lists."""
MOST_POINTS = 1000
"""Of a curve; a longer one has the mean of neighbouring steps."""
_AT_ONCE = 5000


class Row(NamedTuple):
    step: int
    group: int
    sample: int
    sample_index: int
    tokens: int
    reward: float | None
    compared: float | None
    """The reward after a KL penalty on it."""
    advantage: float
    facets: int
    masked: str
    discarded: str
    value: float | None
    passed: bool | None
    phantom: bool
    change: int

    @property
    def second(self) -> float | None:
        """The second reward as its group compares it: with the penalty that the first had."""
        if self.value is None or self.reward is None or self.compared is None:
            return self.value
        return self.value + (self.compared - self.reward)

    @property
    def verdicts(self) -> tuple[str, str]:
        return _FIRST[self.facets & VERIFIER.mask], _SECOND[self.passed]


_FIRST = {VERIFIER.packed(verdict): verdict for verdict in VERIFIER.values}
_SECOND = {True: "right", False: "wrong", None: ""}
_COLUMNS: dict[str, Any] = {
    "step": F("sample__step"),
    "group": F("sample__group"),
    "tokens": F("sample__tokens"),
    "sample_index": F("sample__index"),
    "reward": F("sample__reward"),
    "compared": Coalesce("sample__shaped_reward", "sample__reward"),
    "advantage": F("sample__advantage"),
    "facets": F("sample__facets"),
    "masked": F("sample__mask_cause"),
    "discarded": F("sample__group__discarded"),
}


def why_no_advantages(config: AnyConfig) -> str:
    """Why the second reward's advantages cannot be had; empty where they can."""
    if not isinstance(config, RunConfig):
        return "The run learned from no advantages."
    algorithm = config.algorithm
    if algorithm.supervision == "process":
        return "The run's advantages are made from the rewards of single steps, and a re-score keeps one a sample."
    if algorithm.multi_objective_aggregation == "normalize_then_sum" and len(config.reward.components) > 1:
        return "The run's advantages are made from each component, and a re-score keeps their sum alone."
    by_token = algorithm.estimator.per_token == "with_kl_reward" and algorithm.kl.coef > 0
    explained = algorithm.estimator.explain is not None and not (by_token and algorithm.kl.place == "reward")
    if algorithm.scaling.terms is None and not explained:
        return "The run's advantages are made from more than rewards, which is not stored with the samples."
    return ""


@dataclass
class _Totals:
    confusion: Counter[tuple[str, str]] = field(default_factory=Counter)
    changes: Counter[int] = field(default_factory=Counter)
    compared: int = 0
    """Samples that the run learned from, with an advantage by either reward."""
    flipped: int = 0
    lost: int = 0
    gained: int = 0
    groups_left_out: int = 0


@dataclass
class _Point:
    """Sums over a step, or over neighbouring ones: n, sum of rewards; judged, right; of the first, of the second."""

    step: int
    sums: list[float] = field(default_factory=lambda: [0.0] * 8)

    def add(self, row: Row) -> None:
        for at, value, verdict in ((0, row.reward, row.verdicts[0]), (4, row.value, row.verdicts[1])):
            if value is not None:
                self.sums[at] += 1
                self.sums[at + 1] += value
            if verdict:
                self.sums[at + 2] += 1
                self.sums[at + 3] += verdict == "right"

    @property
    def shown(self) -> dict[str, Any]:
        n, rewards, judged, right, n2, rewards2, judged2, right2 = self.sums
        return {
            "step": self.step,
            "reward": [_share(rewards, n), _share(rewards2, n2)],
            "right": [_share(right, judged), _share(right2, judged2)],
        }


def _share(part: float, of: float) -> float | None:
    return part / of if of else None


def figures_of(rescore: Rescore) -> dict[str, Any]:
    """JSON-ready: first and last step, confusion, agreement with Wilson's interval, κ, curves, changes of advantages,
    samples that part the most; `deleted`: samples without scores, because their texts are gone."""
    config = rescore.run.parsed_config
    sentence = why_no_advantages(config)
    totals, points = _Totals(), list[_Point]()
    parted: list[tuple[float, int, dict[str, Any]]] = []
    counts = stored_counts(current_groups(rescore.run).filter(pk__lte=rescore.newest_group))
    for step, rows in _steps(rescore):
        point = _Point(step)
        points.append(point)
        for row in rows:
            point.add(row)
            totals.confusion[row.verdicts] += 1
            totals.changes[row.change] += 1
        seconds = {} if sentence else second_advantages(rows, counts, config.algorithm)
        totals.groups_left_out += len(
            {row.group for row in rows} - {row.group for row in rows if row.sample in seconds}
        )
        for row in rows:
            second = seconds.get(row.sample)
            _count(totals, row, second)
            if row.change != Change.SAME:
                rank = (_distance(row, second), -row.sample)
                if len(parted) < MOST_PARTED:
                    heapq.heappush(parted, (*rank, _parted(row, second)))
                elif rank > parted[0][:2]:
                    heapq.heapreplace(parted, (*rank, _parted(row, second)))
    confusion = [[totals.confusion[first, second] for second in VERDICTS] for first in VERDICTS]
    return {
        "steps": [points[0].step, points[-1].step] if points else None,
        "confusion": confusion,
        **agreement_figures(confusion),
        "changes": {change.name.lower(): totals.changes[change] for change in Change},
        "no_advantages": sentence,
        "advantages": None
        if sentence
        else {name: getattr(totals, name) for name in ("compared", "flipped", "lost", "gained", "groups_left_out")},
        "curve": [point.shown for point in _thinned(points)],
        "parted": [entry for _, _, entry in sorted(parted, reverse=True)],
        "deleted": sum(counts.values()) - rescore.done,
    }


def second_advantages(rows: Sequence[Row], counts: dict[int, int], algorithm: AlgorithmConfig) -> dict[int, float]:
    """Sample → advantage by the second reward, of the groups of one step that were trained on and have all their
    samples (`counts`, by group); a sample without a second reward has none."""
    groups = {group: list(members) for group, members in groupby(rows, attrgetter("group"))}
    whole = {
        group: members
        for group, members in groups.items()
        if not members[0].discarded and len(members) == counts.get(group)
    }
    scores = {
        group: GroupScores([row.second for row in members], [row.tokens for row in members])
        for group, members in whole.items()
    }
    seconds: dict[int, float] = {}
    step = list(scores.values())
    for group, members in whole.items():
        own = scores[group]
        figures = explain(own, step if algorithm.scaling.uses_step else [own], algorithm)
        advantages = None if figures is None else figures.advantages
        if advantages is None:
            continue
        phantom = members[0].phantom and algorithm.gates_by_success
        for row, advantage in zip(members, advantages, strict=True):
            if advantage is not None:
                seconds[row.sample] = 0.0 if phantom else advantage
    return seconds


def rows_of(rescore: Rescore, **filters: Any) -> Iterator[Row]:
    """In the order of steps, groups and samples; `filters` by fields of RescoredSample."""
    rows = RescoredSample.objects.filter(rescore=rescore, **filters)
    ordered = rows.order_by("sample__step", "sample__group", "sample__index")
    own = {"value", "passed", "phantom", "change"}
    columns = [name if name in {"sample", *own} else _COLUMNS[name] for name in Row._fields]
    for values in ordered.values_list(*columns).iterator(chunk_size=_AT_ONCE):
        yield Row(*values)


def _steps(rescore: Rescore) -> Iterator[tuple[int, list[Row]]]:
    for step, rows in groupby(rows_of(rescore), attrgetter("step")):
        yield step, list(rows)


def stored_counts(groups: QuerySet[Group]) -> dict[int, int]:
    """Group → how many samples it has, those with deleted texts too."""
    return dict(groups.order_by().values_list("pk").annotate(count=Count("samples")))


def _count(totals: _Totals, row: Row, second: float | None) -> None:
    if second is None or row.masked:
        return
    totals.compared += 1
    totals.flipped += row.advantage * second < 0
    totals.lost += second == 0 != row.advantage
    totals.gained += row.advantage == 0 != second


def _distance(row: Row, second: float | None) -> float:
    """How far a sample's advantages part; its rewards, where one has none."""
    if second is not None:
        return abs(second - row.advantage)
    return abs(row.value - row.reward) if row.value is not None and row.reward is not None else 0.0


def _parted(row: Row, second: float | None) -> dict[str, Any]:
    kept = {name: getattr(row, name) for name in ("step", "group", "sample", "reward", "value", "advantage")}
    return {**kept, "index": row.sample_index, "second": second, "verdicts": row.verdicts}


def _thinned(points: Sequence[_Point]) -> Iterable[_Point]:
    """Neighbouring steps joined to one point, named by the last of them, where there are more than are drawn."""
    width = math.ceil(len(points) / MOST_POINTS) or 1
    for start in range(0, len(points), width):
        part = points[start : start + width]
        yield _Point(part[-1].step, [math.fsum(column) for column in zip(*(p.sums for p in part), strict=True)])
