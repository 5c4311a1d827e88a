"""What a person, or the platform itself, does to a run.

Each function checks, does one thing, and writes a RunEvent. Callers have already decided who may (`cohort.access`).
What workers do to a run is in `attempts` and `ingest`.
"""

from cohort.runs.services.creation import gpus_needed, input_path, run_config, run_create, run_launch, run_submit
from cohort.runs.services.steering import (
    NotPossible,
    asked_reason,
    checkpoint_pin,
    run_cancel,
    run_extend,
    run_pause,
    run_prioritise,
    run_resume,
    run_retry,
    run_sealed,
)
from cohort.runs.services.suites import ChosenSuite, suite_part, suite_path

__all__ = [
    "ChosenSuite",
    "NotPossible",
    "asked_reason",
    "checkpoint_pin",
    "gpus_needed",
    "input_path",
    "run_cancel",
    "run_config",
    "run_create",
    "run_extend",
    "run_launch",
    "run_pause",
    "run_prioritise",
    "run_resume",
    "run_retry",
    "run_sealed",
    "run_submit",
    "suite_part",
    "suite_path",
]
