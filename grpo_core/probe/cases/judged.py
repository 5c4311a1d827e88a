"""Answers that people judged, as classes of a probe: those that they call right and those that they call wrong."""

from collections.abc import Iterable
from dataclasses import dataclass

from grpo_core.data.problem import Problem
from grpo_core.errors import DataError
from grpo_core.probe.cases.case import ProbeClass
from grpo_core.rewards.rubric import Rubric


@dataclass(frozen=True)
class JudgedAnswer:
    problem: Problem
    completion: str
    right: bool
    """By people."""


JUDGED_RIGHT = ProbeClass(
    "judged_right", "judged samples that people call right", "judged", "false_negative", "told", lambda case: ()
)
JUDGED_WRONG = ProbeClass(
    "judged_wrong", "judged samples that people call wrong", "judged", "false_positive", "any", lambda case: ()
)
"""Nothing is made for them: their completions are given. One that is wrong and rewarded suffices to block."""


def readable_answers(rubric: Rubric, judged: Iterable[JudgedAnswer]) -> tuple[list[JudgedAnswer], list[str]]:
    """(the answers whose problems the rubric can read, why it cannot read each of the others)."""
    kept, faults = [], []
    for answer in judged:
        try:
            rubric.check_problems([answer.problem])
        except DataError as error:
            faults.append(f"a judged sample is left out: {error}")
        else:
            kept.append(answer)
    return kept, faults
