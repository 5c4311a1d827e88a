"""What follows a failure, by a table worked out by hand."""

import pytest

from cohort.runs.retry import AUTOMATIC, Again, End, decide, told
from grpo_core import errors
from tests.cases import cases

AGAIN = {"worker_lost", "platform_unreachable", "not_answered", "worker_error", "trainer_killed", "node_revoked"}
AGAIN |= {"trainer_crashed", "interrupted", "device_error", "nccl_error"}


def codes_of(root: type[errors.GrpoError]) -> set[str]:
    return {root.code}.union(*(codes_of(child) for child in root.__subclasses__()))


FIELDS = ("code", "retries", "barren", "advanced", "seconds", "number", "barren_after", "words")


@pytest.mark.parametrize(FIELDS, cases("runs/retries", *FIELDS))
def test_what_follows_a_failure(
    code: str,
    retries: int,
    barren: int,
    advanced: bool,
    seconds: int | None,
    number: int,
    barren_after: int,
    words: str,
) -> None:
    """Tried again after `seconds` as the `number`th try, or ended; `words` is what the run then says."""
    decision = decide(code=code, retries=retries, barren=barren, advanced=advanced)
    assert isinstance(decision, End) == (seconds is None)
    assert decision.barren == barren_after
    if isinstance(decision, Again):
        assert (decision.delay.total_seconds(), decision.number) == (seconds, number)
    assert told(decision, message="Lost", place="step 40") == words


def test_only_causes_that_may_not_come_again_are_tried_again() -> None:
    """The list is written out: a new error class that is tried again must be put into it."""
    assert set(AUTOMATIC) == AGAIN
    for code in codes_of(errors.GrpoError) | {"no_outcome", "trainer_died", "checkpoint_missing", "", "x"}:
        decision = decide(code=code, retries=0, barren=0, advanced=True)
        assert isinstance(decision, Again) == (code in AGAIN), code


@pytest.mark.parametrize(("message", "words"), [("Lost!", "Lost! Why."), (" Lost ", "Lost. Why."), ("", "Why.")])
def test_sentences_are_joined_by_one_full_stop(message: str, words: str) -> None:
    assert told(End("Why.", 3), message=message, place="") == words
