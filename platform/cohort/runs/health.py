"""What a run's trainer reports as wrong with it, in short: for lists of runs. The whole texts are events of the run."""

from collections import defaultdict
from collections.abc import Sequence

from cohort.runs.models import Run, RunEvent

DIAGNOSIS = "diagnosis"
"""Kind of the trainer's event (grpo_core.trainer.diagnosis)."""


def cause_title(code: str) -> str:
    """A cause as lists and alerts name it."""
    return code.replace("_", " ")


def diagnoses_of(runs: Sequence[Run]) -> dict[int, list[str]]:
    """By run, what its newest attempt reported as wrong, in short; the newest first."""
    causes: dict[int, list[str]] = defaultdict(list)
    events = RunEvent.objects.filter(run__in=[run.pk for run in runs], kind=DIAGNOSIS, attempt__ended_at=None)
    for run, code in events.order_by("-id").values_list("run_id", "data__cause"):
        if (cause := cause_title(code)) not in causes[run]:
            causes[run].append(cause)
    return causes
