"""The update in plain PyTorch, on one device: AdamW on the clipped GRPO loss.

Departures from the papers, all without effect on the result:
- At μ=1 the old policy is the current one, so its log-probabilities are the detached current ones and no extra forward
  pass is made. The ratio is 1, the clip cannot act, and clip ratios are not reported.
- At β=0 a completion with advantage 0 has no gradient and is not run through the model. It stays in the denominators,
  and the optimiser still steps, because momentum and weight decay move the weights without a gradient too.
- With μ>1 the old log-probabilities are those of the first pass, before the first update.

Shapes: N completion tokens of a micro-batch, row after row.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from grpo_core.algo.aggregation import row_weights
from grpo_core.algo.kl import kl_estimate
from grpo_core.algo.losses import clipped_surrogate
from grpo_core.config import OptimConfig, RunConfig
from grpo_core.errors import TrainingError
from grpo_core.model.load import LoadedModel
from grpo_core.model.logprobs import completion_logprobs, plan_micro_batches
from grpo_core.training.base import TrainRow


def learning_rate(optim: OptimConfig, step: int) -> float:
    """Rate of step `step` (from 1): linear warm-up that reaches `lr` at `warmup_steps`, then constant, or linear so
    that it would be 0 one step after the last."""
    if step <= optim.warmup_steps:
        return optim.lr * step / optim.warmup_steps
    if optim.schedule == "constant":
        return optim.lr
    return optim.lr * (optim.steps - step + 1) / (optim.steps - optim.warmup_steps)


@dataclass
class _Sums:
    """What the passes of one step add up to."""

    loss: float = 0.0
    kl: float = 0.0
    low: int = 0
    high: int = 0
    seen: int = 0
    """Tokens run through the model in all passes."""


@dataclass
class _Frozen:
    """Log-probabilities that the later passes of a step (μ>1) need again, of one micro-batch."""

    old_N: Tensor
    reference_N: Tensor | None


class SingleTraining:
    """Owns the optimiser. bf16 weights are trained through fp32 copies: at small learning rates an update is less
    than bf16 can hold and would be rounded away."""

    def __init__(
        self,
        policy: LoadedModel,
        reference: LoadedModel | None,
        config: RunConfig,
        *,
        check: Callable[[], None] = lambda: None,
        skip_without_gradient: bool = True,
    ) -> None:
        """`check` is called before every micro-batch and may raise to stop. `skip_without_gradient` False runs the
        completions that give no gradient all the same, which tests compare with."""
        if (config.algorithm.kl.coef > 0) != (reference is not None):
            raise ValueError("a reference is needed exactly when kl.coef is above 0")
        self._policy = policy
        self._reference = reference
        self._config = config
        self._check = check
        self._skip = skip_without_gradient
        self._weights = [p for p in policy.model.parameters() if p.requires_grad]
        self._masters = [p if p.dtype == torch.float32 else p.detach().float() for p in self._weights]
        optim = config.optim
        self._optimizer = torch.optim.AdamW(
            self._masters, lr=optim.lr, betas=(optim.beta1, optim.beta2), weight_decay=optim.weight_decay, fused=True
        )

    def update(self, rows: Sequence[TrainRow], *, step: int) -> dict[str, float]:
        """See `base.Training`."""
        algorithm = self._config.algorithm
        weights = row_weights(
            [len(row.completion) for row in rows],
            [row.used for row in rows],
            algorithm.aggregation,
            algorithm.aggregation_constant,
        ).tolist()
        active = [i for i, row in enumerate(rows) if row.used and (self._gives_gradient(row) or not self._skip)]
        lengths = [len(rows[i].prompt) + len(rows[i].completion) for i in active]
        plan = [
            [active[place] for place in batch]
            for batch in plan_micro_batches(lengths, self._config.engine.micro_batch_tokens)
        ]

        rate = learning_rate(self._config.optim, step)
        for group in self._optimizer.param_groups:
            group["lr"] = rate
        frozen: list[_Frozen] = []
        sums, norms = _Sums(), []
        for iteration in range(algorithm.inner_iterations):
            self._zero_gradients()
            for number, batch in enumerate(plan):
                self._check()
                self._micro_batch(rows, weights, batch, frozen, number, first=iteration == 0, sums=sums, step=step)
            norms.append(self._step(step))

        passes = algorithm.inner_iterations
        metrics = {"loss": sums.loss / passes, "grad_norm": sum(norms) / passes, "learning_rate": rate}
        if self._reference is not None and sums.seen:
            metrics["kl"] = sums.kl / sums.seen
        if passes > 1:
            used = sum(len(row.completion) for row in rows if row.used) * passes
            metrics["clip_ratio/low_mean"] = sums.low / max(used, 1)
            metrics["clip_ratio/high_mean"] = sums.high / max(used, 1)
        return metrics

    def _gives_gradient(self, row: TrainRow) -> bool:
        return row.advantage != 0.0 or self._reference is not None

    def _micro_batch(
        self,
        rows: Sequence[TrainRow],
        weights: Sequence[float],
        batch: list[int],
        frozen: list[_Frozen],
        number: int,
        *,
        first: bool,
        sums: _Sums,
        step: int,
    ) -> None:
        """Forward and backward of one micro-batch; adds to the gradient and to `sums`."""
        algorithm, temperature = self._config.algorithm, self._config.sampling.temperature
        prompts = [rows[i].prompt for i in batch]
        completions = [rows[i].completion for i in batch]
        lengths = torch.tensor([len(c) for c in completions])
        advantages_N = torch.tensor([rows[i].advantage for i in batch]).repeat_interleave(lengths)
        weights_N = torch.tensor([weights[i] for i in batch]).repeat_interleave(lengths)

        logprobs_N = completion_logprobs(self._policy.model, prompts, completions, temperature=temperature)
        advantages_N, weights_N = advantages_N.to(logprobs_N.device), weights_N.to(logprobs_N.device)
        if first:
            reference_N = None
            if self._reference is not None:
                with torch.no_grad():
                    reference_N = completion_logprobs(
                        self._reference.model, prompts, completions, temperature=temperature
                    )
            frozen.append(_Frozen(logprobs_N.detach(), reference_N))
        known = frozen[number]
        surrogate = clipped_surrogate(
            logprobs_N, known.old_N, advantages_N, clip_low=algorithm.clip_low, clip_high=algorithm.clip_high
        )
        loss_N = surrogate.loss_N
        if known.reference_N is not None:
            kl_N = kl_estimate(logprobs_N, known.reference_N, algorithm.kl.estimator)
            loss_N = loss_N + algorithm.kl.coef * kl_N
            sums.kl += kl_N.detach().sum().item()
        loss = (loss_N * weights_N).sum()
        value = loss.item()
        if not math.isfinite(value):
            raise TrainingError(
                f"step {step}: the loss is {value}; the weights of step {step - 1} are the last good ones. "
                "A lower optim.lr or a lower algorithm.clip_high often helps"
            )
        loss.backward()  # type: ignore[no-untyped-call]
        sums.loss += value
        sums.low += int(surrogate.clipped_low_N.sum())
        sums.high += int(surrogate.clipped_high_N.sum())
        sums.seen += len(logprobs_N)

    def _zero_gradients(self) -> None:
        """Zeros and not None: AdamW passes over a weight without a gradient, and its momentum would stand still."""
        for weight in self._weights:
            if weight.grad is None:
                weight.grad = torch.zeros_like(weight)
            else:
                weight.grad.zero_()

    def _step(self, step: int) -> float:
        """Clip the gradient, update the weights; returns the gradient's norm before clipping."""
        for weight, master in zip(self._weights, self._masters, strict=True):
            if master is not weight:
                assert weight.grad is not None
                master.grad = weight.grad.float()
        norm = torch.nn.utils.clip_grad_norm_(self._masters, self._config.optim.max_grad_norm).item()
        if not math.isfinite(norm):
            raise TrainingError(
                f"step {step}: the gradient is {norm}; the weights of step {step - 1} are the last good ones"
            )
        self._optimizer.step()
        with torch.no_grad():
            for weight, master in zip(self._weights, self._masters, strict=True):
                if master is not weight:
                    weight.copy_(master)
        return norm
