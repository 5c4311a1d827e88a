"""What each stage of a chain of runs changed on the same suites, from stored evaluations, for pages. The card of a
pipeline has the same from its own files; both come from `evidence.stage_changes`."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cohort.evaluations.across_runs import items_of, results_across
from cohort.evaluations.selectors import Points, points, suite_facts, tone
from cohort.evidence.compare import Item
from cohort.evidence.plain_text import side_text
from cohort.evidence.stage_changes import BASE, Answered, StageState, stage_changes
from cohort.runs.models import EvalResult, Run


@dataclass(frozen=True)
class StageChange:
    """One suite at two states of a chain."""

    first: Run | None
    """Run whose weights come first; None: what the chain began from."""
    last: Run
    whole: bool
    """From the beginning of the chain to its end."""
    compared: Mapping[str, Any]

    @property
    def sides(self) -> tuple[str, str]:
        """Share before and after in words; a dash where it was not evaluated."""
        before, after = (self.compared[phase] for phase in ("before", "after"))
        return side_text(before) if before else "–", side_text(after) if after else "–"

    @property
    def points(self) -> Points | None:
        return points(self.compared["change"], self.compared["margin"])

    @property
    def why_not(self) -> str:
        return str(self.compared["why_not"] or self.compared["verdict"])

    @property
    def tone(self) -> str:
        return tone(self.compared)


def run_changes(runs: Sequence[Run], begins_from: Mapping[int, int]) -> list[StageChange]:
    """Of the runs of a chain, earliest first; `begins_from`: run → the run whose weights it began from. Three
    queries."""
    results = results_across(runs)
    answered = items_of(
        [result for by_run in results.values() for phases in by_run.values() for result in phases.values()]
    )
    by_name = {str(run.pk): run for run in runs}
    states = [
        StageState(
            name,
            run.kind,
            str(begins_from.get(run.pk, "")),
            before=_state(run, "before", results, answered),
            after=_state(run, "after", results, answered),
        )
        for name, run in by_name.items()
    ]
    rows = stage_changes(states, resampled=False)
    neighbours = {(state.begins_from if state.begins_from in by_name else BASE, state.name) for state in states}
    return [
        StageChange(
            by_name.get(row["from"]), by_name[row["to"]], (row["from"], row["to"]) not in neighbours, comparison
        )
        for row in rows
        for comparison in row["comparisons"]
    ]


def _state(
    run: Run, phase: str, results: Mapping[str, Mapping[int, Mapping[str, EvalResult]]], items: Mapping[int, list[Item]]
) -> dict[str, Answered]:
    config = run.parsed_config
    known = {suite.name: suite for suite in config.eval.suites}
    return {
        name: Answered(suite_facts(known.get(name), name, result, config), items.get(result.pk, []))
        for name, by_run in results.items()
        if (result := by_run.get(run.pk, {}).get(phase)) is not None
    }


def weights_chain(run: Run, lineage: Iterable[Mapping[str, Any]]) -> tuple[list[int], dict[int, int]]:
    """(ids of the runs, earliest first; run → the one that it began from), by the stages that a record's lineage
    names. The run alone where it began from none."""
    gave = {int(stage["to"]): int(stage["run"]) for stage in lineage if stage["gave"] == "weights"}
    chain = [run.pk]
    while (earlier := gave.get(chain[0])) is not None and earlier not in chain:
        chain.insert(0, earlier)
    return chain, {to: earlier for to, earlier in gave.items() if to in chain}
