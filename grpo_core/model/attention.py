"""Our own attention inside transformers' models: code that shares a prompt decides in each forward pass which tokens
attend to which, for any family that uses transformers' attention interface.

A model that was given this implementation behaves as with `sdpa`, but within `attending(by)` every layer's attention is
`by`'s. The cache and the training forward use it to keep a prompt once for all completions of its group.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

ATTENTION = "grpo_core"
"""Name of the implementation among transformers'."""

Attend = Callable[..., tuple[Tensor, Tensor | None]]
"""As transformers calls it: (module, query_BHTD, key, value, attention_mask, **kwargs with `scaling`, `dropout`,
perhaps `sliding_window`, `softcap`, `s_aux`) → (output_BTHD, None)."""

_by: ContextVar[Attend | None] = ContextVar("attending", default=None)


@contextmanager
def attending(by: Attend) -> Iterator[None]:
    """Within it, in this thread, attention is computed by `by`."""
    token = _by.set(by)
    try:
        yield
    finally:
        _by.reset(token)


def attending_now() -> Attend | None:
    """What computes attention in this thread now; None for sdpa. For callers that run a layer again elsewhere."""
    return _by.get()


@torch.compiler.disable  # type: ignore[untyped-decorator]  # else compiled layers would be compiled for every batch
def _attention(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **kwargs: Any
) -> tuple[Tensor, Tensor | None]:
    by: Attend = _by.get() or sdpa_attention_forward
    return by(module, query, key, value, attention_mask, **kwargs)


AttentionInterface.register(ATTENTION, _attention)
AttentionMaskInterface.register(ATTENTION, sdpa_mask)


def use_ours(model: Any) -> None:
    """Give a transformers model this implementation where it would compute the same: where its family uses the
    interface for its attention and would otherwise use sdpa. Elsewhere (capped scores, sinks, old families) the model
    keeps what transformers chose for it."""
    if model.config._attn_implementation == "sdpa" and model._can_set_attn_implementation():
        model.set_attn_implementation(ATTENTION)


def ours(model: Any) -> bool:
    """Whether `attending` has an effect on the model's layers."""
    return bool(model.config._attn_implementation == ATTENTION)
