"""How a group's rewards become advantages, with its own numbers, by the formula that the estimator declares.

The numbers are those of `grpo_core.advantages.explain`; here they become text.
"""

import string
from collections.abc import Sequence
from dataclasses import dataclass

from cohort.base import formatting
from cohort.review.models import Sample
from cohort.web.launch.variants import USUAL, Variant, variant_of
from grpo_core.advantages.base import NAMES, Figures, GroupScores
from grpo_core.advantages.explain import explain
from grpo_core.config.algorithm import AlgorithmConfig
from grpo_core.config.kinds import ScoredConfig
from grpo_core.rewards.signal import component_weights

VARIANTS = [
    variant for variant in USUAL if variant.scaling.terms is not None and variant.estimator.compared_with == "group"
]
"""Always one click away; the run's own comes first when it is another."""


@dataclass(frozen=True)
class Derivation:
    """One variant for one group."""

    parts: tuple[str, ...]
    """The calculation in pieces, in order, each short enough for one line."""
    advantages: tuple[float | None, ...] | None
    """None of a sample without a reward, and None at all where a completion has no single advantage."""
    outcomes: tuple[tuple[str, float], ...]
    """(reward, its advantage) for each different reward, highest first; empty where equal rewards have different
    ones."""
    note: str
    """What a person should know beyond the numbers; empty when nothing."""
    columns: tuple[tuple[str, tuple[float | None, ...]], ...] = ()
    """(heading, number of each sample) of what lies between rewards and advantages."""
    steps: tuple[tuple[tuple[float, float, float], ...], ...] = ()
    """By sample, of each step of its completion: (reward, A of the step alone, A of its tokens)."""


def variants_for(algorithm: AlgorithmConfig) -> list[Variant]:
    own = variant_of(algorithm)
    return VARIANTS if own in VARIANTS else [own, *VARIANTS]


def with_variant(algorithm: AlgorithmConfig, variant: Variant) -> AlgorithmConfig:
    """The run's settings under another variant; as they are under its own."""
    if variant == variant_of(algorithm):
        return algorithm
    outcome = {"supervision": "outcome", "multi_objective_aggregation": "sum_then_normalize"}
    chosen = {"advantage": variant.estimator.name, "scale": variant.scale, "std_ddof": variant.ddof}
    return algorithm.model_copy(update={**outcome, **chosen})


def stored_only(variant: Variant, algorithm: AlgorithmConfig) -> str:
    """Why a calculation cannot be shown, with the formula; empty where rewards give the advantages."""
    estimator, scaling = variant.estimator, variant.scaling
    by_token = estimator.per_token == "with_kl_reward" and algorithm.kl.coef > 0 and algorithm.kl.place == "reward"
    if scaling.terms is not None or (estimator.explain is not None and not by_token):
        return ""
    own = {name: number(value) for name, value in vars(algorithm.critic).items()}
    formula = scaling.formula.format(**NAMES | own, eps=f"{algorithm.advantage_eps:g}")
    needs = estimator.beyond_stored or "more than rewards"
    return (
        f"A_t = {formula}. It takes {needs}: that is not stored with the samples, so what is shown below is what the "
        "trainer stored, the mean of A_t over a completion's tokens."
    )


def group_scores(samples: Sequence[Sample], config: ScoredConfig) -> GroupScores:
    """What the trainer compared, of stored samples."""
    weights = component_weights(config.reward, config.algorithm)
    return GroupScores(
        rewards=[sample.compared_reward for sample in samples],
        tokens=[sample.tokens or 0 for sample in samples],  # null only of an imported run, which is not worked out
        components=[
            {name: score.get("value") or 0.0 for name, score in sample.components.items()} for sample in samples
        ],
        weights=weights,
        step_rewards=[_step_rewards(sample, weights) for sample in samples]
        if config.algorithm.supervision == "process"
        else [],
    )


def _step_rewards(sample: Sample, weights: dict[str, float]) -> list[float]:
    """As `grpo_core.rewards.steps`, by the characters at which steps end instead of the tokens."""
    if any(score.get("value") is None for score in sample.components.values()):
        return [0.0]
    last = len(sample.completion) + (sample.finish_reason != "length")
    given: dict[int, float] = {}
    for name, score in sample.components.items():
        steps = score.get("steps")
        pairs = [(last, score["value"])] if steps is None else [(step["end"], step["value"]) for step in steps]
        for end, value in pairs if (weight := weights.get(name, 0.0)) else ():
            given[end] = given.get(end, 0.0) + weight * value
    return [given[end] for end in sorted(given)]


def derive(
    own: GroupScores,
    variant: Variant,
    algorithm: AlgorithmConfig,
    *,
    step: Sequence[GroupScores] = (),
    phantom: bool = False,
) -> Derivation | None:
    """The calculation for one group; None when there are too few rewards to compare. `step`: all groups of the step,
    for a variant that uses them. `phantom`: only shaping varies in the group."""
    figures = explain(own, step, with_variant(algorithm, variant))
    if figures is None:
        return None
    written = [f"r = [{', '.join(map(number, own.scored))}]"]
    zero_because = figures.zero_because
    if phantom and algorithm.signal_gate == "success" and variant.estimator.compared_with == "group":
        zero_because = zero_because or "What means right does not vary in the group"
    if zero_because:
        advantages: list[float | None] | None = [None if reward is None else 0.0 for reward in own.rewards]
    else:
        advantages = figures.advantages
        written += _formula_parts(figures, variant, algorithm)
    unscored = len(own.rewards) - len(own.scored)
    return Derivation(
        parts=tuple(written),
        advantages=None if advantages is None else tuple(advantages),
        outcomes=_outcomes(own.rewards, advantages),
        note=_note(zero_because, unscored),
        columns=tuple((heading, tuple(values)) for heading, values in figures.columns.items()),
        steps=() if zero_because else tuple(map(tuple, figures.steps)),
    )


def _formula_parts(figures: Figures, variant: Variant, algorithm: AlgorithmConfig) -> list[str]:
    formula = variant.scaling.formula
    values = {name: number(value) for name, value in figures.named.items()}
    used = [name for _, name, _, _ in string.Formatter().parse(formula) if name in values and name != "count"]
    named = [f"{NAMES[name]} = {values[name]}" for name in dict.fromkeys(used)]
    return [*named, f"A = {formula.format(**values, eps=f'{algorithm.advantage_eps:g}')}"]


def _outcomes(
    rewards: Sequence[float | None], advantages: Sequence[float | None] | None
) -> tuple[tuple[str, float], ...]:
    if advantages is None:
        return ()
    known = [
        (reward, advantage)
        for reward, advantage in zip(rewards, advantages, strict=True)
        if reward is not None and advantage is not None
    ]
    outcomes: dict[str, float] = {}
    for reward, advantage in sorted(known, reverse=True):
        if abs(outcomes.setdefault(number(reward), advantage) - advantage) > 1e-9 * max(1.0, abs(advantage)):
            return ()
    return tuple(outcomes.items())


def _note(zero_because: str, unscored: int) -> str:
    notes = [f"{zero_because}, so every advantage is 0: no signal."] if zero_because else []
    if unscored:
        have = "1 sample has no reward and counts" if unscored == 1 else f"{unscored} samples have no reward and count"
        notes.append(f"{have} for nothing here.")
    return " ".join(notes)


def number(value: float) -> str:
    """Four significant digits at most, so that a calculation can be followed."""
    return formatting.number(value, 4)
