"""normalize_then_sum: each reward component compared with its own group, then their sum with the batch (GDPO)."""

from collections.abc import Sequence

from grpo_core.advantages.base import (
    AdvantageSettings,
    Estimate,
    Estimator,
    Figures,
    GroupScores,
    Scaling,
    StepScores,
    Terms,
)
from grpo_core.advantages.compare import Groups, compare, standardised
from grpo_core.advantages.explain import centred, moments
from grpo_core.stats.paired import nearly_equal


def gdpo_advantages(scores: StepScores, groups: Groups, settings: AdvantageSettings) -> Estimate:
    """x_i = Σ_c w_c · (r_ci − mean_c) / (std_c + eps), mean and std of component c over the sample's own group; then
    A_i = (x_i − mean) / (std + eps) over all scored samples of the step.

    Source: "GDPO: Group reward-Decoupled Normalization Policy Optimization", arXiv 2601.05242. `std_ddof` is that of
    both standard deviations. A component with equal values adds 0 in that group. Exactly 0 where not scored, and
    throughout a group whose x are all equal or in which fewer than two samples are scored; such groups are in the
    batch's mean and std all the same.
    """
    import torch

    ddof, eps, scored_PG = settings.std_ddof, settings.advantage_eps, groups.scored_PG
    sums_PG = torch.zeros_like(scored_PG, dtype=torch.float64)
    for values_PG, weight in zip(scores.given("components_CPG"), scores.given("weights_C").tolist(), strict=True):
        own = compare(values_PG, scored_PG, ddof=ddof)
        z_PG = own.centred_PG / (own.std_P + eps)[:, None]
        sums_PG = sums_PG + weight * torch.where(own.mixed_P[:, None], z_PG, torch.zeros_like(z_PG))
    # Every component sums to 0 in its group, so the batch's mean is float noise; a group without a difference must not
    # receive it.
    mixed_P = compare(sums_PG, scored_PG, ddof=ddof).mixed_P
    advantages_PG = standardised(sums_PG[scored_PG], ddof=ddof, eps=eps)(sums_PG)
    return Estimate(torch.where(mixed_P[:, None] & scored_PG, advantages_PG, torch.zeros_like(advantages_PG)))


def explain_gdpo(own: GroupScores, step: Sequence[GroupScores], settings: AdvantageSettings) -> Figures:
    """`gdpo_advantages` of one group, with each component's z-score."""
    columns = _z_scores(own, settings)
    sums = _sums(own, columns)
    everywhere = [x for group in step for x in _sums(group, _z_scores(group, settings)) if x is not None]
    mean, std = moments(everywhere, settings.std_ddof)
    known = [x for x in sums if x is not None]
    zero_because = ""
    if len(known) < 2 or nearly_equal(known):
        zero_because = "No component differs in the group, or they cancel out"
    elif len(everywhere) < 2 or nearly_equal(everywhere):
        zero_because = "x is the same throughout the step"
    return Figures(
        values=sums,
        terms=Terms(mean, divisor=std + settings.advantage_eps),
        named={"sum_mean": mean, "sum_std": std},
        columns={f"z of {name}": column for name, column in columns.items()} | {"x": sums},
        zero_because=zero_because,
    )


def _z_scores(group: GroupScores, settings: AdvantageSettings) -> dict[str, list[float | None]]:
    """Of each component in the group, by sample."""
    scored = [reward is not None for reward in group.rewards]
    columns: dict[str, list[float | None]] = {}
    for name in group.weights:
        given = [own.get(name, 0.0) if used else None for own, used in zip(group.components, scored, strict=True)]
        _, std = moments([value for value in given if value is not None], settings.std_ddof)
        divisor = std + settings.advantage_eps
        columns[name] = [value / divisor if value else value for value in centred(given)]
    return columns


def _sums(group: GroupScores, columns: dict[str, list[float | None]]) -> list[float | None]:
    return [
        None if reward is None else sum(weight * (columns[name][g] or 0.0) for name, weight in group.weights.items())
        for g, reward in enumerate(group.rewards)
    ]


SPEC = Estimator(
    "normalize_then_sum",
    ("GRPO", "Group Relative Policy Optimization (GRPO)"),
    "group",
    source="arXiv 2601.05242",
    help="each reward component in its group, then summed",
    scales={
        "group_std": Scaling(
            "z-score of each reward by itself{std} (GDPO)",
            "GDPO",
            "GDPO: each reward component is divided by its own spread in the group, and their weighted sum by the "
            "spread of the whole step.",
            "each reward component minus its group's mean, divided by its group's {std} + {eps}; their weighted sum "
            "minus its mean over the step, divided by its {std} + {eps} (GDPO)",
            "(x − {sum_mean}) / ({sum_std} + {eps}), x = Σ weight · z-score of each component in the group",
        )
    },
    compute=gdpo_advantages,
    explain=explain_gdpo,
    chosen_by="multi_objective_aggregation",
)
