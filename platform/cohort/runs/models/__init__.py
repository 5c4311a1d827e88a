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
    UNSCORED_KINDS,
    Attempt,
    AttemptState,
    DatasetRole,
    Desired,
    Priority,
    Run,
    RunDataset,
    RunEvent,
    RunKind,
    RunOrigin,
    RunState,
    ServiceBeat,
)
from cohort.runs.models.series import Bucket, Checkpoint, CheckpointFile, LogChunk, SentFile, StepMetric

__all__ = [
    "UNSCORED_KINDS",
    "Attempt",
    "AttemptState",
    "Bucket",
    "Checkpoint",
    "CheckpointFile",
    "ComparisonCache",
    "DatasetRole",
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
    "RunDataset",
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
