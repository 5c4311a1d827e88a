"""A batch of an attempt's records, from compressed bytes to rows: all of it in one transaction, or nothing.

The bytes come from a machine that runs untrusted code: they are bounded, parsed and checked before any row is
written. Records already held are skipped, so that a batch may be sent again; records after a gap are left for later.
"""

import io
import json
import math
import re
from typing import Any, NoReturn

import zstandard
from django.db import transaction
from pydantic import ValidationError

from cohort.runs.attempts import attempt_lock
from cohort.runs.models import Attempt
from cohort.runs.rows import RowFault, store
from cohort.runs.text import storable
from grpo_core.records import Envelope

MAX_BATCH_BYTES = 32 * 1024 * 1024
MAX_RECORD_BYTES = 16 * 1024 * 1024

_ESCAPED = re.compile(rb"\\u(?:0000|[dD][89a-fA-F])")


class BadRecord(Exception):
    """A batch that cannot be stored. The message names the record."""


@transaction.atomic
def records_ingest(*, attempt: Attempt, fence: int, body: bytes) -> int:
    """Store the zstd NDJSON `body`; return the highest seq up to which the attempt's records are all held.

    Raises BadRecord when any line is not a valid record, StaleFence when the attempt is no longer the run's own.
    """
    envelopes = batch_read(body)
    attempt_lock(attempt=attempt, fence=fence)
    held = attempt.acked_seq
    fresh: list[Envelope] = []
    for envelope in envelopes:
        if envelope.seq == held + len(fresh) + 1:
            fresh.append(envelope)
        elif envelope.seq > held + len(fresh):
            break
    if fresh:
        try:
            store(attempt=attempt, envelopes=fresh)
        except RowFault as fault:
            raise BadRecord(str(fault)) from None
    return attempt.acked_seq


def batch_read(body: bytes) -> list[Envelope]:
    """Decompress, within bounds, and check every line."""
    try:
        with zstandard.ZstdDecompressor(max_window_size=MAX_BATCH_BYTES).stream_reader(io.BytesIO(body)) as reader:
            text = reader.read(MAX_BATCH_BYTES + 1)
    except zstandard.ZstdError as error:
        raise BadRecord(f"the batch is not zstd: {error}") from None
    if len(text) > MAX_BATCH_BYTES:
        raise BadRecord(f"the batch is larger than {MAX_BATCH_BYTES} bytes after decompression; send fewer records")
    if text and not text.endswith(b"\n"):
        raise BadRecord("the batch ends in the middle of a line; it was cut on the way")
    return [_envelope(line, place) for place, line in enumerate(text.split(b"\n")[:-1], start=1)]


def _envelope(line: bytes, place: int) -> Envelope:
    if len(line) > MAX_RECORD_BYTES:
        raise BadRecord(f"line {place} of the batch is {len(line)} bytes; a record has at most {MAX_RECORD_BYTES}")
    try:
        # Decoded first: of bytes, json takes other encodings too, and halves of surrogate pairs written as they are.
        content = json.loads(line.decode("utf-8"), parse_constant=_not_finite, parse_float=_finite)
    except (ValueError, RecursionError) as error:
        raise BadRecord(f"line {place} of the batch is not JSON: {error}") from None
    if _ESCAPED.search(line):
        content = _cleaned(content)
    try:
        return Envelope.model_validate(content)
    except ValidationError as error:
        fault = error.errors()[0]
        where = ".".join(str(piece) for piece in fault["loc"])
        seq = content.get("seq") if isinstance(content, dict) else None
        name = f"record {seq}" if isinstance(seq, int) else f"line {place} of the batch"
        raise BadRecord(f"{name} is not valid: {where}: {fault['msg']}") from None


def _cleaned(content: Any) -> Any:
    match content:
        case str():
            return storable(content)
        case list():
            return [_cleaned(item) for item in content]
        case dict():
            return {storable(key): _cleaned(value) for key, value in content.items()}
        case _:
            return content


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        _not_finite(text)
    return value


def _not_finite(text: str) -> NoReturn:
    raise ValueError(f"{text} is not a finite number")
