"""The training loop: load, evaluate, (draw: sample and score, learn, perhaps evaluate, record, perhaps cut a
checkpoint) × steps, evaluate, save, say how it ended. Or the same from a checkpoint on. With engine.one_step_off a
step's groups are sampled while the policy learns from the step before.

GRPO as in DeepSeekMath (arXiv 2402.03300); grpo_core/training/single.py and grpo_core/algo/ describe departures. Knows
nothing of the platform: it reads a config and writes a run directory.
"""

import traceback
from collections.abc import Callable
from contextlib import ExitStack, closing
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path
from typing import Literal

import torch

from grpo_core.config.run import RunConfig
from grpo_core.distributed.ranks import Defect, Ranks, known_cause
from grpo_core.errors import ExchangeError, GrpoError, Interrupted
from grpo_core.files.disk import disk_full, is_full
from grpo_core.files.run_folder import RunDir
from grpo_core.records.estimate import Estimate, Estimated
from grpo_core.records.types import Manifest, Outcome, StepMetrics
from grpo_core.rollout.make import make_rollout
from grpo_core.rollout.policy_snapshot import snapshot_for
from grpo_core.runtime.clock import Clock, timed
from grpo_core.runtime.fault_injection import fault
from grpo_core.runtime.progress import Progress
from grpo_core.runtime.watchdog import at
from grpo_core.text import format_duration, format_percent
from grpo_core.trainer.checkpoints.manager import CheckpointManager
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
from grpo_core.trainer.evaluator import Evaluator
from grpo_core.trainer.groups import step_groups
from grpo_core.trainer.inputs import (
    Inputs,
    answer_cache,
    check_checkpoint_alike,
    check_inputs_alike,
    load_inputs,
    loaded,
    reward_used,
)
from grpo_core.trainer.learn import Learned, count_step, learn
from grpo_core.trainer.manifest import build_manifest, meter
from grpo_core.trainer.metrics import ENERGY, Counts
from grpo_core.trainer.prefetch import RolloutPrefetcher
from grpo_core.trainer.recorder import RunRecorder, traces, watchdog
from grpo_core.trainer.sampled import StepBatch
from grpo_core.trainer.sampling import GroupSampler
from grpo_core.trainer.telemetry import Telemetry, monitor_gpu, settling
from grpo_core.trainer.tokens import TokenWriter
from grpo_core.training.make import make_training


@dataclass(eq=False)
class Trainer:
    """One run, from its config to its outcome."""

    config: RunConfig
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

    def __post_init__(self) -> None:
        self._counts = Counts()
        if self.resume is not None:
            self._counts.steps = self.resume.manifest.step
        self._counted = self.resume is None
        """Whether the sums in `_counts` are the run's: of a resumed one, once it was restored."""
        self._final: str | None = None
        self._recorder = RunRecorder(self.run_dir, self.progress, self._counts)
        self._estimated = Estimated(self.estimate)

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
        words = self._diagnosis.last_words(self._checkpoints.good)
        if self._evaluator.exhausted and self._counts.steps < self.config.optim.steps:
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
        config = self.config
        if config.engine.threads is not None:
            torch.set_num_threads(config.engine.threads)
        self._phase("loading")
        cache = answer_cache(self.ranks, self.run_dir.path if self.run_dir is not None else None)
        inputs = self.ranks.together(lambda: load_inputs(config, base=self.base, device=self.ranks.device, cache=cache))
        with ExitStack() as opened:
            for runner in inputs.runners:
                opened.enter_context(runner)
            self._run_on(inputs, opened)

    def _run_on(self, inputs: Inputs, opened: ExitStack) -> None:
        config = self.config
        manifest = self._manifest(inputs)
        check_inputs_alike(self.ranks, manifest)
        if self.run_dir is not None:
            self._recorder.meter = meter(inputs.policy.device, self.ranks.world)
        if self.resume is None:
            self._recorder.write(manifest)
        self._set_up(inputs, manifest, opened)
        state = self._resume_state(manifest)
        for event in loaded(inputs, config):
            self._recorder.event(event)
        self._recorder.commit()
        if config.eval.before and state is None:
            self._evaluate("before", inputs)
        done = self._counts.steps
        self._phase("training", config.optim.steps)
        self._clock = Clock(settle=settling(inputs.policy.device))
        self._telemetry = Telemetry(inputs.policy.device, self.ranks, monitor_gpu(inputs.policy.device))
        try:
            with self._clock.running():
                if state is None:
                    self._checkpoints.begin()
                for step in range(done + 1, config.optim.steps + 1):
                    self._stop_if_asked()
                    if self._evaluator.exhausted:
                        break
                    self._step(step, inputs)
        except Interrupted:
            self._prefetcher.close()
            self._checkpoints.before_leaving()
            raise
        finally:
            self._telemetry.close()
        if config.eval.after:
            self._evaluate("after", inputs)
        if config.checkpoints.final:
            self._phase("saving")
            with self._training.whole():
                if self.run_dir is not None:
                    folder = self.run_dir.checkpoints / "final"
                    step, kept = self._counts.steps, config.checkpoints.merged
                    saved = save_weights(folder, inputs.policy, step=step, run_folder=self.run_dir.path, merged=kept)
                    self._recorder.write(saved)
                    self._final = saved.path
        for event in reward_used(self.ranks.gather(inputs.reward_facts())):
            self._recorder.write(event)
        if (worth := self._estimated.compared()) is not None:
            self._recorder.event(worth)

    def _manifest(self, inputs: Inputs) -> Manifest:
        return build_manifest(
            self.config,
            inputs.policy,
            train=inputs.train_facts,
            heldout=inputs.heldout_facts,
            suites=inputs.suite_facts,
            overlap=self.ranks.together(lambda: inputs.overlap() if self.run_dir is not None else None),
            ranks=self.ranks.world,
            reward=inputs.reward_facts(),
            sandbox=inputs.runner.sandbox() or inputs.heldout_runner.sandbox(),
        )

    def _step(self, step: int, inputs: Inputs) -> None:
        fault(f"step:{step}")
        at(f"step {step}", "step")
        with self._training.whole():
            with timed("sample"):
                metrics = self._evaluator.pushed | self._rollout.follow(step - 1)
                self._evaluator.pushed = {}
            batch = self._group_sampler.draw(step)
        if self.ranks.world > 1:
            self._stop_if_asked()
        fault(f"sampled:{step}")
        if self.config.engine.one_step_off and step < self.config.optim.steps:
            self._prefetcher.begin(lambda: self._group_sampler.prefetch(step + 1))
        with timed("update"):
            learned = learn(batch.kept, self.config, step=step, policy=inputs.policy, training=self._training)
        learned.metrics.update(metrics)
        fault(f"updated:{step}")
        if self.config.engine.one_step_off:
            fault(f"waiting:{step}")
            with timed("waiting"):
                self._prefetcher.wait()
        learned.metrics.update(self._evaluator.during(step))
        reward = self._record(step, batch, learned, batch.with_times(self._clock.take()))
        fault(f"recorded:{step}")
        self._checkpoints.after(step, reward, last=self._evaluator.exhausted)

    def _set_up(self, inputs: Inputs, manifest: Manifest, opened: ExitStack) -> None:
        """The parts of the loop, all with the policy as it was loaded. `opened` closes those that must be."""
        config, ranks = self.config, self.ranks
        # Ranks wait for each other, so none may stop alone: with several, all agree between steps.
        own_check = self._check_inside if ranks.world == 1 else lambda: None
        self._prefetcher = RolloutPrefetcher(own_check, inputs.policy.device)
        self._inside = check = self._prefetcher.check
        snapshot = snapshot_for(config, inputs.policy)
        self._training = make_training(
            config, inputs.policy, reference=inputs.reference, critic=inputs.critic, ranks=ranks, check=check
        )
        rollout = make_rollout(
            config,
            inputs.policy,
            ranks=ranks,
            check=check,
            snapshot=snapshot,
            positions=inputs.positions(config),
            folder=self.run_dir.path if self.run_dir is not None else None,
            log=self.progress.line,
        )
        self._rollout = opened.enter_context(closing(rollout))
        opened.enter_context(closing(self._prefetcher))  # before what its work needs is closed
        self._group_sampler = GroupSampler(
            config,
            inputs.train.prompts,
            rollout=self._rollout,
            policy=inputs.policy,
            runner=inputs.runner,
            ranks=ranks,
            check=check,
        )
        self._checkpoints = CheckpointManager(
            config,
            self.run_dir,
            training=self._training,
            group_sampler=self._group_sampler,
            counts=self._counts,
            ranks=ranks,
            device=inputs.policy.device,
            manifest=manifest,
            base=self.base,
            progress=self.progress,
        )
        self._evaluator = Evaluator(
            config,
            inputs.tasks,
            rollout=self._rollout,
            policy=inputs.policy,
            training=self._training,
            checkpoints=self._checkpoints,
            counts=self._counts,
            recorder=self._recorder,
            ranks=ranks,
            check=check,
            stop_if_asked=self._stop_if_asked,
        )
        self._token_writer = TokenWriter(config, inputs.policy)
        ends = inputs.policy.tokenizer.convert_ids_to_tokens(sorted(inputs.policy.eos_ids))
        self._diagnosis = Diagnosis(config, ", ".join(ends), self._counts, keep=self._checkpoints.keep_until)

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

    def _record(self, step: int, batch: StepBatch, learned: Learned, seconds: dict[str, float]) -> float | None:
        """Write the step's metrics and kept groups, make them durable, show a line. Returns the mean reward."""
        groups = step_groups(
            batch, learned.advantages, self.config, step=step, masked=learned.masked, clipped=learned.clipped
        )
        self._recorder.count_energy()
        metrics = count_step(self._counts, step, groups, batch, learned, self.config)
        trained = seconds["total"] - seconds.get("evaluate", 0.0)
        metrics["samples_per_second"] = len(batch.completions) / trained
        metrics |= self._telemetry.take(seconds, sampled=batch.completion_tokens, learned=learned.tokens)
        self._recorder.write(StepMetrics(step=step, metrics=metrics, seconds=seconds))
        self._estimated.step(trained, metrics["memory/peak_bytes"])
        if (shortage := batch.shortage(step, self.config.sampling.prompts_per_step)) is not None:
            self._recorder.warn(shortage)
        for event, examples in self._diagnosis.step(step, groups.fresh, metrics):
            self._recorder.event(event, more=examples)
        if self.run_dir is not None:
            learned_groups, arrays = self._token_writer.write(
                self.run_dir, step, batch.kept, groups.trained, learned.advantages, learned.token_signals
            )
            for trace in traces(step, learned_groups, groups.discarded, groups.left, self.config):
                self._recorder.write(trace)
            if arrays is not None:
                self._recorder.write(arrays)
        self._evaluator.write()
        self._recorder.commit()
        self._counts.steps = step
        reward = f"reward {metrics['reward']:.3f}" if "reward" in metrics else "nothing scored"
        dead = f"signal in {format_percent(metrics['frac_informative'])} of groups"
        self.progress.advance(step, f"{reward} · {dead} · {format_duration(trained)}/step")
        return metrics.get("reward")

    # ------------------------------------------------------------------ records

    def _stop_if_asked(self) -> None:
        """Raise Interrupted where a stop was requested; with several ranks all stop when one was."""
        interrupted: Interrupted | None = None
        try:
            self.check()
        except Interrupted as error:
            interrupted = error
        if self.ranks.any(interrupted is not None):
            raise interrupted or Interrupted("another rank was asked to stop")

    def _check_inside(self) -> None:
        """Inside a step: stop at once, unless weights have moved and the step before is in no checkpoint. Then the step
        is finished, for only its end can be kept."""
        if self._training.changed_in > self._counts.steps and self._checkpoints.behind:
            return
        self.check()

    def _evaluate(self, phase: Literal["before", "after"], inputs: Inputs) -> None:
        if inputs.tasks:
            self._phase(f"evaluating_{phase}", sum(len(task.prompts.prompts) for task in inputs.tasks))
            self._evaluator.evaluate(phase, self._diagnosis)

    def _phase(self, phase: str, total: int | None = None) -> None:
        self._stop_if_asked()
        self._recorder.phase(phase, total)

    def _end(self, status: str, code: str, message: str) -> Outcome:
        self._recorder.count_energy()
        totals = {**self._counts.totals(), "seconds": self._counts.seconds()} if self._counted else {}
        outcome = Outcome.model_validate(
            {
                "status": status,
                "code": code,
                "message": message,
                "steps_done": self._counts.steps,
                "steps_planned": self.config.optim.steps,
                "totals": totals,
                "final_checkpoint": self._final,
            }
        )
        self._recorder.end(outcome)
        return outcome
