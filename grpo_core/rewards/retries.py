"""Retries samples after infrastructure errors; an error that persists is returned as it is."""

import time
from collections.abc import Callable, Sequence

from grpo_core.records.types import ComponentScore
from grpo_core.rewards.base import ScoreRequest

FIRST_PAUSE = 0.25
"""Seconds before the first new try; every further pause is twice as long."""
_TICK = 0.1

Attempt = Callable[[Sequence[ScoreRequest]], Sequence[ComponentScore]]


def with_retries(
    samples: Sequence[ScoreRequest], attempt: Attempt, *, retries: int, check: Callable[[], None]
) -> list[ComponentScore]:
    """One score each, in order, after at most `retries` more tries of those with an infrastructure error."""
    scores = list(attempt(samples))
    for again in range(retries):
        indices = [position for position, score in enumerate(scores) if score.error_class == "infra"]
        if not indices:
            break
        _wait(FIRST_PAUSE * 2**again, check)
        for index, score in zip(indices, attempt([samples[position] for position in indices]), strict=True):
            scores[index] = score.model_copy(update={"tries": scores[index].tries + score.tries})
    return scores


def _wait(seconds: float, check: Callable[[], None]) -> None:
    until = time.monotonic() + seconds
    while (left := until - time.monotonic()) > 0:
        check()
        time.sleep(min(left, _TICK))
