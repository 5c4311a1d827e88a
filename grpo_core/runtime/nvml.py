"""How busy one GPU is and how much of its memory is in use, by NVML. Loads no torch.

NVML tells the share of the last fraction of a second in which something ran on the GPU; a thread asks it now and then
and `take` gives the mean since the last time.
"""

import ctypes
import threading
import weakref
from contextlib import suppress
from typing import Self

LIBRARY = "libnvidia-ml.so.1"
_BETWEEN = 0.5
"""Seconds; NVML's own window is between a sixth of a second and one."""


class _Utilisation(ctypes.Structure):
    _fields_ = (("gpu", ctypes.c_uint), ("memory", ctypes.c_uint))  # per cent


class _Memory(ctypes.Structure):
    _fields_ = (("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong))


class Watch:
    """One GPU, looked at until it is closed."""

    def __init__(self, library: ctypes.CDLL, handle: ctypes.c_void_p) -> None:
        self._library, self._handle = library, handle
        self._lock = threading.Lock()
        self._sum, self._count = 0.0, 0
        self._over = threading.Event()
        self.look()
        threading.Thread(target=_keep_looking, args=(weakref.ref(self), self._over), daemon=True, name="nvml").start()

    @classmethod
    def open(cls, uuid: str, *, library: str = LIBRARY) -> Self | None:
        """The GPU `GPU-…`; None where NVML is not there or does not tell."""
        try:
            nvml = ctypes.CDLL(library)
            handle = ctypes.c_void_p()
            if nvml.nvmlInit_v2() or nvml.nvmlDeviceGetHandleByUUID(uuid.encode(), ctypes.byref(handle)):
                return None
            return cls(nvml, handle)
        except OSError:
            return None

    def look(self) -> None:
        """Ask once. Raises OSError where the GPU does not tell."""
        told = _Utilisation()
        if self._library.nvmlDeviceGetUtilizationRates(self._handle, ctypes.byref(told)):
            raise OSError("the GPU's driver does not tell how busy it is")
        with self._lock:
            self._sum, self._count = self._sum + told.gpu / 100, self._count + 1

    def take(self) -> tuple[float | None, float | None]:
        """Mean share of time in which it worked since the last time, None where nothing could be asked; and bytes of
        its memory in use now, by all processes."""
        with suppress(OSError):
            self.look()  # a step may be over before the thread comes to look
        with self._lock:
            share = self._sum / self._count if self._count else None
            self._sum, self._count = 0.0, 0
        memory = _Memory()
        if self._library.nvmlDeviceGetMemoryInfo(self._handle, ctypes.byref(memory)):
            return share, None
        return share, float(memory.used)

    def close(self) -> None:
        self._over.set()


def _keep_looking(watch: "weakref.ref[Watch]", over: threading.Event) -> None:
    """Until it is closed, gone or cannot be asked any more: then the metric is absent."""
    while not over.wait(_BETWEEN):
        if (one := watch()) is None:
            return
        try:
            one.look()
        except OSError:
            return
        del one
