"""What torch's errors mean to a person and to the rules of retry: memory, device, exchange between ranks, or a defect.

torch tells them apart by class where it can and by words where it cannot; the words are its own, unchanged for years.
"""

import torch
import torch.distributed as dist

from grpo_core.errors import DeviceError, ExchangeError, GrpoError, OutOfMemory

_MEMORY = ("out of memory", "can't allocate memory", "STATUS_ALLOC_FAILED")
_DEVICE = ("CUDA error", "CUDA driver error", "cuDNN error")
_EXCHANGE = ("NCCL", "gloo")


class Defect(GrpoError):
    """A defect of ours, for whom its trace does not reach: the run's outcome, and the other ranks."""

    code = "internal_error"


def known_cause(error: Exception) -> GrpoError | None:
    """The error that says what happened; None for one that must be a defect of ours."""
    text = str(error)
    if isinstance(error, torch.OutOfMemoryError | MemoryError) or (
        isinstance(error, RuntimeError) and any(word in text for word in _MEMORY)
    ):
        return OutOfMemory(
            f"out of memory: {text}. Lower engine.micro_batch_tokens (update) or engine.rollout_batch (sampling)"
        )
    if isinstance(error, dist.DistError) or (
        isinstance(error, RuntimeError) and any(word in text for word in _EXCHANGE)
    ):
        return ExchangeError(f"the ranks of the run lost each other: {text}")
    if isinstance(error, torch.AcceleratorError) or (
        isinstance(error, RuntimeError) and any(word in text for word in _DEVICE)
    ):
        return DeviceError(f"the device failed: {text}")
    return None
