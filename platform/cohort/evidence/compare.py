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
from grpo_core.stats.inferiority import judge
from grpo_core.stats.paired import Paired, holm, paired
from grpo_core.stats.quantiles import Interval, wilson
from grpo_core.stats.unscored import Partial, share_bounds

__all__ = ["NOT_COMPARABLE", "ONCE", "SAFETY", "Case", "Item", "SuiteFacts", "by_suite", "compare_all"]

_T = TypeVar("_T", Item, Pair)

Evidence = Paired | Clustered | Partial

NOT_COMPARABLE = "not comparable"
NOTHING_SCORED = "nothing scored both times"
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
    change, p, verdict = None, None, None
    words = NOT_COMPARABLE if old and new else ONCE
    if both and (compared := _change(both, seed=seed_of(suite.suite) if resampled else None)) is None:
        words = NOTHING_SCORED
    elif both and compared:
        change, evidence = compared
        verdict = judge(evidence, suite.margin, suite.higher_is, before=_mean_before(both))
        words, p = verdict.words, evidence.p
    comparison = {
        **{fact.name: getattr(suite, fact.name) for fact in fields(suite) if fact.name not in ("margin", "protocol")},
        **_counted(old, new, change),
        "margin": suite.margin,
        "non_inferiority": verdict.outcome if verdict else None,
        "verdict": words,
        "undecided_because": verdict.because if verdict else "",
        "items_needed": verdict.needed if verdict else None,
        "slices": _slices(old, new, both),
        "clean": None if touched is None else _clean(old, new, both, frozenset(touched), change, seed_of(suite.suite)),
        "protocol": dict(suite.protocol),
    }
    return comparison, p


def seed_of(suite: str) -> int:
    """The bootstrap's seed: from the suite's name, so that it cannot be chosen for its result. Below 2⁴⁸."""
    return int.from_bytes(hashlib.sha256(f"cohort-bootstrap:{suite}".encode()).digest()[:6], "big")


def _mean_before(both: Sequence[Pair]) -> float:
    scored = [pair.before for pair in both if pair.scored]
    return math.fsum(scored) / len(scored)


def _change(both: Sequence[Pair], *, seed: int | None) -> tuple[dict[str, Any], Evidence] | None:
    """The change, and what its verdict is judged by; None where no item was scored both times. `seed` None: without a
    bootstrap."""
    scored = [pair for pair in both if pair.scored]
    if not scored:
        return None
    clusters = _clusters(pair.item for pair in both)
    graded = any(score not in (0, 1) for pair in scored for score in (pair.before, pair.after))
    compared, drawn = _compare(scored, clustered_by=clusters is not None, graded=graded, seed=seed)
    evidence: Evidence = compared
    if len(scored) < len(both):
        lowest, highest = (
            _compare([pair.filled(*ends) for pair in both], clustered_by=clusters is not None, graded=graded, seed=seed)
            for ends in ((1.0, 0.0), (0.0, 1.0))
        )
        evidence = Partial(compared, lowest[0], highest[0])
    change = {
        "difference": evidence.difference,
        "interval": {"low": evidence.low, "high": evidence.high},
        "method": "bootstrap" if drawn else "tango" if isinstance(compared, Paired) else "clustered",
        "clusters": compared.units if compared.noun == "clusters" else None,
        "items": len(scored),
        "unscored": len(both) - len(scored),
        "fixed": sum(pair.after > pair.before for pair in scored),
        "broken": sum(pair.after < pair.before for pair in scored),
        "both_right": sum(pair.before == pair.after == 1 for pair in scored),
        "both_wrong": sum(pair.before == pair.after == 0 for pair in scored),
        "p_mcnemar": evidence.p if isinstance(compared, Paired) else None,
        "p_holm": None,
        "mde": evidence.mde,
        "bootstrap": drawn and {"low": drawn.low, "high": drawn.high, "resamples": drawn.resamples, "seed": drawn.seed},
    }
    return change, evidence


def _compare(
    both: Sequence[Pair], *, clustered_by: bool, graded: bool, seed: int | None
) -> tuple[Paired | Clustered, Bootstrap | None]:
    """All scored. By matched counts where every item is on its own and scores are 0 or 1, else by the differences."""
    if not clustered_by and not graded:
        fixed, broken = (sum((pair.after - pair.before) * sign > 0 for pair in both) for sign in (1, -1))
        return paired(fixed, broken, len(both)), None
    differences = [pair.after - pair.before for pair in both]
    clusters = [pair.item.unit for pair in both] if clustered_by else None
    evidence = clustered(differences, clusters)
    if not graded or seed is None:
        return evidence, None
    drawn = bootstrap(differences, clusters, seed=seed, padded=True)
    return _wider(evidence, drawn), drawn


def _wider(analytic: Clustered, resampled: Bootstrap) -> Clustered:
    """Each bound the wider of two, and the larger p: Student's t is sound with few items, the bootstrap with skewed
    scores."""
    return replace(
        analytic,
        low=min(analytic.low, resampled.low),
        high=max(analytic.high, resampled.high),
        p=max(analytic.p, resampled.p),
    )


def _only_change(both: Sequence[Pair], *, seed: int | None) -> dict[str, Any] | None:
    compared = _change(both, seed=seed)
    return compared[0] if compared else None


def _slices(old: Sequence[Item], new: Sequence[Item], both: Sequence[Pair] | None) -> list[dict[str, Any]]:
    """By name; none where no item has one. Without bootstraps, so that many slices cost no more than few."""
    names = sorted({item.slice for item in (*old, *new)})
    if names in ([], [""]):
        return []
    old_by, new_by = (_by(items, lambda item: item.slice) for items in (old, new))
    both_by = _by(both or (), lambda pair: pair.item.slice)
    rows = []
    for name in names:
        change = _only_change(both_by.get(name, ()), seed=None)
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
        change = _only_change(rest, seed=seed)
    return {"touched": len(hit), "touched_ids": hit, **_counted(old, new, change and {**change, "p_holm": None})}


def _counted(old: Sequence[Item], new: Sequence[Item], change: dict[str, Any] | None) -> dict[str, Any]:
    return {"problems": len(new or old), "before": _side(old), "after": _side(new), "change": change}


def _side(items: Sequence[Item]) -> dict[str, Any] | None:
    """The share is of the scored answers; null where none is. Wilson's interval, for dependent items with their
    effective number (`effective_n`); with answers that could not be scored it reaches from the low end were all of
    these 0 to the high end were all 1."""
    if not items:
        return None
    scored = [item for item in items if not item.failed]
    correct, unscored = math.fsum(item.score for item in scored), len(items) - len(scored)
    bounds = share_bounds(correct, len(scored), unscored)
    low, high = ([replace(item, score=end) if item.failed else item for item in items] for end in (0.0, 1.0))
    return {
        "correct": correct,
        "scored": len(scored),
        "share": correct / len(scored) if scored else None,
        "interval": {"low": _wilson(low).low, "high": _wilson(high).high},
        "bounds": {"low": bounds.low, "high": bounds.high} if unscored else None,
        "truncated": sum(item.truncated for item in items),
        "errors": unscored,
    }


def _wilson(items: Sequence[Item]) -> Interval:
    n, correct, clusters = len(items), math.fsum(item.score for item in items), _clusters(items)
    worth = float(n) if clusters is None else effective_n([item.score for item in items], clusters)
    return wilson(min(worth, correct / n * worth), worth)


def _clusters(items: Iterable[Item]) -> list[tuple[bool, str]] | None:
    """The independent unit of each item; None where every item is one."""
    units = [item.unit for item in items]
    return units if len(set(units)) < len(units) else None


def _by(of: Iterable[_T], key: Callable[[_T], str]) -> dict[str, list[_T]]:
    groups: dict[str, list[_T]] = {}
    for item in of:
        groups.setdefault(key(item), []).append(item)
    return groups
