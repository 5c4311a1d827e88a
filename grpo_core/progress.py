"""What a person sees while a run goes: plain lines, or on a terminal one line that is drawn over.

Everything also goes to the run's log file when one is given. Loads no torch.
"""

import os
import shutil
import sys
import time
from pathlib import Path
from typing import IO

_BAR = 24


class Progress:
    """Prints to `out`; draws a bar when that is a terminal, and plain lines when not."""

    def __init__(self, *, log: Path | None = None, out: IO[str] | None = None, quiet: bool = False) -> None:
        self._out = out if out is not None else sys.stdout
        self._log = log.open("a", encoding="utf-8") if log is not None else None
        self._terminal = self._out.isatty() and os.environ.get("TERM") != "dumb"
        self._quiet = quiet
        self._drawn = False
        self._began = time.monotonic()
        self._total = 0
        self._phase = ""

    def line(self, text: str) -> None:
        """One line that stays."""
        self._to_log(text)
        if self._quiet:
            return
        self._clear()
        print(text, file=self._out, flush=True)

    def begin(self, phase: str, total: int) -> None:
        """A part with `total` units begins; its time left is told from now on."""
        self._phase, self._total, self._began = phase, total, time.monotonic()

    def advance(self, done: int, text: str) -> None:
        """`done` units of the part are over; `text` says how it goes."""
        spent = time.monotonic() - self._began
        left = spent / done * (self._total - done) if done else 0.0
        told = f"{self._phase} {done}/{self._total} · {text} · {_minutes(left)} left"
        self._to_log(told)
        if self._quiet:
            return
        if not self._terminal:
            print(told, file=self._out, flush=True)
            return
        filled = _BAR * done // max(self._total, 1)
        bar = f"[{'█' * filled}{'·' * (_BAR - filled)}] {told}"
        self._out.write("\r\x1b[2K" + bar[: shutil.get_terminal_size().columns - 1])
        self._out.flush()
        self._drawn = True

    def close(self) -> None:
        self._clear()
        if self._log is not None:
            self._log.close()
            self._log = None

    def _to_log(self, text: str) -> None:
        if self._log is not None:
            print(text, file=self._log, flush=True)

    def _clear(self) -> None:
        if self._drawn:
            self._out.write("\n")
            self._out.flush()
            self._drawn = False


def _minutes(seconds: float) -> str:
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    return f"{whole // 60}:{whole % 60:02d} min" if whole < 3600 else f"{whole // 3600}:{whole % 3600 // 60:02d} h"
