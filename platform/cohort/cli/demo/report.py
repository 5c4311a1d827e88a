"""The demo's run in the terminal: its progress, its accuracy before and after, its card and whether the offline check
accepts it."""

import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import TextIO

from django.db import InterfaceError, OperationalError, connection

from cohort.audit import services as audit
from cohort.base.formatting import NBSP, duration
from cohort.cli.embedded.home import Home, HomeError
from cohort.evaluations.selectors import newest_results, suites_cached
from cohort.evidence.canonical import canonical
from cohort.ingest.run_state import PHASE_WORDS
from cohort.lab.models import VerifierProbe
from cohort.records.cards.download import write_download
from cohort.records.models import Record
from cohort.records.status.services import status_issue
from cohort.runs.models import EvalResult, Run, RunState
from cohort.runs.transitions import ENDED, ON_A_WORKER
from grpo_core.config.evaluation import HELDOUT
from grpo_core.probe.report import ProbeReport
from grpo_core.stats.quantiles import wilson
from grpo_core.stats.unscored import scored_share

_WIDTH = 28
_LINE_SECONDS = 5.0


def follow(run: Run, *, watch: Callable[[], None], out: TextIO | None = None) -> Run:
    """Show the run until it has ended; `watch` is called twice a second. Returns the run as it ended."""
    stream = out or sys.stdout
    shown, shown_at = "", 0.0
    while run.state not in ENDED:
        watch()
        time.sleep(0.5)
        try:
            run.refresh_from_db()
        except (InterfaceError, OperationalError):  # the database is away; `watch` starts it again, or raises
            connection.close()
            continue
        phase, line = phase_of(run), line_of(run)
        if stream.isatty():
            stream.write(f"\r\x1b[K{line}")
            stream.flush()
        elif phase != shown or (time.monotonic() - shown_at >= _LINE_SECONDS and phase == "training"):
            print(line, file=stream, flush=True)
            shown_at = time.monotonic()
        shown = phase
    if stream.isatty():
        stream.write("\r\x1b[K")
    return run


def phase_of(run: Run) -> str:
    """What is being done, in words: the trainer's phase while one runs, else the run's state."""
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
        left = duration(run.seconds_per_step * (run.steps_total - run.step))
        pieces.append(f"{left.replace(NBSP, ' ')} left")
    return "  ".join(pieces)


def accuracy(run: Run) -> list[str]:
    """One line per current evaluation of the held-out problems, with its 95 % Wilson interval."""
    lines = []
    for result in newest_results(run).filter(suite=HELDOUT).order_by("at", "seq"):
        scored = result.problems - result.errors
        low = wilson(result.correct, result.problems).low
        high = wilson(result.correct + result.errors, result.problems).high
        lines.append(
            f"{result.phase + ' training':<16} {_share(result)} right "
            f"({result.correct:.0f} of {scored} scored, {result.errors} unscored; "
            f"95 % interval {low:.1%} to {high:.1%})"
        )
    return lines


def _share(result: EvalResult) -> str:
    share = scored_share(result.correct, result.problems, result.errors)
    return "–" if share is None else f"{share:.1%}"


def suite_changes(run: Run) -> list[str]:
    """One line per suite: its score before and after, and what the run's page and the record say of the difference."""
    if not run.parsed_config.eval.suites:
        return []
    lines = ["", f"{'suite':<22} {'before':>7} {'after':>7}  difference, 95 % interval"]
    for suite in suites_cached(run, run.parsed_config):
        change = suite.points
        if suite.name == HELDOUT or suite.before is None or suite.after is None or change is None:
            continue
        before, after = (_share(result) for result in (suite.before, suite.after))
        lines.append(
            f"{suite.name:<22} {before:>7} {after:>7}  {change.difference} points "
            f"[{change.low}, {change.high}]: {suite.verdict}"
        )
    return [*lines, ""]


def probed(probe: VerifierProbe) -> str:
    """What the reward accepts and refuses, in one line."""
    report = ProbeReport.from_json(probe.report)
    wrong, right = report.false_positive, report.false_negative
    return (
        f"reward probed: rewards {wrong.mistakes} of {wrong.n:,} wrong answers of {wrong.classes} classes, refuses "
        f"{right.mistakes} of {right.n:,} right ones written otherwise"
    )


def save_card(run: Run, home: Home) -> Path:
    """Write the card with its record's status, as it is downloaded, to a file for the person."""
    home.cards.mkdir(exist_ok=True)
    path = home.cards / f"run-{run.pk}.zip"
    record = Record.objects.filter(run=run, end=run.ends).latest("version")
    status_issue(record=record)
    write_download(record.card(), path)
    return path


def verify(card: Path) -> dict[str, str]:
    """Run `cohort verify` as anyone would, and the verify.pyz of the card itself, side by side; the verdict of each by
    its name. Raises HomeError when one refuses the card."""
    with tempfile.TemporaryDirectory(prefix="cohort-demo-") as folder, zipfile.ZipFile(card) as archive:
        pyz = archive.extract("verify.pyz", folder)
        (known := Path(folder) / "keys.json").write_bytes(canonical(audit.keys_file()))
        checks = {
            "cohort verify": [sys.executable, "-P", "-m", "cohort.cli.main", "verify", str(card), "--key", str(known)],
            "verify.pyz": [sys.executable, "-P", pyz, str(card), "--key", str(known)],
        }
        started = {
            name: subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
            for name, argv in checks.items()
        }
        printed = {name: process.communicate()[0].strip() for name, process in started.items()}
    for name, process in started.items():
        if process.returncode != 0:
            raise HomeError(f"`{name} {card}` refused the card:\n{printed[name]}")
    return {name: text.splitlines()[0] for name, text in printed.items()}


def ended_well(run: Run) -> None:
    """Raise HomeError with the reason unless the run succeeded."""
    if run.state == RunState.SUCCEEDED:
        return
    tail = "\n".join(f"  | {line}" for line in run.log_tail.splitlines()[-15:])
    raise HomeError(f"the run is {run.get_state_display().lower()}: {run.reason}" + (f"\n{tail}" if tail else ""))
