"""The training loop: load, evaluate, (draw, sample, score, learn, record) × steps, save, evaluate, say how it ended.

GRPO as in DeepSeekMath (arXiv 2402.03300); departures are told where they are made: grpo_core/training/single.py and
grpo_core/algo/. Knows nothing of the platform: it reads a config and writes a run directory.
"""

import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import torch

from grpo_core.algo.advantages import group_advantages
from grpo_core.checkpoint import save_checkpoint
from grpo_core.config import RunConfig
from grpo_core.errors import GrpoError, Interrupted, RewardError
from grpo_core.evaluate.loop import evaluate
from grpo_core.inputs import Inputs, load_inputs
from grpo_core.manifest import build_manifest
from grpo_core.metrics import ScoredGroup, Totals, group_metrics, mean_entropy
from grpo_core.progress import Progress
from grpo_core.records import Event, Group, Outcome, Phase, PhaseStarted, Sample, StepMetrics
from grpo_core.rewards.rubric import Scored
from grpo_core.rollout.base import Completion, Decoding
from grpo_core.rollout.local import LocalRollout
from grpo_core.rollout.prompts import Prompted, completion_text
from grpo_core.run_dir import RunDir
from grpo_core.training.base import TrainRow
from grpo_core.training.single import SingleTraining

# Names of the run's random streams, so that no two draw the same numbers.
_ORDER, _SAMPLING, _TRACES = 0, 1, 3  # 2 is the evaluation's


class Trainer:
    """One run, from its config to its outcome."""

    def __init__(
        self,
        config: RunConfig,
        run_dir: RunDir,
        *,
        base: Path,
        progress: Progress,
        check: Callable[[], None] = lambda: None,
    ) -> None:
        """`base`: folder that relative paths of the config start from. `check` is called often and may raise
        Interrupted to end the run."""
        self.config = config
        self.run_dir = run_dir
        self._base = base
        self._progress = progress
        self._check = check
        self._totals = Totals()
        self._steps_done = 0
        self._checkpoint: str | None = None
        self._began = time.perf_counter()

    def run(self) -> Outcome:
        """Do everything. An error is recorded as the run's outcome and raised again."""
        try:
            self._run()
        except Interrupted as stop:
            self._end("cancelled", stop.code, f"Stopped after {self._steps_done} steps: {stop}")
            raise
        except GrpoError as error:
            self._end("failed", error.code, str(error))
            raise
        except Exception as error:
            self._progress.line(traceback.format_exc())
            self._end("failed", "internal_error", f"{type(error).__name__}: {error} (a defect; the log has the trace)")
            raise
        return self._end("finished", "ok", self._summary())

    # ------------------------------------------------------------------ the loop

    def _run(self) -> None:
        config = self.config
        if config.engine.threads is not None:
            torch.set_num_threads(config.engine.threads)
        self._phase("loading")
        inputs = load_inputs(config, base=self._base)
        self.run_dir.append(
            build_manifest(config, inputs.policy, train=inputs.train_facts, heldout=inputs.heldout_facts)
        )
        self._tell_inputs(inputs)
        self._rollout = LocalRollout(inputs.policy, max_rows=config.engine.rollout_batch, check=self._check)
        training = SingleTraining(inputs.policy, inputs.reference, config, check=self._check)

        if config.eval.before:
            self._evaluate("before", inputs)
        self._phase("training", config.optim.steps)
        order = prompt_order(len(inputs.train.prompts), config.seed)
        for step in range(1, config.optim.steps + 1):
            began = time.perf_counter()
            drawn = [inputs.train.prompts[next(order)] for _ in range(config.sampling.prompts_per_step)]
            completions = self._sample(drawn, step)
            sampled = time.perf_counter()
            texts = [
                [completion_text(inputs.policy.tokenizer, c.tokens, inputs.policy.eos_ids) for c in group]
                for group in completions
            ]
            scores = [
                [inputs.rubric.score(prompted.problem, text) for text in group]
                for prompted, group in zip(drawn, texts, strict=True)
            ]
            scored = time.perf_counter()
            groups = self._groups(step, drawn, completions, texts, scores)
            metrics = training.update(_train_rows(drawn, completions, groups), step=step)
            ended = time.perf_counter()
            seconds = {
                "rollout": sampled - began,
                "reward": scored - sampled,
                "update": ended - scored,
                "total": ended - began,
            }
            self._record(step, drawn, completions, groups, metrics, seconds)

        if config.eval.after:
            self._evaluate("after", inputs)
        if config.checkpoints.final:
            self._phase("saving")
            folder = self.run_dir.checkpoint_folder("final")
            saved = save_checkpoint(
                folder, inputs.policy, step=self._steps_done, run_folder=self.run_dir.path, final=True
            )
            self.run_dir.append(saved)
            self._checkpoint = saved.path

    def _sample(self, drawn: list[Prompted], step: int) -> list[list[Completion]]:
        sampling = self.config.sampling
        return self._rollout.generate(
            [prompted.tokens for prompted in drawn],
            samples=sampling.group_size,
            decoding=Decoding(
                max_tokens=sampling.max_completion_tokens,
                temperature=sampling.temperature,
                top_p=sampling.top_p,
                top_k=sampling.top_k,
            ),
            key=(self.config.seed, _SAMPLING, step),
        )

    def _groups(
        self,
        step: int,
        drawn: list[Prompted],
        completions: list[list[Completion]],
        texts: list[list[str]],
        scores: list[list[Scored]],
    ) -> list[Group]:
        """Advantages of the step's groups, and the groups as records. Raises RewardError when nothing was scored."""
        algorithm = self.config.algorithm
        rewards = [[score.reward for score in group] for group in scores]
        if all(reward is None for group in rewards for reward in group):
            first = next(c.error for c in scores[0][0].components.values() if c.error is not None)
            raise RewardError(f"step {step}: no completion could be scored; the first failed with {first}")
        result = group_advantages(
            torch.tensor([[0.0 if r is None else r for r in group] for group in rewards], dtype=torch.float64),
            torch.tensor([[r is not None for r in group] for group in rewards]),
            scale=algorithm.scale,
            ddof=algorithm.std_ddof,
            eps=algorithm.advantage_eps,
        )
        groups = []
        for index, prompted in enumerate(drawn):
            samples = tuple(
                Sample(
                    index=place,
                    completion=text,
                    tokens=len(completion.tokens),
                    finish_reason=completion.finish,
                    reward=score.reward,
                    components=score.components,
                    advantage=advantage,
                    mask_cause="reward_error" if score.reward is None else None,
                    logprob_mean=sum(completion.logprobs) / len(completion.logprobs),
                )
                for place, (text, completion, score, advantage) in enumerate(
                    zip(
                        texts[index],
                        completions[index],
                        scores[index],
                        result.advantages_PG[index].tolist(),
                        strict=True,
                    )
                )
            )
            groups.append(
                Group(
                    step=step,
                    index=index,
                    problem_id=prompted.problem.id,
                    prompt=prompted.text,
                    answer=prompted.problem.answer,
                    reward_mean=_number(result.mean_P[index]),
                    reward_std=_number(result.std_P[index]),
                    signal=result.signals[index],
                    samples=samples,
                )
            )
        return groups

    def _record(
        self,
        step: int,
        drawn: list[Prompted],
        completions: list[list[Completion]],
        groups: list[Group],
        metrics: dict[str, float],
        seconds: dict[str, float],
    ) -> None:
        """Write the step's metrics and kept groups, make them durable, tell the person."""
        flat = [completion for group in completions for completion in group]
        lengths = [len(completion.tokens) for completion in flat]
        prompt_tokens = sum(len(prompted.tokens) for prompted in drawn) * self.config.sampling.group_size
        counted = [ScoredGroup(group.signal, group.reward_std, group.samples) for group in groups]
        self._totals.add(counted, tokens=sum(lengths) + prompt_tokens)
        told = group_metrics(counted, success=self.config.success_component, ddof=self.config.algorithm.std_ddof)
        told |= metrics
        if (entropy := mean_entropy([completion.entropy for completion in flat], lengths)) is not None:
            told["entropy"] = entropy
        told["num_tokens"] = self._totals.as_dict()["tokens"]
        told["samples_per_second"] = len(flat) / seconds["total"]
        self.run_dir.append(StepMetrics(step=step, metrics=told, seconds=seconds))
        for index in kept_groups(len(groups), self.config.traces.groups_per_step, self.config.seed, step):
            self.run_dir.append(groups[index])
        self.run_dir.commit()
        self._steps_done = step
        reward = f"reward {told['reward']:.3f}" if "reward" in told else "nothing scored"
        dead = f"no signal in {told['frac_reward_zero_std']:.0%} of groups"
        self._progress.advance(step, f"{reward} · {dead} · {seconds['total']:.1f} s/step")

    # ------------------------------------------------------------------ around it

    def _evaluate(self, phase: Phase, inputs: Inputs) -> None:
        if inputs.heldout is None:
            return
        self._phase("evaluating_before" if phase == "before" else "evaluating_after", len(inputs.heldout.prompts))
        evaluation = evaluate(
            phase,
            inputs.heldout,
            rollout=self._rollout,
            policy=inputs.policy,
            rubric=inputs.rubric,
            config=self.config,
            progress=lambda done: self._progress.advance(done, "problems answered"),
        )
        for item in evaluation.items:
            self.run_dir.append(item)
        self.run_dir.append(evaluation.result)
        self.run_dir.commit()
        result = evaluation.result
        self._progress.line(
            f"accuracy {phase}: {result.correct:g} of {result.problems} "
            f"({result.correct / result.problems:.1%}; {result.truncated} truncated, {result.errors} errors)"
        )

    def _phase(self, phase: str, total: int | None = None) -> None:
        self._check()
        self.run_dir.append(PhaseStarted.model_validate({"phase": phase, "total": total}))
        self.run_dir.commit()
        self._progress.begin("step" if phase == "training" else phase, total or 0)
        if phase != "training":
            self._progress.line(phase.replace("_", " "))

    def _tell_inputs(self, inputs: Inputs) -> None:
        parameters = inputs.policy.parameters()
        text = f"{inputs.policy.source.given}: {parameters:,} parameters; {len(inputs.train.prompts):,} problems"
        if inputs.heldout is not None:
            text += f", {len(inputs.heldout.prompts):,} held out"
        self.run_dir.append(Event(type="loaded", message=text))
        for encoded, what in ((inputs.train, "training"), (inputs.heldout, "held-out")):
            if encoded is not None and encoded.dropped:
                message = f"{len(encoded.dropped)} {what} problems were dropped: prompt over data.max_prompt_tokens"
                self.run_dir.append(Event(type="data", message=message, data={"dropped": list(encoded.dropped[:100])}))
                self._progress.line(message)
        self.run_dir.commit()
        self._progress.line(text)

    def _summary(self) -> str:
        totals = self._totals.as_dict()
        groups, mixed = int(totals["groups"]), int(totals["groups_mixed"])
        if mixed == 0:
            return (
                f"No group carried a signal: the rewards of a group were equal in every one of {groups} groups; "
                "the policy was not changed by rewards. Use easier problems, a reward with more steps between 0 and "
                "full, or a base model that sometimes succeeds."
            )
        return f"Finished {self._steps_done} steps; {mixed} of {groups} groups carried a signal."

    def _end(self, status: str, code: str, message: str) -> Outcome:
        outcome = Outcome.model_validate(
            {
                "status": status,
                "code": code,
                "message": message,
                "steps_done": self._steps_done,
                "steps_planned": self.config.optim.steps,
                "totals": {**self._totals.as_dict(), "seconds": time.perf_counter() - self._began},
                "final_checkpoint": self._checkpoint,
            }
        )
        self.run_dir.append(outcome)
        self.run_dir.close()
        return outcome


def prompt_order(count: int, seed: int) -> Iterator[int]:
    """Places of problems, for ever: each epoch is a new shuffle of all of them."""
    epoch = 0
    while True:
        yield from np.random.default_rng([seed, _ORDER, epoch]).permutation(count).tolist()
        epoch += 1


def kept_groups(count: int, keep: int, seed: int, step: int) -> list[int]:
    """Which of a step's groups are kept with their texts: a draw by seed, in order of place."""
    if keep >= count:
        return list(range(count))
    return sorted(np.random.default_rng([seed, _TRACES, step]).choice(count, keep, replace=False).tolist())


def _train_rows(drawn: list[Prompted], completions: list[list[Completion]], groups: list[Group]) -> list[TrainRow]:
    return [
        TrainRow(prompted.tokens, completion.tokens, sample.advantage, used=sample.mask_cause is None)
        for prompted, row, group in zip(drawn, completions, groups, strict=True)
        for completion, sample in zip(row, group.samples, strict=True)
    ]


def _number(value: torch.Tensor) -> float | None:
    number = float(value)
    return None if number != number else number
