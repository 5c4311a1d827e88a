"""What pages of records read from the database. Nothing here writes."""

import json
from dataclasses import dataclass
from typing import Any

from cohort.records.document_view import Compared, DocumentView, compared, view_document
from cohort.records.models import Record
from cohort.records.schema import Document
from cohort.records.schema_types import Comparison
from cohort.runs.models import Run
from cohort.runs.transitions import WITH_A_RECORD


@dataclass(frozen=True)
class RecordRow:
    record: Record
    state: str
    compared: Compared | None
    """The first suite, for one line; None too for a record of the first schema."""
    suites: int
    newest: bool
    """Whether no later record supersedes it."""

    @property
    def seal(self) -> str:
        return self.record.seal


def record_of(run: Run) -> Record | None:
    """The newest record of the end that the run is at; None while it waits or runs again, and until it is sealed."""
    if run.state not in WITH_A_RECORD:
        return None
    return Record.objects.filter(run=run, end=run.ends).order_by("-version").defer("document").first()


def records_of(run: Run) -> list[RecordRow]:
    """Every record of the run, newest first."""
    records = Record.objects.filter(run=run).select_related("run").order_by("-end", "-version")
    return [_row(record, newest=index == 0) for index, record in enumerate(records)]


def opened(record: Record) -> DocumentView:
    """The record arranged for reading."""
    return view_document(Document.model_validate_json(record.document))


def _row(record: Record, *, newest: bool) -> RecordRow:
    document: dict[str, Any] = json.loads(record.document)
    suites = document["sections"]["behaviour"]["performance"]["value"] or []
    first = compared(Comparison.model_validate(suites[0])) if suites else None
    return RecordRow(record, document["head"]["state"], first, len(suites), newest)
