"""The sizes of a model that its operations depend on."""

from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError

Size = Annotated[int, Field(ge=0, le=10**15)]

_EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
_CHOSEN = ("num_experts_per_tok", "num_experts_per_token", "moe_topk", "moe_k")
"""Names in configs of transformers, of how many experts a layer has, and how many a token goes through."""


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
    inactive: Size = 0
    """Of the experts, those that a token does not go through: all of them × (1 − chosen / all); 0 where how many are
    chosen is not known, and all count."""

    @property
    def active(self) -> int:
        """Parameters without the experts that a token does not go through."""
        return self.parameters - self.inactive

    @property
    def body(self) -> int:
        """Those that every token is multiplied by."""
        return self.active - self.lookup - self.head

    @classmethod
    def read(cls, facts: Any) -> Self | None:
        """What a manifest or a row holds; None where it holds none."""
        try:
            return cls.model_validate(facts)
        except ValidationError:
            return None


def shape_of(
    config: Mapping[str, Any], *, parameters: int, adapters: int = 0, own_head: bool, routed: int = 0
) -> Shape:
    """From a model's config.json. `own_head`: the output layer has weights of its own; `routed`: parameters of experts
    of which a router chooses, as `routed_parameters` sums them. Of a model with several parts (text and images) the
    text part counts."""
    text = config.get("text_config")
    part = text if isinstance(text, Mapping) else config
    layers, heads = _size(part, "num_hidden_layers", "n_layer"), _size(part, "num_attention_heads", "n_head")
    hidden, vocabulary = _size(part, "hidden_size", "n_embd"), _size(part, "vocab_size")
    each = _size(part, "head_dim") or (hidden // heads if hidden and heads else None)
    table = hidden * vocabulary if hidden and vocabulary else 0
    if (2 if own_head else 1) * table >= parameters:
        table = 0
    experts = _size(part, *_EXPERTS) or 1
    chosen = _size(part, *_CHOSEN) or experts
    known = chosen <= experts and routed % experts == 0
    return Shape(
        parameters=parameters,
        adapters=adapters,
        lookup=table if own_head else 0,
        head=table,
        layers=layers,
        attention=heads * each if heads and each else None,
        experts=experts > 1,
        inactive=routed // experts * (experts - chosen) if known else 0,
    )


def routed_parameters(weights: Iterable[tuple[str, int]]) -> int:
    """Of the weights (name, numbers in it), those of experts that a router chooses from: in all of transformers'
    mixtures but a few they are in a part `experts`, one by one or stacked, and what every token goes through is not
    (`shared_experts`, the router)."""
    return sum(numbers for name, numbers in weights if "experts" in name.split("."))


def _size(config: Mapping[str, Any], *names: str) -> int | None:
    """The first of these settings that is a size above 0."""
    values = (config.get(name) for name in names)
    return next((v for v in values if isinstance(v, int) and not isinstance(v, bool) and 0 < v < 10**12), None)
