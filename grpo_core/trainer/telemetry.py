"""What a step cost the machine: rates, memory, the device's share of work. Measured, never estimated; what a machine
does not tell is absent."""

from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

import torch

from grpo_core.distributed.ranks import Ranks
from grpo_core.runtime.nvml import Watch

_STATUS, _CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")
_RESET_PEAK = "5"
"""proc(5): the peak of resident memory begins anew at what is resident now."""


def settling(device: torch.device) -> Callable[[], None]:
    """Waits until the device has done what this thread gave it, so that time is counted where it was spent."""
    if device.type != "cuda":
        return lambda: None
    return lambda: torch.cuda.current_stream(device).synchronize()


def watch_of(device: torch.device) -> Watch | None:
    """The GPU by NVML; None of a CPU, and where NVML does not answer."""
    if device.type != "cuda":
        return None
    return Watch.open(f"GPU-{torch.cuda.get_device_properties(device).uuid}")


def resident_peak(*, status: Path = _STATUS, clear: Path = _CLEAR) -> int:
    """Most bytes that were resident in this process since the last call, or since it began where the system does not
    let that be reset."""
    line = next(line for line in status.read_text(encoding="utf-8").splitlines() if line.startswith("VmHWM:"))
    with suppress(OSError):  # /proc is read-only in some containers; a peak since the beginning is still one
        clear.write_text(_RESET_PEAK, encoding="ascii")
    return int(line.split()[1]) * 1024


def peak_bytes(device: torch.device) -> int:
    """Most bytes in use since the last call: of the device's memory that torch allocated, or of resident memory."""
    if device.type != "cuda":
        return resident_peak()
    peak = torch.cuda.max_memory_allocated(device)
    torch.cuda.reset_peak_memory_stats(device)
    return peak


class Telemetry:
    """Of one run; every rank has one and calls it alike."""

    def __init__(self, device: torch.device, ranks: Ranks, watch: Watch | None = None) -> None:
        """`watch`: the rank's GPU by NVML, where that answers."""
        self._device = device
        self._ranks = ranks
        self._watch = watch
        peak_bytes(device)

    def take(self, seconds: Mapping[str, float], *, sampled: int, learned: int) -> dict[str, float]:
        """Metrics of the step that ends now. `seconds` by phase; `sampled`, `learned`: completion tokens;
        where nothing was learned from, there is no rate of it."""
        told: dict[str, float] = {}
        if seconds.get("sample", 0.0) > 0:
            told["tokens_per_second/sample"] = sampled / seconds["sample"]
        learning = seconds.get("logprobs", 0.0) + seconds.get("update", 0.0)
        if learning > 0 and learned > 0:
            told["tokens_per_second/update"] = learned / learning
        everyone = self._ranks.gather(self._own())
        told["memory/peak_bytes"] = max(one["peak"] for one in everyone)
        if used := [one["used"] for one in everyone if one["used"] is not None]:
            told["memory/device_bytes"] = max(used)
        if shares := [one["share"] for one in everyone if one["share"] is not None]:
            told["device_utilisation"] = sum(shares) / len(shares)
        return told

    def _own(self) -> dict[str, float | None]:
        share = used = None
        if self._watch is not None:
            share, used = self._watch.take()
        return {"peak": float(peak_bytes(self._device)), "share": share, "used": used}
