"""Sampling over several ranks that share one server: the first one asks it for everybody."""

from collections.abc import Callable, Sequence
from dataclasses import asdict

from grpo_core.distributed.ranks import Ranks
from grpo_core.rollout.base import Completion, Decoding, Rollout


class LedRollout:
    """A rollout of all ranks together, done by the first. One server batches better than shares of it would."""

    def __init__(self, make: Callable[[], Rollout], ranks: Ranks) -> None:
        """`make` is called on the first rank only. Raises what it raises, on every rank."""
        self._ranks = ranks
        self._own: Rollout | None = ranks.together(lambda: make() if ranks.main else None)

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

        def sampled() -> list[list[Completion]]:
            if self._own is None:
                return []
            return self._own.generate(prompts, samples=samples, decoding=decoding, key=key, places=places)

        groups = self._ranks.together(sampled)
        if self._ranks.world == 1:
            return groups
        (told, *_) = self._ranks.gather([[asdict(one) for one in group] for group in groups])
        return [
            [Completion(tuple(one["tokens"]), tuple(one["logprobs"]), one["finish"], one["entropy"]) for one in group]
            for group in told
        ]

    def follow(self, step: int) -> dict[str, float]:
        """See `base.Rollout`. The metrics are the first rank's."""
        return self._ranks.together(lambda: self._own.follow(step) if self._own is not None else {})

    def close(self) -> None:
        if self._own is not None:
            self._own.close()
