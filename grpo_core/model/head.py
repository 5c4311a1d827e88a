"""From hidden states to log-probabilities, entropies and their gradients, a portion of tokens at a time, without ever
holding the logits of all of them.

The work of a portion is one matrix product forward and two backward. Where the gradient is not known while the logits
are there (`token_terms`), backward computes them again: four products. Where the loss is a sum over tokens
(`token_loss`), it is known, and three are enough: in both cases fp32 logits of one portion are all that is alive.

Written for an output layer that is a plain nn.Linear; `plain_head` finds out whether a model's is.

Shapes: N completion tokens · D hidden size · V vocabulary; small n for a portion.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

PORTION_CPU = 2**23
"""fp32 logits alive in one portion (32 MiB): matrix products no longer gain from more, and caches still hold it."""
PORTION_GPU = 2**28
"""The same on a GPU, which small products would leave idle (1 GiB)."""
IMPOSSIBLE = -1e4
"""Stands for log 0 where it is multiplied by the probability 0. fp32 has no probability this small."""

LossOf = Callable[[Tensor, Tensor | None, Tensor, slice], Tensor]
"""(logprobs_n, entropy_n, greedy_n, which of the N tokens these are) → the sum of their losses. greedy_n: whether no
token is likelier."""


@dataclass(frozen=True)
class Head:
    """An output layer as numbers: logits = factor · (hidden · weightᵀ + bias)."""

    weight_VD: Tensor
    bias_V: Tensor | None
    factor: float

    def portion(self, logits_at_once: int | None) -> int:
        """Tokens of a portion; the least is one."""
        most = logits_at_once or (PORTION_CPU if self.weight_VD.device.type == "cpu" else PORTION_GPU)
        return max(1, most // len(self.weight_VD))


def not_plain(model: Any) -> str | None:
    """Why a model's output layer is more than a product, in words; None where it is one."""
    layer = model.get_output_embeddings()
    if type(layer) is not nn.Linear:
        return f"its output layer is a {type(layer).__name__}"
    cap = getattr(model.config, "final_logit_softcapping", None)
    return f"it caps its logits (final_logit_softcapping {cap:g})" if cap else None


def plain_head(model: Any, temperature: float) -> Head | None:
    """The model's output layer, with temperature and the family's factors; None where it is no plain nn.Linear, or the
    family caps its logits: that goes through autograd."""
    layer, config = model.get_output_embeddings(), model.config
    if not_plain(model) is not None:
        return None
    factor = float(getattr(config, "logit_scale", None) or 1.0) / float(getattr(config, "logits_scaling", None) or 1.0)
    return Head(layer.weight, layer.bias, factor / temperature)


def token_terms(
    head: Head, hidden_ND: Tensor, targets_N: Tensor, *, entropy: bool, logits_at_once: int | None = None
) -> tuple[Tensor, Tensor | None, Tensor]:
    """log π(target) of every token and, when requested, the entropy of its distribution in nats; fp32, shape N.
    Differentiable when gradients are on. Then whether no token is likelier than the target; bool, shape N."""
    portion = head.portion(logits_at_once)
    logprobs_N, entropy_N, greedy_N = _Terms.apply(  # type: ignore[no-untyped-call]
        hidden_ND, head.weight_VD, head.bias_V, targets_N, head.factor, entropy, portion
    )
    return logprobs_N, entropy_N if entropy else None, greedy_N


def token_loss(
    head: Head,
    hidden_ND: Tensor,
    targets_N: Tensor,
    loss_of: LossOf,
    *,
    entropy: bool,
    logits_at_once: int | None = None,
) -> Tensor:
    """Σ of `loss_of` over portions, for a loss that is a sum over tokens. Its gradient is formed while the logits are
    there; backward only hands it on."""
    portion = head.portion(logits_at_once)
    loss: Tensor = _Loss.apply(  # type: ignore[no-untyped-call]
        hidden_ND, head.weight_VD, head.bias_V, targets_N, head.factor, entropy, portion, loss_of
    )
    return loss


class _Work:
    """One pass over the portions: buffers that all of them use, and the gradients that they add up to."""

    def __init__(
        self, hidden_ND: Tensor, weight_VD: Tensor, bias_V: Tensor | None, factor: float, entropy: bool, portion: int
    ) -> None:
        kind = hidden_ND.device.type
        self._low = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else weight_VD.dtype
        self._hidden_ND = hidden_ND.to(self._low)
        self._weight_VD, self._bias_V = weight_VD.to(self._low), bias_V
        self._factor, self._entropy = factor, entropy
        self._rows = min(portion, max(len(hidden_ND), 1))
        shape = (self._rows, len(weight_VD))
        self._logits_nV = torch.empty(shape, dtype=torch.float32, device=hidden_ND.device)
        self._depth_nV = torch.empty_like(self._logits_nV) if entropy else None
        self.grad_hidden_ND: Tensor | None = None
        self.grad_weight_VD: Tensor | None = None
        self.grad_bias_V: Tensor | None = None

    def portions(self) -> Iterator[slice]:
        for start in range(0, len(self._hidden_ND), self._rows):
            yield slice(start, min(start + self._rows, len(self._hidden_ND)))

    def terms(self, here: slice, targets_N: Tensor) -> tuple[Tensor, Tensor | None]:
        """Log-probabilities and entropies of a portion. Leaves exp(logit − largest) and their sum for `learn`, and in
        `greedy_n` whether no token is likelier than the target."""
        hidden_nD, targets_n1 = self._hidden_ND[here], targets_N[here, None]
        logits_nV = self._logits_nV[: len(hidden_nD)]
        if self._low == torch.float32:
            torch.mm(hidden_nD, self._weight_VD.t(), out=logits_nV)
        else:
            logits_nV.copy_(torch.mm(hidden_nD, self._weight_VD.t()))
        if self._bias_V is not None:
            logits_nV += self._bias_V
        if self._factor != 1.0:
            logits_nV *= self._factor
        logits_nV -= logits_nV.amax(-1, keepdim=True)
        depth_n1 = logits_nV.gather(-1, targets_n1)
        self.greedy_n = depth_n1[:, 0] == 0
        if self._depth_nV is not None:
            torch.clamp(logits_nV, min=IMPOSSIBLE, out=self._depth_nV[: len(hidden_nD)])
        self._sum_n1 = logits_nV.exp_().sum(-1, keepdim=True)
        log_sum_n1 = self._sum_n1.log()
        logprobs_n = (depth_n1.double() - self._sum_n1.double().log())[:, 0].float()
        if self._depth_nV is None:
            return logprobs_n, None
        mean_n = torch.linalg.vecdot(logits_nV, self._depth_nV[: len(hidden_nD)]) / self._sum_n1[:, 0]
        return logprobs_n, log_sum_n1[:, 0] - mean_n

    def learn(
        self, here: slice, targets_N: Tensor, slope_n: Tensor, entropy_n: Tensor | None, bend_n: Tensor | None
    ) -> None:
        """Add the portion's gradients, after `terms` of the same portion: `slope_n` is dL/d log π, `bend_n` dL/dH.

        dL/dz_j = slope · (1[j = target] − p_j) − bend · p_j (log p_j + H), times the factor.
        """
        hidden_nD = self._hidden_ND[here]
        grad_nV = self._logits_nV[: len(hidden_nD)]
        slope_n1 = (slope_n * self._factor)[:, None]
        if self._depth_nV is not None and entropy_n is not None and bend_n is not None:
            depth_nV = self._depth_nV[: len(hidden_nD)]
            depth_nV += entropy_n[:, None] - self._sum_n1.log()
            depth_nV *= (bend_n * self._factor)[:, None]
            depth_nV += slope_n1
            grad_nV *= depth_nV
            grad_nV *= -1 / self._sum_n1
        else:
            grad_nV *= -slope_n1 / self._sum_n1
        grad_nV.scatter_add_(-1, targets_N[here, None], slope_n1)
        low_nV = grad_nV.to(self._low)
        if self.grad_hidden_ND is not None:
            torch.mm(low_nV, self._weight_VD, out=self.grad_hidden_ND[here])
        if self.grad_weight_VD is not None:
            if self._low == torch.float32:
                self.grad_weight_VD.addmm_(low_nV.t(), hidden_nD)
            else:
                self.grad_weight_VD += torch.mm(low_nV.t(), hidden_nD)
        if self.grad_bias_V is not None:
            self.grad_bias_V += grad_nV.sum(0)

    def wants(self, hidden: bool, weight: bool, bias: bool) -> None:
        """Allocate the gradients that are requested, the weight's in fp32."""
        device = self._hidden_ND.device
        if hidden:
            self.grad_hidden_ND = torch.empty_like(self._hidden_ND)
        if weight:
            self.grad_weight_VD = torch.zeros(self._weight_VD.shape, dtype=torch.float32, device=device)
        if bias:
            self.grad_bias_V = torch.zeros(len(self._weight_VD), dtype=torch.float32, device=device)


class _Terms(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden_ND: Tensor,
        weight_VD: Tensor,
        bias_V: Tensor | None,
        targets_N: Tensor,
        factor: float,
        entropy: bool,
        portion: int,
    ) -> tuple[Tensor, Tensor, Tensor]:
        work = _Work(hidden_ND, weight_VD, bias_V, factor, entropy, portion)
        logprobs_N = torch.empty(len(hidden_ND), dtype=torch.float32, device=hidden_ND.device)
        entropy_N = torch.zeros_like(logprobs_N)
        greedy_N = torch.empty_like(logprobs_N, dtype=torch.bool)
        for here in work.portions():
            logprobs_N[here], entropy_n = work.terms(here, targets_N)
            greedy_N[here] = work.greedy_n
            if entropy_n is not None:
                entropy_N[here] = entropy_n
        ctx.save_for_backward(hidden_ND, weight_VD, bias_V, targets_N)
        ctx.settings = factor, portion
        ctx.entropy = entropy
        ctx.kind = hidden_ND.device.type
        ctx.autocast = torch.is_autocast_enabled(ctx.kind), torch.get_autocast_dtype(ctx.kind)
        ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(greedy_N)
        return logprobs_N, entropy_N, greedy_N

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, slope_N: Tensor | None, bend_N: Tensor | None, greedy: None) -> tuple[Tensor | None, ...]:
        hidden_ND, weight_VD, bias_V, targets_N = ctx.saved_tensors
        factor, portion = ctx.settings
        slope_N = torch.zeros(len(hidden_ND), device=hidden_ND.device) if slope_N is None else slope_N
        with torch.autocast(ctx.kind, dtype=ctx.autocast[1], enabled=ctx.autocast[0]):
            bends = ctx.entropy and bend_N is not None
            work = _Work(hidden_ND, weight_VD, bias_V, factor, bends, portion)
            work.wants(*ctx.needs_input_grad[:3])
            for here in work.portions():
                _, entropy_n = work.terms(here, targets_N)
                bend_n = bend_N[here] if bends and bend_N is not None else None
                work.learn(here, targets_N, slope_N[here], entropy_n, bend_n)
        return *_grads(work, hidden_ND, weight_VD, bias_V), None, None, None, None


class _Loss(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden_ND: Tensor,
        weight_VD: Tensor,
        bias_V: Tensor | None,
        targets_N: Tensor,
        factor: float,
        entropy: bool,
        portion: int,
        loss_of: LossOf,
    ) -> Tensor:
        work = _Work(hidden_ND, weight_VD, bias_V, factor, entropy, portion)
        work.wants(*ctx.needs_input_grad[:3])
        total = torch.zeros((), dtype=torch.float32, device=hidden_ND.device)
        for here in work.portions():
            logprobs_n, entropy_n = work.terms(here, targets_N)
            slope_n, bend_n, loss = _slopes(loss_of, logprobs_n, entropy_n, work.greedy_n, here)
            total += loss
            if any(ctx.needs_input_grad[:3]):
                work.learn(here, targets_N, slope_n, entropy_n, bend_n)
        ctx.grads = _grads(work, hidden_ND, weight_VD, bias_V)
        return total

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, scale: Tensor) -> tuple[Tensor | None, ...]:
        grads, ctx.grads = ctx.grads, None  # scaled in place: no other reference exists
        if float(scale) != 1.0:
            for grad in grads:
                if grad is not None:
                    grad *= scale
        return *grads, None, None, None, None, None


def _slopes(
    loss_of: LossOf, logprobs_n: Tensor, entropy_n: Tensor | None, greedy_n: Tensor, here: slice
) -> tuple[Tensor, Tensor | None, Tensor]:
    """dL/d log π and dL/dH of a portion's tokens, and its loss."""
    with torch.enable_grad(), torch.autocast(logprobs_n.device.type, enabled=False):
        logprobs_n = logprobs_n.detach().requires_grad_()
        entropy_n = None if entropy_n is None else entropy_n.detach().requires_grad_()
        loss = loss_of(logprobs_n, entropy_n, greedy_n, here)
        if not loss.requires_grad:
            return torch.zeros_like(logprobs_n), None, loss.detach()
        inputs = [logprobs_n] if entropy_n is None else [logprobs_n, entropy_n]
        slope_n, *bends = torch.autograd.grad(loss, inputs, allow_unused=True)
    return (torch.zeros_like(logprobs_n) if slope_n is None else slope_n), (bends[0] if bends else None), loss.detach()


def _grads(work: _Work, hidden_ND: Tensor, weight_VD: Tensor, bias_V: Tensor | None) -> tuple[Tensor | None, ...]:
    """In the formats of what they are gradients of."""
    pairs = (
        (work.grad_hidden_ND, hidden_ND),
        (work.grad_weight_VD, weight_VD),
        (work.grad_bias_V, bias_V),
    )
    return tuple(None if grad is None or of is None else grad.to(of.dtype) for grad, of in pairs)
