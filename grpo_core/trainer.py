"""The training loop: load, evaluate, (draw, sample, score, learn, record, perhaps cut a checkpoint) × steps, evaluate,
save, say how it ended. Or the same from a checkpoint on.

GRPO as in DeepSeekMath (arXiv 2402.03300); departures are told where they are made: grpo_core/training/single.py and
grpo_core/algo/. Knows nothing of the platform: it reads a config and writes a run directory.
"""

import traceback
from collections.abc import Callable
from pathlib import Path

import torch

from grpo_core.checkpoints.keeper import Keeper
from grpo_core.checkpoints.resume import Chosen, check_inputs, not_bit_by_bit, take_back
from grpo_core.checkpoints.state import RunState, read_state
from grpo_core.checkpoints.write import load_parts, save_weights
from grpo_core.clock import Clock
from grpo_core.config import RunConfig
from grpo_core.disk import disk_full, is_full
from grpo_core.draw import Drawer, StepDraw
from grpo_core.energy import Meter
from grpo_core.errors import ExchangeError, GrpoError, Interrupted
from grpo_core.evaluate.loop import evaluate_all
from grpo_core.evaluate.task import manner_of
from grpo_core.evaluate.told import Measured, log_line
from grpo_core.faults import fault
from grpo_core.groups import step_groups
from grpo_core.inputs import Inputs, answer_cache, load_inputs, loaded, reward_used
from grpo_core.learn import Learned, learn
from grpo_core.manifest import build_manifest, inputs_of, meter
from grpo_core.metrics import ENERGY, Counts, ScoredGroup, group_metrics, mean_entropy, trouble
from grpo_core.progress import Progress
from grpo_core.records import Event, Manifest, Outcome, Phase, PhaseStarted, Record, StepMetrics
from grpo_core.rollout.local import LocalRollout
from grpo_core.rollout.ranked import RankedRollout
from grpo_core.run_dir import RunDir
from grpo_core.traces import traces
from grpo_core.training.alike import check_checkpoint_alike, check_inputs_alike
from grpo_core.training.causes import Defect, known_cause
from grpo_core.training.ranks import Ranks
from grpo_core.training.single import SingleTraining


class Trainer:
    """One run, from its config to its outcome."""

    def __init__(
        self,
        config: RunConfig,
        run_dir: RunDir | None,
        *,
        base: Path,
        progress: Progress,
        check: Callable[[], None] = lambda: None,
        ranks: Ranks | None = None,
        resume: Chosen | None = None,
    ) -> None:
        """`base`: folder that relative paths of the config start from. `check` is called often and may raise
        Interrupted to end the run. `run_dir` is None on every rank but the first, which writes the records and alone
        is given the checkpoint to go on from."""
        self.config = config
        self.run_dir = run_dir
        self._base = base
        self._progress = progress
        self._check = check
        self._ranks = ranks or Ranks()
        self._resume = resume
        self._counts = Counts()
        if resume is not None:
            self._counts.steps = resume.manifest.step
        self._counted = resume is None
        """Whether the sums in `_counts` are the run's: of one that goes on, once it was restored."""
        self._final: str | None = None
        self._meter: Meter | None = None

    def run(self) -> Outcome:
        """Do everything. An error is recorded as the run's outcome and raised again."""
        try:
            self._run()
        except Interrupted as stop:
            self._end("stopped", stop.code, f"Stopped after {self._counts.steps} steps: {stop}")
            raise
        except GrpoError as error:
            self._fail(error)
            raise
        except Exception as error:
            cause = self._cause(error)
            if cause is not None:
                self._fail(cause)
                raise cause from error
            self._progress.line(traceback.format_exc())
            where = "the log" if self.run_dir is not None else "what it printed"
            self._fail(Defect(f"{type(error).__name__}: {error} (a defect; {where} has the trace)"))
            raise
        return self._end("finished", "ok", self._counts.summary())

    def _cause(self, error: Exception) -> GrpoError | None:
        """The error that says what happened; None for a defect. That others are gone is a cause only where none of them
        told its own."""
        if self.run_dir is not None and is_full(error):
            return disk_full(self.run_dir.path, "what the run writes")
        cause = known_cause(error)
        return (self._ranks.told() or cause) if isinstance(cause, ExchangeError) else cause

    def _fail(self, error: GrpoError) -> None:
        self._ranks.tell(error)
        self._end("failed", error.code, str(error))

    # ------------------------------------------------------------------ the loop

    def _run(self) -> None:
        config = self.config
        if config.engine.threads is not None:
            torch.set_num_threads(config.engine.threads)
        self._phase("loading")
        cache = answer_cache(self._ranks, self.run_dir.path if self.run_dir is not None else None)
        inputs = self._ranks.together(
            lambda: load_inputs(config, base=self._base, device=self._ranks.device, cache=cache)
        )
        with inputs.runner:
            self._run_on(inputs)

    def _run_on(self, inputs: Inputs) -> None:
        config = self.config
        manifest = build_manifest(
            config,
            inputs.policy,
            train=inputs.train_facts,
            heldout=inputs.heldout_facts,
            suites=inputs.suite_facts,
            overlap=self._ranks.together(lambda: inputs.overlap() if self.run_dir is not None else None),
            ranks=self._ranks.world,
            reward=inputs.runner.facts(),
            sandbox=inputs.runner.sandbox(),
        )
        check_inputs_alike(self._ranks, manifest)
        if self.run_dir is not None:
            self._meter = meter(inputs.policy.device, self._ranks.world)
        if self._resume is None:
            self._write(manifest)
        self._set_up(inputs, manifest)
        state = self._state_to_go_on_from(manifest)
        self._tell_inputs(inputs)
        if config.eval.before and state is None:
            self._evaluate("before", inputs)
        done = self._counts.steps
        self._phase("training", config.optim.steps)
        if state is None:
            self._keeper.begin()
        try:
            for step in range(done + 1, config.optim.steps + 1):
                self._stop_if_asked()
                self._step(step, inputs)
        except Interrupted:
            self._keeper.before_leaving()
            raise

        if config.eval.after:
            self._evaluate("after", inputs)
        if config.checkpoints.final:
            self._phase("saving")
            if self.run_dir is not None:
                folder = self.run_dir.checkpoint_folder("final")
                saved = save_weights(folder, inputs.policy, step=self._counts.steps, run_folder=self.run_dir.path)
                self._write(saved)
                self._final = saved.path
        for event in reward_used(self._ranks.gather(inputs.runner.facts())):
            self._write(event)

    def _step(self, step: int, inputs: Inputs) -> None:
        fault(f"step:{step}")
        clock = Clock()
        drawn = self._drawer.draw(step, timed=clock.lap)
        if self._ranks.world > 1:
            self._stop_if_asked()
        fault(f"sampled:{step}")
        learned = learn(drawn.kept, self.config, step=step, policy=inputs.policy, training=self._training)
        clock.lap("update")
        fault(f"updated:{step}")
        reward = self._record(step, drawn, learned, clock.seconds())
        fault(f"recorded:{step}")
        self._keeper.after(step, reward)

    def _set_up(self, inputs: Inputs, manifest: Manifest) -> None:
        """The parts of the loop, all with the policy as it was loaded."""
        config, ranks = self.config, self._ranks
        # Ranks wait for each other, so none may stop alone: with several, all agree between steps.
        self._inside = check = self._check_inside if ranks.world == 1 else lambda: None
        own = LocalRollout(inputs.policy, max_rows=config.engine.rollout_batch, check=check)
        self._rollout = RankedRollout(own, ranks)
        self._training = SingleTraining(
            inputs.policy, inputs.reference, config, check=check, ranks=ranks, critic=inputs.critic
        )
        self._drawer = Drawer(
            config,
            inputs.train.prompts,
            rollout=self._rollout,
            policy=inputs.policy,
            runner=inputs.runner,
            ranks=ranks,
            check=check,
        )
        self._keeper = Keeper(
            config,
            self.run_dir,
            training=self._training,
            drawer=self._drawer,
            counts=self._counts,
            ranks=ranks,
            device=inputs.policy.device,
            manifest=manifest,
            base=self._base,
            progress=self._progress,
        )

    def _state_to_go_on_from(self, manifest: Manifest) -> RunState | None:
        """Set everything to where a checkpoint left it, and record that; None when the run starts from nothing. It
        is refused before the manifest is written, and before any change to a directory that is gone on with."""
        chosen = self._resume
        (folder, *_) = self._ranks.gather(str(chosen.folder) if chosen is not None else None)
        if folder is None:
            return None
        check_checkpoint_alike(self._ranks, Path(folder))
        state = self._ranks.together(lambda: self._restore(Path(folder), manifest))
        chosen = self._ranks.together(self._take_back)
        if chosen is not None:
            self._write(manifest)
            self._write(chosen.record())
            if chosen.own:
                self._write(chosen.manifest)  # its first record came after the seq that it holds
            for removed in chosen.gone:
                self._write(removed)
            for skipped in chosen.skipped:
                self._progress.line(f"passed over {skipped.path}: {skipped.reason}")
            self._progress.line(f"goes on from {chosen.manifest.path}, after step {state.step}")
        for message in not_bit_by_bit(manifest, self.config, state):
            self._warn(message)
        return state

    def _take_back(self) -> Chosen | None:
        chosen, run_dir = self._resume, self.run_dir
        if chosen is None or run_dir is None or not chosen.own:
            return chosen
        chosen = take_back(run_dir, chosen)
        self._progress.keep_in(run_dir.progress_file)
        return chosen

    def _restore(self, folder: Path, manifest: Manifest) -> RunState:
        state = read_state(folder)
        check_inputs(inputs_of(manifest), state, folder)
        self._training.restore(load_parts(folder), kl_coef=state.kl_coef, step=state.step)
        self._counts.totals.sums.update(state.totals)
        if ENERGY not in state.totals and state.step > 0:
            self._meter = None  # what was done before was not measured, so a sum would not be the run's
        if self._meter is None:
            self._counts.totals.sums.pop(ENERGY, None)  # nor is what was done before without what comes now
        self._counts.informative = state.informative
        self._counts.steps = state.step
        self._counts.seconds_before = state.seconds
        self._keeper.restore(state)
        self._counted = True
        return state

    def _record(self, step: int, drawn: StepDraw, learned: Learned, seconds: dict[str, float]) -> float | None:
        """Write the step's metrics and kept groups, make them durable, tell the person. Returns the mean reward."""
        config, dynamic = self.config, self.config.algorithm.dynamic_sampling.enabled
        groups = step_groups(drawn, learned.advantages, config, step=step, masked=learned.masked)
        counted = [ScoredGroup(group.signal, group.reward_std, group.samples) for group in groups.fresh]
        flat = drawn.completions
        lengths = [len(completion.tokens) for completion in flat]
        self._counts.totals.add(counted, tokens=sum(lengths) + drawn.prompt_tokens)
        if learned.advantages is not None:
            self._counts.informative += int(learned.advantages.informative_P.sum())
        self._counts.totals.add_masked("importance", len(learned.masked))
        self._count_energy()
        told = group_metrics(counted, success=config.success_component, ddof=config.algorithm.std_ddof)
        told |= learned.metrics
        if config.algorithm.correction.mode == "sequence_mask":
            told["masked/importance"] = float(len(learned.masked))
        if dynamic:
            self._counts.totals.add_discarded([reason for _, reason in drawn.discarded])
            told |= drawn.metrics()
        if (entropy := mean_entropy([completion.entropy for completion in flat], lengths)) is not None:
            told["entropy"] = entropy
        tokens = self._counts.totals.as_dict()["tokens"]
        told |= {"num_tokens": tokens, "samples_per_second": len(flat) / seconds["total"]}
        self._write(StepMetrics(step=step, metrics=told, seconds=seconds))
        for warning in (drawn.shortage(step, config.sampling.prompts_per_step), trouble(step, counted)):
            if warning is not None:
                self._warn(warning)
        if self.run_dir is not None:
            for trace in traces(step, groups.trained, groups.discarded, groups.left, config):
                self._write(trace)
        self._commit()
        self._counts.steps = step
        reward = f"reward {told['reward']:.3f}" if "reward" in told else "nothing scored"
        dead = f"no signal in {told['frac_reward_zero_std']:.0%} of groups"
        self._progress.advance(step, f"{reward} · {dead} · {seconds['total']:.1f} s/step")
        return told.get("reward")

    # ------------------------------------------------------------------ records

    def _write(self, record: Record) -> None:
        if self.run_dir is not None:
            self.run_dir.append(record)

    def _warn(self, message: str) -> None:
        self._write(Event(type="warning", message=message))
        self._progress.line(message)

    def _commit(self) -> None:
        if self.run_dir is not None:
            self.run_dir.commit()

    def _stop_if_asked(self) -> None:
        """Meet a wish to stop; with several ranks all stop when one was asked."""
        asked: Interrupted | None = None
        try:
            self._check()
        except Interrupted as wish:
            asked = wish
        if self._ranks.any(asked is not None):
            raise asked or Interrupted("another rank was asked to stop")

    def _check_inside(self) -> None:
        """Inside a step: stop at once, unless weights have moved and the step before is in no checkpoint. Then the step
        is finished, for only its end can be kept."""
        if self._training.changed_in > self._counts.steps and self._keeper.behind:
            return
        self._check()

    def _evaluate(self, phase: Phase, inputs: Inputs) -> None:
        if not inputs.tasks:
            return
        total = sum(len(task.prompts.prompts) for task in inputs.tasks)
        self._phase("evaluating_before" if phase == "before" else "evaluating_after", total)
        evaluations = evaluate_all(
            phase,
            inputs.tasks,
            rollout=self._rollout,
            policy=inputs.policy,
            manner=manner_of(self.config),
            ranks=self._ranks,
            progress=self._progress.advance,
            check=self._inside,
        )
        for evaluation in evaluations:
            for item in evaluation.items:
                self._write(item)
            self._write(evaluation.result)
            self._commit()
            self._progress.line(log_line(Measured(evaluation.result, evaluation.items)))
            if evaluation.result.suite != inputs.tasks[-1].name:
                self._stop_if_asked()

    def _phase(self, phase: str, total: int | None = None) -> None:
        self._stop_if_asked()
        self._write(PhaseStarted.model_validate({"phase": phase, "total": total}))
        self._commit()
        unit = "step" if phase == "training" else None
        self._progress.begin(phase, total or 0, unit=unit, done=self._counts.steps if unit else 0)
        if phase != "training":
            self._progress.line(phase.replace("_", " "))

    def _tell_inputs(self, inputs: Inputs) -> None:
        for event in loaded(inputs):
            self._write(event)
            self._progress.line(event.message)
        self._commit()

    def _count_energy(self) -> None:
        if self._meter is None:
            return
        try:
            self._counts.totals.sums[ENERGY] += self._meter.take()
        except OSError as error:  # a run does not end for want of a meter, and a part is not the sum
            self._meter = None
            self._counts.totals.sums.pop(ENERGY, None)
            self._write(Event(type="warning", message=f"energy is no longer measured: {error}"))

    def _end(self, status: str, code: str, message: str) -> Outcome:
        self._count_energy()
        totals = {**self._counts.totals.as_dict(), "seconds": self._counts.seconds()} if self._counted else {}
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
        if self.run_dir is not None:
            self.run_dir.append(outcome)
            self.run_dir.close()
        return outcome
