"""When a run is evaluated, what is recorded of it, and what follows from it: the best checkpoint, and early stopping.

An evaluation while training changes nothing of the training: it draws from random streams of its own
(`evaluate.task`), the global generators are put back, and no weight moves. Which steps are evaluated depends on the
clock alone where `eval.every` is empty, so nothing but the best checkpoint may depend on them then.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field

from grpo_core.config.evaluation import HELDOUT, LOSS
from grpo_core.config.kinds import AnyConfig
from grpo_core.config.reward_model import RewardModelConfig
from grpo_core.distributed.ranks import Ranks
from grpo_core.evaluate.task import Task, first_of, manner_of
from grpo_core.evaluate.text_report import Measured, during_line, interval, log_line, mean_score, measured_in
from grpo_core.model.load import LoadedModel
from grpo_core.records.types import EvalItem, Phase
from grpo_core.rollout.base import Rollout
from grpo_core.runtime.clock import timed
from grpo_core.runtime.fault_injection import fault
from grpo_core.runtime.watchdog import at
from grpo_core.stats.inferiority import HigherIs
from grpo_core.text import format_percent
from grpo_core.trainer.checkpoints.manager import CheckpointManager, set_random_state, take_random_state
from grpo_core.trainer.diagnosis import Diagnosis
from grpo_core.trainer.evaluation import Evaluation, evaluate_all
from grpo_core.trainer.heldout_loss import HeldoutLoss, MeasuredLoss
from grpo_core.trainer.metrics import Counts
from grpo_core.trainer.recorder import RunRecorder
from grpo_core.training.base import Training

Measure = Callable[[Phase, Sequence[Task], int, Mapping[str, Evaluation]], Iterator[Evaluation]]
"""Evaluates tasks after a step; those that are given by name are taken as they are."""


@dataclass(eq=False)
class Evaluator:
    """Of one run. With several ranks, every rank has one and makes the same calls."""

    config: AnyConfig
    tasks: Sequence[Task]
    """What is evaluated before and after training, in order."""
    _: KW_ONLY
    rollout: Rollout | None
    """Answers the tasks; None where `measure` needs no answers."""
    policy: LoadedModel
    training: Training
    checkpoints: CheckpointManager
    counts: Counts
    """The trainer's own."""
    steps: int
    """Planned."""
    recorder: RunRecorder
    ranks: Ranks
    check: Callable[[], None]
    """Called often while completions are judged; may raise to stop."""
    stop_if_asked: Callable[[], None]
    """Called by all ranks between two evaluations; may raise to stop."""
    diagnosis: Diagnosis | None = None
    """Of a kind of run that samples groups: what it says of the held-out answers is recorded."""
    heldout_loss: HeldoutLoss | None = None
    """Of a kind of run that learns given answers: measured with every evaluation."""
    measure: Measure | None = None
    """Evaluates the tasks in place of answering and judging them."""
    named_during: tuple[str, ...] | None = None
    """Names of the tasks that are evaluated while training; None: as config.eval has them."""
    pushed: dict[str, float] = field(default_factory=dict)
    """Metrics of sending the newest weights to the sampler, where an evaluation did that before the next step."""

    def __post_init__(self) -> None:
        limited = {task.name: first_of(task, self.config.eval.during_limit) for task in self.tasks}
        names = self.config.eval.during_suites if self.named_during is None else self.named_during
        self._during = [limited[name] for name in names if name in limited]
        self._newest: dict[str, Evaluation] = {}
        """Of the newest step that was evaluated while training, with all texts."""
        self._unwritten = False
        self._loss: tuple[int, MeasuredLoss] | None = None
        """The newest held-out loss, and the step that it was measured after."""

    # ------------------------------------------------------------------ before and after

    @property
    def problems(self) -> int:
        """Of all tasks."""
        return sum(len(task.prompts.prompts) for task in self.tasks)

    def evaluate(self, phase: Phase) -> None:
        """All tasks, each recorded as soon as it is done. What was answered after the last step is not asked again."""
        step = self.counts.steps
        ready = {} if phase == "before" else self._of_this_step(step)
        done: dict[str, Evaluation] = {}
        with self.training.whole():
            self._follow(step)
            for evaluation in self._evaluations(phase, self.tasks, step, ready):
                done[evaluation.result.suite] = evaluation
                self._write(evaluation)
                self.recorder.commit()
                self.recorder.progress.line(log_line(Measured(evaluation.result, evaluation.items)))
                if evaluation.result.suite != self.tasks[-1].name:
                    self.stop_if_asked()
        if phase == "before":
            self._start_from(done)
        elif self.diagnosis is not None and HELDOUT in done and self.recorder.run_dir is not None:
            before = measured_in(self.recorder.run_dir.path / "evals/before.jsonl")
            items = [item for own in before if own.result.suite == HELDOUT for item in own.items]
            if (event := self.diagnosis.heldout(items, done[HELDOUT].items)) is not None:
                self.recorder.event(event)

    def measure_loss(self, phase: Phase) -> None:
        """The held-out loss before training, or after it, recorded as an event. What was measured after the last step
        is not measured again."""
        step, known = self.counts.steps, self.checkpoints.evaluated
        measured = self._measured_loss(step)
        if phase == "before":
            if self.config.best_by == LOSS:
                self._compare(0, measured.loss)
            whole = known.newest is not None or not self._during
            newest = (known.newest or 0.0) + measured.seconds if whole else None
            self.checkpoints.evaluated = self.checkpoints.evaluated.model_copy(
                update={"loss_before": measured.loss, "newest": newest}
            )
        self.recorder.event(measured.event(phase, step))
        self.recorder.commit()

    def _measured_loss(self, step: int) -> MeasuredLoss:
        assert self.heldout_loss is not None
        if self._loss is None or self._loss[0] != step:
            with timed("evaluate"), self.training.whole():
                self._loss = step, self.heldout_loss.measure()
        return self._loss[1]

    @property
    def newest_loss(self) -> float | None:
        """The held-out loss that was measured last."""
        return None if self._loss is None else self._loss[1].loss

    def _of_this_step(self, step: int) -> dict[str, Evaluation]:
        """What was answered in full after `step`, as the evaluation after training."""
        whole = {task.name: len(task.prompts.prompts) for task in self.tasks}
        return {
            name: Evaluation(
                tuple(item.model_copy(update={"phase": "after"}) for item in newest.items),
                newest.result.model_copy(update={"phase": "after"}),
            )
            for name, newest in self._newest.items()
            if newest.result.step == step and newest.result.problems == whole[name]
        }

    def _start_from(self, before: dict[str, Evaluation]) -> None:
        """The evaluation before training is the first to compare with, and says what the next will take."""
        taken = 0.0
        for task in self._during:
            evaluation, problems = before[task.name], len(task.prompts.prompts)
            taken += evaluation.result.seconds * problems / evaluation.result.problems
            items = evaluation.items[:problems]
            if task.name == self.config.best_by:
                self._compare(0, _least_score(items, self.config.eval.higher_is(task.name)))
            self.counts.history = self.counts.history.evaluated_before(score_metrics(task.name, items))
        if self._during:
            self._remember(newest=taken)

    # ------------------------------------------------------------------ while training

    def during(self, step: int) -> dict[str, float]:
        """After the update of `step`, where an evaluation is due: its metrics, else none. `write` is to follow."""
        # One rank's clock decides, so that all do the same.
        watched = self._during or (self.heldout_loss is not None and self._while_training)
        if not watched or not self.ranks.any(self.ranks.main and self._due(step)):
            return {}
        at(f"step {step}", "evaluating")
        began, device = time.perf_counter(), self.policy.device
        random = take_random_state(device)
        evaluations: list[Evaluation] = []
        if self._during:
            with timed("evaluate"), self.training.whole():
                self.pushed = self._follow(step)
                evaluations = list(self._evaluations("during", self._during, step, {}))
        loss = self._measured_loss(step) if self.heldout_loss is not None else None
        set_random_state(random, device)
        fault(f"evaluated:{step}")
        taken = time.perf_counter() - began
        self._remember(seconds=self.checkpoints.evaluated.seconds + taken, newest=taken)
        self._newest = {evaluation.result.suite: evaluation for evaluation in evaluations}
        self._unwritten = True
        metrics: dict[str, float] = {}
        for name, evaluation in self._newest.items():
            metrics |= score_metrics(name, evaluation.items)
            score = _least_score(evaluation.items, self.config.eval.higher_is(name))
            best = name == self.config.best_by and self._compare(step, score)
            self.recorder.progress.line(f"step {step}: {during_line(name, evaluation.items, best=best)}")
        if loss is not None:
            metrics |= loss.metrics()
            best = self.config.best_by == LOSS and self._compare(step, loss.loss)
            self.recorder.progress.line(f"step {step}: {loss.text}{', the best so far' if best else ''}")
        return metrics

    def write(self) -> None:
        """Record what `during` gave last, once; without its texts."""
        if self._unwritten:
            for evaluation in self._newest.values():
                self._write(Evaluation(tuple(map(_without_texts, evaluation.items)), evaluation.result))
        self._unwritten = False

    @property
    def _while_training(self) -> bool:
        return self.config.eval.every is not None or self.config.eval.cost > 0

    def _due(self, step: int) -> bool:
        """At a fixed distance; else where the time of all of them, the next with it, stays within its share of the run,
        and after the last step, whose answers the evaluation after training takes over. Without a measurement, after
        the first step."""
        own, known = self.config.eval, self.checkpoints.evaluated
        if own.every is not None:
            return step % own.every == 0
        if known.newest is None or (own.after and step == self.steps):
            return True
        return known.seconds + known.newest <= own.cost * self.counts.seconds()

    # ------------------------------------------------------------------ what follows

    @property
    def exhausted(self) -> bool:
        """Whether so many evaluations as `eval.patience` in a row were not better."""
        patience = self.config.eval.patience
        return patience is not None and self.checkpoints.evaluated.since >= patience

    def early_stop_text(self) -> str:
        """Why the run ended before its last step, in a sentence."""
        best, own = self.checkpoints.best, self.config.eval
        assert best is not None, "patience counts from a best evaluation"
        what = {HELDOUT: "held-out problems", LOSS: "the held-out loss"}.get(best.by, best.by)

        def value(number: float) -> str:
            return f"{number:.4f}" if best.by == LOSS else format_percent(number)

        by = f" by more than {value(own.min_delta)}" if own.min_delta else ""
        return (
            f"Stopped early after {self.counts.steps} of {self.steps} steps by eval.patience: "
            f"{self.checkpoints.evaluated.since} evaluations of {what} in a row were not better{by}. The best was "
            f"{value(best.value)} after step {best.step}."
        )

    def _compare(self, step: int, score: float) -> bool:
        """Count this score of what decides; whether it is the best so far."""
        known, own = self.checkpoints.evaluated, self.config.eval
        sign = -1 if own.higher_is(self.config.best_by) == "worse" else 1
        if known.reference is None or sign * (score - known.reference) > own.min_delta:
            self._remember(reference=score, since=0)
        else:
            self._remember(since=known.since + 1)
        return self.checkpoints.evaluate(step, score)

    def _remember(self, **changed: float) -> None:
        self.checkpoints.evaluated = self.checkpoints.evaluated.model_copy(update=changed)

    # ------------------------------------------------------------------ both

    def _follow(self, step: int) -> dict[str, float]:
        return self.rollout.follow(step) if self.rollout is not None else {}

    def _evaluations(
        self, phase: Phase, tasks: Sequence[Task], step: int, ready: dict[str, Evaluation]
    ) -> Iterator[Evaluation]:
        if self.measure is not None:
            return self.measure(phase, tasks, step, ready)
        assert self.rollout is not None, "answers need a sampler"
        assert not isinstance(self.config, RewardModelConfig), "a reward model answers nothing"
        return evaluate_all(
            phase,
            tasks,
            step=step,
            rollout=self.rollout,
            policy=self.policy,
            manner=manner_of(self.config),
            ranks=self.ranks,
            ready=ready,
            progress=self.recorder.progress.advance if phase != "during" else lambda done, text: None,
            check=self.check,
        )

    def _write(self, evaluation: Evaluation) -> None:
        for item in evaluation.items:
            self.recorder.write(item)
        self.recorder.write(evaluation.result)


def score_metrics(suite: str, items: Sequence[EvalItem]) -> dict[str, float]:
    """`eval/<suite>/score` of the scored answers, left out where none was, with `low` and `high`."""
    around, score = interval(items), mean_score(items)
    bounds = {f"eval/{suite}/low": around.low, f"eval/{suite}/high": around.high}
    return bounds if score is None else {f"eval/{suite}/score": score, **bounds}


def _least_score(items: Sequence[EvalItem], higher_is: HigherIs) -> float:
    """Mean, 0 to 1, were every unscored answer the worst: a policy whose answers break the verifier is no better for
    that, and no checkpoint of it the best."""
    worst = 1.0 if higher_is == "worse" else 0.0
    return sum(item.score if item.error is None else worst for item in items) / len(items)


def _without_texts(item: EvalItem) -> EvalItem:
    return item.model_copy(update=dict.fromkeys(("prompt", "answer", "completion", "detail"), ""))
