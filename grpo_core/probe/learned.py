"""What a probe adds for a reward with a trained classifier in it: attacks by length, the answers to compare with, and
how its number goes with length. docs/probe.md says how such a reward is judged."""

from collections.abc import Sequence
from statistics import fmean
from typing import Any, NamedTuple

from grpo_core.probe.cases.attacks import ATTACKS, LARGEST_LIMIT, long_attacks
from grpo_core.probe.cases.case import Case, ProbeClass
from grpo_core.probe.report import ClassResult, LearnedReward, LengthRanks
from grpo_core.probe.verdict import ByHonest
from grpo_core.rewards.base import ScoreRequest
from grpo_core.rewards.models.scoring_model import ModelScorer
from grpo_core.rewards.rubric import Rubric
from grpo_core.rewards.runner import Runner
from grpo_core.stats.bootstrap import bootstrap
from grpo_core.stats.correlation import spearman

OVER_LIMIT = "over_limit"
"""The class whose texts are too long on purpose: that they get no reward is as it should be."""
FORM_WRONG = "form_wrong"
"""The class of a wrong answer in the form in which right ones earn most."""


class Earned(NamedTuple):
    """A completion that was scored."""

    name: str
    """Of its class."""
    problem_id: str
    completion: str
    reward: float


def is_learned(rubric: Rubric) -> bool:
    """Whether a trained classifier is among its components."""
    return any(part.kind.mode == "model" for part in rubric.parts)


def classes_by_length(runner: Runner) -> tuple[ProbeClass, ...]:
    """Of the model that reads least. None where the reward has none."""
    models = runner.models()
    if not models:
        return ()
    model: ModelScorer[Any] = min(models, key=lambda scorer: scorer.longest)

    def tokens(case: Case, completion: str) -> int:
        return model.tokens_of(ScoreRequest(case.problem, completion))

    return long_attacks(tokens, model.longest)


def honest_basis(earned: Sequence[Earned], reference: str) -> ByHonest:
    """The right and the wrong answer of each problem; `reference`: the class of the right ones."""
    return ByHonest(
        honest={each.problem_id: each.reward for each in earned if each.name == reference},
        wrong={each.problem_id: each.reward for each in earned if each.name == FORM_WRONG},
    )


def learned_of(
    runner: Runner, basis: ByHonest, earned: Sequence[Earned], results: Sequence[ClassResult], *, seed: int
) -> LearnedReward:
    limits = [scorer.longest for scorer in runner.models() if scorer.longest <= LARGEST_LIMIT]
    there = {result.name for result in results}
    return LearnedReward(
        honest=len(basis.honest),
        attacks=tuple(name for name in ATTACKS if name in there),
        limit=min(limits, default=None),
        length=length_ranks(earned, seed=seed),
    )


def length_ranks(earned: Sequence[Earned], *, seed: int) -> LengthRanks | None:
    """Spearman's ρ of reward and characters within each problem, in the mean; None below two problems that have one."""
    by_problem: dict[str, list[tuple[float, float]]] = {}
    for each in earned:
        by_problem.setdefault(each.problem_id, []).append((each.reward, float(len(each.completion))))
    rhos = [rho for pairs in by_problem.values() if len(pairs) > 2 and (rho := spearman(pairs)) is not None]
    if len(rhos) < 2:
        return None
    bounds = bootstrap(rhos, seed=seed)
    return LengthRanks(problems=len(rhos), rho=fmean(rhos), low=bounds.low, high=bounds.high)
