"""A short way to score in tests: one answer by a suite's scorer, in this process."""

from grpo_core.evaluate.item import SuiteItem
from grpo_core.evaluate.scorer import Scorer
from grpo_core.records.types import ComponentScore
from grpo_core.rewards import ScoreRequest
from grpo_core.rewards.scoring import ruled


def scored_here(scorer: Scorer, item: SuiteItem, completion: str) -> ComponentScore:
    (part,) = scorer.rubric.parts
    return ruled(part.kind, part.params, ScoreRequest(item.scored_problem(), completion))
