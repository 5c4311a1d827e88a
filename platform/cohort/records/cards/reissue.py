"""Inputs for issuing the cards of a sealed record again: its last internal card without the samples that were redacted
since."""

import json
import re
from typing import Any

from cohort.base import artifacts
from cohort.base.storable import Refused
from cohort.evidence import dsse
from cohort.evidence.card_reader import CardReader
from cohort.evidence.verify.opened import ATTESTATION
from cohort.evidence.verify.signed import WEIGHTS
from cohort.evidence.zip_layout import MAX_CARD_BYTES, MAX_TRACE_FILE_BYTES
from cohort.records.cards.issue import Contents
from cohort.records.cards.pack import Pack
from cohort.records.cards.reading import Series
from cohort.records.cards.traces import Traces, redacted_lines
from cohort.records.models import Card, Record
from cohort.records.schema import SCHEMA
from cohort.records.sections.preregistered import named_entries
from cohort.review.models import Sample


def reissue_contents(record: Record, last: Card, pack: Pack) -> Contents:
    """Raises NotToBeIssued for a record of the first schema and for a card that is no longer stored."""
    if record.schema_version != SCHEMA:
        raise NotToBeIssued(
            f"record {record.pk} is {record.schema_version}; only cards of {SCHEMA} are issued again",
            code="other_schema",
        )
    if not artifacts.exists(last.artifact):
        raise NotToBeIssued(f"the file of record {record.pk}'s last card is no longer stored", code="not_stored")
    document: dict[str, Any] = json.loads(record.document)
    with artifacts.open_read(last.artifact) as handle:
        card = CardReader(handle)
        card.open()
        sealed = [pack.add(file["path"], card.chunks(file["path"])) for file in document["files"]]
        for packed, file in zip(sealed, document["files"], strict=True):
            if packed.sha256 != file["sha256"]:
                raise NotToBeIssued(
                    f"{packed.name} in the stored card of record {record.pk} is not the file that was sealed",
                    code="other_file",
                )
        names = sorted((name for name in card.entries if name.startswith("traces/")), key=_steps)
        samples = Sample.objects.filter(group__run=record.run_id).exclude(redacted_at=None)
        deleted = set(samples.values_list("group__attempt__fence", "group__step", "group__index", "index"))
        lines = redacted_lines((line for name in names for line in card.lines(name)), deleted)
        traces = Traces(lines, most=MAX_CARD_BYTES, most_a_file=MAX_TRACE_FILE_BYTES)
        shown = [pack.add(name, content) for name, content in traces.files()]
        series = Series()
        for row in card.lines("metrics.jsonl"):
            series.add(row["step"], row["metrics"])
        weights = _weights(card.whole(ATTESTATION))
    return Contents(document, sealed, shown, series, weights, record.run_root, named_entries(document))


class NotToBeIssued(Refused, code="not_to_be_issued"):
    """The record's cards cannot be issued again: it is of the first schema, or its card is not stored as it was."""


def _steps(name: str) -> list[int]:
    """steps-000001-000100.jsonl, then its further part steps-000001-000100-2.jsonl, then those of later steps."""
    return [int(number) for number in re.findall(r"\d+", name)]


def _weights(envelope: bytes) -> dict[str, str]:
    """The final weights' files that the last card's attestation names."""
    statement = json.loads(dsse.parsed(envelope).payload)
    return {
        subject["name"].removeprefix(WEIGHTS): subject["digest"]["sha256"]
        for subject in statement["subject"]
        if subject["name"].startswith(WEIGHTS)
    }
