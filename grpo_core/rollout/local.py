"""Samples completions from a transformers model in this process.

Each distinct prompt of a batch is run through the model once and its cache is shared by its completions; rows that
have ended leave the batch. Every sample has a random stream of its own, named by (key, prompt's place, sample), so its
random numbers do not depend on what it is batched with. (Its logits may, in the last bits, and a token that stands on
the edge may then fall the other way.)

Shapes: R distinct prompts · B rows (completions still running) · T prompt positions, left-padded · V vocabulary.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from grpo_core.errors import NotFinite
from grpo_core.model.load import LoadedModel
from grpo_core.model.logprobs import last_logits
from grpo_core.rollout.base import Completion, Decoding
from grpo_core.rollout.cache import make_cache, select_rows

COMPACT_SHARE = 1 / 8
"""Ended rows leave the batch once they are this share of it: each time costs a copy of the cache."""
_STREAM_BLOCK = 256


@dataclass
class _Row:
    """One completion in the making."""

    prompt: int
    sample: int
    stream: np.random.Generator | None
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    entropy: float = 0.0
    ended: bool = False
    _uniforms: list[float] = field(default_factory=list)

    def uniform(self) -> float:
        if not self._uniforms:
            assert self.stream is not None
            self._uniforms = self.stream.random(_STREAM_BLOCK)[::-1].tolist()
        return self._uniforms.pop()


class LocalRollout:
    """The sampler. Holds the policy itself, so it always samples from the newest weights."""

    def __init__(self, policy: LoadedModel, *, max_rows: int, check: Callable[[], None] = lambda: None) -> None:
        """`max_rows`: most completions side by side. `check` is called at every token and may raise to stop."""
        self._policy = policy
        self._max_rows = max_rows
        self._check = check

    @torch.no_grad()
    def generate(
        self,
        prompts: Sequence[Sequence[int]],
        *,
        samples: int,
        decoding: Decoding,
        key: tuple[int, ...],
        places: Sequence[int] | None = None,
    ) -> list[list[Completion]]:
        """See `base.Rollout`. Every prompt needs at least one token."""
        streams = range(len(prompts)) if places is None else places
        rows = [
            _Row(prompt, sample, np.random.default_rng([*key, stream, sample]) if decoding.temperature > 0 else None)
            for prompt, stream in enumerate(streams)
            for sample in range(samples)
        ]
        # Like lengths together, so that little is padded; a prompt's completions stay together to share its prefill.
        rows.sort(key=lambda row: (len(prompts[row.prompt]), tuple(prompts[row.prompt]), row.prompt, row.sample))
        done: list[list[Completion | None]] = [[None] * samples for _ in prompts]
        for batch in _batches(rows, self._max_rows):
            self._run(batch, prompts, decoding)
            for row in batch:
                done[row.prompt][row.sample] = Completion(
                    tokens=tuple(row.tokens),
                    logprobs=tuple(row.logprobs),
                    finish="eos" if row.ended else "length",
                    entropy=row.entropy / len(row.tokens),
                )
        return [[completion for completion in group if completion is not None] for group in done]

    def _run(self, rows: list[_Row], prompts: Sequence[Sequence[int]], decoding: Decoding) -> None:
        """Sample all `rows` to their end."""
        policy, device = self._policy, self._policy.device
        distinct = list(dict.fromkeys(tuple(prompts[row.prompt]) for row in rows))
        place = {prompt: index for index, prompt in enumerate(distinct)}
        width = max(map(len, distinct))
        padded = min(map(len, distinct)) < width
        ids_RT = torch.full((len(distinct), width), policy.pad_id, dtype=torch.long)
        seen_RT = torch.zeros((len(distinct), width), dtype=torch.long)
        for index, prompt in enumerate(distinct):
            ids_RT[index, width - len(prompt) :] = torch.tensor(prompt)
            seen_RT[index, width - len(prompt) :] = 1

        cache = make_cache(policy.model.config)
        positions_RT = (seen_RT.cumsum(1) - 1).clamp(min=0)
        logits_RV = last_logits(
            policy.model,
            ids_RT.to(device),
            attention_mask=seen_RT.to(device) if padded else None,
            position_ids=positions_RT.to(device),
            past_key_values=cache,
            use_cache=True,
        )
        share_B = torch.tensor([place[tuple(prompts[row.prompt])] for row in rows], device=device)
        select_rows(cache, share_B)
        logits_BV = logits_RV[share_B]
        seen_BT = seen_RT.to(device)[share_B] if padded else None
        next_B = seen_RT.sum(1).to(device)[share_B]  # position of the token about to be drawn

        running = list(rows)
        while True:
            self._check()
            tokens_B = self._draw(logits_BV, running, decoding)
            alive = [i for i, row in enumerate(running) if not row.ended and len(row.tokens) < decoding.max_tokens]
            if not alive:
                return
            if len(running) - len(alive) >= COMPACT_SHARE * len(running):
                keep_B = torch.tensor(alive, device=device)
                select_rows(cache, keep_B)
                tokens_B, next_B = tokens_B[keep_B], next_B[keep_B]
                seen_BT = seen_BT[keep_B] if seen_BT is not None else None
                running = [running[i] for i in alive]
            if seen_BT is not None:
                seen_BT = torch.cat([seen_BT, seen_BT.new_ones((len(running), 1))], dim=1)
            logits_BV = last_logits(
                policy.model,
                tokens_B[:, None],
                attention_mask=seen_BT,
                position_ids=next_B[:, None],
                past_key_values=cache,
                use_cache=True,
            )
            next_B = next_B + 1

    def _draw(self, logits_BV: Tensor, rows: list[_Row], decoding: Decoding) -> Tensor:
        """One token for every row; rows that have ended get one too (it is fed and forgotten)."""
        greedy = decoding.temperature == 0
        logits_BV = logits_BV.float()
        logprobs_BV = torch.log_softmax(logits_BV if greedy else logits_BV / decoding.temperature, dim=-1)
        probs_BV = logprobs_BV.exp()
        entropies = (-(probs_BV * logprobs_BV.clamp(min=-1e4)).sum(-1)).tolist()
        if any(math.isnan(entropy) for entropy in entropies):
            raise NotFinite(
                "the policy's probabilities are no numbers any more: it has diverged. A lower optim.lr often helps"
            )
        if greedy:
            tokens_B = logits_BV.argmax(-1)
        else:
            uniforms = [row.uniform() if not row.ended else 0.5 for row in rows]
            uniform_B = torch.tensor(uniforms, dtype=torch.float64, device=logits_BV.device)
            tokens_B = inverse_cdf(keep_likely(probs_BV, top_p=decoding.top_p, top_k=decoding.top_k), uniform_B)
        chosen = logprobs_BV.gather(1, tokens_B[:, None])[:, 0].tolist()
        for row, token, logprob, entropy in zip(rows, tokens_B.tolist(), chosen, entropies, strict=True):
            if row.ended or len(row.tokens) >= decoding.max_tokens:
                continue
            row.tokens.append(token)
            row.logprobs.append(logprob)
            row.entropy += entropy
            row.ended = token in self._policy.eos_ids
        return tokens_B


def keep_likely(probs_BV: Tensor, *, top_p: float, top_k: int) -> Tensor:
    """Set to 0 all but the `top_k` likeliest tokens, then all but the likeliest that together reach `top_p`.

    The token that crosses top_p stays, so one always does. Not normalised again: `inverse_cdf` does not need it.
    """
    size = probs_BV.shape[-1]
    if (top_k == 0 or top_k >= size) and top_p >= 1:
        return probs_BV
    ordered_BV, tokens_BV = probs_BV.sort(dim=-1, descending=True, stable=True)
    if 0 < top_k < size:
        ordered_BV = ordered_BV.clone()
        ordered_BV[:, top_k:] = 0
    if top_p < 1:
        mass_BV = ordered_BV / ordered_BV.sum(-1, keepdim=True)
        ordered_BV = torch.where(mass_BV.cumsum(-1) - mass_BV < top_p, ordered_BV, torch.zeros_like(ordered_BV))
    return torch.zeros_like(probs_BV).scatter(1, tokens_BV, ordered_BV)


def inverse_cdf(weights_BV: Tensor, uniform_B: Tensor) -> Tensor:
    """Draw a token from each row's weights (≥ 0, not all 0) with one uniform number in [0, 1).

    One number a row instead of one a token, as the Gumbel trick would need. A token of weight 0 is never drawn.
    """
    cdf_BV = weights_BV.cumsum(-1)
    total_B = cdf_BV[:, -1]
    below_B = torch.nextafter(total_B, torch.zeros_like(total_B))
    point_B = torch.minimum((uniform_B * total_B).to(cdf_BV.dtype), below_B)
    return torch.searchsorted(cdf_BV, point_B[:, None], right=True)[:, 0]


def _batches(rows: list[_Row], most: int) -> list[list[_Row]]:
    """Portions of at most `most` rows. A prompt is cut in two only when its own completions are more than that."""
    batches: list[list[_Row]] = []
    start = 0
    while start < len(rows):
        end = min(start + most, len(rows))
        if end < len(rows):
            cut = end
            while cut > start and rows[cut].prompt == rows[cut - 1].prompt:
                cut -= 1
            end = cut if cut > start else end
        batches.append(rows[start:end])
        start = end
    return batches
