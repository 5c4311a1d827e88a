"""Rejection sampling: every problem once, its completions scored, those that the filters keep written as a dataset.

No weight changes. Problems come in the order of their file, so that rows do. DeepSeek-R1 (arXiv 2501.12948), section
2.3.3, makes its fine-tuning data so. The filters are in grpo_core/data/rejection.py, the files in
grpo_core/files/dataset.py.
"""

from collections import Counter
from collections.abc import Iterable
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from typing import ClassVar, Literal

from grpo_core.config.sample import SampleConfig
from grpo_core.data.rejection import Choice, choose, in_order, nothing_kept, summary
from grpo_core.data.sampled_rows import CONTENT, rows_of
from grpo_core.errors import DataError, NothingKept
from grpo_core.files.dataset import FOLDER, ROWS, SampledFacts, digest_of, write_dataset
from grpo_core.model.source import files_digest, inputs_of_model
from grpo_core.records.types import Event, Manifest, Record, SampledDataset, StepMetrics
from grpo_core.rollout.base import Rollout
from grpo_core.rollout.make import make_rollout
from grpo_core.runtime.clock import timed
from grpo_core.runtime.fault_injection import fault
from grpo_core.runtime.watchdog import at
from grpo_core.text import format_duration, format_percent
from grpo_core.trainer.groups import StepGroups, step_groups
from grpo_core.trainer.inputs import Inputs
from grpo_core.trainer.learn import Learned, count_step
from grpo_core.trainer.metrics import KEPT, WITH_ROWS
from grpo_core.trainer.recorder import traces
from grpo_core.trainer.rewarded import RewardedTrainer
from grpo_core.trainer.sampled import SampledGroup, StepBatch
from grpo_core.trainer.sampling import GroupSampler
from grpo_core.training.none import NoTraining

_NOTHING_LEARNED = Learned(None, {}, {}, 0)


@dataclass(eq=False)
class SampleTrainer(RewardedTrainer[SampleConfig]):
    """A run of kind `sample`."""

    training_phase: ClassVar[Literal["training", "sampling"]] = "sampling"
    learning: ClassVar[bool] = False

    _training: NoTraining = field(init=False)
    _rollout: Rollout = field(init=False)
    _made: Manifest = field(init=False)

    def _use(self, inputs: Inputs, opened: ExitStack) -> None:
        super()._use(inputs, opened)
        self.steps = self.config.steps_for(len(inputs.train.prompts))

    def _set_up(self, manifest: Manifest, opened: ExitStack) -> None:
        config, ranks, inputs = self.config, self.ranks, self._inputs
        check = self.check if ranks.world == 1 else lambda: None  # ranks wait for each other: none may stop alone
        self._made, self._training = manifest, NoTraining()
        self._reader = inputs.policy.encoder(config.data.model_copy(update={"prefill": ""}))
        rollout = make_rollout(
            config,
            inputs.policy,
            ranks=ranks,
            check=check,
            positions=inputs.positions(config),
            folder=self.run_dir.path if self.run_dir is not None else None,
            log=self.progress.line,
        )
        self._rollout = opened.enter_context(closing(rollout))
        self._sampler = GroupSampler(
            config,
            inputs.train.prompts,
            rollout=self._rollout,
            policy=inputs.policy,
            runner=inputs.runner,
            ranks=ranks,
            check=check,
            once=True,
        )
        self._checkpoints = self._make_checkpoints(manifest, self._sampler)
        self._evaluator = self._make_evaluator((), self._rollout, check)

    def _step(self, step: int) -> None:
        fault(f"step:{step}")
        at(f"step {step}", "step")
        with timed("sample"):
            self._rollout.follow(0)
        batch = self._sampler.draw(step)
        if self.ranks.world > 1:
            self._stop_if_asked()
        fault(f"sampled:{step}")
        groups = step_groups(batch, None, self.config, step=step)
        choices = [choose(group, self.config) for group in groups.trained]
        self._keep(step, batch, groups, choices)
        fault(f"updated:{step}")
        reward = self._record(step, batch, groups, choices)
        fault(f"recorded:{step}")
        self._checkpoints.after(step, reward)

    def _keep(self, step: int, batch: StepBatch, groups: StepGroups, choices: list[Choice]) -> None:
        """Add the rows of what was chosen."""
        lines: list[bytes] = []
        other_tokens = 0
        for sampled, group, choice in zip(batch.kept, groups.trained, choices, strict=True):
            lines += rows_of(group, sampled.prompted.problem, choice, self.config)
            other_tokens += sum(not self._as_sampled(sampled, sample.index) for sample in choice.kept)
        self._training.add(lines, other_tokens=other_tokens, step=step)

    def _as_sampled(self, sampled: SampledGroup, index: int) -> bool:
        """Whether fine-tuning on the row reads the tokens that were sampled, but for what ends them."""
        prompted, completion = sampled.prompted, sampled.completions[index]
        ends = self.policy.eos_ids
        end = completion.tokens[-1] if completion.tokens[-1] in ends else min(ends, default=self.policy.pad_id)
        try:
            prompt = self._reader.encode(prompted.problem)
            answer = self._reader.encode_answer(prompt, self.config.data.prefill + sampled.texts[index], end=end)
        except DataError:
            return False
        read, own = [*prompt.tokens, *answer.tokens], [*prompted.tokens, *completion.tokens]
        return [*read[:-1], end] == [*(own[:-1] if own[-1] in ends else own), end]

    def _record(self, step: int, batch: StepBatch, groups: StepGroups, choices: list[Choice]) -> float | None:
        """Write the step's metrics and kept traces, make them durable, show a line. Returns the mean reward."""
        counts = sum((choice.counts for choice in choices), Counter[str]())
        self._counts.add_filtered(counts, problems=sum(bool(choice.kept) for choice in choices))
        self._recorder.count_energy()
        seconds = self._clock.take()
        metrics = count_step(self._counts, step, groups, batch, _NOTHING_LEARNED, self.config)
        metrics |= {"dataset/kept": counts[KEPT] / counts.total(), "dataset/rows": float(len(self._training.rows))}
        metrics["samples_per_second"] = len(batch.completions) / seconds["total"]
        metrics |= self._telemetry.take(seconds, sampled=batch.completion_tokens, learned=0)
        self._recorder.write(StepMetrics(step=step, metrics=metrics, seconds=seconds))
        self._estimated.step(seconds["total"], metrics["memory/peak_bytes"])
        if self.run_dir is not None:
            for trace in traces(step, groups.trained, [], [], self.config):
                self._recorder.write(trace)
        self._recorder.commit()
        self._counts.steps = step
        reward = f"reward {metrics['reward']:.3f}" if "reward" in metrics else "nothing scored"
        kept = f"kept {format_percent(metrics['dataset/kept'])}"
        self.progress.advance(step, f"{reward} · {kept} · {format_duration(seconds['total'])}/step")
        return metrics.get("reward")

    # ------------------------------------------------------------------ the dataset

    def _finished(self) -> Iterable[Record]:
        yield from super()._finished()
        counts = self._counts.filtered()
        yield Event(type="filters", message=summary(counts), data={"counts": in_order(counts)})
        if not self._training.rows:
            raise NothingKept(nothing_kept(counts))
        written = self.ranks.together(self._write)
        if written is not None:
            yield written

    def _write(self) -> SampledDataset | None:
        if self.run_dir is None:
            return None
        fault("dataset:writing")
        written = write_dataset(self.run_dir.path, self._training.rows, self._facts())
        fault("dataset:written")
        return written

    def _facts(self) -> SampledFacts:
        config, manifest, rows = self.config, self._made, self._training.rows
        train = manifest.data["train"]
        return SampledFacts.model_validate(
            {
                "run": config.name,
                "config_digest": manifest.config_digest,
                "content": CONTENT[config.rows],
                "rows_are": config.rows,
                "rows": len(rows),
                "sha256": digest_of(rows),
                "problems": self._counts.sums[WITH_ROWS],
                "problems_sampled": len(self._inputs.train.prompts),
                "counts": in_order(self._counts.filtered()),
                "other_tokens": self._training.other_tokens,
                "model": {
                    **{name: manifest.model[name] for name in ("source", "revision", "architecture", "parameters")},
                    "sha256": files_digest(inputs_of_model(manifest.model)),
                },
                "reward_digest": self._inputs.runner.rubric.digest,
                "data": {
                    "path": config.data.path,
                    "sha256": train["sha256"],
                    "problems_digest": train["problems_digest"],
                },
                "prompt": {"template": config.data.template, **train["chat"]},
                "sampling": config.sampling.model_dump(mode="json"),
                "filter": config.filter.model_dump(mode="json"),
                "seed": config.seed,
            }
        )

    def _last_words(self) -> str:
        rows = len(self._training.rows)
        return f"{summary(self._counts.filtered())} {rows:,} rows ({self.config.rows}) are in {FOLDER}/{ROWS}."
