"""What the estimators share: means and spreads of groups, and when rewards count as equal.

Shapes: P groups · G completions in each · N any number of values.
"""

from collections.abc import Callable
from dataclasses import dataclass

from grpo_core.advantages.base import Tensor
from grpo_core.stats.paired import EQUAL_TOLERANCE


@dataclass(frozen=True)
class Groups:
    """Rewards compared with those of their group."""

    rewards_PG: Tensor
    """float64; anything where not scored."""
    scored_PG: Tensor
    """bool."""
    count_P: Tensor
    """Scored samples; int64."""
    mean_P: Tensor
    """Mean of the scored; NaN where none is."""
    std_P: Tensor
    """Standard deviation of the scored with the chosen ddof; NaN where fewer than two are."""
    centred_PG: Tensor
    """Reward minus the group's mean; 0 where not scored."""
    enough_P: Tensor
    """bool: two or more are scored."""
    mixed_P: Tensor
    """bool: two or more are scored and they differ (`EQUAL_TOLERANCE`)."""


def compare(rewards_PG: Tensor, scored_PG: Tensor, *, ddof: int) -> Groups:
    """Each group's mean, spread and differences. ddof 0: population standard deviation, divides by the scored samples
    n. 1: sample standard deviation, divides by n−1."""
    import torch

    rewards_PG = rewards_PG.to(torch.float64)
    scored_PG = scored_PG.to(torch.bool)
    nothing = torch.tensor(float("nan"), dtype=torch.float64)
    count_P = scored_PG.sum(dim=1)
    kept_PG = torch.where(scored_PG, rewards_PG, torch.zeros_like(rewards_PG))
    mean_P = torch.where(count_P > 0, kept_PG.sum(dim=1) / count_P.clamp(min=1), nothing)
    centred_PG = torch.where(scored_PG, rewards_PG - mean_P[:, None], torch.zeros_like(rewards_PG))
    enough_P = count_P >= 2
    variance_P = centred_PG.square().sum(dim=1) / (count_P - ddof).clamp(min=1)
    std_P = torch.where(enough_P, variance_P.sqrt(), nothing)
    highest_P = torch.where(scored_PG, rewards_PG, -torch.inf).amax(dim=1)
    lowest_P = torch.where(scored_PG, rewards_PG, torch.inf).amin(dim=1)
    mixed_P = enough_P & differ(lowest_P, highest_P)
    return Groups(rewards_PG, scored_PG, count_P, mean_P, std_P, centred_PG, enough_P, mixed_P)


def differ(lowest_P: Tensor, highest_P: Tensor) -> Tensor:
    """bool: the largest and the smallest of some rewards are further apart than float noise. The spread is tested and
    not the standard deviation, so that a small eps does not blow noise up."""
    size_P = highest_P.abs().maximum(lowest_P.abs()).clamp(min=1.0)
    return highest_P - lowest_P > EQUAL_TOLERANCE * size_P


def all_equal(values_N: Tensor) -> bool:
    """Whether there are fewer than two values, or none that differs from the others."""
    return len(values_N) < 2 or not bool(differ(values_N.min(), values_N.max()))


def standardised(values_N: Tensor, *, ddof: int, eps: float) -> Callable[[Tensor], Tensor]:
    """A function that maps values of any shape to (value − mean) / (std + eps), with mean and standard deviation of
    `values_N`; to exactly 0 where those are all equal or fewer than two."""
    if all_equal(values_N):
        return lambda values: values.new_zeros(values.shape)
    mean, std = values_N.mean(), deviation(values_N, ddof)
    return lambda values: (values - mean) / (std + eps)


def deviation(values_N: Tensor, ddof: int) -> Tensor:
    """Standard deviation; NaN of fewer than two values."""
    if len(values_N) < 2:
        return values_N.new_tensor(float("nan"))
    return values_N.std(correction=ddof)
