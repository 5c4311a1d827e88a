"""Sampling over several ranks: each takes its share of the prompts, and every rank ends with all completions."""

from collections.abc import Sequence
from dataclasses import asdict

from grpo_core.distributed.ranks import Ranks
from grpo_core.rollout.base import Completion, Decoding, Rollout


class RankedRollout:
    """A rollout of all ranks together. The random numbers of a prompt do not depend on which rank samples it."""

    def __init__(self, own: Rollout, ranks: Ranks) -> None:
        self._own = own
        self._ranks = ranks

    def generate(
        self,
        prompts: Sequence[Sequence[int]],
        *,
        samples: int,
        decoding: Decoding,
        key: tuple[int, ...],
        places: Sequence[int] | None = None,
    ) -> list[list[Completion]]:
        """See `base.Rollout`. Every rank must call it with the same arguments."""
        if self._ranks.world == 1:
            return self._own.generate(prompts, samples=samples, decoding=decoding, key=key, places=places)
        numbers = range(len(prompts)) if places is None else places
        mine = self._ranks.share(len(prompts))
        groups = self._ranks.together(
            lambda: (
                self._own.generate(
                    [prompts[i] for i in mine],
                    samples=samples,
                    decoding=decoding,
                    key=key,
                    places=[numbers[i] for i in mine],
                )
                if mine
                else []
            )
        )
        gathered = self._ranks.spread([[asdict(completion) for completion in group] for group in groups], len(prompts))
        return [
            [
                Completion(
                    tuple(completion["tokens"]),
                    tuple(completion["logprobs"]),
                    completion["finish"],
                    completion["entropy"],
                )
                for completion in group
            ]
            for group in gathered
        ]

    def follow(self, step: int) -> dict[str, float]:
        """See `base.Rollout`. The metrics are this rank's."""
        return self._ranks.together(lambda: self._own.follow(step))

    def close(self) -> None:
        self._own.close()
