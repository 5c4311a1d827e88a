"""Shows one run's progress in a terminal: a bar that redraws itself, or plain lines every few seconds elsewhere."""

import sys
import time
from collections.abc import Callable
from typing import TextIO

from cohort.ingest.run_state import PHASE_WORDS
from cohort.runs.models import Run, RunState
from cohort.runs.transitions import ENDED, ON_A_WORKER

_WIDTH = 28
_LINE_SECONDS = 5.0


def follow(run: Run, *, watch: Callable[[], None], out: TextIO | None = None) -> Run:
    """Show the run until it has ended; `watch` is called twice a second. Returns the run as it ended."""
    stream = out or sys.stdout
    shown, shown_at = "", 0.0
    while run.state not in ENDED:
        watch()
        run.refresh_from_db()
        phase, line = phase_of(run), line_of(run)
        if stream.isatty():
            stream.write(f"\r\x1b[K{line}")
            stream.flush()
        elif phase != shown or (time.monotonic() - shown_at >= _LINE_SECONDS and phase == "training"):
            print(line, file=stream, flush=True)
            shown_at = time.monotonic()
        shown = phase
        time.sleep(0.5)
    if stream.isatty():
        stream.write("\r\x1b[K")
    return run


def phase_of(run: Run) -> str:
    """What is being done, in words: the trainer's own phase while one is at work, else the run's state."""
    if run.state in ON_A_WORKER and run.phase:
        return PHASE_WORDS[run.phase]
    return RunState(run.state).label.lower()


def line_of(run: Run) -> str:
    phase = phase_of(run)
    if phase != "training" or not run.steps_total:
        return f"{phase:<18}"
    done = _WIDTH * run.step // run.steps_total
    bar = "#" * done + "." * (_WIDTH - done)
    pieces = [f"{phase:<18}[{bar}] step {run.step} of {run.steps_total}"]
    if (reward := run.latest_metrics.get("reward")) is not None:
        pieces.append(f"reward {reward:.3f}")
    if run.seconds_per_step is not None:
        pieces.append(f"{_duration(run.seconds_per_step * (run.steps_total - run.step))} left")
    return "  ".join(pieces)


def _duration(seconds: float) -> str:
    whole = round(seconds)
    return f"{whole} s" if whole < 60 else f"{whole // 60} min {whole % 60:02d} s"
