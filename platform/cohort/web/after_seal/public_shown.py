"""What the public page of a record shows: the public part of its document, and how the record stands. No names of
people or of the project but those that the public part itself holds."""

import json
from dataclasses import dataclass, replace

from cohort.evidence.record import redact
from cohort.records.after_seal.rules import Standing, standing_of
from cohort.records.document_view import DocumentView, Row, view_document
from cohort.records.models import Audience, Card, Record
from cohort.web.after_seal.shown import entries_of


@dataclass(frozen=True)
class PublicPage:
    record: Record
    shown: DocumentView
    """Of the redacted document: no value of a field that is not public is in it. Without the withheld rows."""
    withheld: tuple[Row, ...]
    """Fields that the public does not get: their labels are those of every record, and their entries hold a hash."""
    standing: Standing
    later: Record | None
    """The newest one of the run, when that is not this."""
    card: Card | None


def public_page(record: Record) -> PublicPage:
    whole = view_document(redact(json.loads(record.document), Audience.PUBLIC))
    blocks = tuple(replace(block, rows=tuple(row for row in block.rows if not row.withheld)) for block in whole.blocks)
    return PublicPage(
        record=record,
        shown=replace(whole, blocks=tuple(block for block in blocks if block.rows)),
        withheld=tuple(row for block in whole.blocks for row in block.rows if row.withheld),
        standing=standing_of(entries_of([record.pk])),
        later=_later(record),
        card=Card.objects.filter(record=record, audience=Audience.PUBLIC).order_by("-issue").first(),
    )


def _later(record: Record) -> Record | None:
    of_run = Record.objects.filter(run=record.run_id).defer("document")
    newest = of_run.order_by("-end", "-version").first()
    return newest if newest is not None and newest.pk != record.pk else None
