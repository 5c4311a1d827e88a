"""One token of every row through a model as the flat list of operations that it reduces to, without the modules around
them. For models in fp32 on a CPU, where the modules' own time and products that are narrow one by one cost a fifth of a
token.

The list is traced once from the model itself, whatever its family. In it products of one input (queries, keys and
values; gate and up; a layer and its adapter) are joined into one, and their weights are packed as oneDNN reads them for
few rows. Packed weights are copies, made anew for each call of the sampler and dropped after it; all others are the
model's own, so the list follows the policy.

Shapes: B rows · D hidden size · O outputs of a product · I its inputs.
"""

import itertools
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.fx import Graph, GraphModule
from torch.fx.experimental.proxy_tensor import make_fx
from transformers.cache_utils import Cache, DynamicLayer

from grpo_core.errors import ModelError
from grpo_core.model.attention import attending
from grpo_core.model.load import LoadedModel
from grpo_core.rollout.cache import make_cache
from grpo_core.rollout.draw_tokens import packed
from grpo_core.rollout.shared_cache import SharedCache
from grpo_core.rollout.stepper import SharedStepper, hidden_states

LEAST_TOKENS = 64
"""Longest completion from which on tracing, a third of a second a layer, is worth its time. It must depend on nothing
but the sampler's arguments: a resumed run must sample as if it had never stopped."""
CLOSE = 1e-4
"""Farthest that its hidden states may be from the model's own, as a share of the largest."""
_REFUSALS = (RuntimeError, ValueError, TypeError, IndexError, KeyError, AttributeError, AssertionError)
"""What tracing raises, or the list itself, for a model whose operations depend on the numbers in it."""
_VIEWS = (torch.ops.aten.view.default, torch.ops.aten._unsafe_view.default)
_PRODUCTS = (torch.ops.aten.mm.default, torch.ops.aten.addmm.default)


@dataclass(frozen=True)
class Joined:
    """Products of one input that are taken as one."""

    name: str
    """Of the packed weight among the list's attributes; its bias is `name`_bias."""
    weights: tuple[Tensor, ...]
    """Each O×I, the model's own."""
    biases: tuple[Tensor | None, ...]

    @property
    def sizes(self) -> list[int]:
        """O of each."""
        return [len(weight_OI) for weight_OI in self.weights]

    def weight(self) -> Tensor:
        """All as one, packed."""
        plain = [weight_OI.detach() for weight_OI in self.weights]
        whole = packed(plain[0] if len(plain) == 1 else torch.cat(plain))
        assert whole is not None, "replayable says that oneDNN is here"
        return whole

    def bias(self) -> Tensor | None:
        """All as one; 0 where a product has none."""
        if all(bias is None for bias in self.biases):
            return None
        pairs = zip(self.weights, self.biases, strict=True)
        return torch.cat([weight.new_zeros(len(weight)) if bias is None else bias.detach() for weight, bias in pairs])


class Replay:
    """The list, of one model. Call it within `packed_weights`."""

    def __init__(self, policy: LoadedModel) -> None:
        """Trace it. Raises ModelError where that cannot be done, or gives other numbers than the model."""
        try:
            self._list, self._joined = _joined(_traced(policy.model))
            self._check(policy)
        except _REFUSALS as error:
            raise ModelError(f"{type(policy.model).__name__} cannot be traced ({error})") from error

    def __call__(self, tokens_B: Tensor, positions_B: Tensor, cache: SharedCache) -> Tensor:
        """Feed a token to every row, at its position in the text. Returns the hidden states that follow, B×D."""
        hidden_BD: Tensor = self._list(tokens_B, positions_B, cache)
        return hidden_BD

    @contextmanager
    def packed_weights(self) -> Iterator["Replay"]:
        """Within it the weights are as they were when it was entered."""
        try:
            for layer in self._joined:
                setattr(self._list, layer.name, layer.weight())
                setattr(self._list, f"{layer.name}_bias", layer.bias())
            yield self
        finally:
            for layer in self._joined:
                setattr(self._list, layer.name, None)

    @torch.no_grad()
    def _check(self, policy: LoadedModel) -> None:
        """A few made-up rows, by the list and by the model."""
        prompts, share_B = [[1, 2, 3], [3, 1, 0, 2, 1]], torch.tensor([0, 0, 1])
        with self.packed_weights():
            feeds = [SharedStepper(policy, by) for by in (None, self)]
            for stepper in feeds:
                stepper.begin(prompts, share_B, most=3)
            for number in range(3):
                if number == 2:  # down to a single row
                    share_B = share_B[:1]
                    for stepper in feeds:
                        stepper.keep(torch.tensor([0]))
                positions_B = torch.tensor([3, 5])[share_B] + number
                plain, ours = (stepper.step(share_B + number, positions_B) for stepper in feeds)
                off = ((plain - ours).abs().max() / plain.abs().max()).item()
                if not off <= CLOSE:  # a NaN is not within it either
                    raise ValueError(f"hidden states are off by {off:.3g}")


def replayable(policy: LoadedModel) -> bool:
    """Whether a list is of use for this model, apart from whether it can be made: fp32 on a CPU by a torch with oneDNN,
    whole weights, adapters at work."""
    parameters = list(policy.model.parameters())
    return (
        policy.device.type == "cpu"
        and torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
        and all(weight.dtype == torch.float32 and not hasattr(weight, "ds_id") for weight in parameters)
        and not any(getattr(module, "disable_adapters", False) is True for module in policy.model.modules())
    )


@torch.library.custom_op("grpo_core::attend_row", mutates_args=())
def _attend_row(query: Tensor, key: Tensor, value: Tensor, layer: int, scaling: float | None) -> Tensor:
    """Stands for a layer's cache and attention in the trace; when the list runs, `_attend` takes its place."""
    raise AssertionError("it is traced, never run")


@_attend_row.register_fake
def _(query: Tensor, key: Tensor, value: Tensor, layer: int, scaling: float | None) -> Tensor:
    return query.new_empty((query.shape[0], query.shape[2], query.shape[1], value.shape[3]))


def _attend(cache: SharedCache, query: Tensor, key: Tensor, value: Tensor, layer: int, scaling: float | None) -> Tensor:
    cache.append(layer, key, value)
    return cache.attend_at(layer, query, key.shape[1], scaling)


class _Traced(DynamicLayer):  # type: ignore[no-untyped-call]
    """Keeps nothing, and is as long at every token as at the first."""

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        return key_states, value_states


@torch.no_grad()
def _traced(model: Any) -> GraphModule:
    """(tokens_B, positions_B) → hidden_BD as operations of torch's own, for any number of rows."""
    layers = len(make_cache(model.config).layers)

    def attend(
        module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None,
        *, scaling: float | None = None, **kwargs: Any,
    ) -> tuple[Tensor, None]:  # fmt: skip
        return _attend_row(query, key, value, module.layer_idx, scaling), None

    def step(tokens_B: Tensor, positions_B: Tensor) -> Tensor:
        cache = Cache(layers=[_Traced() for _ in range(layers)])  # type: ignore[no-untyped-call]
        with attending(attend):
            return hidden_states(model, tokens_B[:, None], positions_B[:, None], cache)[:, -1]

    example = torch.arange(5), torch.arange(5)  # 0 or 1 rows would be specialised, 5 stand for any number
    with _unlogged():
        traced: GraphModule = make_fx(step, tracing_mode="symbolic", _allow_non_fake_inputs=True)(*example)
    return traced


@contextmanager
def _unlogged() -> Iterator[None]:
    """An operation that torch cannot trace is named by what it raises; it logs a page of stack as well."""
    log = logging.getLogger("torch._subclasses.fake_tensor")
    before, log.disabled = log.disabled, True
    try:
        yield
    finally:
        log.disabled = before


def _joined(traced: GraphModule) -> tuple[GraphModule, list[Joined]]:
    """The trace with a cache as its third input, products of one input joined, views that may copy."""
    graph = traced.graph
    *_, last = (node for node in graph.nodes if node.op == "placeholder")
    with graph.inserting_after(last):
        cache = graph.placeholder("cache")
    joined: list[Joined] = []
    for products in _products(graph, traced).values():
        weights, biases = zip(*(constants for _, constants in products), strict=True)
        joined.append(Joined(f"packed_{len(joined)}", weights, biases))
        _join(graph, traced, joined[-1], [node for node, _ in products])
    for node in graph.nodes:
        if node.target in _VIEWS:
            node.target = torch.ops.aten.reshape.default
        elif node.target == torch.ops.grpo_core.attend_row.default:
            node.target, node.args = _attend, (cache, *node.args)
    graph.eliminate_dead_code()
    traced.recompile()
    return traced, joined


def _products(graph: Graph, traced: GraphModule) -> dict[Any, list[Any]]:
    """Linear layers' products, each with its weight and bias, by what they multiply."""
    products: dict[Any, list[Any]] = {}
    for node in graph.nodes:
        constants = _constants(node, traced) if node.target in _PRODUCTS else None
        if constants is not None:
            given: Any = node.args[-2]
            shape = str(given.meta["val"].shape)
            while given.target in _VIEWS:
                given = given.args[0]
            products.setdefault((given, shape), []).append((node, constants))
    return products


def _constants(product: Any, traced: GraphModule) -> tuple[Tensor, Tensor | None] | None:
    """Weight (O×I) and bias of a product that is a linear layer's, else None."""
    *bias, _, turned = product.args
    if turned.target != torch.ops.aten.t.default or turned.args[0].op != "get_attr" or product.kwargs:
        return None
    if bias and bias[0].op != "get_attr":
        return None
    return getattr(traced, turned.args[0].target), getattr(traced, bias[0].target) if bias else None


def _join(graph: Graph, traced: GraphModule, joined: Joined, products: list[Any]) -> None:
    """Put one product in the place of `products`."""
    names = [joined.name, f"{joined.name}_bias"]
    for name in names:
        setattr(traced, name, torch.empty(0))  # until it is packed
    with graph.inserting_before(products[0]):
        whole = graph.call_function(
            torch.ops.mkldnn._linear_pointwise.default,
            (products[0].args[-2], *(graph.create_node("get_attr", name) for name in names), "none", [], ""),
        )
        parts = [whole]
        if len(products) > 1:
            cuts = zip(itertools.accumulate((0, *joined.sizes[:-1])), joined.sizes, strict=True)
            parts = [graph.call_function(torch.narrow, (whole, 1, start, size)) for start, size in cuts]
    for node, part in zip(products, parts, strict=True):
        node.replace_all_uses_with(part)
        graph.erase_node(node)
