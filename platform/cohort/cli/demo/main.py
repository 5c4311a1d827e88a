"""The demo from start to end: start everything, prepare, launch, show, check, say where things are."""

import sys
import time
from collections.abc import Callable
from contextlib import suppress
from typing import TextIO

from cohort import __version__
from cohort.cli.embedded.home import Home
from cohort.cli.embedded.serve import STOP_HINT, serve_until_stopped
from cohort.cli.embedded.up import Say, Up, running
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


def demo(home: Home, *, port: int, steps: int | None, stay: bool, say: Say) -> int:
    """0 when the run succeeded and its card was accepted; a fault raises GrpoError after everything was stopped."""
    say(f"Cohort {__version__}, home {home.path}")
    with running(home, host="127.0.0.1", port=port, say=say, purpose="cohort demo") as up:
        _train_and_check(up, steps=steps)
        if stay:
            say(f"\nServing on. {STOP_HINT}")
            with suppress(KeyboardInterrupt):
                serve_until_stopped(up)
    return 0


def _train_and_check(up: Up, *, steps: int | None) -> None:
    from django.urls import reverse

    from cohort.cli.demo import prepare, report

    user, project, password = prepare.person()
    login = f"log in as {user.username} with the password {password} (each demo makes a new one)"
    up.say(f"{up.address}  {login}")
    prepare.build_model(up)
    up.say(report.probed(prepare.probe(up, project, user)))
    run = prepare.launch(up, project, user, steps=steps)
    page = f"{up.address}{reverse('run_detail', args=[project.slug, run.pk])}"
    up.say(f"run {run.pk} launched: {page}")
    run = follow(run, watch=up.watch)
    report.ended_well(run)
    card = report.save_card(run, up.home)
    verdicts = report.verify(card)
    up.say("\n".join(["", *report.accuracy(run), f"card             {card}"]))
    for name, verdict in verdicts.items():
        up.say(f"{name:<16} {verdict}")
    up.say(f"page             {page}\n                 {login}")
