"""Log-probabilities of completions under a model: the only module where logits become numbers that train.

Every policy, old policy and reference log-probability comes from here, so temperature and precision are the same in
all of them. Only completion positions pass the output layer, in portions, so that the fp32 logits of a whole batch
never exist at once (`head`). `layout` decides how rows are arranged.

Shapes: B rows · T positions · N completion tokens of a micro-batch, completion after completion · D hidden size · V
vocabulary; small letters for a portion.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypedDict, Unpack

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from grpo_core.model.head import IMPOSSIBLE, PORTION_CPU, plain_head, token_loss, token_terms
from grpo_core.model.layout import Layout, completion_hidden


@dataclass(frozen=True)
class Terms:
    """What a loss needs to know of the policy at each completion token; fp32, shape N."""

    logprobs_N: Tensor
    """log π(token | what came before), of the distribution at the given temperature."""
    entropy_N: Tensor | None
    """Entropy of that distribution in nats; None when it was not requested."""
    greedy_N: Tensor
    """Whether no token is likelier; bool."""


LossOf = Callable[[Terms, slice], Tensor]
"""(the policy's output for some tokens, which of the N these are) → the sum of their losses."""


def completion_terms(
    model: Any,
    prompts: Sequence[Sequence[int]],
    completions: Sequence[Sequence[int]],
    *,
    temperature: float = 1.0,
    layout: Layout = "right",
    pad_id: int = 0,
    entropy: bool = False,
    logits_at_once: int | None = None,
) -> Terms:
    """log π of every completion token and, when requested, the entropy −Σ π log π at its index: completion after
    completion, no padding.

    Logits are divided by `temperature` first, as the sampler does; then log-softmax in fp32 (in bf16 the selected
    value is off by up to 0.004). Each prompt needs at least one token. Both are differentiable when gradients are on.
    `logits_at_once`: most logits alive at a time, instead of `head`'s.
    """
    hidden_ND, targets_N = completion_hidden(model.base_model, prompts, completions, layout=layout, pad_id=pad_id)
    return _terms(model, hidden_ND, targets_N, temperature, entropy, logits_at_once)


def completion_loss(
    model: Any,
    prompts: Sequence[Sequence[int]],
    completions: Sequence[Sequence[int]],
    loss_of: LossOf,
    *,
    by_token: bool,
    temperature: float = 1.0,
    layout: Layout = "right",
    pad_id: int = 0,
    entropy: bool = False,
    logits_at_once: int | None = None,
) -> Tensor:
    """The loss that `loss_of` makes of the completions' terms, with its gradient.

    `by_token`: it is a sum over tokens, so that `loss_of` may be called portion by portion and the output layer's work
    is a quarter less; else it is called once, for all. The other arguments are those of `completion_terms`.
    """
    hidden_ND, targets_N = completion_hidden(model.base_model, prompts, completions, layout=layout, pad_id=pad_id)
    head = plain_head(model, temperature)
    if head is None or not by_token:
        terms = _terms(model, hidden_ND, targets_N, temperature, entropy, logits_at_once)
        return loss_of(terms, slice(0, len(targets_N)))

    def of_portion(logprobs_n: Tensor, entropy_n: Tensor | None, greedy_n: Tensor, here: slice) -> Tensor:
        return loss_of(Terms(logprobs_n, entropy_n, greedy_n), here)

    return token_loss(head, hidden_ND, targets_N, of_portion, entropy=entropy, logits_at_once=logits_at_once)


class TermsOptions(TypedDict, total=False):
    """As `completion_terms` has them."""

    temperature: float
    layout: Layout
    pad_id: int
    logits_at_once: int | None


def completion_logprobs(
    model: Any,
    prompts: Sequence[Sequence[int]],
    completions: Sequence[Sequence[int]],
    **options: Unpack[TermsOptions],
) -> Tensor:
    """`completion_terms` without the entropy: log-probabilities, fp32, shape N."""
    return completion_terms(model, prompts, completions, **options).logprobs_N


def _terms(
    model: Any, hidden_ND: Tensor, targets_N: Tensor, temperature: float, entropy: bool, logits_at_once: int | None
) -> Terms:
    if (head := plain_head(model, temperature)) is not None:
        return Terms(*token_terms(head, hidden_ND, targets_N, entropy=entropy, logits_at_once=logits_at_once))
    portion = max(1, (logits_at_once or PORTION_CPU) // vocabulary_of(model))
    parts = []
    for hidden_nD, targets_n in zip(torch.split(hidden_ND, portion), torch.split(targets_N, portion), strict=True):
        if torch.is_grad_enabled():  # backward computes the portion's logits again instead of keeping them
            parts.append(checkpoint(_called, model, hidden_nD, targets_n, temperature, entropy, use_reentrant=False))
        else:
            parts.append(_called(model, hidden_nD, targets_n, temperature, entropy))
    logprobs, entropies, greedy = zip(*parts, strict=True)
    return Terms(torch.cat(logprobs), torch.cat(entropies) if entropy else None, torch.cat(greedy))


def _called(
    model: Any, hidden_ND: Tensor, targets_N: Tensor, temperature: float, entropy: bool
) -> tuple[Tensor, Tensor | None, Tensor]:
    """Terms by autograd, for output layers that are more than a product."""
    logits_NV = head_logits(model, hidden_ND).float()
    if temperature != 1.0:
        logits_NV = logits_NV / temperature
    logprobs_N = -F.cross_entropy(logits_NV, targets_N, reduction="none")
    greedy_N = logits_NV.gather(-1, targets_N[:, None])[:, 0] == logits_NV.amax(-1)
    if not entropy:
        return logprobs_N, None, greedy_N
    table_NV = torch.log_softmax(logits_NV, dim=-1)
    return logprobs_N, -(table_NV.exp() * table_NV.clamp(min=IMPOSSIBLE)).sum(-1), greedy_N


def vocabulary_of(model: Any) -> int:
    """How many logits the output layer gives. ZeRO 3 keeps an empty tensor where the weight was, and its shape."""
    weight = model.get_output_embeddings().weight
    return int(getattr(weight, "ds_shape", weight.shape)[0])


def head_logits(model: Any, hidden_ND: Tensor) -> Tensor:
    """Hidden states through the output layer, with the scaling and capping that some families add (Cohere, Granite,
    Gemma 2). `load._check_head` compares this with the model's own logits when it is loaded."""
    config = model.config
    layer = model.get_output_embeddings()
    # Read and not called where that is the same: ZeRO 3 fetches a module's weights at every call, on all ranks.
    plain = type(layer) is nn.Linear
    logits_NV: Tensor = F.linear(hidden_ND, layer.weight, layer.bias) if plain else layer(hidden_ND)
    if scale := getattr(config, "logit_scale", None):
        logits_NV = logits_NV * scale
    if scaling := getattr(config, "logits_scaling", None):
        logits_NV = logits_NV / scaling
    if cap := getattr(config, "final_logit_softcapping", None):
        logits_NV = torch.tanh(logits_NV / cap) * cap
    return logits_NV


def last_logits(model: Any, ids_BT: Tensor, **arguments: Any) -> Tensor:
    """Logits that follow each row's last position, shape B×V. Rows end together (pad on the left, if at all)."""
    hidden_BTD = model.base_model(input_ids=ids_BT, **{"use_cache": False, **arguments}).last_hidden_state
    return head_logits(model, hidden_BTD[:, -1])
