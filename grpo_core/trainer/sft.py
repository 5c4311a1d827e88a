"""Supervised fine-tuning: a step takes the next conversations of the file and raises the likelihood of their answers.
Distillation is the same on what a larger model answered.

The update is GRPO's (training/single.py) on given answers, each with advantage 1: cross-entropy, mean over the answer
tokens of the whole step, however it is cut into micro-batches and ranks.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field

from grpo_core.config.sft import SftConfig
from grpo_core.data.answers import AnswerRow, EncodedConversation
from grpo_core.records.types import Event, Manifest, StepMetrics
from grpo_core.rollout.base import Rollout
from grpo_core.rollout.local import LocalRollout
from grpo_core.rollout.make import make_rollout
from grpo_core.runtime.clock import timed
from grpo_core.runtime.fault_injection import fault
from grpo_core.runtime.watchdog import at
from grpo_core.text import format_duration
from grpo_core.trainer.heldout_loss import HeldoutLoss
from grpo_core.trainer.manifest import HELDOUT_CONVERSATIONS, build_manifest
from grpo_core.trainer.row_order import RowOrder
from grpo_core.trainer.sft_inputs import SftInputs, load_sft_inputs, loaded_events
from grpo_core.trainer.trainer import Trainer
from grpo_core.training.base import TrainRow, UpdateResult
from grpo_core.training.make import make_training
from grpo_core.training.single import SingleTraining


@dataclass(eq=False)
class SftTrainer(Trainer[SftConfig]):
    """A run of kind sft or distill."""

    _inputs: SftInputs = field(init=False)
    _training: SingleTraining = field(init=False)
    _order: RowOrder = field(init=False)

    def _load(self, opened: ExitStack) -> None:
        inputs = self.ranks.together(lambda: load_sft_inputs(self.config, base=self.base, device=self.ranks.device))
        self._inputs, self.policy = inputs, inputs.policy
        if inputs.runner is not None:
            opened.enter_context(inputs.runner)

    def _manifest(self) -> Manifest:
        inputs = self._inputs
        more = {HELDOUT_CONVERSATIONS: inputs.heldout_facts, "sampled_by": inputs.sampled_by}
        return build_manifest(
            self.config,
            inputs.policy,
            train=inputs.train_facts,
            heldout=inputs.problem_facts,
            suites=inputs.suite_facts,
            overlap=self.ranks.together(lambda: inputs.overlap() if self.run_dir is not None else None),
            ranks=self.ranks.world,
            reward=inputs.runner.facts() if inputs.runner is not None else {},
            sandbox=inputs.runner.sandbox() if inputs.runner is not None else None,
            more_data={name: facts for name, facts in more.items() if facts is not None},
        )

    def _loaded(self) -> Iterable[Event]:
        return loaded_events(self._inputs, self.config)

    def _set_up(self, manifest: Manifest, opened: ExitStack) -> None:
        config, ranks, inputs = self.config, self.ranks, self._inputs
        # Ranks wait for each other, so none may stop alone: with several, all agree between steps.
        check = self._check_inside if ranks.world == 1 else lambda: None
        self._training = make_training(config, inputs.policy, reference=None, critic=None, ranks=ranks, check=check)
        self._order = RowOrder(len(inputs.train.conversations), config.seed)
        self._checkpoints = self._make_checkpoints(manifest, self._order)
        heldout_loss = None
        if inputs.heldout is not None:
            conversations = inputs.heldout.conversations
            rows = train_rows(conversations)
            heldout_loss = HeldoutLoss(rows, len(conversations), config, inputs.policy, ranks, check)
        self._evaluator = self._make_evaluator(inputs.tasks, self._rollout(opened), check, heldout_loss=heldout_loss)

    def _rollout(self, opened: ExitStack) -> Rollout:
        """Samples for evaluations; without any nothing is started."""
        config, check = self.config, self._check_inside if self.ranks.world == 1 else lambda: None
        if not self._inputs.tasks:
            return LocalRollout(self.policy, max_rows=config.engine.rollout_batch, check=check)
        rollout = make_rollout(
            config,
            self.policy,
            ranks=self.ranks,
            check=check,
            positions=self._inputs.positions(),
            folder=self.run_dir.path if self.run_dir is not None else None,
            log=self.progress.line,
        )
        return opened.enter_context(closing(rollout))

    # ------------------------------------------------------------------ one step

    def _step(self, step: int) -> None:
        fault(f"step:{step}")
        at(f"step {step}", "step")
        indices = self._order.draw(self.config.optim.batch_size)
        batch = [self._inputs.train.conversations[index] for index in indices]
        if self.ranks.world > 1:
            self._stop_if_asked()
        fault(f"sampled:{step}")
        with timed("update"):
            result = self._training.update(train_rows(batch), step=step)
        fault(f"updated:{step}")
        metrics = result.metrics | self._evaluator.during(step)
        self._evaluator.pushed = {}
        self._record(step, batch, result, metrics)
        fault(f"recorded:{step}")
        self._checkpoints.after(step, None, last=self._evaluator.exhausted)

    def _record(
        self, step: int, batch: Sequence[EncodedConversation], result: UpdateResult, metrics: dict[str, float]
    ) -> None:
        """Write the step's metrics, make them durable, show a line."""
        seconds = self._clock.take()
        sums = {
            "samples": len(batch),
            "tokens": sum(own.tokens for own in batch),
            "completion_tokens": sum(own.answer_tokens for own in batch),
        }
        self._counts.add(Counter(sums))
        self._recorder.count_energy()
        trained = seconds["total"] - seconds.get("evaluate", 0.0)
        metrics["num_tokens"] = float(self._counts.sums["tokens"])
        metrics["epoch"] = self._order.epoch
        metrics["samples_per_second"] = len(batch) / trained
        metrics |= self._telemetry.take(seconds, sampled=0, learned=result.tokens)
        self._recorder.write(StepMetrics(step=step, metrics=metrics, seconds=seconds))
        self._estimated.step(trained, metrics["memory/peak_bytes"])
        self._evaluator.write()
        self._recorder.commit()
        self._counts.steps = step
        text = f"loss {metrics['loss']:.4f} · {metrics['mean_token_accuracy']:.1%} of tokens right"
        self.progress.advance(step, f"{text} · epoch {self._order.epoch:.2f} · {format_duration(trained)}/step")

    # ------------------------------------------------------------------ at the end

    def _more_totals(self) -> dict[str, float]:
        if self._counts.steps == 0:  # it may have failed before anything was loaded
            return {}
        losses = self._losses()
        totals = {"epochs": self._order.epoch, "heldout_loss_before": losses[0], "heldout_loss_after": losses[1]}
        return {name: value for name, value in totals.items() if value is not None}

    def _losses(self) -> tuple[float | None, float | None]:
        """The held-out loss before training, and the newest."""
        if self._inputs.heldout is None:
            return None, None
        return self._checkpoints.evaluated.loss_before, self._evaluator.newest_loss

    def _last_words(self) -> str:
        steps = f"{self._counts.steps:,} step{'' if self._counts.steps == 1 else 's'}"
        text = f"Finished {steps}, {self._order.epoch:.2f} epochs"
        before, after = self._losses()
        if before is not None and after is not None:
            text += f"; held-out loss {before:.4f} before, {after:.4f} after"
            if after > before:
                text += ". It rose: the run learned its conversations and not what others have in common with them"
        return f"{text}."


def train_rows(conversations: Sequence[EncodedConversation]) -> list[TrainRow]:
    """As the update sees them: advantage 1 at every token of an answer."""
    return [_train_row(row, group) for group, own in enumerate(conversations) for row in own.rows]


def _train_row(row: AnswerRow, group: int) -> TrainRow:
    if row.learned is None:
        return TrainRow(row.prompt, row.completion, 1.0, True, group)
    advantage = [float(learned) for learned in row.learned]
    return TrainRow(row.prompt, row.completion, advantage, True, group, counted=row.answer_tokens)
