"""Rows of a run: the run and its attempts, what they reported, how held-out problems went."""

from cohort.runs.models.evals import EvalItem, EvalResult
from cohort.runs.models.run import Attempt, AttemptState, Node, Run, RunEvent, RunState
from cohort.runs.models.series import Checkpoint, StepMetric

__all__ = [
    "Attempt",
    "AttemptState",
    "Checkpoint",
    "EvalItem",
    "EvalResult",
    "Node",
    "Run",
    "RunEvent",
    "RunState",
    "StepMetric",
]
