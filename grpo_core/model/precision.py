"""Matrix products of the update in bfloat16 while weights, sums and log-softmax stay fp32 (engine.autocast)."""

from contextlib import AbstractContextManager, nullcontext

import torch


def products(kind: str, device: torch.device) -> AbstractContextManager[object]:
    """Within it, models compute as engine.autocast `kind` says."""
    return nullcontext() if kind == "none" else torch.autocast(device.type, dtype=torch.bfloat16)
