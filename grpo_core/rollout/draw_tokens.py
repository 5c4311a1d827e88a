"""One token for every running row, from its last hidden state: output layer, probabilities, draw.

The logits of a portion of rows at a time exist, in buffers that are used again. A draw inverts the cumulative
distribution in two steps, first among the sums of blocks of 256 tokens, then within the block, so that the vocabulary
is passed over a few times, never sorted and never accumulated (top-k and top-p, where set, order it). Sums over
blocks are fp32, sums of them fp64.

Before exponentials are taken one number is subtracted from all logits, 0 at first; in fp32 the output layer's bias does
that at no cost. Where it leaves the range of fp32 (a sum is not within LEAST and MOST, or some logit is −∞), each row's
largest is subtracted instead, which is exact as well, and slower; their mean is the number from then on. Where that has
happened PATIENCE times, rows are too unlike for one number.

Shapes: B rows, b of a portion · D hidden size · V vocabulary · K blocks. Logits are V×b whatever their order in memory.
"""

import math
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from grpo_core.errors import NotFinite
from grpo_core.model.head import plain_head
from grpo_core.model.logprobs import head_logits
from grpo_core.rollout.base import Decoding

BLOCK = 256
ROWS_CPU = 48
"""Rows of a portion on a CPU: the width at which such a product is fastest (three AVX-512 registers)."""
LOGITS_AT_ONCE = {"cpu": 2**23, "cuda": 2**25}
"""Most logits of a portion. As many exponentials are alive at the same time."""
LEAST, MOST = 1e-12, 1e30
PATIENCE = 4


@dataclass(frozen=True)
class Drawn:
    """What was drawn for each row, and from what. On the model's device."""

    tokens_B: Tensor
    logprobs_B: Tensor
    """log π of the token, temperature applied, nothing filtered; fp32."""
    entropy_B: Tensor
    """Of the same distribution, in nats; fp32."""


class TokenDrawer:
    """Draws from one model as it is now. Keeps its buffers from token to token."""

    def __init__(self, model: Any, decoding: Decoding) -> None:
        self._model = model
        self._decoding = decoding
        self._greedy = decoding.temperature == 0
        self._temperature = 1.0 if self._greedy else decoding.temperature
        head = plain_head(model, self._temperature)
        self._head = None if "forward" in vars(model.get_output_embeddings()) else head
        self._packed = None if self._head is None or self._greedy else packed(self._head.weight_VD)
        self._level = 0.0
        self._misses = 0
        self._bias_V = self._head.bias_V if self._head is not None else None
        """The output layer's, in fp32 less the level."""
        self._room: dict[str, Tensor] = {}

    def draw(self, hidden_BD: Tensor, uniform_B: Tensor, seen_BV: Tensor | None = None) -> Drawn:
        """`uniform_B`: a number in [0, 1) for each row, fp64; unused at temperature 0. `seen_BV`: the tokens that a
        repetition penalty is for. Raises NotFinite when the probabilities are no numbers."""
        parts = []
        portion = self._portion(hidden_BD.device)
        for start in range(0, len(hidden_BD), portion):
            here = slice(start, start + portion)
            part, seen_bV = None, None if seen_BV is None else seen_BV[here]
            if self._misses < PATIENCE:
                part = self._draw(hidden_BD[here], uniform_B[here], seen_bV, careful=False)
            if part is None:
                self._misses += 1
                part = self._draw(hidden_BD[here], uniform_B[here], seen_bV, careful=True)
            if part is None:
                raise NotFinite(
                    "the policy's probabilities are no numbers any more: it has diverged. A lower optim.lr often helps"
                )
            parts.append(part)
        if len(parts) == 1:
            return parts[0]
        return Drawn(
            torch.cat([part.tokens_B for part in parts]),
            torch.cat([part.logprobs_B for part in parts]),
            torch.cat([part.entropy_B for part in parts]),
        )

    def _draw(self, hidden_bD: Tensor, uniform_b: Tensor, seen_bV: Tensor | None, *, careful: bool) -> Drawn | None:
        """None when the sums are out of range. `careful`: subtract each row's largest logit."""
        logits_Vb = self._logits(hidden_bD)
        penalised_Vb = logits_Vb if seen_bV is None else self._penalised(logits_Vb, seen_bV.t())
        likeliest_b = penalised_Vb.t().argmax(-1) if self._greedy else None
        if careful:
            largest_b = logits_Vb.amax(0)
            logits_Vb -= largest_b
            self._subtract(self._level + float(largest_b.double().mean()))
        vocabulary, rows = logits_Vb.shape
        weights_Vb = self._buffer("weights", -(-vocabulary // BLOCK) * BLOCK, rows, like=logits_Vb)
        weights_Vb[vocabulary:] = 0
        torch.exp(logits_Vb, out=weights_Vb[:vocabulary])
        sums_Kb = _blocks(weights_Vb).sum(1).double()
        total_b = sums_Kb.sum(0)
        logits_Vb *= weights_Vb[:vocabulary]  # from here on each is logit · weight
        if careful:
            logits_Vb.nan_to_num_(nan=0.0)  # −∞ · 0; a weight that is no number shows in the total
        whole = vocabulary // BLOCK * BLOCK
        mean_b = _blocks(logits_Vb[:whole]).sum(1).double().sum(0) + logits_Vb[whole:].sum(0)
        mean_b /= total_b
        if not bool(((total_b > LEAST) & (total_b < MOST) & mean_b.isfinite()).all()):
            return None
        if likeliest_b is not None:
            tokens_b = likeliest_b
        elif seen_bV is None:
            tokens_b = self._choose(weights_Vb, sums_Kb, uniform_b)
        else:
            drawn_Vb = F.pad((penalised_Vb - penalised_Vb.amax(0)).exp(), (0, 0, 0, len(weights_Vb) - vocabulary))
            tokens_b = self._choose(drawn_Vb, _blocks(drawn_Vb).sum(1).double(), uniform_b)
        chosen_b = weights_Vb.t().gather(1, tokens_b[:, None])[:, 0].double()
        depth_b = total_b.log()
        return Drawn(tokens_b, (chosen_b.log() - depth_b).float(), (depth_b - mean_b).float())

    def _choose(self, weights_Vb: Tensor, sums_Kb: Tensor, uniform_b: Tensor) -> Tensor:
        how = self._decoding
        if how.top_p < 1 or how.top_k > 0 or how.min_p > 0:
            weights_Vb = keep_likely(weights_Vb.t(), top_p=how.top_p, top_k=how.top_k, min_p=how.min_p).t()
            sums_Kb = weights_Vb.reshape(-1, BLOCK, weights_Vb.shape[1]).sum(1).double()
        return inverse_cdf_blocks(weights_Vb, sums_Kb, uniform_b)

    def _penalised(self, logits_Vb: Tensor, seen_Vb: Tensor) -> Tensor:
        """The logits over the temperature, those of seen tokens made smaller: by the sign that they have before a
        level is subtracted. A copy."""
        whole_Vb, penalty = logits_Vb + self._level, self._decoding.repetition_penalty
        smaller_Vb = torch.where(whole_Vb > 0, whole_Vb / penalty, whole_Vb * penalty)
        return torch.where(seen_Vb, smaller_Vb, whole_Vb)

    def _portion(self, device: torch.device) -> int:
        most = max(1, LOGITS_AT_ONCE[device.type] // len(self._model.get_output_embeddings().weight))
        return min(most, ROWS_CPU) if device.type == "cpu" else most

    def _subtract(self, level: float) -> None:
        """Subtract this from all logits from now on, if it is a number."""
        head = self._head
        if head is None or not math.isfinite(level):
            return
        self._level = level
        if head.weight_VD.dtype == torch.float32:
            plain_V = head.weight_VD.new_zeros(len(head.weight_VD)) if head.bias_V is None else head.bias_V
            self._bias_V = plain_V - level / head.factor

    def _logits(self, hidden_bD: Tensor) -> Tensor:
        """Logits over the temperature less the level, fp32, free to be written into."""
        head = self._head
        if head is None:
            logits_Vb = head_logits(self._model, hidden_bD).float().t()
            return logits_Vb if self._temperature == 1.0 else logits_Vb.div_(self._temperature)
        if self._packed is not None:
            logits_Vb = torch.ops.mkldnn._linear_pointwise(hidden_bD, self._packed, self._bias_V, "none", [], "").t()
        else:
            logits_Vb = F.linear(hidden_bD, head.weight_VD, self._bias_V).float().t()
        if head.factor != 1.0:
            logits_Vb *= head.factor
        if self._level and head.weight_VD.dtype != torch.float32:  # rounded as the trainer's are, then
            logits_Vb -= self._level
        return logits_Vb

    def _buffer(self, name: str, tokens: int, rows: int, *, like: Tensor | None = None) -> Tensor:
        """A V×b buffer in the memory order of `like`, V outermost when there is none."""
        device = self._model.get_output_embeddings().weight.device
        room = self._room.get(name)
        if room is None or room.numel() < tokens * rows:
            room = self._room[name] = torch.empty(tokens * rows, device=device)
        flat = room[: tokens * rows]
        if like is not None and like.stride(0) == 1 and rows > 1:
            return flat.view(rows, tokens).t()
        return flat.view(tokens, rows)


def packed(weight_VD: Tensor) -> Tensor | None:
    """The output layer as oneDNN lays it out for products with few rows: a copy, with which each takes about half as
    long as when the layer is arranged anew for it. None where it is not fp32 on a CPU, or torch has no oneDNN."""
    plain = weight_VD.device.type == "cpu" and weight_VD.dtype == torch.float32
    if not plain or not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        return None
    copy: Tensor = torch.ops.mkldnn._reorder_linear_weight(weight_VD.detach(), ROWS_CPU)
    return copy


def keep_likely(weights_BV: Tensor, *, top_p: float, top_k: int, min_p: float = 0.0) -> Tensor:
    """Set to 0 all but the `top_k` largest weights, then all but the largest that together have `top_p` of what is
    left, then those below `min_p` times the largest (arXiv 2407.01082). The token that crosses top_p stays, so one
    always does. What stays is not normalised again.

    top-k or min-p alone need no order of all tokens.
    """
    if min_p > 0:
        likely_BV = keep_likely(weights_BV, top_p=top_p, top_k=top_k)
        return likely_BV.where(likely_BV >= min_p * weights_BV.amax(-1, keepdim=True), 0)
    size = weights_BV.shape[-1]
    if (top_k == 0 or top_k >= size) and top_p >= 1:
        return weights_BV
    if 0 < top_k < size:
        ordered_Bk, tokens_Bk = weights_BV.topk(top_k, dim=-1)
    else:
        ordered_Bk, tokens_Bk = weights_BV.sort(dim=-1, descending=True, stable=True)
    if top_p < 1:
        mass_Bk = ordered_Bk / ordered_Bk.sum(-1, keepdim=True)
        ordered_Bk = torch.where(mass_Bk.cumsum(-1) - mass_Bk < top_p, ordered_Bk, torch.zeros_like(ordered_Bk))
    return torch.zeros_like(weights_BV).scatter(1, tokens_Bk, ordered_Bk)


def inverse_cdf_blocks(weights_Vb: Tensor, sums_Kb: Tensor, uniform_b: Tensor) -> Tensor:
    """`inverse_cdf` for many tokens: V = K·BLOCK weights with the fp64 sums of their blocks."""
    sums_bK = sums_Kb.t().contiguous()
    blocks_b = inverse_cdf(sums_bK, uniform_b)
    cdf_bK = F.pad(sums_bK.cumsum(-1), (1, 0))
    point_b, before_b = uniform_b * cdf_bK[:, -1], cdf_bK.gather(1, blocks_b[:, None])[:, 0]
    inside_bv = _blocks(weights_Vb)[blocks_b, :, torch.arange(len(blocks_b), device=blocks_b.device)].double()
    rest_b = (point_b - before_b).clamp_(min=0) / inside_bv.sum(-1)
    return blocks_b * BLOCK + inverse_cdf(inside_bv, rest_b)


def inverse_cdf(weights_BV: Tensor, uniform_B: Tensor) -> Tensor:
    """Draw a token from each row's weights (≥ 0, not all 0) with one uniform number in [0, 1).

    One number a row instead of one a token, as the Gumbel trick would need. A token of weight 0 is never drawn.
    """
    cdf_BV = weights_BV.cumsum(-1)
    total_B = cdf_BV[:, -1]
    below_B = torch.nextafter(total_B, torch.zeros_like(total_B))
    point_B = torch.minimum((uniform_B * total_B).to(cdf_BV.dtype), below_B)
    return torch.searchsorted(cdf_BV, point_B[:, None], right=True)[:, 0]


def _blocks(weights_Vb: Tensor) -> Tensor:
    """K×BLOCK×b, a view."""
    return weights_Vb.view(len(weights_Vb) // BLOCK, BLOCK, weights_Vb.shape[1])
