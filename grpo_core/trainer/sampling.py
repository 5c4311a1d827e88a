"""Samples the groups of one step: problems in the run's order, completions, scores; with dynamic sampling, further
batches until enough groups carry a signal. Never trains.

Dynamic sampling (DAPO, arXiv 2503.14476, section 3.2) leaves out groups without a signal. What is left over
when a step is full is trained on first in the next step: one update old, with the sampler's log-probabilities as its
old ones. With engine.one_step_off all groups are: they are sampled while the policy learns from the step before, and
kept here until their step comes (docs/one-step-off.md).
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import KW_ONLY, dataclass, replace

import numpy as np
from pydantic import TypeAdapter

from grpo_core.config.kinds import ScoredConfig
from grpo_core.data.prompts import Prompted, completion_text
from grpo_core.distributed.ranks import Ranks
from grpo_core.errors import RewardError
from grpo_core.model.load import LoadedModel
from grpo_core.records.types import Discard
from grpo_core.rewards import Runner, Scored, ScoreRequest
from grpo_core.rewards.signal import signal_of, with_overlong
from grpo_core.rollout.base import Completion, Decoding, Rollout
from grpo_core.runtime import watchdog
from grpo_core.runtime.clock import Clock, timed
from grpo_core.runtime.fault_injection import fault
from grpo_core.trainer.checkpoints.position import deserialize_position, serialize_position
from grpo_core.trainer.checkpoints.state import DrawState
from grpo_core.trainer.sampled import Position, SampledGroup, StepBatch

_SCORES = TypeAdapter(list[list[Scored]])
"""Scores of some groups as plain data, for the other ranks, and back."""
_ORDER, _SAMPLING = 0, 1  # names of random streams; 2 is the evaluation's, 3 and 5 those of the traces


@dataclass(eq=False)
class GroupSampler:
    """Owns the order of problems, the groups left over from step to step, and prefetched groups. Used by one thread at
    a time."""

    config: ScoredConfig
    prompts: Sequence[Prompted]
    _: KW_ONLY
    rollout: Rollout
    policy: LoadedModel
    runner: Runner
    ranks: Ranks
    check: Callable[[], None] = lambda: None
    """Called before every completion is scored; may raise to stop."""
    once: bool = False
    """Every problem once, in the order of the file, instead of epochs by seed; the last step has what is left."""

    def __post_init__(self) -> None:
        self._drawn = 0
        self._order = self._order_from(0)
        self._surplus: list[SampledGroup] = []
        self._prefetched: StepBatch | None = None

    def draw(self, step: int) -> StepBatch:
        """The groups of one step, prefetched or sampled now. Raises RewardError when nothing could be scored."""
        ahead, self._prefetched = self._prefetched, None
        return ahead or self._draw(step, policy_of=step)

    def prefetch(self, step: int) -> None:
        """Sample the groups of the next step from the current policy, and keep them for `draw`. Raises RewardError."""
        fault(f"drawing:{step}")
        with Clock().running() as clock:
            groups = self._draw(step, policy_of=step - 1)
        seconds = clock.take()
        self._prefetched = replace(groups, seconds={name: seconds[name] for name in ("sample", "reward")})
        watchdog.rest()
        fault(f"drawn:{step}")

    def _draw(self, step: int, *, policy_of: int) -> StepBatch:
        """Sample, score, refill. `policy_of`: step whose policy samples."""
        watchdog.at(f"step {step}", "sampling")
        needed, dynamic = self.config.sampling.prompts_per_step, self.config.algorithm.dynamic_sampling
        if self.once:
            needed = min(needed, len(self.prompts) - self._drawn)
        kept, self._surplus = self._surplus[:needed], self._surplus[needed:]
        fresh: list[SampledGroup] = []
        discarded: list[tuple[SampledGroup, Discard]] = []
        count, batches = needed - len(kept), 0  # fewer are left over than a step holds
        while True:
            drawn = self._sample(step, count, first=len(fresh), policy_of=policy_of)
            fresh += drawn
            batches += 1
            for group in drawn:
                why = self._why_discarded(group) if dynamic.enabled else None
                if why is not None:
                    discarded.append((group, why))
                elif len(kept) < needed:
                    kept.append(group)
                else:
                    self._surplus.append(group)
            if len(kept) >= needed or batches >= dynamic.max_batches or not dynamic.enabled:
                break
            # Enough to fill the step if groups continue as they did in it; never more than one full batch.
            share = 1 - len(discarded) / len(fresh)
            missing = needed - len(kept)
            count = needed if share == 0 else min(needed, math.ceil(missing / share))
        if all(score.reward is None for group in fresh for score in group.scores):
            errors = (
                component.error for component in fresh[0].scores[0].components.values() if component.error is not None
            )
            raise RewardError(f"step {step}: no completion could be scored; the first failed with {next(errors)}")
        return StepBatch(kept, discarded, fresh, batches, len(self._surplus))

    # ------------------------------------------------------------------ into a checkpoint and back

    def position(self) -> Position:
        """What the next step samples from here; cheap."""
        return Position(self._drawn, tuple(self._surplus), self._prefetched)

    def serialize(self, position: Position) -> DrawState:
        """The position as a checkpoint holds it, with whole groups: the policy that sampled them is gone by then."""
        return serialize_position(position, self.prompts)

    def restore(self, state: DrawState) -> None:
        """Continue from `state`."""
        position = deserialize_position(state, self.prompts)
        self._drawn = position.drawn
        self._order = self._order_from(position.drawn)
        self._surplus = list(position.surplus)
        self._prefetched = position.ahead

    def _order_from(self, drawn: int) -> Iterator[int]:
        count = len(self.prompts)
        return iter(range(drawn, count)) if self.once else prompt_order(count, self.config.seed, start=drawn)

    # ------------------------------------------------------------------ one batch

    def _sample(self, step: int, count: int, *, first: int, policy_of: int) -> list[SampledGroup]:
        sampling = self.config.sampling
        problems = [self.prompts[next(self._order)] for _ in range(count)]
        self._drawn += count
        with timed("sample"):
            watchdog.doing("sampling")
            completions = self.rollout.generate(
                [prompted.tokens for prompted in problems],
                samples=sampling.group_size,
                decoding=Decoding(
                    max_tokens=sampling.max_completion_tokens,
                    temperature=sampling.temperature,
                    top_p=sampling.top_p,
                    top_k=sampling.top_k,
                    min_p=sampling.min_p,
                    repetition_penalty=sampling.repetition_penalty,
                    stop=sampling.stop,
                ),
                key=(self.config.seed, _SAMPLING, step),
                indices=range(first, first + count),
            )
        with timed("reward"):
            tokenizer, ends = self.policy.tokenizer, self.policy.eos_ids
            texts = [
                [completion_text(tokenizer, completion.tokens, ends, sampling.stop) for completion in group]
                for group in completions
            ]
            scores = self._score(problems, completions, texts)
        return [
            SampledGroup(*parts, sampled_at=policy_of)
            for parts in zip(problems, completions, texts, scores, strict=True)
        ]

    def _score(
        self, problems: Sequence[Prompted], completions: Sequence[Sequence[Completion]], texts: Sequence[Sequence[str]]
    ) -> list[list[Scored]]:
        """Every group's scores, on every rank; each rank scores its share, so a verifier is called once."""
        mine = self.ranks.together(
            lambda: self._scored([(problems[i], texts[i], completions[i]) for i in self.ranks.share(len(problems))])
        )
        if self.ranks.world == 1:
            return mine
        return _SCORES.validate_python(self.ranks.spread(_SCORES.dump_python(mine, mode="json"), len(problems)))

    def _scored(self, groups: Sequence[tuple[Prompted, Sequence[str], Sequence[Completion]]]) -> list[list[Scored]]:
        """All groups together, so that a kind that scores in parallel has enough to do."""
        samples = [
            ScoreRequest(prompted.problem, text, len(completion.tokens), self.config.data.prefill)
            for prompted, texts, completions in groups
            for text, completion in zip(texts, completions, strict=True)
        ]
        scores = iter(self.runner.score(samples, check=self.check))
        algorithm, longest = self.config.algorithm, self.config.sampling.max_completion_tokens
        return [
            [
                with_overlong(next(scores), len(completion.tokens), algorithm, longest=longest)
                for completion in completions
            ]
            for _, _, completions in groups
        ]

    def _why_discarded(self, group: SampledGroup) -> Discard | None:
        """Why the group carries no signal; None when it does."""
        signal = signal_of(group.scores, self.config.reward, self.config.algorithm)
        if self.config.algorithm.learns_from(signal):
            return None
        if signal == "unscored":
            return "unscored"
        scored = [score.components for score in group.scores if score.reward is not None]
        passed = [components[self.config.reward.success_of(components)].passed for components in scored]
        if all(verdict is True for verdict in passed):
            return "all_right"
        return "all_wrong" if all(verdict is False for verdict in passed) else "all_equal"


def prompt_order(count: int, seed: int, *, start: int = 0) -> Iterator[int]:
    """Indices of problems, for ever: each epoch is a new shuffle of all of them. `start` were drawn before."""
    epoch, skip = divmod(start, count)
    while True:
        yield from np.random.default_rng([seed, _ORDER, epoch]).permutation(count).tolist()[skip:]
        epoch, skip = epoch + 1, 0
