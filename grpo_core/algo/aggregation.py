"""How the losses of single tokens become one number.

The denominators are computed once for an optimiser update, over all its completions on all ranks, and each micro-batch
adds its share. So the size and order of micro-batches cannot change the loss or its gradient.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from grpo_core.config.algorithm import AlgorithmConfig


@dataclass(frozen=True)
class RowFacts:
    """What the denominators need to know of one completion."""

    length: int
    """Its tokens, end token included."""
    used: bool
    """False for a masked completion: it weighs nothing and is in no denominator."""
    informative: bool
    """Whether its group carries a signal."""
    group: int
    """Number of its group."""


@dataclass(frozen=True)
class RowWeights:
    """The weight of one token of each completion; shape B, float64."""

    policy_B: Tensor
    """In the policy loss."""
    penalty_B: Tensor
    """In the KL penalty and the entropy bonus."""


def row_weights(rows: Sequence[RowFacts], algorithm: AlgorithmConfig) -> RowWeights:
    """Weights of the B completions of one optimiser update, over all ranks and micro-batches, in the order of sampling.

    loss = Σ over completions i, Σ over tokens t: policy_i · L_it + penalty_i · (β·KL_it − α·H_it), where for B
    completions that count

    sequence_mean     1 / (B · length_i)           GRPO, arXiv 2402.03300, equation 3: each completion counts alike
    token_mean        1 / Σ_j length_j             DAPO, arXiv 2503.14476, section 3.3: each token counts alike
    local_token_mean  1 / (P · Σ length of part)   BNPO as TRL has it: token mean in each of P parts, mean over parts
    constant          1 / (B · constant)           Dr. GRPO, arXiv 2503.20783: no length in the denominator
    sequence_sum      1 / B                        LUSPO, arXiv 2602.05261: sum over tokens
    sequence_total    1 / length_i                 sum over completions: a row's loss, at each of its tokens, once

    The parts of local_token_mean are `local_batch` completions each, masked ones included, as they were sampled; a part
    without a token that counts is not one of the P.

    For the policy loss all completions in use count, or with denominator informative only those whose group carries a
    signal; the others weigh 0. KL and entropy have a meaning without a signal, so for them all in use always count.
    Their sequence_total is 1 / (completions in use of the group): the sum over prompts of the mean over completions of
    the whole completion's KL.

    Masked completions, and those without tokens, weigh 0. Where nothing counts, all weights are 0.
    """
    in_use = [row.used for row in rows]
    with_signal = [row.used and row.informative for row in rows]
    policy = with_signal if algorithm.denominator == "informative" else in_use
    policy_B = _weights(rows, policy, algorithm)
    if algorithm.aggregation == "sequence_total":
        return RowWeights(policy_B, _per_group(rows, in_use))
    return RowWeights(policy_B, _weights(rows, in_use, algorithm))


def _weights(rows: Sequence[RowFacts], counts: Sequence[bool], algorithm: AlgorithmConfig) -> Tensor:
    count = sum(counts)
    tokens = _tokens(rows, counts)
    part_tokens: list[int] = []
    size = algorithm.local_batch if algorithm.aggregation == "local_token_mean" else None
    if size is not None:
        starts = range(0, len(rows), size)
        part_tokens = [_tokens(rows[at : at + size], counts[at : at + size]) for at in starts]
    parts = sum(total > 0 for total in part_tokens)

    weights_B = torch.zeros(len(rows), dtype=torch.float64)
    for index, (row, keep) in enumerate(zip(rows, counts, strict=True)):
        if not keep or row.length == 0:
            continue
        match algorithm.aggregation:
            case "sequence_mean":
                weights_B[index] = 1 / (count * row.length)
            case "token_mean":
                weights_B[index] = 1 / tokens
            case "local_token_mean":
                assert size is not None  # checked with the config
                weights_B[index] = 1 / (parts * part_tokens[index // size])
            case "constant":
                assert algorithm.aggregation_constant is not None  # checked with the config
                weights_B[index] = 1 / (count * algorithm.aggregation_constant)
            case "sequence_sum":
                weights_B[index] = 1 / count
            case "sequence_total":
                weights_B[index] = 1 / row.length
    return weights_B


def _per_group(rows: Sequence[RowFacts], counts: Sequence[bool]) -> Tensor:
    sizes = Counter(row.group for row, keep in zip(rows, counts, strict=True) if keep)
    weights = [1 / sizes[row.group] if keep and row.length > 0 else 0.0 for row, keep in zip(rows, counts, strict=True)]
    return torch.tensor(weights, dtype=torch.float64)


def _tokens(rows: Sequence[RowFacts], counts: Sequence[bool]) -> int:
    return sum(row.length for row, keep in zip(rows, counts, strict=True) if keep)
