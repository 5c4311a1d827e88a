"""Two ways of running a policy's layers while it learns: recomputed in backward instead of keeping what they computed,
and compiled. They change no weight's name, no result beyond rounding, and nothing where no gradient is wanted, so
sampling and the reference are not affected.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import torch
from torch import nn
from torch._inductor import config as inductor
from torch.utils.checkpoint import checkpoint
from transformers.modeling_layers import GradientCheckpointingLayer

from grpo_core.errors import ModelError
from grpo_core.model.attention import attending, attending_now


def compile_layers(model: Any) -> None:
    """Have torch.compile fuse each layer's small operators, around its attention, which stays ours. Layers of one shape
    share what was compiled, for rows and lengths of any number. To be called before `recompute_layers`.

    Raises ModelError where nothing can be compiled for the model's device, and for a family without layers known as
    such.
    """
    layers = _layers(model, "engine.torch_compile")
    inductor.compile_threads = 1  # in this process: helpers would outlive a killed trainer
    try:
        torch.compile(torch.sin)(torch.ones(3, device=next(model.parameters()).device))
    except RuntimeError as error:
        reason = next(iter(str(error).splitlines()), type(error).__name__)
        raise ModelError(
            "engine.torch_compile: torch.compile does not work here. On a CPU it needs a C++ compiler (Debian: apt-get "
            f"install g++), on a GPU Triton; install it, or switch torch_compile off. PyTorch says: {reason}"
        ) from error
    for layer in layers:
        layer.forward = partial(_compiled, layer.forward, torch.compile(layer.forward, dynamic=True))


def _compiled(plain: Callable[..., Any], fused: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    return (fused if torch.is_grad_enabled() else plain)(*args, **kwargs)


def recompute_layers(model: Any) -> None:
    """Keep each layer's input only, and compute the rest again for the gradient (Chen et al. 2016, "Training Deep Nets
    with Sublinear Memory Cost"). Raises ModelError for a family without layers known as such.

    Not transformers' own switch: that works in train mode alone, which would bring dropout back.
    """
    for layer in _layers(model, "engine.gradient_checkpointing"):
        layer.forward = partial(_recomputed, layer.forward)


def _recomputed(forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    if not torch.is_grad_enabled():
        return forward(*args, **kwargs)
    return checkpoint(
        partial(forward, **kwargs), *args, use_reentrant=False, preserve_rng_state=False, context_fn=_both
    )


def _both() -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
    """Around the layer, and around its recomputation, which may run in another thread and must attend alike."""
    by = attending_now()
    return nullcontext(), (nullcontext() if by is None else attending(by))


def _layers(model: Any, setting: str) -> list[nn.Module]:
    layers: list[nn.Module] = [module for module in model.modules() if isinstance(module, GradientCheckpointingLayer)]
    if not layers:
        raise ModelError(f"{type(model).__name__} does not tell its layers apart, which {setting} needs; switch it off")
    return layers
