"""A run's tree: the commitments to every completion of it, kept or not, superseded or not, in one order."""

import base64
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from cohort.review.models import StepCommitments
from cohort.runs.models import Run


@dataclass(frozen=True, slots=True)
class StepLeaves:
    """What one attempt committed to at one step."""

    attempt: int
    """Its fence."""
    step: int
    superseded: bool
    """A later attempt did the step again. The leaves stay in the tree."""
    count: int
    leaves: bytes
    """count × 32 bytes."""

    def line(self) -> dict[str, Any]:
        """As a line of commitments.jsonl."""
        return {
            "attempt": self.attempt,
            "step": self.step,
            "superseded": self.superseded,
            "count": self.count,
            "leaves": base64.b64encode(self.leaves).decode(),
        }


def step_leaves(run: Run) -> Iterator[StepLeaves]:
    """By attempt, then step: the order of the tree."""
    rows = StepCommitments.objects.filter(run=run).order_by("attempt__fence", "step")
    step_rows = rows.values_list("attempt__fence", "attempt__valid_through", "step", "count", "leaves")
    for fence, through, step, count, leaves in step_rows.iterator(chunk_size=500):
        yield StepLeaves(fence, step, through is not None and step > through, count, bytes(leaves))
