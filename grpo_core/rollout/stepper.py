"""Running a model over prompts once and then over one token of every row at a time, in one of two ways that depend
on the model's layers. Both return last hidden states; drawing tokens from these is done elsewhere.

Shapes: P distinct prompts · B rows · T positions of prompts · D hidden size.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from grpo_core.model.attention import attending
from grpo_core.model.load import LoadedModel
from grpo_core.rollout.cache import keep_rows, make_cache, repeat_rows
from grpo_core.rollout.shared_cache import SharedCache

PREFILL_TOKENS = 4096
"""Most prompt tokens, padding included, in one pass (a longer prompt has a separate pass)."""

StepBy = Callable[[Tensor, Tensor, SharedCache], Tensor]
"""(tokens_B, positions_B, cache) → hidden_BD, as `DecoderStepper.step`."""


class DecoderStepper(Protocol):
    """Rows that continue."""

    def begin(self, prompts: Sequence[Sequence[int]], share_B: Tensor, *, most: int) -> Tensor:
        """Run the distinct `prompts` through the model. Row b continues prompt `share_B[b]` (on the CPU) by at most
        `most` tokens. Returns the hidden state that follows each prompt, P×D."""

    def step(self, tokens_B: Tensor, positions_B: Tensor) -> Tensor:
        """Feed a token to every row, at its position in the text. Returns the hidden states that follow, B×D."""

    def keep(self, keep_B: Tensor) -> None:
        """Row b is from now on what row `keep_B[b]` was (`cache.compact_rows`; on the CPU)."""


@dataclass(eq=False)
class SharedStepper:
    """For models whose cache can hold a prompt once for all its rows (`shared_cache.shareable`)."""

    policy: LoadedModel
    by: StepBy | None
    """What tokens go through in place of the model's modules, which is equivalent."""

    def begin(self, prompts: Sequence[Sequence[int]], share_B: Tensor, *, most: int) -> Tensor:
        """See `DecoderStepper`. `prompts` are best sorted by length: neighbours are run together, padded on the right,
        where causal attention needs no mask."""
        policy = self.policy
        lengths = [len(prompt) for prompt in prompts]
        layers = len(make_cache(policy.model.config).layers)
        self.cache = SharedCache(layers, lengths, most=most, kind=policy.model.dtype, device=policy.device)
        parts = []
        for portion in portions(lengths, PREFILL_TOKENS):
            self.cache.filling = portion
            ids_PT = torch.full((portion.stop - portion.start, max(lengths[portion])), policy.pad_id)
            for row, prompt in enumerate(prompts[portion]):
                ids_PT[row, : len(prompt)] = torch.tensor(prompt)
            positions_PT = torch.arange(ids_PT.shape[1], device=policy.device).expand(ids_PT.shape)
            hidden_PTD = hidden_states(policy.model, ids_PT.to(policy.device), positions_PT, self.cache)
            last_P = torch.tensor(lengths[portion], device=policy.device) - 1
            parts.append(hidden_PTD[torch.arange(len(last_P), device=policy.device), last_P])
        self.cache.filling = None
        self.cache.share(share_B)
        return torch.cat(parts)

    def step(self, tokens_B: Tensor, positions_B: Tensor) -> Tensor:
        if self.by is not None:
            return self.by(tokens_B, positions_B, self.cache)
        return step_by_modules(self.policy, tokens_B, positions_B, self.cache)

    def keep(self, keep_B: Tensor) -> None:
        self.cache.keep(keep_B)


@dataclass(eq=False)
class RepeatedStepper:
    """For all others that transformers' cache can hold: every row has the prompt's keys and values for itself."""

    policy: LoadedModel

    def begin(self, prompts: Sequence[Sequence[int]], share_B: Tensor, *, most: int) -> Tensor:
        """See `DecoderStepper`. Padded on the left: some layers remember positions by how many there were."""
        policy = self.policy
        width = max(map(len, prompts))
        ids_PT = torch.full((len(prompts), width), policy.pad_id)
        seen_PT = torch.zeros((len(prompts), width), dtype=torch.long)
        for row, prompt in enumerate(prompts):
            ids_PT[row, width - len(prompt) :] = torch.tensor(prompt)
            seen_PT[row, width - len(prompt) :] = 1
        padded = not bool(seen_PT.all())
        self._cache = make_cache(policy.model.config)
        positions_PT = (seen_PT.cumsum(1) - 1).clamp(min=0).to(policy.device)
        seen_PT = seen_PT.to(policy.device)
        hidden_PTD = hidden_states(
            policy.model, ids_PT.to(policy.device), positions_PT, self._cache, seen_PT if padded else None
        )
        share_B = share_B.to(policy.device)
        repeat_rows(self._cache, share_B)
        self._seen_BT = seen_PT[share_B] if padded else None
        return hidden_PTD[:, -1]

    def step(self, tokens_B: Tensor, positions_B: Tensor) -> Tensor:
        if self._seen_BT is not None:
            self._seen_BT = torch.cat([self._seen_BT, self._seen_BT.new_ones((len(tokens_B), 1))], dim=1)
        tokens_B1, positions_B1 = tokens_B[:, None], positions_B[:, None]
        return hidden_states(self.policy.model, tokens_B1, positions_B1, self._cache, self._seen_BT)[:, -1]

    def keep(self, keep_B: Tensor) -> None:
        keep_B = keep_B.to(self.policy.device)
        keep_rows(self._cache, keep_B)
        self._seen_BT = self._seen_BT[keep_B] if self._seen_BT is not None else None


def portions(lengths: Sequence[int], most: int) -> list[slice]:
    """Neighbours whose padded tokens are at most `most` together; one that is longer is alone."""
    slices: list[slice] = []
    start = width = 0
    for end, length in enumerate(lengths):
        width = max(width, length)
        if end > start and width * (end + 1 - start) > most:
            slices.append(slice(start, end))
            start, width = end, length
    return [*slices, slice(start, len(lengths))]


def step_by_modules(policy: LoadedModel, tokens_B: Tensor, positions_B: Tensor, cache: SharedCache) -> Tensor:
    """`StepBy` through the model's modules."""
    with attending(cache.attend):
        return hidden_states(policy.model, tokens_B[:, None], positions_B[:, None], cache)[:, -1]


def hidden_states(
    model: Any, ids_BT: Tensor, positions_BT: Tensor, cache: Any, seen_BT: Tensor | None = None
) -> Tensor:
    """The model's last hidden states, B×T×D; `cache` is read and extended."""
    hidden_BTD: Tensor = model.base_model(
        input_ids=ids_BT, attention_mask=seen_BT, position_ids=positions_BT, past_key_values=cache, use_cache=True
    ).last_hidden_state
    return hidden_BTD
