"""What pages of records read from the database. Nothing here writes."""

from dataclasses import dataclass

from cohort.accounts.models import Project
from cohort.governance.models import Record
from cohort.governance.schema import Sealed
from cohort.governance.shown import Compared, Shown, compared, shown

PAGE = 50


@dataclass(frozen=True)
class RecordRow:
    record: Record
    state: str
    compared: Compared | None
    """The first suite, for one line."""
    suites: int
    seal: str


@dataclass(frozen=True)
class RecordPage:
    rows: list[RecordRow]
    total: int
    following: int | None
    """`before` of the next page; None at the end."""


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
    return RecordRow(record, sealed.record.state, compared(found[0]) if found else None, len(found), sealed.seal)
