"""Training of a reward model: batches of pairs or scores, a step of the classifier on each.

The losses are those of grpo_core/algo/preference.py; what is measured on held-out pairs is in trainer/preferences.py.
"""

from collections import Counter
from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import dataclass, field

from grpo_core.config.reward_model import RewardModelConfig
from grpo_core.evaluate.preference_report import FACTS, in_words
from grpo_core.records.types import Event, Manifest, Record, StepMetrics
from grpo_core.runtime.clock import timed
from grpo_core.runtime.fault_injection import fault
from grpo_core.runtime.watchdog import at
from grpo_core.stats.preferences import preference_facts
from grpo_core.text import format_duration, format_percent
from grpo_core.trainer.manifest import build_manifest
from grpo_core.trainer.preferences import BatchSampler, HeldoutPairs, PreferenceInputs, load_preferences
from grpo_core.trainer.trainer import Trainer
from grpo_core.training.base import UpdateResult
from grpo_core.training.reward_model import RewardModelTraining


@dataclass(eq=False)
class RewardModelTrainer(Trainer[RewardModelConfig]):
    """A run that trains a reward model."""

    _inputs: PreferenceInputs = field(init=False)
    _training: RewardModelTraining = field(init=False)

    def _load(self, opened: ExitStack) -> None:
        self._inputs = load_preferences(self.config, base=self.base, device=self.ranks.device)
        self.policy = self._inputs.classifier.loaded

    def _manifest(self) -> Manifest:
        return build_manifest(
            self.config,
            self.policy,
            train=self._inputs.train_facts,
            heldout=self._inputs.heldout_facts,
            suites={},
            overlap=None,
            ranks=self.ranks.world,
            reward={},
            sandbox=None,
        )

    def _set_up(self, manifest: Manifest, opened: ExitStack) -> None:
        self._training = RewardModelTraining(self.policy, self.config, check=self._check_inside)
        self._sampler = BatchSampler(self.config, self._inputs)
        self._checkpoints = self._make_checkpoints(manifest, self._sampler)
        self._heldout = HeldoutPairs(self.config, self._inputs, self._training, self.progress.advance)
        self._evaluator = self._make_evaluator(
            self._heldout.tasks(),
            None,
            self._check_inside,
            measure=self._heldout.evaluations,
            during=self.config.during_suites,
        )

    def _loaded(self) -> Iterable[Event]:
        inputs, pairs = self._inputs, self.config.objective == "bradley_terry"
        noun = "pairs" if pairs else "scored completions"
        text = f"{self.policy.source.given}: {self.policy.parameters():,} parameters; {len(inputs.train):,} {noun}"
        if inputs.heldout:
            text += f", {len(inputs.heldout):,} held out"
        yield Event(type="loaded", message=text)
        head = inputs.classifier.new_head
        begins = (
            f"the head is new: {head}, drawn from seed {self.config.seed}"
            if head is not None
            else "training goes on from a reward model; its head is kept"
        )
        yield Event(type="model", message=begins)
        for what, ids in inputs.dropped.items():
            if ids:
                message = f"{len(ids)} {what} rows were dropped: a text over data.max_tokens"
                yield Event(type="data", message=message, data={"dropped": ids[:100]})
        if earlier := sum(bool(row.preference.problem.messages) for row in inputs.train):
            yield Event(
                type="prompts",
                message=f"{earlier} of {len(inputs.train)} rows are conversations of several turns, of which the "
                "user's last one is read, as when the reward scores; write all that is to be read into 'prompt'",
            )
        facts = inputs.heldout_facts
        if facts is not None and (both := facts["rows_with_a_training_prompt"]):
            yield Event(
                type="data",
                message=f"{both} of {facts['problems']} held-out rows have a prompt that is trained on too, so "
                "accuracy on them says little about new prompts; hold out whole prompts",
            )
        if inputs.replay:
            share = self.config.data.replay_share
            message = f"{format_percent(share)} of the rows are replayed, from {len(inputs.replay):,} earlier ones"
            yield Event(type="data", message=message)

    def _finished(self) -> Iterable[Record]:
        if not self._inputs.pairs:
            return
        with self._training.whole():
            pairs, rewards, loss = self._heldout.measured()
        facts = {**preference_facts(pairs, rewards), "step": self._counts.steps, "loss": loss}
        yield Event(type=FACTS, message=in_words(facts), data=facts)

    def _last_words(self) -> str:
        sums = self._counts.totals()
        return f"Trained on {sums['tokens']:,.0f} tokens in {self._counts.steps} steps."

    # ------------------------------------------------------------------ one step

    def _step(self, step: int) -> None:
        fault(f"step:{step}")
        at(f"step {step}", "step")
        rows = self._sampler.draw()
        fault(f"sampled:{step}")
        with timed("update"):
            learned = self._training.update(rows, step=step)
        fault(f"updated:{step}")
        measured = self._evaluator.during(step)
        if measured:
            measured["eval/loss"] = self._heldout.loss()
        self._record(step, learned, measured, texts=sum(len(row.texts) for row in rows))
        fault(f"recorded:{step}")
        self._checkpoints.after(step, None, last=self._evaluator.exhausted)

    def _record(self, step: int, learned: UpdateResult, measured: dict[str, float], *, texts: int) -> None:
        """Write the step's metrics, make them durable, show a line."""
        seconds = self._clock.take()
        self._recorder.count_energy()
        self._counts.add(Counter(samples=texts, tokens=learned.tokens))
        trained = seconds["total"] - seconds.get("evaluate", 0.0)
        metrics = learned.metrics | measured
        metrics |= {"epoch": self._sampler.epoch, "num_tokens": self._counts.totals()["tokens"]}
        metrics["samples_per_second"] = texts / trained
        metrics |= self._telemetry.take(seconds, sampled=0, learned=learned.tokens)
        self._recorder.write(StepMetrics(step=step, metrics=metrics, seconds=seconds))
        self._estimated.step(trained, metrics["memory/peak_bytes"])
        self._evaluator.write()
        self._recorder.commit()
        self._counts.steps = step
        right = metrics.get("rewards/accuracies")
        ranked = f" · {format_percent(right)} ranked right" if right is not None else ""
        self.progress.advance(step, f"loss {metrics['loss']:.3f}{ranked} · {format_duration(trained)}/step")

    def _check_inside(self) -> None:
        """Inside a step: stop at once, unless weights have moved and the step before is in no checkpoint."""
        if self._training.changed_in > self._counts.steps and self._checkpoints.behind:
            return
        self.check()
