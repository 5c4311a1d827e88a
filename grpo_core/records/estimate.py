"""What an estimate holds, and how it is compared with what a run then took. Loads no torch."""

from collections.abc import Sequence
from statistics import median
from typing import Literal

from pydantic import Field

from grpo_core.compute.flop import Work
from grpo_core.compute.shape import Shape
from grpo_core.records.types import Body, Event
from grpo_core.text import format_bytes, format_duration

SECONDS, MEMORY = "seconds_per_step", "peak_memory_bytes"


class Estimate(Body):
    """Time and memory of a run before it begins."""

    config_digest: str
    device: str
    """cpu or cuda."""
    device_name: str
    seconds_per_step: float
    seconds_total: float
    """Start, training steps and evaluations."""
    parts: dict[str, float]
    """Seconds of a step by phase: sample, reward, logprobs where it is a separate phase, update."""
    peak_memory_bytes: int
    """Resident memory of the process on a CPU, the device's on a GPU."""
    completion_tokens: float
    """Mean length that a completion is taken to have."""
    length_from: Literal["calibration", "limit"]
    """limit: all that were sampled reached sampling.max_completion_tokens."""
    prompts: int
    """Sampled in the calibration."""
    calibration_seconds: float
    shape: Shape | None = None
    """Of the model."""
    work: Work | None = None
    """Tokens of the whole run, if its completions stay as long as those of the calibration."""
    product_rate: float | None = None
    """FLOP/s that products of large matrices reached on the device."""
    warnings: tuple[str, ...] = ()
    spread: dict[str, tuple[float, float]] = Field(default_factory=dict)
    """Low and high of seconds_per_step and peak_memory_bytes."""


def compared(estimate: Estimate, *, seconds: Sequence[float], memory: Sequence[float]) -> Event | None:
    """How an estimate compares with the run: `seconds` each recorded step took, `memory` its peak, in bytes. Errors
    are (estimate − actual) / actual. None of a run without a step."""
    if not seconds:
        return None
    actual = {SECONDS: median(seconds)} | ({MEMORY: max(memory)} if memory else {})
    estimated = {name: float(getattr(estimate, name)) for name in actual}
    error = {name: estimated[name] / value - 1 for name, value in actual.items() if value > 0}
    words = f"estimated {format_duration(estimated[SECONDS])} a step, it took {format_duration(actual[SECONDS])}"
    words += f" ({error[SECONDS]:+.0%})"
    if MEMORY in error:
        words += f"; {format_bytes(estimated[MEMORY])}, it took {format_bytes(actual[MEMORY])} ({error[MEMORY]:+.0%})"
    data = {"estimate": estimated, "actual": actual, "error": error, "config_digest": estimate.config_digest}
    return Event(type="estimate", message=words, data=data)


class Estimated:
    """Compares a run with its estimate as it goes. Of one that continues, the steps of this process."""

    def __init__(self, estimate: Estimate | None) -> None:
        self._estimate = estimate
        self._seconds: list[float] = []
        self._memory: list[float] = []

    def step(self, seconds: float, memory: float) -> None:
        self._seconds.append(seconds)
        self._memory.append(memory)

    def compared(self) -> Event | None:
        """None without an estimate."""
        if self._estimate is None:
            return None
        return compared(self._estimate, seconds=self._seconds, memory=self._memory)
