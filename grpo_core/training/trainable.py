"""Weights that an optimiser changes, with the optimiser: of the policy, or of the critic.

bf16 weights are trained through fp32 copies: at small learning rates an update is less than bf16 can hold and would be
rounded away. The copies and the optimiser's moments are what a checkpoint holds; the rest follows from them.
"""

from collections.abc import Callable, Collection, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Protocol

import torch
from torch import Tensor

from grpo_core.config.optim import AdamwConfig
from grpo_core.distributed.ranks import Ranks
from grpo_core.errors import CheckpointError

MOMENTS = ("exp_avg", "exp_avg_sq", "step")
"""What AdamW keeps of each weight."""


class TrainableWeights(Protocol):
    """What an update needs of the weights it changes, held by one process, or by several with parts each."""

    even_passes: bool
    """Whether every rank must make the same number of passes, because their passes wait for each other."""

    def set_rate(self, lr: float) -> None: ...

    def zero_gradients(self, passes: int) -> None:
        """An update begins. So many passes follow, each a `forward` and its `backward`."""

    def forward(self, work: Callable[[], Tensor]) -> Tensor:
        """Do what a pass does with the policy's model, with gradients on; returns its loss. A model is run nowhere else
        between `zero_gradients` and `step`, unless its weights are whole."""

    def backward(self, loss: Tensor) -> None:
        """Add a micro-batch's gradient. Losses are already weighed by the whole update's denominators, over all
        ranks, so gradients are summed over micro-batches and ranks, never averaged."""

    def finish(self, max_norm: float) -> float:
        """Sum the gradient over ranks and scale it down to `max_norm` when longer; its norm before, which may be no
        number: then `step` must not follow. The same on every rank."""

    def step(self) -> None:
        """Change the weights by what `finish` left."""

    def whole(self) -> AbstractContextManager[None]:
        """Within it the model holds the newest weights whole, on every rank."""

    def exact(self) -> dict[str, Tensor]:
        """The weights as they are trained, fp32 and whole, by the model's names for them. Every rank calls it."""

    def moments(self) -> dict[str, Tensor]:
        """AdamW's two moments and count of steps of every weight, whole; empty before the first step."""

    def restore(self, exact: Mapping[str, Tensor], moments: Mapping[str, Tensor]) -> None:
        """Take over what `exact` and `moments` gave. Raises CheckpointError when they are of another model."""


class LocalWeights:
    """Owns the fp32 copies and AdamW on them. Every rank holds all of it and takes the same step."""

    even_passes = False

    weights: list[Tensor]
    """What the optimiser changes, in fp32: the model's own weights where these are fp32."""

    def __init__(
        self, named: Mapping[str, Tensor], *, lr: float, optim: AdamwConfig, ranks: Ranks | None = None
    ) -> None:
        """`named`: the model's weights, each once; they follow every step. `lr` may be changed by `set_rate`."""
        self._ranks = ranks or Ranks()
        self._names = list(named)
        self._held = list(named.values())
        self.weights = [p if p.dtype == torch.float32 else p.detach().float() for p in self._held]
        self._optimizer = adamw(self.weights, optim, lr=lr, fused=True)

    def zero_gradients(self, passes: int = 1) -> None:
        """See `TrainableWeights`."""
        for weight in self.weights:
            weight.grad = None

    def forward(self, work: Callable[[], Tensor]) -> Tensor:
        """See `TrainableWeights`."""
        return work()

    def backward(self, loss: Tensor) -> None:
        """See `TrainableWeights`."""
        loss.backward()  # type: ignore[no-untyped-call]
        self.collect_gradients()

    def collect_gradients(self) -> None:
        """Add a micro-batch's bf16 gradient to the fp32 sum: in bf16 the small ones of many micro-batches would be
        rounded away."""
        for held, weight in zip(self._held, self.weights, strict=True):
            if held is not weight and held.grad is not None:
                weight.grad = held.grad.float() if weight.grad is None else weight.grad.add_(held.grad)
                held.grad = None

    def gradients(self) -> list[Tensor]:
        """One for each weight, zeros where no pass gave any: AdamW skips a weight without a gradient, and its
        momentum would not decay."""
        for weight in self.weights:
            if weight.grad is None:
                weight.grad = torch.zeros_like(weight)
        return [weight.grad for weight in self.weights if weight.grad is not None]

    def finish(self, max_norm: float) -> float:
        """See `TrainableWeights`."""
        self._ranks.sum_in_place(self.gradients())
        return torch.nn.utils.clip_grad_norm_(self.weights, max_norm).item()

    def set_rate(self, lr: float) -> None:
        for group in self._optimizer.param_groups:
            group["lr"] = lr

    def whole(self) -> AbstractContextManager[None]:
        """See `TrainableWeights`. Here they always are."""
        return nullcontext()

    def step(self) -> None:
        self._optimizer.step()
        self._follow()

    # ------------------------------------------------------------------ into a checkpoint and back

    def exact(self) -> dict[str, Tensor]:
        """The weights as they are trained, by the model's names for them."""
        return dict(zip(self._names, (weight.detach() for weight in self.weights), strict=True))

    def moments(self) -> dict[str, Tensor]:
        """AdamW's two moments and count of steps of every weight; empty before the first step."""
        return {
            f"{name}.{part}": self._optimizer.state[weight][part]
            for name, weight in zip(self._names, self.weights, strict=True)
            if weight in self._optimizer.state
            for part in MOMENTS
        }

    @torch.no_grad()
    def restore(self, exact: Mapping[str, Tensor], moments: Mapping[str, Tensor]) -> None:
        """Take over what `exact` and `moments` gave. Raises CheckpointError when they are of another model."""
        fit(exact, {name: weight.shape for name, weight in zip(self._names, self.weights, strict=True)}, moments)
        for name, weight in zip(self._names, self.weights, strict=True):
            weight.copy_(exact[name])
            if moments:
                self._optimizer.state[weight] = {
                    part: moments[f"{name}.{part}"].to(weight.device, copy=True) for part in MOMENTS
                }
        self._follow()

    @torch.no_grad()
    def _follow(self) -> None:
        for held, weight in zip(self._held, self.weights, strict=True):
            if held is not weight:
                held.copy_(weight)


def adamw(weights: list[Tensor], optim: AdamwConfig, *, lr: float, fused: bool | None = None) -> torch.optim.AdamW:
    """AdamW as a config has it, but for its rate."""
    betas = (optim.beta1, optim.beta2)
    return torch.optim.AdamW(weights, lr=lr, betas=betas, eps=optim.eps, weight_decay=optim.weight_decay, fused=fused)


def fit(tensors: Mapping[str, Tensor], expected: Mapping[str, torch.Size], moments: Collection[str] = ()) -> None:
    """Raise CheckpointError unless the tensors have exactly these names and shapes, and the moments, where there are
    any, are theirs."""
    shapes = {name: tensor.shape for name, tensor in tensors.items()}
    if shapes != dict(expected):
        other = sorted(name for name in shapes.keys() | expected.keys() if shapes.get(name) != expected.get(name))
        raise CheckpointError(f"the checkpoint's weights belong to another model: {other[0]} differs in name or shape")
    if moments and set(moments) != {f"{name}.{part}" for name in expected for part in MOMENTS}:
        raise CheckpointError("the checkpoint's optimiser belongs to another model")
