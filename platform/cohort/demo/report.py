"""What came of the demo's run: accuracy before and after, the card and whether the offline check accepts it."""

import subprocess
import sys
from pathlib import Path

from cohort import artifacts
from cohort.embedded.home import Home, HomeError
from cohort.governance.models import Record
from cohort.runs.models import Run, RunState
from cohort.runs.models.evals import EvalResult
from cohort.runs.selectors.standing import standing_evaluations
from grpo_core.stats import wilson


def accuracy(run: Run) -> list[str]:
    """One line per evaluation that stands, with its 95 % Wilson interval."""
    lines = []
    for result in standing_evaluations(EvalResult.objects.filter(run=run)).order_by("at", "seq"):
        interval = wilson(result.correct, result.problems)
        lines.append(
            f"{result.phase + ' training':<16} {result.correct / result.problems:.1%} right "
            f"({result.correct:.0f} of {result.problems}; 95 % interval {interval.low:.1%} to {interval.high:.1%})"
        )
    return lines


def save_card(run: Run, home: Home) -> Path:
    """Copy the card out of the artifact store, for the person to take away."""
    home.cards.mkdir(exist_ok=True)
    path = home.cards / f"run-{run.pk}.zip"
    with open(path, "wb") as handle:
        for chunk in artifacts.read_chunks(Record.objects.get(run=run, end=run.ends).card_artifact):
            handle.write(chunk)
    return path


def verify(card: Path) -> str:
    """Run `cohort verify` as anyone would, and return its verdict. Raises HomeError when it refuses the card."""
    words = [sys.executable, "-P", "-m", "cohort.cli", "verify", str(card)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    printed = (done.stdout + done.stderr).strip()
    if done.returncode != 0:
        raise HomeError(f"`cohort verify {card}` refused the card:\n{printed}")
    return next(line for line in printed.splitlines() if line.startswith("accepted"))


def ended_well(run: Run) -> None:
    """Raise HomeError with the reason unless the run succeeded."""
    if run.state == RunState.SUCCEEDED:
        return
    tail = "\n".join(f"  | {line}" for line in run.log_tail.splitlines()[-15:])
    raise HomeError(f"the run is {run.get_state_display().lower()}: {run.reason}" + (f"\n{tail}" if tail else ""))
