"""What a step cost the machine: rates, memory, the device's utilisation. Measured, never estimated; what cannot be
measured is absent."""

import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import pynvml
import torch

from grpo_core.distributed.ranks import Ranks

_STATUS, _CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")
_RESET_PEAK = "5"
"""proc(5): the peak of resident memory begins anew at what is resident now."""
_SAMPLING_SECONDS = 0.5
"""NVML's own window of utilisation is between a sixth of a second and one."""


class GpuMonitor:
    """Utilisation and memory of one GPU by NVML, sampled in a thread until it is closed."""

    def __init__(self, handle: object) -> None:
        self._handle = handle
        self._lock = threading.Lock()
        self._sum, self._count = 0.0, 0
        self._closed = threading.Event()
        self._sample()
        threading.Thread(target=self._keep_sampling, daemon=True, name="nvml").start()

    @classmethod
    def open(cls, uuid: str) -> Self | None:
        """The GPU `GPU-…`; None where NVML is not there or refuses."""
        try:
            pynvml.nvmlInit()
            return cls(pynvml.nvmlDeviceGetHandleByUUID(uuid))
        except pynvml.NVMLError:
            return None

    def take(self) -> tuple[float | None, float | None]:
        """Mean utilisation since the last call, 0 to 1, None where it could not be read; and bytes of its memory in use
        now, by all processes."""
        with suppress(pynvml.NVMLError):
            self._sample()  # a step may be over before the thread samples
        with self._lock:
            utilisation = self._sum / self._count if self._count else None
            self._sum, self._count = 0.0, 0
        try:
            return utilisation, float(pynvml.nvmlDeviceGetMemoryInfo(self._handle).used)
        except pynvml.NVMLError:
            return utilisation, None

    def close(self) -> None:
        self._closed.set()

    def _sample(self) -> None:
        share = pynvml.nvmlDeviceGetUtilizationRates(self._handle).gpu / 100
        with self._lock:
            self._sum, self._count = self._sum + share, self._count + 1

    def _keep_sampling(self) -> None:
        with suppress(pynvml.NVMLError):  # the metric is absent from then on
            while not self._closed.wait(_SAMPLING_SECONDS):
                self._sample()


def settling(device: torch.device) -> Callable[[], None]:
    """Waits until the device has done what this thread gave it, so that time is counted where it was spent."""
    if device.type != "cuda":
        return lambda: None
    return lambda: torch.cuda.current_stream(device).synchronize()


def monitor_gpu(device: torch.device) -> GpuMonitor | None:
    """None of a CPU, and where NVML is not there."""
    if device.type != "cuda":
        return None
    return GpuMonitor.open(f"GPU-{torch.cuda.get_device_properties(device).uuid}")


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


@dataclass(eq=False)
class Telemetry:
    """Of one run; every rank has one and calls it alike."""

    device: torch.device
    ranks: Ranks
    monitor: GpuMonitor | None = None
    """Of the rank's GPU, where NVML is there."""

    def __post_init__(self) -> None:
        peak_bytes(self.device)

    def take(self, seconds: Mapping[str, float], *, sampled: int, learned: int) -> dict[str, float]:
        """Metrics of the step that ends now. `seconds` by phase; `sampled`, `learned`: completion tokens;
        where nothing was learned from, there is no rate of it."""
        metrics: dict[str, float] = {}
        if seconds.get("sample", 0.0) > 0:
            metrics["tokens_per_second/sample"] = sampled / seconds["sample"]
        learning = seconds.get("logprobs", 0.0) + seconds.get("update", 0.0)
        if learning > 0 and learned > 0:
            metrics["tokens_per_second/update"] = learned / learning
        costs = self.ranks.gather(self._own())
        metrics["memory/peak_bytes"] = max(cost["peak"] for cost in costs)
        if used := [cost["used"] for cost in costs if cost["used"] is not None]:
            metrics["memory/device_bytes"] = max(used)
        if shares := [cost["share"] for cost in costs if cost["share"] is not None]:
            metrics["device_utilisation"] = sum(shares) / len(shares)
        return metrics

    def close(self) -> None:
        if self.monitor is not None:
            self.monitor.close()

    def _own(self) -> dict[str, float | None]:
        share = used = None
        if self.monitor is not None:
            share, used = self.monitor.take()
        return {"peak": float(peak_bytes(self.device)), "share": share, "used": used}
