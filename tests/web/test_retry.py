"""What follows a failure, by a table worked out by hand."""

import re
from pathlib import Path

import pytest

from cohort.runs.retry import AUTOMATIC, Again, End, decide, told
from grpo_core import errors

ROOT = Path(__file__).parents[2]


def codes_of(root: type[errors.GrpoError]) -> set[str]:
    return {root.code}.union(*(codes_of(child) for child in root.__subclasses__()))


@pytest.mark.parametrize(("retries", "seconds"), [(0, 0), (1, 10), (2, 30), (3, 60), (4, 120)])
def test_each_try_waits_longer(retries: int, seconds: int) -> None:
    decision = decide(code="worker_lost", retries=retries, barren=0, advanced=True)
    assert isinstance(decision, Again)
    assert (decision.delay.total_seconds(), decision.number, decision.barren) == (seconds, retries + 1, 0)


def test_there_is_no_sixth_try() -> None:
    decision = decide(code="worker_lost", retries=5, barren=0, advanced=True)
    assert decision == End("It is not tried again: it failed 6 times, and 5 tries are made.", 0)


@pytest.mark.parametrize(
    ("barren", "advanced", "after", "ends"),
    [(0, True, 0, False), (0, False, 1, False), (1, False, 2, False), (2, False, 3, True), (2, True, 0, False)],
)
def test_the_third_failure_in_a_row_without_a_newer_step_ends_it(
    barren: int, advanced: bool, after: int, ends: bool
) -> None:
    decision = decide(code="nccl_error", retries=1, barren=barren, advanced=advanced)
    assert (decision.barren, isinstance(decision, End)) == (after, ends)


def test_only_causes_that_may_not_come_again_are_tried_again() -> None:
    """Both lists are written out: a new error class must be put into one of them."""
    again = {"worker_lost", "platform_unreachable", "not_answered", "worker_error", "trainer_killed"}
    again |= {"node_revoked"}
    again |= {"trainer_crashed", "interrupted", "device_error", "nccl_error"}
    assert set(AUTOMATIC) == again
    for code in (codes_of(errors.GrpoError) - again) | {"no_outcome", "trainer_died", "checkpoint_missing", "", "x"}:
        assert decide(code=code, retries=0, barren=0, advanced=True) == End("", 0), code
    for code in ("config_error", "out_of_memory", "not_finite", "reward_error", "internal_error"):
        assert decide(code=code, retries=0, barren=0, advanced=True) == End("", 0)


def test_the_words_say_what_happens_next() -> None:
    message = "The worker gpu-1 was lost"
    assert told(Again(decide_delay(1), 2, 0), message=message, place="step 40") == (
        "The worker gpu-1 was lost. Goes back to the queue and tries again in 10 s from step 40 (2 of 5)"
    )
    assert told(Again(decide_delay(0), 1, 0), message="Lost!", place="the first step") == (
        "Lost! Goes back to the queue and tries again at once from the first step (1 of 5)"
    )
    assert told(End("", 1), message="No memory", place="") == "No memory"
    assert told(End("It is not tried again.", 3), message="Lost.", place="") == "Lost. It is not tried again."


def test_the_table_of_causes_has_every_code_and_says_what_follows() -> None:
    """In docs/operations.md: those that the platform tries again say yes, those that end a run do not."""
    docs = (ROOT / "docs/operations.md").read_text()
    table = docs.split("### Which failures are tried again")[1].split("\n\nA run on")[0]
    rows = [[cell.strip() for cell in row.split("|")[1:-1]] for row in table.splitlines() if row.startswith("| ")][2:]
    said = {code: follows for _, codes, follows in rows for code in re.findall(r"`(\w+)`", codes)}
    assert {code for code, follows in said.items() if follows == "yes"} == set(AUTOMATIC)
    writers = ("worker/supervisor.py", "platform/cohort/runs/services/steering.py")
    codes = {
        code for path in writers for code in re.findall(r'(?:_fail\(|error_code=)"(\w+)"', (ROOT / path).read_text())
    }
    assert {"not_prepared", "records_lost", "platform_refused", "not_sealed", "worker_error"} <= codes
    assert codes <= set(said)


def decide_delay(retries: int):  # type: ignore[no-untyped-def]
    decision = decide(code="worker_lost", retries=retries, barren=0, advanced=True)
    assert isinstance(decision, Again)
    return decision.delay
