"""How the losses of single tokens become one number.

The denominators are computed once for an optimiser step, over all its completions, and each micro-batch adds its
share. So the size and order of micro-batches cannot change the loss or its gradient.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from grpo_core.config import Aggregation


def row_weights(lengths: Sequence[int], used: Sequence[bool], how: Aggregation, constant: int | None = None) -> Tensor:
    """What one token of each completion counts, float64, shape B (all completions of the optimiser step).

    loss = Σ over completions i, Σ over tokens t: weight_i · loss_it, where for B completions in use

    sequence_mean  weight_i = 1 / (B · length_i)   GRPO, arXiv 2402.03300, eq. 3: each completion counts alike
    token_mean     weight_i = 1 / Σ_j length_j     DAPO, arXiv 2503.14476, section 3.3: each token counts alike
    constant       weight_i = 1 / (B · constant)   Dr. GRPO, arXiv 2503.20783: no length in the denominator

    Masked: completions with used False weigh 0 and are in no denominator. Completions whose advantage is 0 stay in it:
    a group without variance makes the step smaller, it does not make the others louder.
    """
    count = sum(used)
    tokens = sum(length for length, keep in zip(lengths, used, strict=True) if keep)
    weights = torch.zeros(len(lengths), dtype=torch.float64)
    for row, (length, keep) in enumerate(zip(lengths, used, strict=True)):
        if not keep or length == 0:
            continue
        match how:
            case "sequence_mean":
                weights[row] = 1 / (count * length)
            case "token_mean":
                weights[row] = 1 / tokens
            case "constant":
                if constant is None:
                    raise ValueError("aggregation constant needs its constant")
                weights[row] = 1 / (count * constant)
    return weights
