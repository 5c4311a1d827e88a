"""Old and reference log-probabilities, entropies and values of completions before the first update. Cached row by row
on the CPU, because the same rows come back in other micro-batches.

Shapes: T tokens of one completion · N tokens of a micro-batch, row after row.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from grpo_core.config.kinds import LearningConfig
from grpo_core.distributed.ranks import Ranks
from grpo_core.model.layout import plan_rows
from grpo_core.model.layout_choice import resolve_layout
from grpo_core.model.load import LoadedModel
from grpo_core.model.logprobs import Terms, completion_terms
from grpo_core.runtime.clock import timed
from grpo_core.runtime.watchdog import doing
from grpo_core.training.base import TokenSignals, TrainRow, products
from grpo_core.training.critic import Critic
from grpo_core.training.reference import Reference

Ids = Sequence[int]


@dataclass
class CachedLogprobs:
    """By index of the row in the step; fp32, shape T."""

    old: dict[int, Tensor] = field(default_factory=dict)
    """log π of the policy before the step's first update."""
    reference: dict[int, Tensor] = field(default_factory=dict)
    entropy: dict[int, Tensor] = field(default_factory=dict)
    values: dict[int, Tensor] = field(default_factory=dict)
    traced: dict[int, dict[str, Tensor]] = field(default_factory=dict)
    """Of rows that are traced, by column: what the newest pass that saw the row computed of it."""

    def signals(self, index: int, *, old: bool) -> TokenSignals:
        """What is known of a row's tokens after the update. `old`: the old log-probabilities are not the policy's
        own."""
        stored = {"reference_logprob": self.reference, "entropy": self.entropy, "value": self.values}
        if old:
            stored["old_logprob"] = self.old
        columns = {name: values[index] for name, values in stored.items() if index in values}
        return {name: values_T.tolist() for name, values_T in (columns | self.traced.get(index, {})).items()}


@dataclass(eq=False)
class LogprobPass:
    """Runs models without gradient over rows."""

    policy: LoadedModel
    reference: Reference | None
    critic: Critic | None
    config: LearningConfig
    check: Callable[[], None]

    @torch.no_grad()
    def measure(self, rows: Sequence[TrainRow], indices: Sequence[int], *, entropy: bool) -> CachedLogprobs:
        """Of the rows at `indices`; entropies only with `entropy`."""
        cached, engine = CachedLogprobs(), self.config.engine
        layout = resolve_layout(self.policy, engine.layout)
        with timed("logprobs"):
            for batch in plan_rows(*texts(rows, indices)[:2], engine.micro_batch_tokens, layout):
                self.check()
                doing("log-probabilities", f"{len(cached.old)} of {len(indices)} completions")
                held = [indices[i] for i in batch]
                prompts, completions, sizes = texts(rows, held)
                terms = policy_terms(self.policy, self.config, prompts, completions, entropy=entropy)
                keep(cached.old, held, sizes, terms.logprobs_N)
                if terms.entropy_N is not None:
                    keep(cached.entropy, held, sizes, terms.entropy_N)
                if self.reference is not None:
                    keep(cached.reference, held, sizes, self.reference.logprobs(prompts, completions))
                if self.critic is not None:
                    keep(cached.values, held, sizes, self.critic.values(prompts, completions))
        return cached


def texts(rows: Sequence[TrainRow], indices: Sequence[int]) -> tuple[list[Ids], list[Ids], list[int]]:
    """Prompts and completions of a micro-batch, and the completions' lengths."""
    completions = [rows[index].completion for index in indices]
    return [rows[index].prompt for index in indices], completions, [len(completion) for completion in completions]


def policy_terms(
    policy: LoadedModel, config: LearningConfig, prompts: list[Ids], completions: list[Ids], *, entropy: bool
) -> Terms:
    """Terms of each completion token under the policy, at the sampling temperature, in the config's layout."""
    with products(config.engine.autocast, policy.device):
        return completion_terms(
            policy.model,
            prompts,
            completions,
            temperature=config.sampling.temperature,
            layout=resolve_layout(policy, config.engine.layout),
            pad_id=policy.pad_id,
            entropy=entropy,
        )


def idle_terms(policy: LoadedModel, config: LearningConfig) -> Terms:
    """Terms of one token: for a pass that must be made and has no row."""
    return policy_terms(policy, config, [[policy.pad_id]], [[policy.pad_id]], entropy=False)


def keep(into: dict[int, Tensor], indices: Sequence[int], sizes: Sequence[int], values_N: Tensor) -> None:
    """Cut a micro-batch's tokens into rows and store them by index."""
    into.update(zip(indices, torch.split(values_N.detach().cpu(), list(sizes)), strict=True))


def shared(mine: dict[int, Tensor], rows: Sequence[TrainRow], owner: dict[int, int], ranks: Ranks) -> dict[int, Tensor]:
    """All ranks' tensors by row, on every rank; `owner` names the rank of every row measured."""
    if ranks.world == 1:
        return mine
    order = sorted(owner, key=lambda index: (owner[index], index))
    empty = torch.empty(0)
    flat_N = ranks.gather_numbers(torch.cat([mine[p] for p in order if owner[p] == ranks.rank] or [empty]))
    return dict(zip(order, torch.split(flat_N.float(), [len(rows[p].completion) for p in order]), strict=True))
