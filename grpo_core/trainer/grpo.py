"""GRPO: the groups of a step are sampled and scored, the policy learns from them. With engine.one_step_off a step's
groups are sampled while the policy learns from the step before.

GRPO as in DeepSeekMath (arXiv 2402.03300); grpo_core/training/single.py and grpo_core/algo/ describe departures.
"""

from contextlib import ExitStack, closing
from dataclasses import dataclass, field

from grpo_core.config.run import RunConfig
from grpo_core.records.types import Manifest, StepMetrics
from grpo_core.rollout.base import Rollout
from grpo_core.rollout.make import make_rollout
from grpo_core.rollout.policy_snapshot import snapshot_for
from grpo_core.runtime.clock import timed
from grpo_core.runtime.fault_injection import fault
from grpo_core.runtime.watchdog import at
from grpo_core.text import format_duration, format_percent
from grpo_core.trainer.diagnosis import Diagnosis
from grpo_core.trainer.groups import step_groups
from grpo_core.trainer.learn import Learned, count_step, learn
from grpo_core.trainer.prefetch import RolloutPrefetcher
from grpo_core.trainer.recorder import traces
from grpo_core.trainer.rewarded import RewardedTrainer
from grpo_core.trainer.sampled import StepBatch
from grpo_core.trainer.sampling import GroupSampler
from grpo_core.trainer.tokens import TokenWriter
from grpo_core.training.make import make_training
from grpo_core.training.single import SingleTraining


@dataclass(eq=False)
class GrpoTrainer(RewardedTrainer[RunConfig]):
    """A GRPO run."""

    _training: SingleTraining = field(init=False)
    _rollout: Rollout = field(init=False)

    def _last_words(self) -> str:
        return self._diagnosis.last_words(self._checkpoints.good)

    def _stopping(self) -> None:
        self._prefetcher.close()

    def _set_up(self, manifest: Manifest, opened: ExitStack) -> None:
        config, ranks, inputs = self.config, self.ranks, self._inputs
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
        self._checkpoints = self._make_checkpoints(manifest, self._group_sampler)
        ends = inputs.policy.tokenizer.convert_ids_to_tokens(sorted(inputs.policy.eos_ids))
        self._diagnosis = Diagnosis(config, ", ".join(ends), self._counts, keep=self._checkpoints.keep_until)
        self._evaluator = self._make_evaluator(inputs.tasks, self._rollout, check, diagnosis=self._diagnosis)
        self._token_writer = TokenWriter(config, inputs.policy)

    def _step(self, step: int) -> None:
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
        if self.config.engine.one_step_off and step < self.steps:
            self._prefetcher.begin(lambda: self._group_sampler.prefetch(step + 1))
        with timed("update"):
            learned = learn(batch.kept, self.config, step=step, policy=self.policy, training=self._training)
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
