"""Ships a spool to the platform, in order, and deletes what the platform holds.

Sends the records' JSON as the trainer wrote it; parses only those of checkpoints.
"""

from pathlib import Path

import zstandard
from pydantic import ValidationError

from grpo_core.files.spool import Spooled, SpoolReader
from grpo_core.records.types import ENVELOPE, CheckpointManifest
from worker.platform_client.client import AttemptLink, Meanwhile


class RecordsLost(Exception):
    """The platform holds fewer records than it had acknowledged; what is missing has been deleted here."""


class Shipper:
    def __init__(self, link: AttemptLink, spool: Path) -> None:
        self._link = link
        self._reader = SpoolReader(spool)
        self._pending: list[Spooled] = []
        self._compressor = zstandard.ZstdCompressor(level=3)
        self.read_seq = 0
        """The newest record in the spool."""
        self.acked_seq = 0
        self.checkpoints: list[CheckpointManifest] = []
        """Those whose records the platform holds, oldest first; the reader takes them out."""

    def ship(self, meanwhile: Meanwhile) -> bool:
        """Send one batch; False when there is nothing to send. `meanwhile` is called while it is on its way.

        What could not be sent stays and is sent next time. Raises PlatformError, RunDirError for a corrupt spool,
        RecordsLost.
        """
        if not self._pending:
            self._pending = self._reader.read_new()
        if not self._pending:
            return False
        first, self.read_seq = self._pending[0].seq, self._pending[-1].seq
        lines = b"".join(record.body + b"\n" for record in self._pending)
        acked = self._link.records(self._compressor.compress(lines), meanwhile=meanwhile).acked_seq
        if acked < first:
            raise RecordsLost(f"records from {acked + 1} to {first} were acknowledged or sent, and are not held")
        self.acked_seq = acked
        acked_records = [record for record in self._pending if record.seq <= acked]
        self.checkpoints += filter(None, map(_checkpoint, acked_records))
        self._pending = [record for record in self._pending if record.seq > acked]
        self._reader.drop_through(acked)
        return True


def _checkpoint(record: Spooled) -> CheckpointManifest | None:
    if b'"kind":"checkpoint"' not in record.body:
        return None
    try:
        body = ENVELOPE.validate_json(record.body).record
    except ValidationError:
        return None  # of another version; the platform has taken it, and its meaning is the platform's business
    return body if isinstance(body, CheckpointManifest) else None
