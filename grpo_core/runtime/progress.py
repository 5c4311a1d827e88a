"""What a person sees while a run goes: plain lines, or on a terminal one line that is drawn over.

Everything also goes to the run's log file when one is given, and how far the phase is to a small file that the worker
reads. Loads no torch.
"""

import json
import os
import shutil
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import IO

_BAR = 24
_NOTE_EVERY = 1.0


class Progress:
    """Prints to `out`; draws a bar when that is a terminal, and plain lines when not."""

    def __init__(
        self,
        *,
        log: Path | None = None,
        out: IO[str] | None = None,
        quiet: bool = False,
        file: Path | None = None,
    ) -> None:
        """`file`: where {phase, done, total, at} is kept, replaced whole at most once a second and when a phase
        begins."""
        self._out = out if out is not None else sys.stdout
        self._log = log.open("a", encoding="utf-8") if log is not None else None
        self._terminal = self._out.isatty() and os.environ.get("TERM") != "dumb"
        self._quiet = quiet
        self._drawn = False
        self._began = time.monotonic()
        self._total = 0
        self._phase = self._unit = ""
        self._done_before = 0
        self._file = file
        self._noted_at = float("-inf")

    def keep_in(self, file: Path) -> None:
        """Keep how far the phase is in this file from now on."""
        self._file = file
        self._note(self._done_before)

    def line(self, text: str) -> None:
        """One line that stays."""
        self._to_log(text)
        if self._quiet:
            return
        self._clear()
        print(text, file=self._out, flush=True)

    def aside(self, text: str) -> None:
        """For the log alone; printed where there is none, for then what is printed goes there."""
        if self._log is not None:
            self._to_log(text)
        else:
            print(text, file=self._out, flush=True)

    def begin(self, phase: str, total: int, *, unit: str | None = None, done: int = 0) -> None:
        """A part with `total` units begins, `done` of them done before; its time left is told from now on. `unit`: what
        a person is told instead of the phase's name."""
        self._phase, self._unit, self._total = phase, unit or phase, total
        self._done_before, self._began = done, time.monotonic()
        self._note(done)

    def advance(self, done: int, text: str) -> None:
        """`done` units of the part are over; `text` says how it goes."""
        if time.monotonic() - self._noted_at >= _NOTE_EVERY:
            self._note(done)
        spent = time.monotonic() - self._began
        here = done - self._done_before
        left = spent / here * (self._total - done) if here else 0.0
        told = f"{self._unit} {done}/{self._total} · {text} · {_minutes(left)} left"
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

    def _note(self, done: int) -> None:
        """Not made durable: it says what is now, and after a crash nothing is."""
        if self._file is None:
            return
        self._noted_at = time.monotonic()
        now = {"phase": self._phase, "done": done, "total": self._total or None, "at": datetime.now(UTC).isoformat()}
        temporary = self._file.with_name(self._file.name + ".tmp")
        temporary.write_text(json.dumps(now) + "\n", encoding="utf-8")
        temporary.replace(self._file)

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
