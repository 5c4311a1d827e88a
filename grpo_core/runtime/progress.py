"""What a person sees during a run: plain lines, or on a terminal one line that is drawn over.

Everything also goes to the run's log file when one is given, and the phase's progress to a small file that the worker
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

from grpo_core.text import format_duration, printable_lines

_BAR = 24
_INTERVAL = 1.0
"""Seconds."""


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
        self._saved_at = float("-inf")
        self._shown_at = time.monotonic()

    def keep_in(self, file: Path) -> None:
        """Save the phase's progress in this file from now on."""
        self._file = file
        self._save(self._done_before)

    def line(self, text: str) -> None:
        """One line that stays."""
        text = printable_lines(text)
        self._to_log(text)
        if self._quiet:
            return
        self._clear()
        print(text, file=self._out, flush=True)

    def log_only(self, text: str) -> None:
        """For the log alone; printed where there is no log."""
        text = printable_lines(text)
        if self._log is not None:
            self._to_log(text)
        else:
            print(text, file=self._out, flush=True)

    def begin(self, phase: str, total: int, *, unit: str | None = None, done: int = 0) -> None:
        """A phase with `total` units begins, `done` of them done before. `unit`: shown instead of the phase's name."""
        self._phase, self._unit, self._total = phase, unit or phase, total
        self._done_before, self._began = done, time.monotonic()
        self._save(done)

    def part(self, done: int, total: int, phase: str) -> None:
        """`begin` where the phase is new, then `advance`, at most once a second: a quick phase shows nothing."""
        if phase != self._phase:
            self.begin(phase, total)
        if done and time.monotonic() - self._shown_at >= _INTERVAL:
            self.advance(done, "scored")

    def advance(self, done: int, text: str) -> None:
        """`done` units of the phase are over; `text` is shown with them."""
        self._shown_at = time.monotonic()
        if self._shown_at - self._saved_at >= _INTERVAL:
            self._save(done)
        spent = self._shown_at - self._began
        here = done - self._done_before
        left = spent / here * (self._total - done) if here else 0.0
        text = f"{self._unit} {done}/{self._total} · {text} · {format_duration(left)} left"
        self._to_log(text)
        if self._quiet:
            return
        if not self._terminal:
            print(text, file=self._out, flush=True)
            return
        filled = _BAR * done // max(self._total, 1)
        bar = f"[{'█' * filled}{'·' * (_BAR - filled)}] {text}"
        self._out.write("\r\x1b[2K" + bar[: shutil.get_terminal_size().columns - 1])
        self._out.flush()
        self._drawn = True

    def close(self) -> None:
        self._clear()
        if self._log is not None:
            self._log.close()
            self._log = None

    def _save(self, done: int) -> None:
        """Not made durable: after a crash it has no meaning."""
        if self._file is None:
            return
        self._saved_at = time.monotonic()
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
