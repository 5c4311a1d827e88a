"""Where each stage of a pipeline is, worked out of its run, of what earlier stages gave and of its fields. Reads alone;
in a number of queries that does not depend on the stages."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import rfc8785

from cohort.catalog.models import PromptDataset
from cohort.pipelines.models import Pipeline, PipelineStage, StageRun
from cohort.runs.models import Checkpoint, Run, RunState
from cohort.runs.transitions import ON_A_WORKER, current_rows
from grpo_core.pipeline.config import PipelineConfig, Stage
from grpo_core.pipeline.outputs import weights_digest
from grpo_core.records.types import FileEntry

StageState = Literal[
    "waiting", "ready", "refused", "queued", "running", "paused", "failed", "finished", "out_of_date", "lost"
]
STATE_WORDS: Mapping[StageState, str] = {
    "waiting": "waiting",
    "ready": "ready",
    "refused": "not launched",
    "queued": "queued",
    "running": "running",
    "paused": "paused",
    "failed": "failed",
    "finished": "finished",
    "out_of_date": "out of date",
    "lost": "output lost",
}
LIVE: frozenset[StageState] = frozenset({"queued", "running", "paused"})
"""States with a run that has not ended."""


@dataclass(frozen=True)
class StageOutput:
    digest: str
    words: str
    """Such as `weights 1f3c8a…` or `1,200 rows`."""
    checkpoint: Checkpoint | None = None
    dataset: PromptDataset | None = None


@dataclass(frozen=True)
class StageNow:
    stage: PipelineStage
    state: StageState
    reason: str = ""
    """Why it is not finished, for a person; empty where the state says it all."""
    run: Run | None = None
    output: StageOutput | None = None
    """Of a stage that finished, up to date or not."""
    digest: str = ""
    """Of the stage as it is now; empty while an input is missing."""
    given: Mapping[str, str] | None = None
    """Digests of its inputs; None while one is missing."""

    @property
    def words(self) -> str:
        return STATE_WORDS[self.state]


def stage_digest(stage: Stage, given: Mapping[str, str]) -> str:
    """SHA-256, as hex, over the stage's fields as given, without its name, and the digests of what it is given."""
    fields = {name: value for name, value in stage.fields.items() if name != "name"}
    return hashlib.sha256(rfc8785.dumps({"kind": stage.kind, "fields": fields, "given": dict(given)})).hexdigest()


def pipeline_states(pipeline: Pipeline) -> dict[str, StageNow]:
    """Of every stage by its name, in the order of the graph."""
    config = pipeline.parsed_config
    stages = {stage.slug: stage for stage in pipeline.stages.select_related("current__run")}
    runs = [stage.current.run for stage in stages.values() if stage.current is not None]
    outputs = _outputs(runs)
    states: dict[str, StageNow] = {}
    for slug in config.order:
        states[slug] = _state(config, stages[slug], outputs, states)
    return states


def _outputs(runs: list[Run]) -> dict[int, StageOutput]:
    """What runs that succeeded gave, by their ids."""
    ended = [run.pk for run in runs if run.state == RunState.SUCCEEDED]
    finals = current_rows(Checkpoint.objects.filter(run__in=ended, final=True, removed_at=None))
    outputs: dict[int, StageOutput] = {}
    for checkpoint in finals.select_related("attempt", "run").order_by("pk"):
        files = {name: FileEntry.model_validate(entry) for name, entry in checkpoint.files.items()}
        digest = weights_digest(files)
        outputs[checkpoint.run_id] = StageOutput(digest, f"weights {digest[:12]}", checkpoint=checkpoint)
    for dataset in PromptDataset.objects.filter(sampled_by__in=ended).order_by("pk"):
        assert dataset.sampled_by_id is not None
        outputs[dataset.sampled_by_id] = StageOutput(dataset.sha256, f"{dataset.problems:,} rows", dataset=dataset)
    return outputs


def _state(
    config: PipelineConfig, row: PipelineStage, outputs: Mapping[int, StageOutput], above: Mapping[str, StageNow]
) -> StageNow:
    stage = config.stage(row.slug)
    inputs = {name: above[name] for name in config.inputs[row.slug]}
    missing = next((f"{name} {lack_words(now)}" for name, now in inputs.items() if now.state != "finished"), "")
    given = {name: now.output.digest for name, now in inputs.items() if now.output is not None}
    known = len(given) == len(inputs)
    digest = stage_digest(stage, given) if known else ""
    now: dict[str, Any] = {} if missing or not known else {"digest": digest, "given": given}
    if row.current is None:
        if now and (travelling := [name for name, before in inputs.items() if _on_its_way(before)]):
            return StageNow(row, "waiting", f"what {', '.join(travelling)} gave is on its way from its node")
        if row.refusal:
            return StageNow(row, "refused", row.refusal, **now)
        return StageNow(row, "waiting" if missing else "ready", missing, **now)
    run = row.current.run
    changed = missing or ("" if digest == row.current.digest else _change(row.current, given))
    state = _of_run(run)
    if state != "finished":
        reason = {"refused": row.refusal, "failed": run.reason}.get(state) or changed
        return StageNow(row, state, reason, run, None, **now)
    output = outputs.get(run.pk)
    if output is None:
        lack = "its dataset is not on the platform" if stage.gives == "dataset" else "its final weights are gone"
        return StageNow(row, "lost", lack, run, None, **now)
    return StageNow(row, "out_of_date" if changed else "finished", changed, run, output, **now)


def _on_its_way(now: StageNow) -> bool:
    """Its final checkpoint was requested of the node that wrote it, and has not arrived."""
    checkpoint = None if now.output is None else now.output.checkpoint
    return checkpoint is not None and checkpoint.stored_at is None and checkpoint.requested_at is not None


def _of_run(run: Run) -> StageState:
    if run.state in ON_A_WORKER or run.state == RunState.SEALING:
        return "running"
    states: Mapping[str, StageState] = {
        RunState.DRAFT: "refused",
        RunState.QUEUED: "queued",
        RunState.PAUSED: "paused",
        RunState.SUCCEEDED: "finished",
        RunState.FAILED: "failed",
        RunState.CANCELLED: "failed",
    }
    return states[run.state]


def lack_words(now: StageNow) -> str:
    """Why a stage that is not finished gives nothing yet, as the end of a sentence that begins with its name."""
    return {
        "waiting": "has not run yet",
        "ready": "has not run yet",
        "refused": "was not launched",
        "queued": "is queued",
        "running": "is running",
        "paused": "is paused",
        "failed": "failed",
        "out_of_date": "is out of date",
        "lost": "has lost what it gave",
    }[now.state]


def _change(made: StageRun, given: Mapping[str, str]) -> str:
    others = [name for name, digest in given.items() if made.given.get(name) != digest]
    return f"{', '.join(others)} gives something else now" if others else "its fields were changed"
