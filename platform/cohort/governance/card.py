"""The card: one zip that holds the record, what it stands on, and copies to read. Its bytes depend on nothing but them.

Written to a temporary file as a stream; the caller stores it.
"""

import hashlib
import zipfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from django.template.loader import render_to_string

from cohort.governance.build import build_record
from cohort.governance.card_files import Traces, small_files
from cohort.governance.digests import CARD_FILE, RECORD_FILE, close, data_files_digest
from cohort.governance.facts import Facts
from cohort.governance.limits import MAX_CARD_BYTES, MAX_TRACE_BYTES, MAX_TRACE_FILE_BYTES, most_bytes
from cohort.governance.markdown import card_markdown
from cohort.governance.schema import FileEntry, Sealed
from cohort.governance.shown import shown
from cohort.governance.zip_layout import entry_info

_FOR_THE_RECORD = 64 * 1024**2
"""Bytes that traces leave for the record and its copies to read."""


class CardTooLarge(Exception):
    """A file of the card, or all together, would be larger than what `cohort verify` takes."""


@dataclass(frozen=True)
class Card:
    sealed: Sealed
    document: bytes
    """record.json."""


def write_card(
    facts: Facts,
    path: Path,
    *,
    max_trace_bytes: int = MAX_TRACE_BYTES,
    max_trace_file_bytes: int = MAX_TRACE_FILE_BYTES,
) -> Card:
    """Write the card of the run to `path`. Traces beyond `max_trace_bytes` are left out, and the record says so.

    Raises CardTooLarge.
    """
    with zipfile.ZipFile(path, "w", allowZip64=False) as archive:
        files: list[FileEntry] = []

        def add(name: str, chunks: Iterable[bytes]) -> None:
            left = MAX_CARD_BYTES - sum(entry.size for entry in files)
            files.append(_add(archive, name, chunks, most=min(left, most_bytes(name))))

        for name, chunks in small_files(facts):
            add(name, chunks)
        left = MAX_CARD_BYTES - sum(entry.size for entry in files) - _FOR_THE_RECORD
        traces = Traces(facts, most=min(left, max_trace_bytes), most_a_file=max_trace_file_bytes)
        for name, chunks in traces.files():
            add(name, chunks)
        record = build_record(facts, data_files_digest=data_files_digest(files), traces=traces.kept)
        add(CARD_FILE, [card_markdown(record).encode()])
        add("card.html", [render_to_string("governance/card.html", {"shown": shown(record)}).encode()])
        sealed, document = close(record, files)
        add(RECORD_FILE, [document])
    return Card(sealed, document)


def _add(archive: zipfile.ZipFile, name: str, chunks: Iterable[bytes], *, most: int) -> FileEntry:
    digest, size = hashlib.sha256(), 0
    with archive.open(entry_info(name), "w") as entry:
        for chunk in chunks:
            digest.update(chunk)
            size += len(chunk)
            if size > most:
                raise CardTooLarge(f"{name} would be larger than the {most:,} bytes that a card has for it")
            entry.write(chunk)
    return FileEntry(path=name, sha256=digest.hexdigest(), size=size)
