"""The sizes of a model that its operations depend on."""

from collections.abc import Mapping
from typing import Annotated, Any, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError

Size = Annotated[int, Field(ge=0, le=10**15)]


class Shape(BaseModel):
    """Of a decoder-only transformer. What is None is not known, and the operations that need it are not counted."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    parameters: Annotated[int, Field(ge=1, le=10**15)]
    """All of the base model's, without LoRA adapters."""
    adapters: Size = 0
    """Of LoRA adapters that are trained on top."""
    lookup: Size = 0
    """Parameters that no token is multiplied by: the input embedding, where the output layer has weights of its own."""
    head: Size = 0
    """Of the output layer, which only completion tokens go through; 0 where that is not known."""
    layers: Size | None = None
    attention: Size | None = None
    """Heads × size of a head: the width of queries."""
    experts: bool = False
    """A mixture of experts: a token is multiplied by fewer parameters than there are."""

    @classmethod
    def read(cls, facts: Any) -> Self | None:
        """What a manifest or a row holds; None where it holds none."""
        try:
            return cls.model_validate(facts)
        except ValidationError:
            return None


def shape_of(config: Mapping[str, Any], *, parameters: int, adapters: int = 0, own_head: bool) -> Shape:
    """From a model's config.json. `own_head`: the output layer has weights of its own. Of a model with several parts
    (text and images) the text part counts."""
    text = config.get("text_config")
    part = text if isinstance(text, Mapping) else config
    layers, heads = _size(part, "num_hidden_layers", "n_layer"), _size(part, "num_attention_heads", "n_head")
    hidden, vocabulary = _size(part, "hidden_size", "n_embd"), _size(part, "vocab_size")
    each = _size(part, "head_dim") or (hidden // heads if hidden and heads else None)
    table = hidden * vocabulary if hidden and vocabulary else 0
    if (2 if own_head else 1) * table >= parameters:
        table = 0
    return Shape(
        parameters=parameters,
        adapters=adapters,
        lookup=table if own_head else 0,
        head=table,
        layers=layers,
        attention=heads * each if heads and each else None,
        experts=_size(part, "num_experts", "num_local_experts", "n_routed_experts") not in (None, 1),
    )


def _size(config: Mapping[str, Any], *names: str) -> int | None:
    """The first of these settings that is a size above 0."""
    values = (config.get(name) for name in names)
    return next((v for v in values if isinstance(v, int) and not isinstance(v, bool) and 0 < v < 10**12), None)
