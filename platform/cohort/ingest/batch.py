"""A batch of an attempt's records, from compressed bytes to rows: all of it in one transaction, or nothing.

The bytes come from a machine that runs untrusted code: they are bounded, parsed and checked before any row is
written. Records already held are skipped unread, so that a batch may be sent again at little cost; records after a
gap are left for later. What one batch costs does not depend on how much is stored.
"""

import io
import json
import re
from typing import NoReturn

import zstandard
from django.db import connection, transaction
from pydantic import ValidationError

from cohort.base.storable import Refused, storable_json
from cohort.ingest.copy import BadRecord, server_cursor
from cohort.ingest.rows import store
from cohort.ingest.run_state import LockedAttempt
from cohort.nodes.leases import StaleFence
from cohort.runs.models import AttemptState
from grpo_core.config.messages import field_problems
from grpo_core.records import types as records
from grpo_core.records.bounds import shallow
from grpo_core.records.types import Envelope
from grpo_core.text import finite_number

MAX_BATCH_BYTES = 32 * 1024 * 1024
MAX_RECORD_BYTES = 16 * 1024 * 1024

_ESCAPED = re.compile(rb"\\u(?:0000|[dD][89a-fA-F])")
_SEQ = re.compile(rb'\{"seq": ?([0-9]{1,18}),')
"""How the trainer's lines begin; any other line is read in full to find its seq."""

# Run before attempt, as everywhere. FOR UPDATE waits and then sees both rows as they are now. Who may write is read in
# the same statement: every batch comes through here, and each statement less counts.
_LOCK = """
    SELECT run.id, run.fence, run.step, run.first_metrics = '{}', run.stalled_at IS NOT NULL,
           attempt.fence, attempt.state, attempt.acked_seq, attempt.outcome IS NOT NULL
    FROM runs_run AS run
    JOIN runs_attempt AS attempt ON attempt.run_id = run.id
    JOIN nodes_node AS node ON node.id = attempt.node_id
    WHERE attempt.id = %s AND attempt.token_digest = %s AND node.revoked_at IS NULL
    FOR UPDATE OF run, attempt
"""


class UnknownToken(Refused, code="unknown_token"):
    """The token is not the attempt's, or its node's tokens were revoked."""


def batch_ingest(*, attempt_id: int, digest: str, fence: int, body: bytes) -> int:
    """Store the zstd NDJSON `body`; return the highest seq up to which the attempt's records are all held. `digest` is
    that of the token that the call came with.

    Raises BadRecord when a line that is not held yet is not a valid record, StaleFence when the attempt is no longer
    the run's own, UnknownToken. Then nothing of the batch is stored.
    """
    with transaction.atomic(), connection.wrap_database_errors:
        cursor = server_cursor()
        locked = cursor.execute(_LOCK, (attempt_id, digest), prepare=True).fetchone()
        if locked is None:
            raise UnknownToken
        run_id, newest, step, unbegun, stalled, own, state, held, ended = locked
        if state != AttemptState.RUNNING:
            raise StaleFence(f"attempt {own} of run {run_id} has ended: {state}")
        if not fence == own == newest:
            raise StaleFence(f"run {run_id} is at fence {newest}; this call came with {fence}")
        fresh = batch_read(body, held=held)
        if fresh:
            store(cursor, LockedAttempt(attempt_id, run_id, own, step, unbegun, stalled, ended), fresh)
        return int(held) + len(fresh)


def batch_read(body: bytes, *, held: int = 0) -> list[Envelope]:
    """Decompress, within bounds, and check every line beyond `held` up to the first gap."""
    try:
        with zstandard.ZstdDecompressor(max_window_size=MAX_BATCH_BYTES).stream_reader(io.BytesIO(body)) as reader:
            text = reader.read(MAX_BATCH_BYTES + 1)
    except zstandard.ZstdError as error:
        raise BadRecord(f"the batch is not zstd: {error}", code="not_zstd") from None
    if len(text) > MAX_BATCH_BYTES:
        raise BadRecord(
            f"the batch is larger than {MAX_BATCH_BYTES} bytes after decompression; send fewer records",
            code="batch_too_large",
        )
    if text and not text.endswith(b"\n"):
        raise BadRecord("the batch ends in the middle of a line; it was cut on the way", code="cut")
    fresh: list[Envelope] = []
    start = line_number = 0
    while start < len(text):
        end = text.index(b"\n", start)
        line_number += 1
        peeked = _SEQ.match(text, start, end)
        if peeked is None or int(peeked[1]) > held:
            envelope = _envelope(text[start:end], line_number)
            if envelope.seq > held + len(fresh) + 1:
                break
            if envelope.seq == held + len(fresh) + 1:
                fresh.append(envelope)
        start = end + 1
    return fresh


def _envelope(line: bytes, line_number: int) -> Envelope:
    if len(line) > MAX_RECORD_BYTES:
        raise BadRecord(
            f"line {line_number} of the batch is {len(line)} bytes; a record has at most {MAX_RECORD_BYTES}",
            code="record_too_large",
        )
    escaped = b"\\u" in line and _ESCAPED.search(line) is not None
    if not escaped:
        try:
            return records.ENVELOPE.validate_json(line)
        except ValidationError:
            pass  # read once more, for an error message that people understand
    return _slowly(line, line_number, escaped=escaped)


def _slowly(line: bytes, line_number: int, *, escaped: bool) -> Envelope:
    """The same line by Python's own reader, which names a NaN and half a surrogate pair with their position."""
    try:
        # Decoded first: of bytes, json takes other encodings too, and halves of surrogate pairs written as they are.
        content = json.loads(line.decode("utf-8"), parse_constant=_not_finite, parse_float=finite_number)
    except (ValueError, RecursionError) as error:
        raise BadRecord(f"line {line_number} of the batch is not JSON: {error}", code="not_json") from None
    try:
        content = storable_json(shallow(content)) if escaped else shallow(content)
    except ValueError as error:
        raise BadRecord(f"line {line_number} of the batch is not valid: {error}", code="not_a_record") from None
    try:
        return Envelope.model_validate(content)
    except ValidationError as error:
        seq = content.get("seq") if isinstance(content, dict) else None
        name = f"record {seq}" if isinstance(seq, int) else f"line {line_number} of the batch"
        raise BadRecord(f"{name} is not valid: {_fault(error)}", code="not_a_record") from None


def _fault(error: ValidationError) -> str:
    """Path and reason of the first fault; the path begins in the record itself."""
    first = field_problems(error, model=Envelope)[0]
    return re.sub(r"^record\.(?:[a-z_]+\.)?", "", str(first))


def _not_finite(text: str) -> NoReturn:
    raise ValueError(f"{text} is not a finite number")
