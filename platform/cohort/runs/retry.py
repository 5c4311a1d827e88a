"""What becomes of a run whose attempt failed: tried again by itself, or ended. Decides from what it is given alone;
writes and reads nothing.
"""

from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from grpo_core import errors

DELAYS: Final = tuple(timedelta(seconds=seconds) for seconds in (0, 10, 30, 60, 120))
"""Before the first, second … try after a failure; there are no more tries than delays."""
MOST_BARREN: Final = 3
"""So many failures in a row without a newer step end the run."""

AUTOMATIC: Final = {
    "worker_lost": "the worker was lost",
    "node_revoked": "the node was revoked",
    "platform_unreachable": "the worker could not reach the platform",
    "not_answered": "the last records were not answered",
    "worker_error": "the worker failed",
    "trainer_killed": "something outside the platform killed the trainer",
    "trainer_crashed": "the trainer crashed",
    errors.Interrupted.code: "something outside the platform stopped the trainer",
    "device_error": "the GPU or its driver failed",
    "nccl_error": "the GPUs lost each other",
}
"""Transient causes, in words. Every other cause would come again: a config that is wrong, memory
that is too small, numbers that are not finite, a reward or data that fail, a defect, a lost checkpoint."""


@dataclass(frozen=True)
class Again:
    """Back into the queue, as the `number`th try after a failure."""

    delay: timedelta
    number: int
    barren: int
    """Failures in a row without a newer step, this one counted."""


@dataclass(frozen=True)
class End:
    """The run has failed; `why` says it is not tried again, empty where the cause says so by itself."""

    why: str
    barren: int


def decide(*, code: str, retries: int, barren: int, advanced: bool) -> Again | End:
    """What follows a failure of cause `code`, after so many tries by the platform and so many failures in a row
    without progress. `advanced`: this attempt came to a newer step than the run had before it.
    """
    barren = 0 if advanced else barren + 1
    if code not in AUTOMATIC:
        return End("", barren)
    if barren >= MOST_BARREN:
        return End(f"It is not tried again: {barren} failures in a row brought no newer step.", barren)
    if retries >= len(DELAYS):
        return End(f"It is not tried again: it failed {retries + 1} times, and {len(DELAYS)} tries are made.", barren)
    return Again(DELAYS[retries], retries + 1, barren)


def explain(decision: Again | End, *, message: str, place: str) -> str:
    """The failure's message, then what happens next. `place` is where the next try begins, such as `step 40`."""
    if isinstance(decision, End):
        return f"{sentence(message)}{decision.why}" if decision.why else message
    when = f"in {decision.delay.total_seconds():.0f} s" if decision.delay else "at once"
    next_ = f"Goes back to the queue and tries again {when} from {place} ({decision.number} of {len(DELAYS)})"
    return f"{sentence(message)}{next_}"


def sentence(words: str) -> str:
    """With one full stop and a space after it; an empty text stays empty."""
    words = words.strip()
    return f"{words}{'' if words[-1] in '.!?' else '.'} " if words else ""
