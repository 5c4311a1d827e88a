"""A run's tree: the commitments to every completion of it, kept or not, superseded or not, in one order."""

import base64
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from django.db import connection, transaction

from cohort.review.models import StepCommitments
from cohort.runs.models import Run

# Concurrent redaction and card building: reading texts for a card waits for redactions that have begun.
#
# A redaction carries its start time and is visible once committed. A card started in between would contain the text,
# and its timestamp would say that it was made without it.


def redaction_begins(run_id: int) -> None:
    """Before the first row is changed. Needs a transaction; redactions do not wait for each other."""
    _lock("SELECT pg_advisory_xact_lock_shared(hashtextextended(%s, 0))", run_id)


@transaction.atomic(durable=True)
def redactions_awaited(run_id: int) -> None:
    """Returns when every redaction of the run that had begun is committed. Call it after the card's time is taken and
    before a text is read."""
    _lock("SELECT pg_advisory_xact_lock(hashtextextended(%s, 0))", run_id)


def _lock(statement: str, run_id: int) -> None:
    with connection.cursor() as cursor:
        cursor.execute(statement, [f"cohort redact {run_id}"])


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
