"""What the cards of a record that is sealed now are made from: the run's rows, read once."""

from cohort.evidence.limits import MAX_CARD_BYTES, MAX_TRACE_BYTES, MAX_TRACE_FILE_BYTES
from cohort.records.build import build_record
from cohort.records.cards.data_files import Collected, data_files
from cohort.records.cards.making import Contents, run_root_of
from cohort.records.cards.pack import Pack, Packed
from cohort.records.cards.traces import Traces, trace_lines
from cohort.records.facts import Facts
from cohort.records.schema_types import FileEntry
from cohort.records.traces.tree import step_leaves

_FOR_THE_REST = 96 * 1024**2
"""Bytes that traces leave for the record, its copies to read and the proofs."""


def contents_of(
    facts: Facts,
    pack: Pack,
    *,
    version: int = 1,
    max_trace_bytes: int = MAX_TRACE_BYTES,
    max_trace_file_bytes: int = MAX_TRACE_FILE_BYTES,
) -> Contents:
    """Read the run into `pack` and make its record. Traces beyond `max_trace_bytes` are left out, and the record says
    so. Raises CardTooLarge."""
    leaves = list(step_leaves(facts.run))
    collected, left = Collected(), MAX_CARD_BYTES
    sealed: list[Packed] = []
    entries: list[FileEntry] = []
    for file in data_files(facts, leaves, collected):
        packed = pack.add(file.path, file.content, most=left)
        left -= packed.size
        sealed.append(packed)
        entries.append(FileEntry(path=packed.name, sha256=packed.sha256, size=packed.size, audience=file.audience))
    room = max(0, min(left - _FOR_THE_REST, max_trace_bytes))
    traces = Traces(trace_lines(facts.run), most=room, most_a_file=max_trace_file_bytes)
    shown = [pack.add(name, content) for name, content in traces.files()]
    entries.sort(key=lambda entry: entry.path)
    document = build_record(facts, traces=traces.kept, files=entries, version=version)
    weights = {name: entry["sha256"] for name, entry in facts.checkpoint.files.items()} if facts.checkpoint else {}
    return Contents(document, sealed, shown, collected.series, weights, run_root_of(leaves))
