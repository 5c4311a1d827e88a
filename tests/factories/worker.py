"""What the tests of worker and worker API make: records, batches of them, calls with a token."""

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import yaml
import zstandard
from pydantic import TypeAdapter

from grpo_core import __version__
from grpo_core.protocol.messages import NodeInfo
from grpo_core.records import types as records

BEGAN = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)
VERSIONS = {"cohort-grpo": __version__}
NODE = NodeInfo(
    hostname="host",
    cpus=2,
    memory_bytes=8_000_000_000,
    devices=[{"kind": "cpu", "name": "cpu"}],
    versions=VERSIONS,
)


def envelopes(bodies: Iterable[Any], *, first: int = 1) -> list[records.Envelope]:
    """Records in a row, one a second."""
    return [
        records.Envelope(seq=seq, at=BEGAN + timedelta(seconds=seq), record=body)
        for seq, body in enumerate(bodies, start=first)
    ]


def packed(lines: Iterable[records.Envelope | bytes]) -> bytes:
    """A batch as it travels."""
    raw = [line if isinstance(line, bytes) else line.model_dump_json().encode() for line in lines]
    return zstandard.ZstdCompressor().compress(b"".join(line + b"\n" for line in raw))


def phase(name: Any, total: int | None = None) -> records.PhaseStarted:
    return records.PhaseStarted(phase=name, total=total)


def step(number: int, *, seconds: float = 1.0, reward: float = 0.5) -> records.StepMetrics:
    return records.StepMetrics(step=number, metrics={"reward": reward}, seconds={"total": seconds})


# Without tests.tables, which would have the stand-in trainer load pytest.
_RUN = yaml.safe_load((Path(__file__).parents[1] / "cases/worker_api/whole_run.yaml").read_text(encoding="utf-8"))
WHOLE_RUN: list[records.Record] = TypeAdapter(list[records.Record]).validate_python(_RUN)
"""Every kind of record once or more, in the order of a real run: 17 of them."""


def manifest() -> records.Record:
    return WHOLE_RUN[1]


def group(number: int) -> Any:
    """A group whose first completion is paid 1 and the other 0."""
    return WHOLE_RUN[8].model_copy(update={"step": number})


def outcome(status: Any = "finished", *, code: str = "ok", message: str = "Trained 2 steps") -> records.Outcome:
    return records.Outcome(status=status, code=code, message=message, steps_done=2, steps_planned=2)
