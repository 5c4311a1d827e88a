"""What must be true of a run's records whatever died: nothing acknowledged is lost, nothing stands twice, and the
weights are those of a run that nothing happened to.

The trainer's own readable files are the other side of the comparison: they hold every record it wrote, with its seq.
"""

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.chaos.stand import Stand

TABLES = {
    "step": "runs_stepmetric",
    "group": "review_group",
    "eval_item": "runs_evalitem",
    "eval_result": "runs_evalresult",
    "checkpoint": "runs_checkpoint",
    "event": "runs_runevent",
    "phase": "runs_runevent",
}
"""Where each kind of record becomes a row with its seq; the other kinds are kept on the attempt."""
_STANDING = (
    "SELECT s.step, s.metrics FROM runs_stepmetric s JOIN runs_attempt a ON a.id = s.attempt_id "
    "WHERE s.run_id = %s AND (a.valid_through IS NULL OR s.step <= a.valid_through) ORDER BY s.step"
)
_FINAL = "SELECT files FROM runs_checkpoint WHERE run_id = %s AND final ORDER BY id DESC LIMIT 1"
TIMES = {"samples_per_second", "tokens_per_second", "memory"}
"""First words of the metrics that tell of the machine."""


@dataclass
class Ledger:
    stand: Stand
    acked: dict[int, int] = field(default_factory=dict)
    """By attempt, the highest seq that the platform was ever seen to have acknowledged."""

    def note(self, run_id: int) -> None:
        for attempt in self.stand.attempts(run_id):
            self.acked[attempt["id"]] = max(attempt["acked_seq"], self.acked.get(attempt["id"], 0))

    def lost(self, run_id: int) -> tuple[int, int]:
        """(acknowledged records that were looked for, those that are not stored or not as they were written)."""
        self.note(run_id)
        looked_for = lost = 0
        for attempt in self.stand.attempts(run_id):
            assert attempt["acked_seq"] >= self.acked[attempt["id"]], f"acknowledged and withdrawn: {attempt}"
            rows = self._rows(attempt["id"])
            for envelope in written(self.folder(attempt)):
                if envelope["seq"] > self.acked[attempt["id"]] or envelope["record"]["kind"] not in TABLES:
                    continue
                looked_for += 1
                record, row = envelope["record"], rows.get(envelope["seq"], {})
                stored = row.get("kind") == TABLES[record["kind"]]
                if stored and record["kind"] == "step":
                    stored = row["metrics"] == record["metrics"]
                lost += not stored
        return looked_for, lost

    def duplicates(self, run_id: int) -> int:
        """Steps that stand more than once. Fails when one is missing."""
        steps = [row["step"] for row in self.stand.rows(_STANDING, run_id)]
        assert sorted(set(steps)) == list(range(1, self.stand.run(run_id)["steps_total"] + 1)), steps
        return len(steps) - len(set(steps))

    def weights(self, run_id: int) -> dict[str, str]:
        """SHA-256 of each file with weights that the run ended with, as its record says and as they lie on the disk."""
        files = self.stand.one(_FINAL, run_id)
        return {name: entry["sha256"] for name, entry in files.items() if name.endswith(".safetensors")}

    def metrics(self, run_id: int) -> dict[int, dict[str, float]]:
        """By step, every number that stands and is no time."""
        return {
            row["step"]: {name: value for name, value in row["metrics"].items() if name.split("/")[0] not in TIMES}
            for row in self.stand.rows(_STANDING, run_id)
        }

    def check(self, runs: Sequence[int], reference: int) -> str:
        """Of runs that have ended: nothing acknowledged is lost, nothing stands twice, and weights and metrics are the
        reference's. The numbers, for a person."""
        acked, lost = (sum(numbers) for numbers in zip(*map(self.lost, runs), strict=True))
        duplicates = sum(map(self.duplicates, runs))
        attempts = [attempt for run in runs for attempt in self.stand.attempts(run)]
        ends = dict(Counter(attempt["end_code"] for attempt in attempts if attempt["state"] != "finished"))
        numbers = f"attempts {len(attempts)} {ends}, acked {acked}, lost {lost}, duplicates {duplicates}"
        assert (lost, duplicates) == (0, 0), numbers
        for run in runs:
            assert self.weights(run) == self.weights(reference), numbers
            assert self.metrics(run) == self.metrics(reference), numbers
        return numbers

    def folder(self, attempt: dict[str, Any]) -> Path:
        node = self.stand.one("SELECT name FROM nodes_node WHERE id = %s", attempt["node_id"])
        return self.stand.runs(node) / f"run-{attempt['run_id']}" / f"attempt-{attempt['fence']}"

    def _rows(self, attempt_id: int) -> dict[int, dict[str, Any]]:
        rows: dict[int, dict[str, Any]] = {}
        for table in sorted(set(TABLES.values())):
            query = f"SELECT * FROM {table} WHERE attempt_id = %s AND seq IS NOT NULL"
            rows |= {row["seq"]: {**row, "kind": table} for row in self.stand.rows(query, attempt_id)}
        return rows


def written(folder: Path) -> list[dict[str, Any]]:
    """Every whole record in the readable files of an attempt's folder."""
    files = [*folder.glob("*.jsonl"), *folder.glob("samples/*.jsonl"), *folder.glob("evals/*.jsonl")]
    # What follows the last newline was torn.
    return [json.loads(line) for file in files for line in file.read_bytes().split(b"\n")[:-1]]
