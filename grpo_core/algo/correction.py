"""Correction for the slightly different probabilities that the sampler and the trainer give the same token.

ρ = π_old(trainer) / π_sampler per token. It is 1 when both run the same code on the same weights; kernels, precision
and batch shapes move it. It is always reported, before anything is cut off. Pure functions on tensors without
gradient. Shapes: N tokens, row after row · R rows (completions).
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from grpo_core.config.algorithm import CorrectionConfig


@dataclass(frozen=True)
class SamplerFacts:
    """Sums, counts and extremes of the raw ratios, so that parts can be put together (`merged`) before dividing."""

    tokens: int = 0
    rows: int = 0
    ratio_sum: float = 0.0
    """Σρ over tokens."""
    ratio_min: float = math.inf
    """∞ where there is no token."""
    ratio_max: float = -math.inf
    """−∞ where there is no token."""
    difference_sum: float = 0.0
    """Σ|log ρ| over tokens, in nats."""
    difference_max: float = 0.0
    dropped_rows: int = 0
    dropped_tokens: int = 0
    """Tokens of dropped rows."""
    truncated_tokens: int = 0
    """Tokens whose ρ was above the cap."""


def merged(parts: Iterable[SamplerFacts]) -> SamplerFacts:
    """The facts of all parts (micro-batches, ranks) together; the order does not matter beyond rounding."""
    every = list(parts)
    return SamplerFacts(
        tokens=sum(part.tokens for part in every),
        rows=sum(part.rows for part in every),
        ratio_sum=math.fsum(part.ratio_sum for part in every),
        ratio_min=min((part.ratio_min for part in every), default=math.inf),
        ratio_max=max((part.ratio_max for part in every), default=-math.inf),
        difference_sum=math.fsum(part.difference_sum for part in every),
        difference_max=max((part.difference_max for part in every), default=0.0),
        dropped_rows=sum(part.dropped_rows for part in every),
        dropped_tokens=sum(part.dropped_tokens for part in every),
        truncated_tokens=sum(part.truncated_tokens for part in every),
    )


@dataclass(frozen=True)
class Correction:
    """The correction of some completions."""

    weights_N: Tensor
    """What each token's policy loss is multiplied by, in the format of `old_logprobs_N`; KL and entropy are not."""
    keep_R: Tensor
    """bool: False for a completion to be left out, of numerator and denominator together (`RowFacts.used`)."""
    facts: SamplerFacts


def sampler_correction(
    old_logprobs_N: Tensor, sampler_logprobs_N: Tensor, rows_N: Tensor, *, rows: int, config: CorrectionConfig
) -> Correction:
    """Weigh tokens, or leave out completions, by ρ = exp(log π_old − log π_sampler); `rows` is R.

    none            weight 1, everything kept
    token_truncate  weight min(ρ, cap) per token (truncated importance sampling, Yao et al. 2025, "Your Efficient RL
                    Framework Secretly Brings You Off-Policy RL Training"); everything kept
    sequence_mask   weight 1; a completion is kept when the geometric mean of its ρ is within [low, high]. The mean and
                    not the product, whose spread grows with length, so that long completions are not the ones left out

    A completion without tokens is kept. The facts are of the raw ρ, whatever the mode.
    """
    with torch.no_grad():
        log_N = old_logprobs_N.to(torch.float64) - sampler_logprobs_N.to(torch.float64)
        ratio_N = log_N.exp()
        lengths_R = torch.bincount(rows_N, minlength=rows)
        weights_N = torch.ones_like(old_logprobs_N)
        keep_R = torch.ones(rows, dtype=torch.bool, device=rows_N.device)
        truncated_N = torch.zeros_like(rows_N, dtype=torch.bool)
        match config.mode:
            case "none":
                pass
            case "token_truncate":
                weights_N = ratio_N.clamp(max=config.cap).to(old_logprobs_N.dtype)
                truncated_N = ratio_N > config.cap
            case "sequence_mask":
                sums_R = torch.zeros(rows, dtype=torch.float64, device=rows_N.device).index_add(0, rows_N, log_N)
                mean_R = (sums_R / lengths_R.clamp(min=1)).exp()
                keep_R = (lengths_R == 0) | ((mean_R >= config.low) & (mean_R <= config.high))
        return Correction(weights_N, keep_R, _facts(log_N, ratio_N, lengths_R, keep_R, truncated_N))


def _facts(log_N: Tensor, ratio_N: Tensor, lengths_R: Tensor, keep_R: Tensor, truncated_N: Tensor) -> SamplerFacts:
    if len(log_N) == 0:
        return SamplerFacts(rows=len(lengths_R))
    size_N = log_N.abs()
    return SamplerFacts(
        tokens=len(log_N),
        rows=len(lengths_R),
        ratio_sum=ratio_N.sum().item(),
        ratio_min=ratio_N.min().item(),
        ratio_max=ratio_N.max().item(),
        difference_sum=size_N.sum().item(),
        difference_max=size_N.max().item(),
        dropped_rows=int((~keep_R).sum()),
        dropped_tokens=int(lengths_R[~keep_R].sum()),
        truncated_tokens=int(truncated_N.sum()),
    )
