"""What pages of records read from the database. Nothing here writes."""

from dataclasses import dataclass

from cohort.accounts.models import Project
from cohort.governance.models import Record
from cohort.governance.schema import Sealed
from cohort.governance.shown import Compared, Shown, compared, shown
from cohort.runs.models import Run
from cohort.runs.transitions import WITH_A_RECORD

PAGE = 50


@dataclass(frozen=True)
class RecordRow:
    record: Record
    state: str
    compared: Compared | None
    """The first suite, for one line."""
    suites: int
    seal: str
    newest: bool
    """Whether no later record took its place."""


@dataclass(frozen=True)
class RecordPage:
    rows: list[RecordRow]
    total: int
    following: int | None
    """`before` of the next page; None at the end."""


def record_of(run: Run) -> Record | None:
    """The record of the end that the run is at; None while it waits or goes on again, and until it is sealed."""
    if run.state not in WITH_A_RECORD:
        return None
    return Record.objects.filter(run=run, end=run.ends).defer("document").first()


def records_of(run: Run) -> list[RecordRow]:
    """Every record of the run, newest first."""
    return [_row(record) for record in Record.objects.filter(run=run).select_related("run").order_by("-end")]


def records(project: Project, *, before: int | None = None) -> RecordPage:
    """Newest first, a page at a time, ending before the record with the id `before`."""
    every = Record.objects.filter(run__project=project)
    wanted = every.filter(pk__lt=before) if before is not None else every
    found = list(wanted.select_related("run").order_by("-pk")[: PAGE + 1])
    rows = [_row(record) for record in found[:PAGE]]
    return RecordPage(rows, every.count(), rows[-1].record.pk if len(found) > PAGE else None)


def opened(record: Record) -> tuple[Sealed, Shown]:
    sealed = Sealed.model_validate_json(record.document)
    return sealed, shown(sealed.record)


def _row(record: Record) -> RecordRow:
    sealed = Sealed.model_validate_json(record.document)
    found = sealed.record.behaviour.performance.value or []
    later = Record.objects.filter(run=record.run_id, end__gt=record.end).exists()
    return RecordRow(
        record, sealed.record.state, compared(found[0]) if found else None, len(found), sealed.seal, not later
    )
