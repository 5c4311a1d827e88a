"""normalize_then_sum: each reward component compared with its own group, then their sum with the batch (GDPO)."""

from grpo_core.advantages.base import AdvantageSettings, Estimate, Estimator, Scaling, StepScores
from grpo_core.advantages.compare import Groups, compare, standardised


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
            "z-score over the step of Σ weight · z-score in the group",
        )
    },
    compute=gdpo_advantages,
    chosen_by="multi_objective_aggregation",
)
