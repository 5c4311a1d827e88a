"""Log-probabilities of completions under a model: the one place where logits become numbers that train.

Every policy, old policy and reference log-probability comes from here, so temperature and precision are the same in
all of them. Only completion positions pass the output layer, in portions, so that the fp32 logits of a whole batch
never exist at once.

Shapes: B rows (completions) of a micro-batch · T positions, right-padded · N completion tokens of the micro-batch, row
after row · D hidden size · V vocabulary.
"""

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

LOGITS_AT_ONCE = 2**23
"""Most fp32 logits alive in one portion (32 MiB)."""


def plan_micro_batches(lengths: Sequence[int], budget: int) -> list[list[int]]:
    """Split rows into micro-batches of at most `budget` tokens, padding included.

    Rows are sorted by length, longest first, so little is padding. A row longer than the budget goes alone. Returns
    row numbers; the order depends on `lengths` and `budget` only.
    """
    batches: list[list[int]] = []
    for row in sorted(range(len(lengths)), key=lambda row: (-lengths[row], row)):
        width = lengths[batches[-1][0]] if batches else 0
        if batches and width * (len(batches[-1]) + 1) <= budget:
            batches[-1].append(row)
        else:
            batches.append([row])
    return batches


def completion_logprobs(
    model: Any,
    prompts: Sequence[Sequence[int]],
    completions: Sequence[Sequence[int]],
    *,
    temperature: float = 1.0,
    logits_at_once: int = LOGITS_AT_ONCE,
) -> Tensor:
    """log π(token | what came before) of every completion token, fp32, shape N: row after row, no padding.

    Logits are divided by `temperature` first, as the sampler does; then log-softmax in fp32 (in bf16 the selected
    value is off by up to 0.004). Each prompt needs at least one token. Differentiable when gradients are on.
    """
    device = next(model.parameters()).device
    # The last token of a row predicts nothing that is asked for, so it is not fed. Padding stands on the right, where
    # causal attention cannot see it: no mask is needed.
    width = max(len(p) + len(c) for p, c in zip(prompts, completions, strict=True)) - 1
    tokens_BT = torch.zeros((len(prompts), width), dtype=torch.long)
    for row, (prompt, completion) in enumerate(zip(prompts, completions, strict=True)):
        fed = [*prompt, *completion[:-1]]
        tokens_BT[row, : len(fed)] = torch.tensor(fed)
    rows_N = torch.tensor([row for row, c in enumerate(completions) for _ in c])
    places_N = torch.tensor([len(p) - 1 + t for p, c in zip(prompts, completions, strict=True) for t in range(len(c))])
    targets_N = torch.tensor([token for c in completions for token in c]).to(device)

    hidden_BTD = model.base_model(input_ids=tokens_BT.to(device), use_cache=False).last_hidden_state
    hidden_ND = hidden_BTD[rows_N.to(device), places_N.to(device)]
    portion = max(1, logits_at_once // model.get_output_embeddings().weight.shape[0])
    if len(hidden_ND) <= portion:
        return _selected(model, hidden_ND, targets_N, temperature)
    parts = []
    for hidden_nD, targets_n in zip(torch.split(hidden_ND, portion), torch.split(targets_N, portion), strict=True):
        if torch.is_grad_enabled():  # backward computes the portion's logits again instead of keeping them
            parts.append(checkpoint(_selected, model, hidden_nD, targets_n, temperature, use_reentrant=False))
        else:
            parts.append(_selected(model, hidden_nD, targets_n, temperature))
    return torch.cat(parts)


def _selected(model: Any, hidden_ND: Tensor, targets_N: Tensor, temperature: float) -> Tensor:
    logits_NV = head_logits(model, hidden_ND).float()
    if temperature != 1.0:
        logits_NV = logits_NV / temperature
    return -F.cross_entropy(logits_NV, targets_N, reduction="none")


def head_logits(model: Any, hidden_ND: Tensor) -> Tensor:
    """Hidden states through the output layer, with the scaling and capping that some families add (Cohere, Granite,
    Gemma 2). `load._check_head` compares this with the model's own logits when it is loaded."""
    config = model.config
    logits_NV: Tensor = model.get_output_embeddings()(hidden_ND)
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
