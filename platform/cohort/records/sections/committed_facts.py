"""The commitments to every completion of a run, counted, with the root over all of them. Writes nothing."""

from dataclasses import dataclass

from cohort.evidence.merkle import HASH_BYTES, root
from cohort.records.traces.tree import step_leaves
from cohort.runs.models import Run


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
    for one in step_leaves(run):
        steps, leaves = steps + 1, leaves + one.count
        superseded += one.count if one.superseded else 0
        hashes += [one.leaves[at : at + HASH_BYTES] for at in range(0, len(one.leaves), HASH_BYTES)]
    return Committed(steps, leaves, superseded, root(hashes).hex() if hashes else "")
