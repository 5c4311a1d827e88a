"""Which layout a model's rows take: the one that the config names, or what `auto` resolves to.

Determined once for each loaded model, by comparing numbers, because no list of families would stay true.
"""

from typing import Any

import torch

from grpo_core.errors import ModelError
from grpo_core.model.attention import ours
from grpo_core.model.layout import Layout
from grpo_core.model.load import LoadedModel
from grpo_core.model.logprobs import completion_logprobs, vocabulary_of

_REFUSALS = (RuntimeError, ValueError, TypeError, IndexError, KeyError, AttributeError)
"""What families raise that cannot take a batch laid out in a way they do not know."""


def resolve_layout(loaded: LoadedModel, setting: str) -> Layout:
    """The layout that engine.layout `setting` resolves to for this model. Raises ModelError when it names one that the
    model cannot take.

    auto: shared, else right; why it is not shared is then in `loaded.unshared`.
    """
    if setting not in loaded.layouts:
        loaded.layouts[setting] = _find(loaded, setting)
    layout: Layout = loaded.layouts[setting]  # type: ignore[assignment]
    return layout


def _find(loaded: LoadedModel, setting: str) -> str:
    if setting != "auto":
        check_layout(loaded.model, setting, pad_id=loaded.pad_id)  # type: ignore[arg-type]
        return setting
    try:
        check_layout(loaded.model, "shared", pad_id=loaded.pad_id)
    except ModelError as error:
        loaded.unshared = str(error)
        return "right"
    return "shared"


@torch.no_grad()
def check_layout(model: Any, layout: Layout, *, pad_id: int = 0) -> None:
    """Compare a few made-up rows in `layout` with the same rows padded on the right.

    Layers that carry a state from position to position instead of attending (Mamba, short convolutions) take packed
    rows for one text, and some take padding on the left for text. Raises ModelError for such a model.
    """
    if layout == "right":
        return
    if layout == "shared" and not ours(model):
        cap = getattr(model.config, "attn_logit_softcapping", None)
        why = f", which caps its scores at {cap:g}" if cap else ""
        raise _refused(
            model, layout, f"its attention is {model.config._attn_implementation}{why}, and cannot be taken over"
        )
    vocabulary = vocabulary_of(model)
    rows = [[(7 * row + 3 * index + 1) % vocabulary for index in range(5 + 4 * row)] for row in (1, 0, 2)]
    prompts, completions = [row[:2] for row in rows], [row[2:] for row in rows]
    prompts, completions = [*prompts, prompts[0], [5]], [*completions, completions[1], completions[0]]
    right_N = completion_logprobs(model, prompts, completions, layout="right", pad_id=pad_id)
    try:
        other_N = completion_logprobs(model, prompts, completions, layout=layout, pad_id=pad_id)
    except (ModelError, *_REFUSALS) as error:
        raise _refused(model, layout, str(error)) from error
    off, most = (other_N - right_N).abs().max().item(), 1e-3
    if model.dtype != torch.float32:  # bf16 has 8 bits: four last places of the largest, if that is more than 0.1
        most = max(0.1, 4 * torch.finfo(model.dtype).eps * right_N.abs().max().item())
    if not off <= most:  # a NaN is not within either
        raise ModelError(
            f"{type(model).__name__} gives other log-probabilities with engine.layout {layout} (off by {off:.3g}), "
            "because some of its layers do not tell rows or padding apart; use engine.layout: right"
        )


def _refused(model: Any, layout: Layout, why: str) -> ModelError:
    return ModelError(f"{type(model).__name__} cannot take engine.layout {layout} ({why}); use engine.layout: right")
