"""Completions of a base model for a job of the lab, a batch of whole groups at a time, as a run's step samples them.
Loads torch only when it samples."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from grpo_core.data.problem import Problem
from grpo_core.errors import ConfigError
from grpo_core.lab.job import JobModel, SampleOptions
from grpo_core.lab.models import job_model, rows_at_once, use_threads
from grpo_core.rewards.base import ScoreRequest
from grpo_core.runtime.progress import Progress


@dataclass(frozen=True)
class SampledText:
    """One completion."""

    group: int
    """Its problem's index, from 0."""
    prompted: str
    """The prompt as the policy saw it."""
    finish: Any
    request: ScoreRequest


@dataclass(frozen=True)
class Sampler:
    """A loaded model with the prompts that it can answer."""

    policy: Any
    prompts: Sequence[Any]
    left_out: int
    """Problems whose prompt is too long for the model."""
    options: SampleOptions

    def batches(self, *, progress: Progress, check: Callable[[], None]) -> Iterator[tuple[int, list[SampledText]]]:
        """(problems answered so far, the completions of a few problems), of `group_size` each."""
        from grpo_core.data.prompts import completion_text
        from grpo_core.rollout.base import Decoding
        from grpo_core.rollout.local import LocalRollout

        policy, options, rows = self.policy, self.options, rows_at_once(self.policy)
        rollout = LocalRollout(policy, max_rows=rows, check=check, log=progress.line)
        decoding = Decoding(
            max_tokens=options.max_completion_tokens,
            temperature=options.temperature,
            top_p=options.top_p,
            stop=options.stop,
        )
        at_once = max(1, rows // options.group_size)
        for first in range(0, len(self.prompts), at_once):
            batch = self.prompts[first : first + at_once]
            groups = rollout.generate(
                [prompted.tokens for prompted in batch],
                samples=options.group_size,
                decoding=decoding,
                key=(options.seed, 1, 1),
                indices=range(first, first + len(batch)),
            )
            texts = []
            for index, (prompted, group) in enumerate(zip(batch, groups, strict=True), start=first):
                for sampled in group:
                    text = completion_text(policy.tokenizer, sampled.tokens, policy.eos_ids, options.stop)
                    request = ScoreRequest(prompted.problem, text, len(sampled.tokens), options.prefill)
                    texts.append(SampledText(index, prompted.text, sampled.finish, request))
            yield first + len(batch), texts


def open_sampler(
    model: JobModel,
    problems: Sequence[Problem],
    options: SampleOptions,
    *,
    base: Path,
    device: str,
    threads: int | None,
    progress: Progress,
) -> Sampler:
    """Load the model. Raises ConfigError where completions leave no room for a prompt, and what loading raises."""
    from grpo_core.data.prompts import encode_problems, within_limit

    use_threads(threads)
    progress.begin("loading the model", 1)
    policy = job_model(model, base, device)
    longest = options.max_completion_tokens
    room = (policy.context or 1_000_000) - longest
    if room < 1:
        raise ConfigError(
            f"options.max_completion_tokens: {longest} leave no room for a prompt; the model has {policy.context} "
            "positions"
        )
    every = encode_problems(problems, policy.encoder(options), source="the dataset")
    encoded = within_limit(every, room, drop_long=True, source="the dataset")
    return Sampler(policy, encoded.prompts, len(encoded.dropped), options)
