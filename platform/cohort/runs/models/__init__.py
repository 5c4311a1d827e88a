"""Rows of a run: the run and its attempts, what they reported, how held-out problems went."""

from cohort.runs.models.charts import ProjectChart
from cohort.runs.models.evals import (
    ComparisonCache,
    EvalAnswer,
    EvalItem,
    EvalResult,
    EvalTotals,
    ImportedResult,
    RunSuite,
)
from cohort.runs.models.launch import LaunchDraft, Sweep
from cohort.runs.models.lists import RunValue, SavedView
from cohort.runs.models.run import (
    Attempt,
    AttemptState,
    Desired,
    Priority,
    Run,
    RunEvent,
    RunKind,
    RunOrigin,
    RunState,
    ServiceBeat,
)
from cohort.runs.models.series import Bucket, Checkpoint, CheckpointFile, LogChunk, SentFile, StepMetric

__all__ = [
    "Attempt",
    "AttemptState",
    "Bucket",
    "Checkpoint",
    "CheckpointFile",
    "ComparisonCache",
    "Desired",
    "EvalAnswer",
    "EvalItem",
    "EvalResult",
    "EvalTotals",
    "ImportedResult",
    "LaunchDraft",
    "LogChunk",
    "Priority",
    "ProjectChart",
    "Run",
    "RunEvent",
    "RunKind",
    "RunOrigin",
    "RunState",
    "RunSuite",
    "RunValue",
    "SavedView",
    "SentFile",
    "ServiceBeat",
    "StepMetric",
    "Sweep",
]
