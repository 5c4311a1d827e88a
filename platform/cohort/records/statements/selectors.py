"""Statements about a run. Nothing here writes."""

from dataclasses import dataclass

from cohort.records.models import Record, Statement
from cohort.records.statements.questions import QUESTIONS, Question
from cohort.runs.models import Run, RunEvent


def newest_statements(run: Run) -> dict[str, Statement]:
    """Field → the newest statement, without fields whose newest one was withdrawn."""
    rows = Statement.objects.filter(run=run).select_related("by").order_by("field", "-pk").distinct("field")
    return {statement.field: statement for statement in rows if statement.text or statement.value is not None}


@dataclass(frozen=True)
class Asked:
    """A question with its answers."""

    question: Question
    holds: Statement | None
    """None where nobody answered, or the answer was withdrawn."""
    before: list[Statement]
    """Earlier answers and withdrawals, newest first."""


def questions_of(run: Run) -> list[Asked]:
    """Every question, in the table's order."""
    by_field: dict[str, list[Statement]] = {}
    for statement in Statement.objects.filter(run=run).select_related("by").order_by("-pk"):
        by_field.setdefault(statement.field, []).append(statement)
    rows = []
    for question in QUESTIONS:
        newest, *rest = by_field.get(question.field, [None])
        holds = newest if newest is not None and (newest.text or newest.value is not None) else None
        before = [statement for statement in (rest if holds else [newest, *rest]) if statement is not None]
        rows.append(Asked(question, holds, before))
    return rows


def overrides(run: Run) -> list[Statement]:
    """Of flags, newest first; those withdrawn too."""
    rows = Statement.objects.filter(run=run, field__startswith="oversight.overrides:")
    return list(rows.select_related("by").order_by("-pk"))


def said_since(record: Record) -> int:
    """Number of statements made after the record was made."""
    every = Statement.objects.filter(run=record.run_id)
    sealed = RunEvent.objects.filter(run=record.run_id, kind="sealed", data__seal=record.seal).first()
    if sealed is not None and "statements_through" in sealed.data:
        return every.filter(pk__gt=sealed.data["statements_through"]).count()
    return every.filter(at__gt=record.sealed_at).count()
