"""Closing the gaps that ended rows leave, with as few moves as there are gaps."""

import torch
from torch import Tensor


def compact_rows(wanted_B: Tensor) -> Tensor:
    """Which of the present places each new place takes over: the wanted ones of the front stay where they are, and the
    last wanted ones fill the gaps between them. `wanted_B` is bool, on the CPU."""
    count = int(wanted_B.sum())
    keep = torch.arange(count)
    keep[~wanted_B[:count]] = wanted_B[count:].nonzero()[:, 0] + count
    return keep
