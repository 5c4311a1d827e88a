"""How large a card and its files may be. Sealing keeps to it, so that checking can refuse everything beyond unread."""

MAX_CARD_BYTES = 2_000_000_000
"""All files unpacked; below 2 GiB every number in the zip fits its 32 bits."""
MAX_RECORD_BYTES = 16 * 1024**2
MAX_CONFIG_BYTES = 2 * 1024**2
MAX_SMALL_BYTES = 16 * 1024**2
"""Each of the files that carry the proofs, and the schema."""
MAX_LINES_BYTES = 512 * 1024**2
"""Each of the files that numbers are computed from again."""
MAX_LINE_BYTES = 20 * 1024**2
"""More than a record of 16 MiB, the largest that a worker may send, makes of a line."""
MAX_ITEMS = 500_000
"""Items in one evaluation file."""
MAX_TRACE_BYTES = 1024**3
"""All traces; what is beyond is left out, and the record says so."""
MAX_TRACE_FILE_BYTES = 256 * 1024**2
MAX_ENTRIES = 65_000
MAX_NAME_LENGTH = 200

_MOST = {
    "record.json": MAX_RECORD_BYTES,
    "config.yaml": MAX_CONFIG_BYTES,
    "metrics.jsonl": MAX_LINES_BYTES,
    "evals/before.jsonl": MAX_LINES_BYTES,
    "evals/after.jsonl": MAX_LINES_BYTES,
    "evals/imported.jsonl": MAX_LINES_BYTES,
    "commitments.jsonl": MAX_LINES_BYTES,
    "record.schema.json": MAX_SMALL_BYTES,
    "attestation.dsse.json": MAX_SMALL_BYTES,
    "keys.json": MAX_SMALL_BYTES,
    "log-entry.json": MAX_SMALL_BYTES,
    "proof.tlog-proof": MAX_SMALL_BYTES,
    "consistency.json": MAX_SMALL_BYTES,
    "weights.dsse.json": MAX_SMALL_BYTES,
}


def most_bytes(name: str) -> int:
    """The largest that the file `name` of a card may be."""
    return _MOST.get(name, MAX_CARD_BYTES)
