"""What each stage of a pipeline changed on the same suites: every neighbouring pair of a chain of weights, and from its
beginning to its end, item by item, so that nobody credits one stage with what another did.

A state is a set of weights: what the first stage of a chain began from, and what each stage trained. Two states are
compared on a suite only where both answered the same items under one protocol; elsewhere it says why not. Pages, the
card of a pipeline and its offline check all come here. Knows no Django.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from cohort.evidence.compare import compare_all
from cohort.evidence.items import Item, SuiteFacts, pairs, sorted_once
from cohort.evidence.protocols import protocol_differences

BASE = "base"
"""Name of the state that a chain begins from."""
TRAINED = ("grpo", "sft", "distill")
"""Kinds of run whose weights answer problems; a reward model gives scores, and sampling changes nothing."""


@dataclass(frozen=True)
class Answered:
    """One suite as one set of weights answered it."""

    facts: SuiteFacts
    items: Sequence[Item]


State = Mapping[str, Answered]
"""Suite → how it was answered."""


@dataclass(frozen=True)
class StageState:
    """One stage: the weights that it began from, and those that it trained."""

    name: str
    kind: str
    begins_from: str = ""
    """Name of the stage whose weights it began from; empty: of none of the pipeline."""
    before: State = field(default_factory=dict)
    after: State = field(default_factory=dict)

    @property
    def trained(self) -> bool:
        return self.kind in TRAINED


def stage_changes(stages: Sequence[StageState], *, resampled: bool = True) -> list[dict[str, Any]]:
    """[{from, to, comparisons}], of every stage that trained and the state that it began from, in order; and for each
    chain of several, of its beginning and its end. A comparison is as `compare_all` has it, with `why_not` where there
    is no change to state."""
    by_name = {stage.name: stage for stage in stages if stage.trained}
    rows = []
    for stage in by_name.values():
        rows.append((_origin(stage, by_name), stage.name, _start(stage, by_name), _end(stage, stages)))
    for chain in chains(list(by_name.values())):
        if len(chain) > 1:
            first, last = chain[0], chain[-1]
            rows.append((_origin(first, by_name), last.name, _start(first, by_name), _end(last, stages)))
    return [_compared(*row, resampled=resampled) for row in rows]


def chains(stages: Sequence[StageState]) -> Iterator[list[StageState]]:
    """Every chain of weights from its beginning to a stage from which none goes on."""
    by_name = {stage.name: stage for stage in stages}
    continued = {stage.begins_from for stage in stages}
    for stage in stages:
        if stage.name in continued:
            continue
        chain = [stage]
        while (before := by_name.get(chain[0].begins_from)) is not None and before not in chain:
            chain.insert(0, before)
        yield chain


def _origin(stage: StageState, by_name: Mapping[str, StageState]) -> str:
    return stage.begins_from if stage.begins_from in by_name else BASE


def _start(stage: StageState, by_name: Mapping[str, StageState]) -> State:
    """How the weights that a stage began from answered: after the stage that trained them, and where that was not
    evaluated, before this one."""
    giver = by_name.get(stage.begins_from)
    return {**stage.before, **(giver.after if giver is not None else {})}


def _end(stage: StageState, stages: Sequence[StageState]) -> State:
    """How a stage's weights answered: after it, and where that was not evaluated, before a stage that began from
    them."""
    later: dict[str, Answered] = {}
    for other in stages:
        if other.begins_from == stage.name:
            later |= other.before
    return {**later, **stage.after}


def _compared(first: str, last: str, before: State, after: State, *, resampled: bool) -> dict[str, Any]:
    suites = [*after, *(suite for suite in before if suite not in after)]
    reasons = {suite: _why_not(before.get(suite), after.get(suite), first, last) for suite in suites}
    cases = []
    for suite in suites:
        old, new = before.get(suite), after.get(suite)
        shown = new or old
        assert shown is not None, "a suite is listed by how it was answered"
        sides = (old.items if old is not None else None, new.items if new is not None else None)
        cases.append((shown.facts, *sides, not reasons[suite], None))
    compared = compare_all(cases, resampled=resampled)
    named = [{**comparison, "why_not": reasons[comparison["suite"]]} for comparison in compared]
    return {"from": first, "to": last, "comparisons": named}


def _why_not(before: Answered | None, after: Answered | None, first: str, last: str) -> str:
    """Why there is no difference to state; empty where there is one."""
    if before is None or after is None:
        return f"not evaluated at {first if before is None else last}"
    if pairs(sorted_once(before.items), sorted_once(after.items)) is None:
        return "other items"
    return protocol_differences(before.facts.protocol, after.facts.protocol)


def states_of(comparisons: Sequence[Mapping[str, Any]], items: Mapping[str, Sequence[Item]]) -> State:
    """From a record's comparisons and the items of one phase. Raises KeyError where a comparison lacks a fact."""
    facts = {str(comparison["suite"]): SuiteFacts.of(comparison) for comparison in comparisons}
    return {suite: Answered(facts[suite], answered) for suite, answered in items.items() if suite in facts}
