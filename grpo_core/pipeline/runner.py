"""Runs a pipeline's stages in order, each as `grpo train` in a process of its own. Loads no torch.

A run that was interrupted, or failed with its config unchanged, is resumed from its newest checkpoint; one that left no
checkpoint is set aside and begun again. A stage that is done and up to date is passed over, one that is out of date is
run again only when asked. SIGTERM and SIGINT go on to the trainer, which writes a checkpoint; the next call resumes.
"""

import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from grpo_core.errors import GrpoError, Interrupted
from grpo_core.files.checkpoint import step_folders
from grpo_core.pipeline.config import PipelineConfig
from grpo_core.pipeline.folder import PipelineFolder, StageStatus, StartedRun, trainer_at_work
from grpo_core.pipeline.outputs import outcome_of
from grpo_core.pipeline.stages import check_stages, resolve
from grpo_core.runtime.fault_injection import fault
from grpo_core.runtime.signals import Stop

POLL_SECONDS = 0.2


class StageError(GrpoError):
    """A stage that failed, or cannot be started. The message names it, says why and what to do."""

    code = "stage_error"
    exit_status = 12


@dataclass
class PipelineRunner:
    pipeline: PipelineConfig
    folder: PipelineFolder
    base: Path
    """Folder that relative paths in the pipeline start from."""
    stop: Stop
    line: Callable[[str], None]
    """Prints a line for a person."""

    def run(self, *, again_from: str | None = None, only: str | None = None) -> None:
        """Run what is not done. `again_from`: that stage and all below it, whether they are done or not. `only`: no
        other stage, again if it is out of date.

        Raises ConfigError for a pipeline that is not valid, StageError, Interrupted, and RunDirError while another
        call is at work on the folder.
        """
        check_stages(self.pipeline)
        wanted = self.pipeline.order
        if again_from is not None:
            wanted = self.pipeline.below(again_from)
        elif only is not None:
            wanted = (self.pipeline.stage(only).slug,)
        with self.folder.locked():
            self.folder.write_config(self.pipeline)
            self._wait_for_trainers()
            statuses = self.folder.status(self.pipeline)
            if again_from is not None or (only is not None and statuses[only].state in ("out_of_date", "lost")):
                self.folder.forget(wanted)
            for slug in self.pipeline.order:
                if slug in wanted:
                    self._run_stage(slug)

    def _wait_for_trainers(self) -> None:
        """A trainer outlives this process when that is killed: what it does is not done twice."""
        for slug in self.pipeline.stages:
            run = self.folder.run_folder(slug)
            if trainer_at_work(run):
                self.line(f"{slug}: a trainer of an earlier call is still at work in {run}; waiting for its end")
                while trainer_at_work(run):
                    self.stop.raise_if_requested()
                    time.sleep(POLL_SECONDS)

    def _run_stage(self, slug: str) -> None:
        self.stop.raise_if_requested()
        status = self.folder.status(self.pipeline)[slug]
        if status.state == "finished":
            self.line(f"{slug}: done and up to date")
            return
        if status.state in ("out_of_date", "lost"):
            words = "is out of date" if status.state == "out_of_date" else "has lost what it gave"
            raise StageError(
                f"stage {slug} {words}: {status.reason}. Run it and all below it again with --from {slug}, or it alone "
                f"with --only {slug}"
            )
        if status.given is None or status.digest is None:
            raise StageError(f"stage {slug} cannot be started: {status.reason}")
        resume = self._prepare(slug, status)
        stage = self.pipeline.stage(slug)
        steps = "resuming" if resume else "starting"
        self.line(f"{slug}: {steps} ({stage.kind})")
        self._train(slug, resume=resume)

    def _prepare(self, slug: str, status: StageStatus) -> bool:
        """Write the stage's config and its entry; returns whether its run is to be resumed."""
        assert status.given is not None
        assert status.digest is not None
        run = self.folder.run_folder(slug)
        before = self.folder.state().stages.get(slug)
        resume = before is not None and before.digest == status.digest and bool(step_folders(run / "checkpoints"))
        if resume:
            return True
        if (kept := self.folder.set_aside(slug)) is not None:
            self.line(f"{slug}: its earlier run is kept in {kept}")
        self._write_stage_config(slug)
        self.folder.record_start(slug, StartedRun(digest=status.digest, given=dict(status.given)))
        fault("pipeline:recorded")
        return False

    def _write_stage_config(self, slug: str) -> None:
        statuses, paths = self.folder.status(self.pipeline), {}
        for name in self.pipeline.inputs[slug]:
            output = statuses[name].output
            assert output is not None  # its digest is given
            paths[name] = f"../{name}/run/{output.path}"
        config = resolve(self.pipeline, self.pipeline.stage(slug), paths, base=self.base)
        folder = self.folder.stage_folder(slug)
        folder.mkdir(exist_ok=True)
        temporary = folder / "config.yaml.tmp"
        temporary.write_text(config.to_yaml(), encoding="utf-8")
        temporary.replace(folder / "config.yaml")

    def _train(self, slug: str, *, resume: bool) -> None:
        folder, run = self.folder.stage_folder(slug), self.folder.run_folder(slug)
        words = ["train", str(folder / "config.yaml"), "--out", str(run), *(["--resume"] if resume else [])]
        printed = folder / "errors.txt"
        with printed.open("wb") as errors:
            trainer = subprocess.Popen([sys.executable, "-P", "-m", "grpo_core.cli.main", *words], stderr=errors)
            status = self._await(trainer)
        if status == 0:
            return
        if status == Interrupted.exit_status:
            raise Interrupted(f"stage {slug} was stopped at a checkpoint; the same command resumes it")
        outcome = None if status < 0 else outcome_of(run)
        if outcome is not None and outcome.status == "failed":
            raise StageError(f"stage {slug} failed: {outcome.message}")
        last = printed.read_text(encoding="utf-8", errors="replace").strip().splitlines()[-5:]
        cause = f"was ended by {signal.Signals(-status).name}" if status < 0 else f"ended with status {status}"
        raise StageError("\n".join([f"stage {slug} {cause}", *last]))

    def _await(self, trainer: "subprocess.Popen[bytes]") -> int:
        """Its exit status. A stop request is sent on to it once."""
        requested = False
        while (status := trainer.poll()) is None:
            try:
                if not requested:
                    self.stop.raise_if_requested()
            except Interrupted:
                requested = True
                trainer.terminate()
            try:
                trainer.wait(POLL_SECONDS)
            except subprocess.TimeoutExpired:
                continue
        return status
