"""PPO's critic: a separate model that predicts, before each token of a completion, what reward is to be expected.

The baseline that GRPO is compared with needs it (Schulman et al. 2017, section 5). Its backbone starts as the base
model and is trained whole, whether the policy has adapters or not; its head starts at 0, and with it every value. How
advantages and returns come from values is `advantages.gae`'s; this module only predicts and learns.

Shapes: N completion tokens of a micro-batch, completion after completion · D hidden size.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from grpo_core.advantages.gae import value_loss
from grpo_core.config.run import RunConfig
from grpo_core.errors import NotFinite
from grpo_core.model.layout import completion_hidden
from grpo_core.model.layout_choice import resolve_layout
from grpo_core.model.load import LoadedModel, ModelSource, load_model
from grpo_core.training.base import TrainRow
from grpo_core.training.trainable import LocalWeights


def load_critic(source: ModelSource, config: RunConfig, *, device: torch.device) -> "Critic":
    """A critic from the base model in `source`. The base model's output layer is not kept, unless its weights are the
    input embedding's too. Raises ModelError."""
    return Critic(load_model(source, dtype=config.model.dtype, device=device), config)


class Critic:
    """Owns the value model and its optimiser: AdamW at `algorithm.critic.lr`, constant, with the rest as in `optim`.
    As with the policy, bf16 weights are trained through fp32 copies."""

    trained: LocalWeights
    """All weights, the head's last. Their gradients are what the micro-batches since `zero_gradients` added up to; with
    several ranks these are to be summed before `step`."""

    def __init__(self, base: LoadedModel, config: RunConfig) -> None:
        """`base` is taken over, and trained from here on; it must not be the policy."""
        self._layout = resolve_layout(base, config.engine.layout)  # while it still has the output layer
        self._backbone: Any = base.model.base_model
        self._pad_id = base.pad_id
        self._config = config
        # The head's inputs are those of the output layer, which in a few families are not as wide as the rest. fp32,
        # because a value is a sum over all of them and bf16 would leave it two or three digits.
        width = base.model.get_output_embeddings().weight.shape[1]
        self._head = nn.Linear(width, 1, device=base.device, dtype=torch.float32)
        nn.init.zeros_(self._head.weight)
        nn.init.zeros_(self._head.bias)
        named = {f"backbone.{name}": p for name, p in self._backbone.named_parameters()}
        named |= {f"head.{name}": p for name, p in self._head.named_parameters()}
        self.trained = LocalWeights(named, lr=config.algorithm.critic.lr, optim=config.optim)
        self.trained.zero_gradients()

    @torch.no_grad()
    def values(self, prompts: Sequence[Sequence[int]], completions: Sequence[Sequence[int]]) -> Tensor:
        """The value before each completion token, in units of reward; fp32, shape N. It is read from the hidden state
        that predicts the token, so it knows the tokens before it and not the token itself."""
        return self._values(prompts, completions)

    def learn(
        self,
        prompts: Sequence[Sequence[int]],
        completions: Sequence[Sequence[int]],
        old_values_N: Tensor,
        returns_N: Tensor,
        weights_N: Tensor,
    ) -> float:
        """Forward and backward of one micro-batch; adds to the gradient and returns the loss Σ wₜ·Lₜ, with Lₜ the
        clipped value loss of `gae.value_loss` and `weights_N` the wₜ (1 / tokens of the optimiser update: their mean).
        """
        values_N = self._values(prompts, completions)
        old_values_N, returns_N, weights_N = (
            tensor.to(values_N.device, torch.float32) for tensor in (old_values_N, returns_N, weights_N)
        )
        loss_N = value_loss(values_N, old_values_N, returns_N, self._config.algorithm.critic.value_clip)
        loss = (loss_N * weights_N).sum()
        self.trained.backward(loss)
        return loss.item()

    def learn_rows(
        self,
        rows: Sequence[TrainRow],
        indices: Sequence[int],
        old_values: Mapping[int, Tensor],
        returns: Sequence[Sequence[float]],
        weight: float,
    ) -> float:
        """`learn` of the rows `indices`, with what is known of each row by its index; each token weighs `weight`."""
        old_N = torch.cat([old_values[index] for index in indices])
        returns_N = torch.cat([torch.tensor(returns[index], dtype=torch.float32) for index in indices])
        prompts, completions = [rows[index].prompt for index in indices], [rows[index].completion for index in indices]
        return self.learn(prompts, completions, old_N, returns_N, torch.full_like(returns_N, weight))

    def step(self, max_norm: float) -> float:
        """Clip the gradient, update the weights; returns the gradient's norm before clipping. Raises NotFinite when it
        is no number: here and not in `learn`, so that several ranks stop together."""
        norm = self.trained.finish(max_norm)
        if not math.isfinite(norm):
            raise NotFinite(f"the critic's gradient is {norm}. A lower algorithm.critic.lr often helps")
        self.trained.step()
        return norm

    def _values(self, prompts: Sequence[Sequence[int]], completions: Sequence[Sequence[int]]) -> Tensor:
        hidden_ND, _ = completion_hidden(self._backbone, prompts, completions, layout=self._layout, pad_id=self._pad_id)
        values_N: Tensor = self._head(hidden_ND.float())[:, 0]
        return values_N
