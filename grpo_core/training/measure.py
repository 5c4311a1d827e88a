"""What the models say about completions before the first update: old and reference log-probabilities, entropies,
values. Held row by row on the CPU, because the same rows come back in other micro-batches.

Shapes: T tokens of one completion · N tokens of a micro-batch, row after row.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from grpo_core.config.run import RunConfig
from grpo_core.distributed.ranks import Ranks
from grpo_core.model.layout import plan_rows
from grpo_core.model.load import LoadedModel
from grpo_core.model.logprobs import Terms, completion_terms
from grpo_core.model.precision import products
from grpo_core.model.settle import settled
from grpo_core.runtime.clock import timed
from grpo_core.runtime.watchdog import doing
from grpo_core.training.base import TrainRow
from grpo_core.training.critic import Critic
from grpo_core.training.reference import Reference

Ids = Sequence[int]


@dataclass
class Measured:
    """By place of the row in the step; fp32, shape T."""

    old: dict[int, Tensor] = field(default_factory=dict)
    """log π of the policy before the step's first update."""
    reference: dict[int, Tensor] = field(default_factory=dict)
    entropy: dict[int, Tensor] = field(default_factory=dict)
    values: dict[int, Tensor] = field(default_factory=dict)


class Gauge:
    """Runs models without gradient over rows."""

    def __init__(
        self,
        policy: LoadedModel,
        reference: Reference | None,
        critic: Critic | None,
        config: RunConfig,
        check: Callable[[], None],
    ) -> None:
        self._policy = policy
        self._reference = reference
        self._critic = critic
        self._config = config
        self._check = check

    @torch.no_grad()
    def measure(self, rows: Sequence[TrainRow], places: Sequence[int], *, entropy: bool) -> Measured:
        """Everything about the rows at `places`; entropies only where asked for."""
        found, engine = Measured(), self._config.engine
        layout = settled(self._policy, engine.layout)
        with timed("logprobs"):
            for batch in plan_rows(*texts(rows, places)[:2], engine.micro_batch_tokens, layout):
                self._check()
                doing("log-probabilities", f"{len(found.old)} of {len(places)} completions")
                held = [places[i] for i in batch]
                prompts, completions, sizes = texts(rows, held)
                terms = policy_terms(self._policy, self._config, prompts, completions, entropy=entropy)
                keep(found.old, held, sizes, terms.logprobs_N)
                if terms.entropy_N is not None:
                    keep(found.entropy, held, sizes, terms.entropy_N)
                if self._reference is not None:
                    keep(found.reference, held, sizes, self._reference.logprobs(prompts, completions))
                if self._critic is not None:
                    keep(found.values, held, sizes, self._critic.values(prompts, completions))
        return found


def texts(rows: Sequence[TrainRow], places: Sequence[int]) -> tuple[list[Ids], list[Ids], list[int]]:
    """Prompts and completions of a micro-batch, and the completions' lengths."""
    completions = [rows[place].completion for place in places]
    return [rows[place].prompt for place in places], completions, [len(completion) for completion in completions]


def policy_terms(
    policy: LoadedModel, config: RunConfig, prompts: list[Ids], completions: list[Ids], *, entropy: bool
) -> Terms:
    """What the policy says of each completion token, at the sampling temperature, in the config's layout."""
    with products(config.engine.autocast, policy.device):
        return completion_terms(
            policy.model,
            prompts,
            completions,
            temperature=config.sampling.temperature,
            layout=settled(policy, config.engine.layout),
            pad_id=policy.pad_id,
            entropy=entropy,
        )


def idle_terms(policy: LoadedModel, config: RunConfig) -> Terms:
    """What the policy says of one token: for a pass that must be made and has no row."""
    return policy_terms(policy, config, [[policy.pad_id]], [[policy.pad_id]], entropy=False)


def keep(into: dict[int, Tensor], places: Sequence[int], sizes: Sequence[int], values_N: Tensor) -> None:
    """Cut a micro-batch's tokens into rows and store them by place."""
    into.update(zip(places, torch.split(values_N.detach().cpu(), list(sizes)), strict=True))


def shared(mine: dict[int, Tensor], rows: Sequence[TrainRow], owner: dict[int, int], ranks: Ranks) -> dict[int, Tensor]:
    """What each rank found about its rows, on every rank; `owner` names the rank of every row measured."""
    if ranks.world == 1:
        return mine
    order = sorted(owner, key=lambda place: (owner[place], place))
    empty = torch.empty(0)
    flat_N = ranks.gather_numbers(torch.cat([mine[p] for p in order if owner[p] == ranks.rank] or [empty]))
    return dict(zip(order, torch.split(flat_N.float(), [len(rows[p].completion) for p in order]), strict=True))
