"""What people stated of a run. Nothing here writes."""

from dataclasses import dataclass

from cohort.records.models import Record, Statement
from cohort.records.statements.questions import QUESTIONS, Question
from cohort.runs.models import Run, RunEvent


def newest_statements(run: Run) -> dict[str, Statement]:
    """Field → the newest statement, without fields whose newest one was withdrawn."""
    rows = Statement.objects.filter(run=run).select_related("by").order_by("field", "-pk").distinct("field")
    return {one.field: one for one in rows if one.text or one.value is not None}


@dataclass(frozen=True)
class Asked:
    """A question with what was answered."""

    question: Question
    holds: Statement | None
    """None where nobody answered, or the answer was withdrawn."""
    before: list[Statement]
    """Earlier ones and those that took one back, newest first."""


def asked(run: Run) -> list[Asked]:
    """Every question, in the table's order."""
    told: dict[str, list[Statement]] = {}
    for one in Statement.objects.filter(run=run).select_related("by").order_by("-pk"):
        told.setdefault(one.field, []).append(one)
    found = []
    for question in QUESTIONS:
        newest, *rest = told.get(question.field, [None])
        holds = newest if newest is not None and (newest.text or newest.value is not None) else None
        before = [one for one in (rest if holds else [newest, *rest]) if one is not None]
        found.append(Asked(question, holds, before))
    return found


def overrides(run: Run) -> list[Statement]:
    """Of flags, newest first; those withdrawn too."""
    rows = Statement.objects.filter(run=run, field__startswith="oversight.overrides:")
    return list(rows.select_related("by").order_by("-pk"))


def said_since(record: Record) -> int:
    """Statements that the record cannot hold: made after it was made."""
    every = Statement.objects.filter(run=record.run_id)
    sealed = RunEvent.objects.filter(run=record.run_id, kind="sealed", data__seal=record.seal).first()
    if sealed is not None and "statements_through" in sealed.data:
        return every.filter(pk__gt=sealed.data["statements_through"]).count()
    return every.filter(at__gt=record.sealed_at).count()
