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
from cohort.governance.card_files import MAX_TRACE_BYTES, small_files, trace_files
from cohort.governance.digests import RECORD_FILE, data_files_digest, record_digest, sealed_bytes
from cohort.governance.facts import Facts
from cohort.governance.markdown import card_markdown
from cohort.governance.schema import FileEntry, Record
from cohort.governance.shown import shown
from cohort.governance.zip_layout import entry_info


@dataclass(frozen=True)
class Card:
    record: Record
    digest: str
    document: bytes
    """record.json."""


def write_card(facts: Facts, path: Path, *, max_trace_bytes: int = MAX_TRACE_BYTES) -> Card:
    """Write the card of the run to `path`. Traces beyond `max_trace_bytes` are left out, and the record says so."""
    with zipfile.ZipFile(path, "w", allowZip64=False) as archive:
        files = [_add(archive, name, chunks) for name, chunks in small_files(facts)]
        traced, cut_at = 0, None
        for first, name, chunks in trace_files(facts):
            if traced >= max_trace_bytes:
                cut_at = first
                break
            files.append(_add(archive, name, chunks))
            traced += files[-1].size
        record = build_record(facts, data_files_digest=data_files_digest(files), traces_cut_at=cut_at)
        digest = record_digest(record)
        html = render_to_string("governance/card.html", {"shown": shown(record), "digest": digest})
        files.append(_add(archive, "CARD.md", [card_markdown(record, digest).encode()]))
        files.append(_add(archive, "card.html", [html.encode()]))
        document = sealed_bytes(record, files)
        _add(archive, RECORD_FILE, [document])
    return Card(record, digest, document)


def _add(archive: zipfile.ZipFile, name: str, chunks: Iterable[bytes]) -> FileEntry:
    digest, size = hashlib.sha256(), 0
    with archive.open(entry_info(name), "w") as entry:
        for chunk in chunks:
            digest.update(chunk)
            size += len(chunk)
            entry.write(chunk)
    return FileEntry(path=name, sha256=digest.hexdigest(), size=size)
