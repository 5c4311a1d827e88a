"""The loop that every kind of run goes through: load, evaluate, (a step, perhaps an evaluation, its record, perhaps a
checkpoint) × steps, evaluate, save, say how it ended. Or the same from a checkpoint on.

What a step is, its kind says: `grpo_core/trainer/kinds.py` lists them. Knows nothing of the platform: it reads a config
and writes a run directory.
"""

import traceback
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path
from typing import ClassVar, Generic, Literal, TypeVar

import torch

from grpo_core.config.kinds import AnyConfig
from grpo_core.config.sample import SampleConfig
from grpo_core.distributed.ranks import Defect, Ranks, known_cause
from grpo_core.errors import ExchangeError, GrpoError, Interrupted
from grpo_core.evaluate.task import Task
from grpo_core.files.disk import disk_full, is_full
from grpo_core.files.run_folder import RunDir
from grpo_core.model.load import LoadedModel
from grpo_core.records.estimate import Estimate, Estimated
from grpo_core.records.types import Event, Manifest, Outcome, Record
from grpo_core.rollout.base import Rollout
from grpo_core.runtime.clock import Clock
from grpo_core.runtime.progress import Progress
from grpo_core.trainer.checkpoints.manager import CheckpointManager, Sampler
from grpo_core.trainer.checkpoints.resume import (
    Chosen,
    not_bit_by_bit,
    read_checkpoint,
    record_resume,
    rewind_run_folder,
)
from grpo_core.trainer.checkpoints.state import RunState
from grpo_core.trainer.checkpoints.write import save_weights
from grpo_core.trainer.diagnosis import Diagnosis
from grpo_core.trainer.evaluator import Evaluator, Measure
from grpo_core.trainer.heldout_loss import HeldoutLoss
from grpo_core.trainer.inputs import check_checkpoint_alike, check_inputs_alike
from grpo_core.trainer.manifest import meter
from grpo_core.trainer.metrics import ENERGY, Counts
from grpo_core.trainer.recorder import RunRecorder, watchdog
from grpo_core.trainer.telemetry import Telemetry, monitor_gpu, settling
from grpo_core.training.base import Training

C = TypeVar("C", bound=AnyConfig)


@dataclass(eq=False)
class Trainer(ABC, Generic[C]):
    """One run, from its config to its outcome."""

    config: C
    run_dir: RunDir | None
    """None on every rank but the first, which writes the records."""
    _: KW_ONLY
    base: Path
    """Folder that relative paths of the config start from."""
    progress: Progress
    check: Callable[[], None] = lambda: None
    """Called often; may raise Interrupted to end the run."""
    ranks: Ranks = field(default_factory=Ranks)
    resume: Chosen | None = None
    """The checkpoint to resume from, which the first rank alone is given."""
    estimate: Estimate | None = None
    """What the run was expected to cost."""

    training_phase: ClassVar[Literal["training", "sampling"]] = "training"

    steps: int = field(init=False)
    """Planned; where the config does not say it, known once the data is loaded."""
    policy: LoadedModel = field(init=False)
    """The model that the run is about. Set by `_load`."""
    _training: Training = field(init=False)
    _checkpoints: CheckpointManager = field(init=False)
    _evaluator: Evaluator = field(init=False)

    def __post_init__(self) -> None:
        self._counts = Counts()
        if self.resume is not None:
            self._counts.steps = self.resume.manifest.step
        self._counted = self.resume is None
        """Whether the sums in `_counts` are the run's: of a resumed one, once it was restored."""
        self._final: str | None = None
        self._recorder = RunRecorder(self.run_dir, self.progress, self._counts)
        self._estimated = Estimated(self.estimate)
        self.steps = planned_steps(self.config)

    # ------------------------------------------------------------------ what a kind of run says

    @abstractmethod
    def _load(self, opened: ExitStack) -> None:
        """Read and check all inputs, and set `policy`; `opened` closes what must be closed. Every rank calls it. Raises
        a GrpoError that says what is wrong."""

    @abstractmethod
    def _manifest(self) -> Manifest:
        """What the run is based on."""

    @abstractmethod
    def _set_up(self, manifest: Manifest, opened: ExitStack) -> None:
        """The parts of the loop, all with the policy as it was loaded: `_training`, `_checkpoints`, `_evaluator` and
        the kind's own. `opened` closes those that must be."""

    @abstractmethod
    def _step(self, step: int) -> None:
        """One step: what is learned from, the update, the evaluation that is due, the record, the checkpoint."""

    def _loaded(self) -> Iterable[Event]:
        """What was loaded, in words."""
        return ()

    def _finished(self) -> Iterable[Record]:
        """Records about the whole run, at its end."""
        return ()

    def _more_totals(self) -> dict[str, float]:
        """What the outcome's totals have besides those of every run."""
        return {}

    @abstractmethod
    def _last_words(self) -> str:
        """The outcome of a finished run, for a person."""

    def _stopping(self) -> None:
        """Called when the run is asked to stop, before its last checkpoint."""

    # ------------------------------------------------------------------ from the beginning to the outcome

    def run(self) -> Outcome:
        """Do everything. An error is recorded as the run's outcome and raised again."""
        try:
            with watchdog(self.config, self._recorder, self.ranks):
                self._run()
        except Interrupted as stop:
            self._end("stopped", stop.code, f"Stopped after {self._counts.steps} steps: {stop}")
            raise
        except Exception as error:
            cause = self._cause(error)
            if cause is not None:
                self._fail(cause)
                if cause is error:
                    raise
                raise cause from error
            self.progress.line(traceback.format_exc())
            where = "the log" if self.run_dir is not None else "what it printed"
            self._fail(Defect(f"{type(error).__name__}: {error} (a defect; {where} has the trace)"))
            raise
        words = self._last_words()
        if self._evaluator.exhausted and self._counts.steps < self.steps:
            return self._end("finished", "early_stop", f"{self._evaluator.early_stop_text()} {words}")
        return self._end("finished", "ok", words)

    def _cause(self, error: Exception) -> GrpoError | None:
        """The error that says what happened; None for a defect. That others are gone is a cause only where none of them
        reported its own."""
        if self.run_dir is not None and is_full(error):
            return disk_full(self.run_dir.path, "what the run writes")
        cause = error if isinstance(error, GrpoError) else known_cause(error)
        return (self.ranks.reported() or cause) if isinstance(cause, ExchangeError) else cause

    def _fail(self, error: GrpoError) -> None:
        self.ranks.report(error)
        self._end("failed", error.code, str(error))

    # ------------------------------------------------------------------ the loop

    def _run(self) -> None:
        if self.config.engine.threads is not None:
            torch.set_num_threads(self.config.engine.threads)
        self._phase("loading")
        with ExitStack() as opened:
            self._load(opened)
            self._run_on(opened)

    def _run_on(self, opened: ExitStack) -> None:
        config = self.config
        manifest = self._manifest()
        check_inputs_alike(self.ranks, manifest)
        if self.run_dir is not None:
            self._recorder.meter = meter(self.policy.device, self.ranks.world)
        if self.resume is None:
            self._recorder.write(manifest)
        self._set_up(manifest, opened)
        state = self._resume_state(manifest)
        for event in self._loaded():
            self._recorder.event(event)
        self._recorder.commit()
        if state is None:
            self._measure("before")
        done = self._counts.steps
        self._phase(self.training_phase, self.steps)
        self._clock = Clock(settle=settling(self.policy.device))
        self._telemetry = Telemetry(self.policy.device, self.ranks, monitor_gpu(self.policy.device))
        try:
            with self._clock.running():
                if state is None:
                    self._checkpoints.begin()
                for step in range(done + 1, self.steps + 1):
                    self._stop_if_asked()
                    if self._evaluator.exhausted:
                        break
                    self._step(step)
        except Interrupted:
            self._stopping()
            self._checkpoints.before_leaving()
            raise
        finally:
            self._telemetry.close()
        self._measure("after")
        if config.checkpoints.final:
            self._phase("saving")
            self._save()
        for record in self._finished():
            self._recorder.write(record)
        if (worth := self._estimated.compared()) is not None:
            self._recorder.event(worth)

    def _save(self) -> None:
        """Write the trained weights."""
        with self._training.whole():
            if self.run_dir is not None:
                folder = self.run_dir.checkpoints / "final"
                step, kept = self._counts.steps, self.config.checkpoints.merged
                saved = save_weights(folder, self.policy, step=step, run_folder=self.run_dir.path, merged=kept)
                self._recorder.write(saved)
                self._final = saved.path

    # ------------------------------------------------------------------ resuming

    def _resume_state(self, manifest: Manifest) -> RunState | None:
        """Restore everything from the checkpoint and record that; None when the run starts from nothing. A refusal
        comes before the manifest is written, and before any change to a directory that is resumed."""
        own = self.resume
        (folder, *_) = self.ranks.gather(str(own.folder) if own is not None else None)
        if folder is None:
            return None
        check_checkpoint_alike(self.ranks, Path(folder))
        state, parts = self.ranks.together(lambda: read_checkpoint(Path(folder), manifest))
        self._training.restore(parts, kl_coef=state.kl_coef, step=state.step)  # where ranks may have to exchange
        self.ranks.together(lambda: self._restore(state))
        chosen = self.ranks.together(lambda: rewind_run_folder(own, self.run_dir, self.progress))
        if chosen is not None:
            record_resume(chosen, manifest, self._recorder, self.progress)
        for message in not_bit_by_bit(manifest, self.config, state):
            self._recorder.warn(message)
        return state

    def _restore(self, state: RunState) -> None:
        self._counts.sums.update(state.totals)
        if ENERGY not in state.totals and state.step > 0:
            self._recorder.meter = None  # what was done before was not measured, so a sum would not be the run's
        if self._recorder.meter is None:
            self._counts.sums.pop(ENERGY, None)  # nor is what was done before without what comes now
        self._counts.resume(
            state.step, state.seconds, informative=state.informative, held=state.held, history=state.history
        )
        self._checkpoints.restore(state)
        self._counted = True

    # ------------------------------------------------------------------ parts that all kinds have

    def _make_checkpoints(self, manifest: Manifest, sampler: Sampler) -> CheckpointManager:
        return CheckpointManager(
            self.config,
            self.run_dir,
            training=self._training,
            sampler=sampler,
            counts=self._counts,
            steps=self.steps,
            ranks=self.ranks,
            device=self.policy.device,
            manifest=manifest,
            base=self.base,
            progress=self.progress,
        )

    def _make_evaluator(
        self,
        tasks: Sequence[Task],
        rollout: Rollout | None,
        check: Callable[[], None],
        *,
        diagnosis: Diagnosis | None = None,
        heldout_loss: HeldoutLoss | None = None,
        measure: Measure | None = None,
        during: tuple[str, ...] | None = None,
    ) -> Evaluator:
        return Evaluator(
            self.config,
            tasks,
            rollout=rollout,
            policy=self.policy,
            training=self._training,
            checkpoints=self._checkpoints,
            counts=self._counts,
            steps=self.steps,
            recorder=self._recorder,
            ranks=self.ranks,
            check=check,
            stop_if_asked=self._stop_if_asked,
            diagnosis=diagnosis,
            heldout_loss=heldout_loss,
            measure=measure,
            named_during=during,
        )

    # ------------------------------------------------------------------ records

    def _check_inside(self) -> None:
        """Inside a step: stop at once, unless weights have moved and the step before is in no checkpoint. Then the step
        is finished, for only its end can be kept."""
        if self._training.changed_in > self._counts.steps and self._checkpoints.behind:
            return
        self.check()

    def _stop_if_asked(self) -> None:
        """Raise Interrupted where a stop was requested; with several ranks all stop when one was."""
        interrupted: Interrupted | None = None
        try:
            self.check()
        except Interrupted as error:
            interrupted = error
        if self.ranks.any(interrupted is not None):
            raise interrupted or Interrupted("another rank was asked to stop")

    def _measure(self, phase: Literal["before", "after"]) -> None:
        """The evaluations before training, or after it, that the config names, and the held-out loss."""
        wanted = self.config.eval.before if phase == "before" else self.config.eval.after
        evaluator = self._evaluator
        problems = evaluator.problems if wanted else 0
        if problems or evaluator.heldout_loss is not None:
            self._phase(f"evaluating_{phase}", problems or None)
        if problems:
            evaluator.evaluate(phase)
        if evaluator.heldout_loss is not None:
            evaluator.measure_loss(phase)

    def _phase(self, phase: str, total: int | None = None) -> None:
        self._stop_if_asked()
        self._recorder.phase(phase, total)

    def _end(self, status: str, code: str, message: str) -> Outcome:
        self._recorder.count_energy()
        totals = {}
        if self._counted:
            totals = {**self._counts.totals(), **self._more_totals(), "seconds": self._counts.seconds()}
        outcome = Outcome.model_validate(
            {
                "status": status,
                "code": code,
                "message": message,
                "steps_done": self._counts.steps,
                "steps_planned": self.steps,
                "totals": totals,
                "final_checkpoint": self._final,
            }
        )
        self._recorder.end(outcome)
        return outcome


def planned_steps(config: AnyConfig) -> int:
    """0 where the number of problems decides it, until they are read."""
    return 0 if isinstance(config, SampleConfig) else config.steps
