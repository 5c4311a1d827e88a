"""Energy that a run's devices took, by the machine's own counters: nothing is estimated here.

NVML counts each GPU's energy since its driver was loaded. Intel's RAPL, which AMD's processors have too, counts that of
each processor package, for all processes; most systems let only root read it. Without a counter that can be read there
is no meter, and the record says so. Loads no torch.
"""

import os
import threading
import time
import weakref
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path

import pynvml

RAPL = Path("/sys/class/powercap")
_BETWEEN_READS = 60.0
"""Seconds. A RAPL counter begins anew every 262 kJ on most processors, which is minutes of work; one that did so twice
between two reads would lose all of that without a sign."""


class Meter(ABC):
    """Counters that only rise, in units of a part of a joule, and begin anew at `wraps` (0: never)."""

    def __init__(self, words: str, first: Sequence[int], wraps: Sequence[int], a_joule: int) -> None:
        self.words = words
        """What is read, as the record names it."""
        self._last, self._wraps, self._a_joule, self._rest = list(first), wraps, a_joule, 0
        self._lock = threading.Lock()
        if any(wraps):
            threading.Thread(target=_keep_up, args=(weakref.ref(self),), daemon=True, name="energy").start()

    @abstractmethod
    def _read(self) -> list[int]:
        """Every counter now. Raises OSError."""

    def keep_up(self) -> None:
        """Read the counters, so that none begins anew twice unseen. Raises OSError or ValueError as `take` does."""
        with self._lock:
            now = self._read()
            for new, old, wrap in zip(now, self._last, self._wraps, strict=True):
                self._rest += new - old + (wrap if new < old else 0)
            self._last = now

    def take(self) -> int:
        """Whole joules since the last time, or since the meter was opened; what is left over counts the next time.
        Raises OSError when a counter can no longer be read."""
        self.keep_up()
        with self._lock:
            joules, self._rest = divmod(self._rest, self._a_joule)
        return joules


def _keep_up(meter: "weakref.ref[Meter]") -> None:
    """Until the meter is gone or cannot be read, which the next `take` raises."""
    while True:
        time.sleep(_BETWEEN_READS)
        if (counters := meter()) is None:
            return
        try:
            counters.keep_up()
        except (OSError, ValueError):
            return
        del counters


class _Rapl(Meter):
    def __init__(self, packages: Sequence[Path]) -> None:
        self._files = [package / "energy_uj" for package in packages]
        wraps = [int((package / "max_energy_range_uj").read_text()) for package in packages]
        count = f"{len(packages)} processor package{'' if len(packages) == 1 else 's'}"
        words = f"RAPL counter of {count}: all that ran there, without memory and the rest of the machine"
        super().__init__(words, self._read(), wraps, 1_000_000)

    def _read(self) -> list[int]:
        values = [file.read_text().strip() for file in self._files]
        if not all(text.isdecimal() for text in values):
            raise OSError(f"an energy counter holds no number: {values}")
        return [int(text) for text in values]


class _Nvml(Meter):
    def __init__(self, uuids: Sequence[str]) -> None:
        pynvml.nvmlInit()
        self._handles = [pynvml.nvmlDeviceGetHandleByUUID(uuid) for uuid in uuids]
        words = f"NVML energy counter of {len(uuids)} GPU{'' if len(uuids) == 1 else 's'}, without the machine"
        super().__init__(words, self._read(), [0] * len(uuids), 1000)

    def _read(self) -> list[int]:
        try:
            return [pynvml.nvmlDeviceGetTotalEnergyConsumption(handle) for handle in self._handles]  # millijoules
        except pynvml.NVMLError as error:
            raise OSError(f"NVML gives no energy reading: {error}") from None


def open_meter(gpus: Sequence[str], *, root: Path = RAPL) -> Meter | None:
    """For GPUs by their UUIDs (`GPU-…`), or for the processors where there are none. None where nothing can be read."""
    try:
        return _Nvml(gpus) if gpus else _processors(root)
    except (OSError, ValueError, pynvml.NVMLError):
        return None


def own_gpus(uuids: Sequence[str], *, world: int) -> list[str] | None:
    """The GPUs of all `world` processes, where they are all on this machine and each has the GPU of its rank; None
    where others cannot be read from here."""
    if world == 1:
        return list(uuids[:1])
    here = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    return list(uuids[:world]) if here == world <= len(uuids) else None


def _processors(root: Path) -> Meter | None:
    packages = [
        folder
        for folder in sorted(root.glob("intel-rapl:*"))
        if folder.name.count(":") == 1 and (folder / "name").read_text().startswith("package")
    ]
    return _Rapl(packages) if packages else None
