"""Tries samples again after trouble that was not theirs; what stays so is told as it is."""

import time
from collections.abc import Callable, Sequence

from grpo_core.records.types import ComponentScore
from grpo_core.rewards.base import Unscored

FIRST_PAUSE = 0.25
"""Seconds before the first new try; every further pause is twice as long."""
_TICK = 0.1

Attempt = Callable[[Sequence[Unscored]], Sequence[ComponentScore]]


def with_retries(
    samples: Sequence[Unscored], attempt: Attempt, *, retries: int, check: Callable[[], None]
) -> list[ComponentScore]:
    """One score each, in order, after at most `retries` more tries of those whose trouble is the infrastructure's."""
    told = list(attempt(samples))
    for again in range(retries):
        places = [place for place, score in enumerate(told) if score.error_class == "infra"]
        if not places:
            break
        _wait(FIRST_PAUSE * 2**again, check)
        for place, score in zip(places, attempt([samples[place] for place in places]), strict=True):
            told[place] = score.model_copy(update={"tries": told[place].tries + score.tries})
    return told


def _wait(seconds: float, check: Callable[[], None]) -> None:
    until = time.monotonic() + seconds
    while (left := until - time.monotonic()) > 0:
        check()
        time.sleep(min(left, _TICK))
