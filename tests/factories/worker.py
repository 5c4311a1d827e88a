"""What the tests of worker and worker API make: records, batches of them, calls with a token."""

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Any

import zstandard

from grpo_core import records
from grpo_core.wire import NodeInfo

BEGAN = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)
NODE = NodeInfo(hostname="host", cpus=2, memory_bytes=8_000_000_000, devices=[{"kind": "cpu", "name": "cpu"}])


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


def group(number: int, *, completions: tuple[str, ...] = ("yes", "no")) -> records.Group:
    """A group whose first completion is paid 1 and the others 0."""
    samples = tuple(
        records.Sample(
            index=place,
            completion=text,
            tokens=len(text),
            finish_reason="eos",
            reward=float(place == 0),
            components={"answer": records.ComponentScore(value=float(place == 0), passed=place == 0, detail=text)},
            advantage=1.0 if place == 0 else -1.0,
            mask_cause=None,
        )
        for place, text in enumerate(completions)
    )
    return records.Group(
        step=number,
        index=0,
        problem_id="add-1",
        prompt="what is 1 + 1?",
        answer="2",
        reward_mean=0.5,
        reward_std=0.5,
        signal="mixed",
        samples=samples,
    )


def outcome(status: Any = "finished", *, code: str = "ok", message: str = "Trained 2 steps") -> records.Outcome:
    return records.Outcome(status=status, code=code, message=message, steps_done=2, steps_planned=2)


def manifest() -> records.Manifest:
    return records.Manifest(
        code={"version": "0.1.0"},
        packages={"torch": "2.13.0"},
        platform={"python": "3.11"},
        model={"source": "tiny"},
        data={"train": {"problems": 20}},
        seeds={"seed": 0},
        config_digest="ab" * 32,
    )


def eval_item(number: int, *, when: Any = "before") -> records.EvalItem:
    return records.EvalItem(
        phase=when,
        suite="held-out",
        problem_id=f"add-{number}",
        prompt="what is 1 + 1?",
        answer="2",
        completion="2",
        score=1.0,
        truncated=False,
        tokens=1,
    )


def eval_result(*, when: Any = "before") -> records.EvalResult:
    return records.EvalResult(
        phase=when,
        suite="held-out",
        problems=1,
        correct=1.0,
        truncated=0,
        errors=0,
        mean_tokens=1.0,
        seconds=0.5,
        protocol={"temperature": 0.0},
    )


def checkpoint() -> records.CheckpointManifest:
    file = records.FileEntry(size=3, sha256="cd" * 32)
    return records.CheckpointManifest(step=2, path="checkpoints/final", files={"model.safetensors": file}, final=True)


WHOLE_RUN = (
    phase("loading"),
    manifest(),
    records.Event(type="data", message="20 problems"),
    phase("evaluating_before", 1),
    eval_item(1),
    eval_result(),
    phase("training", 2),
    step(1, seconds=1.0, reward=0.25),
    group(1),
    step(2, seconds=3.0, reward=0.75),
    group(2),
    phase("evaluating_after", 1),
    eval_item(1, when="after"),
    eval_result(when="after"),
    phase("saving"),
    checkpoint(),
    outcome(),
)
"""Every kind of record once or more, in the order of a real run: 17 of them."""
