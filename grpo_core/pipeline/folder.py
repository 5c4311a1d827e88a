"""A pipeline's folder, and where each of its stages is. Loads no torch.

    pipeline.yaml      the pipeline as it was last run
    pipeline.json      of each stage that was started: the digest that its run was made with, and what it was given
    STAGE/config.yaml  the config of the stage's run
    STAGE/run/         the run, a folder as `grpo train` writes it
    STAGE/earlier/1/   a run that was replaced by a later one, oldest first

An entry in pipeline.json comes before its run and is written whole, so that a kill at any moment leaves either no run
or one whose inputs are known. What a run did, its own folder says and nothing else.
"""

import fcntl
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from grpo_core.errors import RecordsError, RunDirError
from grpo_core.files.run_folder import RunDir
from grpo_core.pipeline.config import PipelineConfig
from grpo_core.pipeline.outputs import StageOutput, outcome_of, output_of
from grpo_core.pipeline.stages import stage_digest
from grpo_core.records.types import Outcome

StageState = Literal["waiting", "ready", "running", "interrupted", "failed", "finished", "out_of_date", "lost"]
"""waiting: an input is not there. ready: all are. interrupted: its run can be resumed. out_of_date: its run
was made with other fields or inputs than it has now. lost: it finished, and files that it gave are gone."""
STATE_WORDS: Mapping[StageState, str] = {
    "waiting": "waiting",
    "ready": "ready",
    "running": "running",
    "interrupted": "interrupted",
    "failed": "failed",
    "finished": "finished",
    "out_of_date": "out of date",
    "lost": "output lost",
}


class _Strict(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class StartedRun(_Strict):
    """What the run of a stage was made with."""

    digest: str
    """Of the stage (`stages.stage_digest`)."""
    given: dict[str, str]
    """Digest of what each input gave."""


class PipelineState(_Strict):
    """Content of pipeline.json."""

    format: Literal["cohort-pipeline/1"] = "cohort-pipeline/1"
    stages: dict[str, StartedRun] = {}


@dataclass(frozen=True, slots=True)
class StageStatus:
    """Where one stage is."""

    state: StageState
    reason: str = ""
    """Why it is not finished, in words; empty where the state says it all."""
    outcome: Outcome | None = None
    output: StageOutput | None = None
    """Of a stage that finished, up to date or not."""
    digest: str | None = None
    """Of the stage as it is now; None while an input is missing."""
    given: Mapping[str, str] | None = None
    """The digests of its inputs as they are now; None while one is missing."""


class PipelineFolder:
    def __init__(self, path: Path) -> None:
        self.path = path
        self.config_file = path / "pipeline.yaml"
        self._state_file = path / "pipeline.json"

    @contextmanager
    def locked(self) -> Iterator[None]:
        """For one process alone. Raises RunDirError while another has it."""
        self.path.mkdir(parents=True, exist_ok=True)
        lock = os.open(self.path / ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(lock)
            raise RunDirError(f"another `grpo pipeline run` is at work in {self.path}; wait for its end") from None
        try:
            yield
        finally:
            os.close(lock)

    def stage_folder(self, slug: str) -> Path:
        return self.path / slug

    def run_folder(self, slug: str) -> Path:
        return self.path / slug / "run"

    # ------------------------------------------------------------------ the state file

    def config(self) -> PipelineConfig:
        """As it was last run. Raises ConfigError where none was."""
        return PipelineConfig.from_file(self.config_file)

    def write_config(self, pipeline: PipelineConfig) -> None:
        RunDir.write_text(self.config_file, pipeline.to_yaml())

    def state(self) -> PipelineState:
        """Raises RecordsError when pipeline.json cannot be read."""
        if not self._state_file.is_file():
            return PipelineState()
        try:
            return PipelineState.model_validate_json(self._state_file.read_bytes())
        except ValidationError:
            raise RecordsError(
                f"{self._state_file} is not the state of a pipeline; remove it to run all stages again"
            ) from None

    def record_start(self, slug: str, run: StartedRun) -> None:
        """Before the run is started."""
        self._write_state({**self.state().stages, slug: run})

    def forget(self, slugs: tuple[str, ...]) -> None:
        """Have the stages run again: a run without an entry counts for nothing, and is set aside at the next start."""
        self._write_state({slug: run for slug, run in self.state().stages.items() if slug not in slugs})

    def _write_state(self, stages: Mapping[str, StartedRun]) -> None:
        RunDir.write_json(self._state_file, PipelineState(stages=dict(stages)).model_dump(mode="json"))

    def set_aside(self, slug: str) -> Path | None:
        """Move the stage's run to `earlier`; returns where it went, None when there was none."""
        run = self.run_folder(slug)
        if not run.exists():
            return None
        earlier = self.stage_folder(slug) / "earlier"
        earlier.mkdir(exist_ok=True)
        target = earlier / str(
            1 + max((int(path.name) for path in earlier.iterdir() if path.name.isdigit()), default=0)
        )
        run.rename(target)
        return target

    # ------------------------------------------------------------------ where each stage is

    def status(self, pipeline: PipelineConfig) -> dict[str, StageStatus]:
        """Of every stage, in order."""
        started = self.state().stages
        statuses: dict[str, StageStatus] = {}
        for slug in pipeline.order:
            statuses[slug] = self._status(pipeline, slug, started.get(slug), statuses)
        return statuses

    def _status(
        self, pipeline: PipelineConfig, slug: str, started: StartedRun | None, above: Mapping[str, StageStatus]
    ) -> StageStatus:
        stage, run = pipeline.stage(slug), self.run_folder(slug)
        inputs = {name: above[name] for name in pipeline.inputs[slug]}
        # With what inputs gave before they went out of date no stage is started, but one that ran is still known by it.
        missing = next((f"{name} {_lack(status)}" for name, status in inputs.items() if status.state != "finished"), "")
        given = {name: status.output.digest for name, status in inputs.items() if status.output is not None}
        digest = stage_digest(pipeline, stage, given) if len(given) == len(inputs) else None
        now = (digest, given) if digest is not None and not missing else (None, None)
        if started is None or not run.is_dir():
            return StageStatus("waiting" if missing else "ready", missing, None, None, *now)
        if trainer_at_work(run):
            return StageStatus("running", "", None, None, *now)
        outcome = outcome_of(run)
        changed = missing or ("" if digest == started.digest else _change(started, given))
        if outcome is None or outcome.status == "stopped":
            reason = changed or ("it was stopped" if outcome is not None else "it ended without an outcome")
            return StageStatus("out_of_date" if changed else "interrupted", reason, outcome, None, *now)
        if outcome.status == "failed":
            return StageStatus("failed", outcome.message, outcome, None, *now)
        output = output_of(stage.gives, run)
        if (lost := output.missing(run)) is not None:
            return StageStatus("lost", f"{run / lost} is gone or was changed", outcome, None, *now)
        return StageStatus("out_of_date" if changed else "finished", changed, outcome, output, *now)


def _lack(status: StageStatus) -> str:
    return {
        "waiting": "has not run yet",
        "ready": "has not run yet",
        "running": "is still running",
        "interrupted": "was interrupted",
        "failed": "failed",
        "out_of_date": "is out of date",
        "lost": "has lost what it gave",
    }[status.state]


def _change(started: StartedRun, given: Mapping[str, str]) -> str:
    others = [name for name, digest in given.items() if started.given.get(name) != digest]
    return f"{', '.join(others)} gives something else now" if others else "its fields were changed"


def trainer_at_work(run: Path) -> bool:
    """Whether a trainer holds the run's folder, as `RunDir` locks it."""
    try:
        lock = os.open(run / ".lock", os.O_RDWR)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(lock)
    return False
