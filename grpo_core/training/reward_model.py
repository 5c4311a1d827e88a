"""The update of a reward model: AdamW on the loss of pairs or scores, by one process. Its scores are what the reward
kind `reward_model` gives: the classifier's own forward pass on the same ids, texts filled up on the right.

Denominators are those of the whole batch and gradients are summed, so the size of micro-batches changes nothing but
rounding.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from statistics import fmean

import torch
from torch import Tensor

from grpo_core.algo.preference import bradley_terry_loss, regression_loss
from grpo_core.config.reward_model import RewardModelConfig
from grpo_core.errors import CheckpointError, NotFinite
from grpo_core.model.layers import recompute_layers
from grpo_core.model.load import LoadedModel
from grpo_core.runtime.fault_injection import fault
from grpo_core.runtime.watchdog import doing
from grpo_core.training.base import UpdateResult, products
from grpo_core.training.trainable import LocalWeights


@dataclass(frozen=True, slots=True)
class PreferenceRow:
    """One row as the update sees it."""

    texts: tuple[tuple[int, ...], ...]
    """Tokens of the chosen and of the rejected text; of a scored completion its own alone."""
    target: float
    """The pair's margin, or the completion's score."""


class RewardModelTraining:
    """Owns the classifier's optimiser. A `Training`."""

    kl_coef = 0.0

    def __init__(
        self, policy: LoadedModel, config: RewardModelConfig, *, check: Callable[[], None] = lambda: None
    ) -> None:
        """`policy`: the classifier. `check` is called before every micro-batch and may raise to stop."""
        if config.engine.gradient_checkpointing:
            recompute_layers(policy.model)
        self._policy, self._config, self._check = policy, config, check
        self._pairs = config.objective == "bradley_terry"
        self.changed_in = 0
        named = dict(policy.model.named_parameters())
        self._trained = LocalWeights(named, lr=config.optim.lr, optim=config.optim)

    # ------------------------------------------------------------------ into a checkpoint and back

    def whole(self) -> AbstractContextManager[None]:
        """See `Training`. Here the weights always are."""
        return nullcontext()

    def state(self) -> dict[str, dict[str, Tensor]]:
        """See `Training`."""
        return {"policy": self._trained.exact(), "policy-optimizer": self._trained.moments()}

    def restore(self, parts: Mapping[str, Mapping[str, Tensor]], *, kl_coef: float, step: int) -> None:
        """See `Training`."""
        if parts.keys() != {"policy", "policy-optimizer"}:
            raise CheckpointError(f"the checkpoint holds {', '.join(sorted(parts))}; a reward model needs its own")
        self._trained.restore(parts["policy"], parts["policy-optimizer"])
        self.changed_in = step

    # ------------------------------------------------------------------ scores

    @torch.no_grad()
    def rewards(self, texts: Sequence[Sequence[int]]) -> list[float]:
        """The reward of each text, in the order given."""
        rewards = [0.0] * len(texts)
        for indices in portions([len(text) for text in texts], 1, self._config.engine.micro_batch_tokens):
            self._check()
            for index, reward in zip(indices, self._forward([texts[i] for i in indices]).tolist(), strict=True):
                rewards[index] = reward
        return rewards

    @torch.no_grad()
    def losses(self, rows: Sequence[PreferenceRow], rewards: Mapping[tuple[int, ...], float]) -> list[float]:
        """The objective of each row, from the rewards of its texts."""
        numbers_RT = torch.tensor([[rewards[text] for text in row.texts] for row in rows])
        targets_R = torch.tensor([row.target for row in rows])
        return [float(loss) for loss in self._losses(numbers_RT, targets_R)]

    # ------------------------------------------------------------------ the update

    def update(self, rows: Sequence[PreferenceRow], *, step: int) -> UpdateResult:
        """One optimiser step on the mean loss of `rows`. Raises NotFinite on NaN or infinity; `metrics` as
        docs/metrics.md has them, of the model before the step."""
        config = self._config
        rate = config.optim.learning_rate(step)
        self._trained.set_rate(rate)
        self._trained.zero_gradients()
        lengths = [max(map(len, row.texts)) for row in rows]
        plan = list(portions(lengths, len(rows[0].texts), config.engine.micro_batch_tokens))
        numbers: dict[int, list[float]] = {}
        total = 0.0
        for number, indices in enumerate(plan, start=1):
            self._check()
            doing("update", f"micro-batch {number} of {len(plan)}")
            total += self._micro_batch([rows[i] for i in indices], indices, numbers, rows=len(rows), step=step)
        norm = self._trained.finish(config.optim.max_grad_norm)
        if not math.isfinite(norm):
            raise NotFinite(
                f"step {step}: the gradient is {norm}; the weights of step {step - 1} are the last good ones. "
                "A lower optim.lr often helps"
            )
        self.changed_in = step
        fault(f"updating:{step}")
        self._trained.step()
        metrics = {"loss": total, "grad_norm": norm, "learning_rate": rate} | reward_metrics(list(numbers.values()))
        return UpdateResult(metrics, tokens=sum(len(text) for row in rows for text in row.texts))

    def _micro_batch(
        self,
        own: Sequence[PreferenceRow],
        indices: Sequence[int],
        numbers: dict[int, list[float]],
        *,
        rows: int,
        step: int,
    ) -> float:
        """Forward and backward of some rows of a batch of `rows`; adds to the gradient and to `numbers`, the rewards of
        each row's texts by its index. Returns the part of the batch's mean loss."""
        targets_R = torch.tensor([row.target for row in own], dtype=torch.float32, device=self._policy.device)

        def work() -> Tensor:
            flat = self._forward([text for row in own for text in row.texts])
            numbers_RT = flat.view(len(own), -1)
            numbers.update(zip(indices, numbers_RT.detach().tolist(), strict=True))
            return self._losses(numbers_RT, targets_R).sum() / rows

        loss = self._trained.forward(work)
        value = loss.item()
        if not math.isfinite(value):
            raise NotFinite(
                f"step {step}: the loss is {value}; the weights of step {step - 1} are the last good ones. "
                "A lower optim.lr often helps"
            )
        self._trained.backward(loss)
        return value

    def _losses(self, numbers_RT: Tensor, targets_R: Tensor) -> Tensor:
        if self._pairs:
            chosen_R, rejected_R = numbers_RT.unbind(1)
            return bradley_terry_loss(chosen_R, rejected_R, targets_R, center=self._config.center)
        return regression_loss(numbers_RT[:, 0], targets_R)

    def _forward(self, texts: Sequence[Sequence[int]]) -> Tensor:
        """The reward of each text, fp32, filled up on the right."""
        device, width = self._policy.device, max(map(len, texts))
        ids_BT = torch.full((len(texts), width), self._policy.pad_id, dtype=torch.long)
        mask_BT = torch.zeros_like(ids_BT)
        for row, text in enumerate(texts):
            ids_BT[row, : len(text)] = torch.tensor(text)
            mask_BT[row, : len(text)] = 1
        with products(self._config.engine.autocast, device):
            logits_B1 = self._policy.model(input_ids=ids_BT.to(device), attention_mask=mask_BT.to(device)).logits
        rewards_B: Tensor = logits_B1[:, 0].float()
        return rewards_B


def portions(lengths: Sequence[int], each: int, most: int) -> Iterator[list[int]]:
    """Indices of rows of at most so many tokens, `each` texts a row, filled up to the longest: shortest rows first.
    A row that is longer alone is a portion of its own."""
    order = sorted(range(len(lengths)), key=lambda index: (lengths[index], index))
    portion: list[int] = []
    for index in order:
        if portion and (len(portion) + 1) * each * lengths[index] > most:
            yield portion
            portion = []
        portion.append(index)
    if portion:
        yield portion


def reward_metrics(numbers: Sequence[Sequence[float]]) -> dict[str, float]:
    """Of a batch's rewards, row by row: TRL's names for pairs; mean and population standard deviation of scores."""
    if len(numbers[0]) == 1:
        values = [row[0] for row in numbers]
        mean = fmean(values)
        return {"rewards/mean": mean, "rewards/std": math.sqrt(fmean((value - mean) ** 2 for value in values))}
    margins = [chosen - rejected for chosen, rejected in numbers]
    return {
        "rewards/chosen": fmean(chosen for chosen, _ in numbers),
        "rewards/rejected": fmean(rejected for _, rejected in numbers),
        "rewards/margins": fmean(margins),
        "rewards/accuracies": fmean(0.5 if margin == 0 else float(margin > 0) for margin in margins),
    }
