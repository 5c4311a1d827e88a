"""A suite before and after, from its items alone: what pages show, records seal and the offline check computes again.

All three must give the same numbers, so all three come here. The order of the items does not matter. Formulas and
sources: `grpo_core.stats`, docs/statistics.md. Knows no Django.
"""

import hashlib
import math
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import fields, replace
from typing import Any, TypeVar

from cohort.evidence.items import Item, Pair, SuiteFacts, by_suite, pairs, sorted_once
from grpo_core.stats.bootstrap import Bootstrap, bootstrap
from grpo_core.stats.clustered import Clustered, clustered, effective_n
from grpo_core.stats.inferiority import non_inferiority, undecided_because, verdict
from grpo_core.stats.paired import Paired, holm, paired
from grpo_core.stats.quantiles import wilson

__all__ = ["NOT_COMPARABLE", "ONCE", "SAFETY", "Case", "Item", "SuiteFacts", "by_suite", "compare_all"]

_T = TypeVar("_T", Item, Pair)

NOT_COMPARABLE = "not comparable"
ONCE = "evaluated once only"
SAFETY = frozenset({"hallucination", "refusal_calibration", "jailbreak_robustness", "harmful_capability"})
"""The categories whose p-values are adjusted together."""


Case = tuple[SuiteFacts, Sequence[Item] | None, Sequence[Item] | None, bool, Collection[str] | None]
"""(suite, items before, items after, same protocol, touched ids)."""


def compare_all(cases: Iterable[Case], *, resampled: bool = True) -> list[dict[str, Any]]:
    """The comparison of each case, in order, with `p_holm` set in the safety family: the suites of a SAFETY category
    that have a direction (not neutral) and were compared. `resampled` off: intervals of graded scores are Student's
    alone, without the bootstrap, which takes most of a second for 1,000 items."""
    compared = [_compared(*case, resampled=resampled) for case in cases]
    family = [
        (comparison["change"], p)
        for comparison, p in compared
        if p is not None and comparison["category"] in SAFETY and comparison["higher_is"] != "neutral"
    ]
    for (change, _), adjusted in zip(family, holm([p for _, p in family]), strict=True):
        change["p_holm"] = adjusted
    return [comparison for comparison, _ in compared]


def _compared(
    suite: SuiteFacts,
    before: Sequence[Item] | None,
    after: Sequence[Item] | None,
    same_protocol: bool,
    touched: Collection[str] | None,
    *,
    resampled: bool,
) -> tuple[dict[str, Any], float | None]:
    """The comparison of docs/record.md: shares with their intervals, and the change where both sides answered the same
    items under one protocol; the same again for each slice, and for the items without the `touched` ones (ids found
    in the training data; None where none were searched for). And the two-sided p of its change. Raises ValueError where
    one side holds an id twice."""
    old, new = sorted_once(before or ()), sorted_once(after or ())
    both = pairs(old, new) if same_protocol and old and new else None
    change, outcome, p, because = None, None, None, ""
    words = NOT_COMPARABLE if old and new else ONCE
    if both:
        change, evidence = _change(both, seed=seed_of(suite.suite) if resampled else None)
        share = math.fsum(pair.before for pair in both) / len(both)
        words = verdict(evidence, suite.margin, suite.higher_is, before=share)
        outcome, p = non_inferiority(evidence, suite.margin, suite.higher_is, before=share), evidence.p
        because = undecided_because(evidence, suite.margin, suite.higher_is, before=share)
    comparison = {
        **{fact.name: getattr(suite, fact.name) for fact in fields(suite) if fact.name not in ("margin", "protocol")},
        **_counted(old, new, change),
        "margin": suite.margin,
        "non_inferiority": outcome,
        "verdict": words,
        "undecided_because": because,
        "slices": _slices(old, new, both),
        "clean": None if touched is None else _clean(old, new, both, frozenset(touched), change, seed_of(suite.suite)),
        "protocol": dict(suite.protocol),
    }
    return comparison, p


def seed_of(suite: str) -> int:
    """The bootstrap's seed: from the suite's name, so that it cannot be chosen for its result. Below 2⁴⁸."""
    return int.from_bytes(hashlib.sha256(f"cohort-bootstrap:{suite}".encode()).digest()[:6], "big")


def _change(both: Sequence[Pair], *, seed: int | None) -> tuple[dict[str, Any], Paired | Clustered]:
    """The change, and what its verdict is judged by. `seed` None: without a bootstrap."""
    differences, clusters = [pair.after - pair.before for pair in both], _clusters(pair.item for pair in both)
    counted = paired([pair.before for pair in both], [pair.after for pair in both])
    hang_together, graded = clusters is not None, counted.p_mcnemar is None
    evidence: Paired | Clustered = counted
    drawn: Bootstrap | None = None
    if hang_together or graded:
        evidence = clustered(differences, clusters)
        if graded and seed is not None:
            drawn = bootstrap(differences, clusters, seed=seed, padded=True)
            evidence = _wider(evidence, drawn)
    change = {
        "difference": counted.difference,
        "interval": {"low": evidence.low, "high": evidence.high},
        "method": "bootstrap" if drawn else "clustered" if evidence is not counted else "agresti-min",
        "clusters": evidence.units if evidence is not counted else None,
        "fixed": counted.fixed,
        "broken": counted.broken,
        "both_right": counted.both_right,
        "both_wrong": counted.both_wrong,
        "p_mcnemar": None if hang_together else counted.p_mcnemar,
        "p_holm": None,
        "mde": evidence.mde,
        "bootstrap": drawn and {"low": drawn.low, "high": drawn.high, "resamples": drawn.resamples, "seed": drawn.seed},
    }
    return change, evidence


def _wider(analytic: Clustered, resampled: Bootstrap) -> Clustered:
    """Each bound the wider of the two: Student's t is sound with few items, the bootstrap with skewed scores."""
    return replace(
        analytic,
        low=min(analytic.low, resampled.low),
        high=max(analytic.high, resampled.high),
        lower=min(analytic.lower, resampled.lower),
        upper=max(analytic.upper, resampled.upper),
    )


def _slices(old: Sequence[Item], new: Sequence[Item], both: Sequence[Pair] | None) -> list[dict[str, Any]]:
    """By name; none where no item has one. Without bootstraps, so that many slices cost no more than few."""
    names = sorted({item.slice for item in (*old, *new)})
    if names in ([], [""]):
        return []
    old_by, new_by = (_by(items, lambda item: item.slice) for items in (old, new))
    both_by = _by(both or (), lambda pair: pair.item.slice)
    rows = []
    for name in names:
        change = _change(both_by[name], seed=None)[0] if name in both_by else None
        rows.append({"slice": name, **_counted(old_by.get(name, ()), new_by.get(name, ()), change)})
    return rows


def _clean(
    old: Sequence[Item],
    new: Sequence[Item],
    both: Sequence[Pair] | None,
    touched: frozenset[str],
    change: dict[str, Any] | None,
    seed: int,
) -> dict[str, Any]:
    """The suite without its items that the training data touch; `change` is that of all items."""
    hit = sorted({item.problem_id for item in (*old, *new)} & touched)
    if hit:
        old, new = ([item for item in items if item.problem_id not in touched] for items in (old, new))
        rest = [pair for pair in both or () if pair.item.problem_id not in touched]
        change = _change(rest, seed=seed)[0] if rest else None
    return {"touched": len(hit), "touched_ids": hit, **_counted(old, new, change and {**change, "p_holm": None})}


def _counted(old: Sequence[Item], new: Sequence[Item], change: dict[str, Any] | None) -> dict[str, Any]:
    return {"problems": len(new or old), "before": _side(old), "after": _side(new), "change": change}


def _side(items: Sequence[Item]) -> dict[str, Any] | None:
    """Wilson's interval; for dependent items with their effective number (`effective_n`)."""
    if not items:
        return None
    n, correct = len(items), math.fsum(item.score for item in items)
    clusters = _clusters(items)
    worth = float(n) if clusters is None else effective_n([item.score for item in items], clusters)
    interval = wilson(min(worth, correct / n * worth), worth)
    return {
        "correct": correct,
        "share": correct / n,
        "interval": {"low": interval.low, "high": interval.high},
        "truncated": sum(item.truncated for item in items),
        "errors": sum(item.failed for item in items),
    }


def _clusters(items: Iterable[Item]) -> list[tuple[bool, str]] | None:
    """The independent unit of each item; None where every item is one."""
    units = [item.unit for item in items]
    return units if len(set(units)) < len(units) else None


def _by(of: Iterable[_T], key: Callable[[_T], str]) -> dict[str, list[_T]]:
    groups: dict[str, list[_T]] = {}
    for item in of:
        groups.setdefault(key(item), []).append(item)
    return groups
