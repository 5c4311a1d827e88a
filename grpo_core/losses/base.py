"""What a policy loss is made from, what comes out, and what its SPEC declares. Shapes: N completion tokens of a
micro-batch, row after row, in any layout · R rows (completions). A micro-batch always holds whole rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from grpo_core.errors import Conflict

if TYPE_CHECKING:
    from torch import Tensor as Tensor

    from grpo_core.losses.settings import LossSettings as LossSettings
else:  # a SPEC is read where there is no torch
    Tensor = LossSettings = Any

PER_TOKEN = ("sequence_mean", "token_mean", "local_token_mean", "constant", "sequence_sum")


@dataclass(frozen=True)
class Loss:
    """A value of `algorithm.loss`, as its own file declares it."""

    name: str
    compute: Callable[[Tokens, LossSettings], Surrogate]
    words: str
    """What it is, for records."""
    bound: str | Callable[[LossSettings], str]
    """Where it holds the ratio back, for records. {name} stands for the value of the setting of that name."""
    formula: str
    source: str
    settings: Mapping[str, str] = field(default_factory=dict)
    """Fields of `algorithm` that it reads → what must hold besides, such as "cispo_bound: relative"; else empty."""
    aggregations: tuple[str, ...] = PER_TOKEN
    """Ways of averaging that it has a meaning with."""
    aggregation_reason: str = "has one ratio for a whole completion, so every completion must count alike"
    """Why there is only one such way."""
    by_token: bool = False
    """Each token's part depends on that token alone; else on the whole completion."""
    per_completion: bool = False
    """One number for a completion, from one advantage for it."""
    ratio: Literal["old", "sampler", "none"] = "old"
    """The policy that its ratio is taken to: the one before the update, the one as the sampler had it, or no ratio."""
    clips: bool = True
    """Stops at some ratio or distance, so that there are tokens to count."""
    bounded: bool = True
    """Something keeps a ratio that is far from 1 from counting in full."""
    implied_by: tuple[str, ...] = ()
    """Names of methods (`Estimator.method`) that already name this loss."""
    conflict: Callable[[LossSettings], Conflict | None] = lambda settings: None
    """Why it cannot be run with these settings."""


@dataclass(frozen=True)
class Tokens:
    """The tokens of some completions."""

    logprobs_N: Tensor
    """log π of each token, with gradient."""
    old_logprobs_N: Tensor
    """log π_old, without."""
    advantages_N: Tensor
    rows_N: Tensor
    """Row of each token, from 0, rising; int64."""

    def row_sum(self, values_N: Tensor) -> Tensor:
        """At each token the sum over its row, in the format of `values_N`. Gradients pass.

        Summed in float64: over a completion of thousands of tokens that is exact to the format of its tokens, in
        whatever order a GPU adds them."""
        return self._row_sums(values_N.double())[self.rows_N].to(values_N.dtype)

    def row_mean(self, values_N: Tensor) -> Tensor:
        """At each token the mean over its row, in the format of `values_N`. Gradients pass."""
        values = values_N.double()
        means_R = self._row_sums(values)[self.rows_N] / self._row_sums(values.new_ones(values.shape))[self.rows_N]
        return means_R.to(values_N.dtype)

    def _row_sums(self, values_N: Tensor) -> Tensor:
        count = int(self.rows_N[-1]) + 1 if len(self.rows_N) else 0
        return values_N.new_zeros(count).index_add(0, self.rows_N, values_N)


@dataclass(frozen=True)
class Surrogate:
    """The loss of each token before averaging, and where the clip held it back.

    A loss that is one number for a completion is repeated at each of its tokens, so that `aggregation` weighs both
    kinds alike.
    """

    loss_N: Tensor
    clipped_low_N: Tensor
    """bool: clipped below, where the advantage is negative: the gradient there is 0."""
    clipped_high_N: Tensor
    """bool: clipped above, where the advantage is positive (or, at clip_delta, negative): the gradient there is 0
    (CISPO: only bounded)."""


def unclipped(loss_N: Tensor) -> Surrogate:
    """Of a loss that holds no token back."""
    nowhere_N = loss_N.new_zeros(loss_N.shape).bool()
    return Surrogate(loss_N, nowhere_N, nowhere_N)
