"""TRPO's step on the policy (`algo.trust_region` has the method): products of a vector with the policy's Fisher matrix,
and the divergence and surrogate of weights that are tried.

The Fisher matrix is that of the whole distribution over the vocabulary, not the sampled token's score squared: with
logits z and probabilities p of N tokens, F = 1/N · Σ Jᵀ(diag(p) − p·pᵀ)J, J = dz/dθ, which is the second derivative of
the mean KL(old ‖ new) at the old policy (TRPO, appendix C.1). A product is exact: J·v by forward derivatives, then Jᵀ
by backward ones, micro-batch by micro-batch, and the output layer portion by portion, as in `model.head`. No second
derivative is taken. Nothing but `TrustRegion.take` moves a weight.

Attention's fused kernels have no forward derivatives, and shared rows have a kernel of our own, so products take rows
padded on the right with PyTorch's plain attention; everything else has the config's layout.

Shapes: P trained weights · N completion tokens of a micro-batch, small n for a portion · D hidden size · V vocabulary.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.func import functional_call
from torch.nn.attention import SDPBackend, sdpa_kernel

from grpo_core.algo.trust_region import Step, trust_region_step
from grpo_core.config.run import RunConfig
from grpo_core.distributed.ranks import Ranks
from grpo_core.errors import ConfigError, FieldProblem, ModelError
from grpo_core.model.head import PORTION_CPU
from grpo_core.model.layout import Layout, completion_hidden, plan_rows
from grpo_core.model.layout_choice import resolve_layout
from grpo_core.model.load import LoadedModel
from grpo_core.model.logprobs import Terms, head_logits, vocabulary_of
from grpo_core.runtime.watchdog import doing
from grpo_core.training.base import TrainRow
from grpo_core.training.logprob_pass import CachedLogprobs, texts
from grpo_core.training.micro_batch import Batch, MetricSums, MicroBatch, Mismatch


@dataclass(frozen=True)
class SurrogatePlan:
    """What one step maximises, and over which tokens it bounds the divergence: those of this rank's rows `indices`."""

    rows: Sequence[TrainRow]
    indices: Sequence[int]
    batch: Batch
    measured: CachedLogprobs
    """With the old log-probabilities of every row that has a gradient."""
    mismatch: Mismatch

    def loss_of(self, indices: Sequence[int], config: RunConfig, device: torch.device) -> MicroBatch:
        """The loss of some rows, which is the surrogate with the other sign. A row that has no gradient has advantage 0
        and adds 0 to it at any ratio. There is no penalty to a reference (`config.optim_conflicts`)."""
        return MicroBatch(
            self.rows,
            indices,
            self.batch,
            config,
            measured=self.measured,
            mismatch=self.mismatch,
            metric_sums=MetricSums(),
            kl_coef=0.0,
            referred=False,
            device=device,
        )


class TrustRegion:
    """Finds and takes the steps of one policy. Every rank holds all weights and takes the same step."""

    def __init__(
        self,
        policy: LoadedModel,
        named: Mapping[str, Tensor],
        config: RunConfig,
        *,
        ranks: Ranks,
        check: Callable[[], None],
    ) -> None:
        """`named`: the model's trained weights, fp32, each once; their `grad` is used for products. Raises ConfigError
        where there are more than the config allows."""
        size, most = sum(weight.numel() for weight in named.values()), config.optim.trpo.max_parameters
        if size > most:
            problem = FieldProblem(
                "optim.trpo.max_parameters",
                f"the policy has {size:,} trained weights, and TRPO is for at most {most:,} here: a step holds seven "
                "numbers for each and takes as many passes as some twenty updates of AdamW. Train adapters instead "
                "(model.lora.rank), use optim.method: adamw, or raise optim.trpo.max_parameters",
                "trpo_too_large",
            )
            raise ConfigError(str(problem), (problem,))
        self._policy, self._named, self._config = policy, dict(named), config
        self._ranks, self._check = ranks, check
        self._swapped = _Swapped(policy.model)

    def find(self, plan: SurrogatePlan) -> tuple[Step, dict[str, float]]:
        """The step for the loss's gradient in the weights' `grad`, summed over ranks, and its metrics. Weights stay as
        they are; their `grad` is gone afterwards."""
        self._plan = plan
        own = sum(len(plan.rows[index].completion) for index in plan.indices)
        self._tokens = self._ranks.sums({"tokens": float(own)})["tokens"]
        gradient_P = -self._flat_gradient()  # of the surrogate, which is the loss with the other sign
        step, direction = trust_region_step(self.fisher_product, self._measure, gradient_P, self._config.optim.trpo)
        self._forget_gradient()
        metrics = {"trpo/kl": step.kl, "trpo/step_length": step.length, "trpo/surrogate_gain": step.gain}
        if gradient_P.any():  # else there was nothing to search for
            metrics["trpo/cg_residual"] = direction.residual
            metrics["trpo/line_search_steps"] = float(step.tried)
            metrics["trpo/accepted"] = float(step.move_P is not None)
        return step, metrics

    @torch.no_grad()
    def take(self, step: Step) -> None:
        """Move the weights."""
        if step.move_P is not None:
            for name, part in self._parts(step.move_P).items():
                self._named[name] += part

    # ------------------------------------------------------------------ the Fisher matrix

    def fisher_product(self, vector_P: Tensor) -> Tensor:
        """F·v over all ranks' tokens of the step, shape P."""
        model, direction, scale = self._policy.model, self._parts(vector_P), 1 / self._config.sampling.temperature
        self._forget_gradient()
        for portion in self._portions("right"):
            self._check()
            prompts, completions, _ = texts(self._plan.rows, portion)

            def hidden(prompts: Any = prompts, completions: Any = completions) -> Tensor:
                return completion_hidden(model.base_model, prompts, completions, pad_id=self._policy.pad_id)[0]

            hidden_ND, along_ND = self._along(direction, hidden)
            graph_ND = hidden()
            leaf_ND = graph_ND.detach().requires_grad_()
            for here in self._slices(len(leaf_ND)):

                def logits(here: slice = here, hidden_ND: Tensor = hidden_ND, along_ND: Tensor = along_ND) -> Tensor:
                    return head_logits(model, _dual(hidden_ND[here], along_ND[here])).float()

                logits_nV, along_nV = self._along(direction, logits)
                probs_nV = torch.softmax(scale * logits_nV, -1)
                along_nV *= scale**2 / self._tokens  # once for J, once for its transpose
                along_nV -= torch.linalg.vecdot(probs_nV, along_nV)[:, None]
                head_logits(model, leaf_ND[here]).backward(probs_nV * along_nV)  # type: ignore[no-untyped-call]
            graph_ND.backward(leaf_ND.grad)  # type: ignore[no-untyped-call]
        product_P = self._flat_gradient()
        self._ranks.sum_in_place([product_P])
        return product_P

    @torch.no_grad()
    def _along(self, direction: Mapping[str, Tensor], work: Callable[[], Tensor]) -> tuple[Tensor, Tensor]:
        """What `work` computes, and its derivative along a direction of the weights. Raises ModelError for a family
        that PyTorch cannot differentiate so."""
        with forward_ad.dual_level(), sdpa_kernel(SDPBackend.MATH):
            duals = {name: _dual(self._named[name], part) for name, part in direction.items()}
            try:
                computed = self._swapped.run(duals, work)
            except NotImplementedError as error:
                reason = next(iter(str(error).splitlines()), type(error).__name__)
                raise ModelError(
                    f"{type(self._policy.model).__name__} cannot be trained with optim.method trpo, because some of "
                    f"its layers have no forward derivatives; use optim.method: adamw. PyTorch says: {reason}"
                ) from error
            dual = forward_ad.unpack_dual(computed)  # type: ignore[no-untyped-call]
            tangent = torch.zeros_like(dual.primal) if dual.tangent is None else dual.tangent
            return dual.primal.clone(), tangent.clone()

    # ------------------------------------------------------------------ weights that are tried

    @torch.no_grad()
    def _measure(self, move_P: Tensor) -> tuple[float, float]:
        """(mean KL(old ‖ new) in nats per token, gain of the surrogate) of moved weights, over all ranks."""
        model, scale = self._policy.model, 1 / self._config.sampling.temperature
        moved = {name: self._named[name] + part for name, part in self._parts(move_P).items()}
        layout = resolve_layout(self._policy, self._config.engine.layout)
        sums = {"kl": 0.0, "gain": 0.0}
        for portion in self._portions(layout):
            self._check()
            prompts, completions, _ = texts(self._plan.rows, portion)

            def hidden(prompts: Any = prompts, completions: Any = completions) -> Tensor:
                pad_id = self._policy.pad_id
                return completion_hidden(model.base_model, prompts, completions, layout=layout, pad_id=pad_id)[0]

            old_ND, new_ND = hidden(), self._swapped.run(moved, hidden)
            targets_N = torch.tensor([token for tokens in completions for token in tokens], device=old_ND.device)
            loss = self._plan.loss_of(portion, self._config, old_ND.device)
            for here in self._slices(len(old_ND)):

                def logits(hidden_nD: Tensor = new_ND[here]) -> Tensor:
                    return head_logits(model, hidden_nD).double()

                old_nV = torch.log_softmax(scale * logits(old_ND[here]), -1)
                new_nV = torch.log_softmax(scale * self._swapped.run(moved, logits), -1)
                sums["kl"] += (old_nV.exp() * (old_nV - new_nV)).sum().item()
                before, after = (loss(_terms(table_nV, targets_N[here]), here).item() for table_nV in (old_nV, new_nV))
                sums["gain"] += before - after
        total = self._ranks.sums(sums)
        return total["kl"] / self._tokens, total["gain"]

    # ------------------------------------------------------------------ rows and weights

    def _portions(self, layout: Layout) -> Iterator[list[int]]:
        """Micro-batches of this rank's rows."""
        prompts, completions, _ = texts(self._plan.rows, self._plan.indices)
        for number, part in enumerate(plan_rows(prompts, completions, self._config.engine.micro_batch_tokens, layout)):
            doing("trust region", f"micro-batch {number + 1}")
            yield [self._plan.indices[i] for i in part]

    def _slices(self, tokens: int) -> list[slice]:
        size = max(1, PORTION_CPU // vocabulary_of(self._policy.model))
        return [slice(start, min(start + size, tokens)) for start in range(0, tokens, size)]

    def _parts(self, vector_P: Tensor) -> dict[str, Tensor]:
        """The vector cut into the weights' shapes."""
        sizes = [weight.numel() for weight in self._named.values()]
        parts = torch.split(vector_P, sizes)
        return {name: part.view_as(self._named[name]) for name, part in zip(self._named, parts, strict=True)}

    def _flat_gradient(self) -> Tensor:
        """The weights' gradients as one vector; 0 where no pass gave any."""
        parts = [torch.zeros_like(w) if w.grad is None else w.grad for w in self._named.values()]
        return torch.cat([part.flatten() for part in parts])

    def _forget_gradient(self) -> None:
        for weight in self._named.values():
            weight.grad = None


def _terms(table_nV: Tensor, targets_n: Tensor) -> Terms:
    """Of each token, from the log-probabilities of the whole vocabulary."""
    chosen_n = table_nV.gather(-1, targets_n[:, None])[:, 0]
    return Terms(chosen_n.float(), None, chosen_n >= table_nV.amax(-1))


def _dual(value: Tensor, along: Tensor) -> Tensor:
    """A tensor with its derivative, inside a dual level."""
    dual: Tensor = forward_ad.make_dual(value, along)  # type: ignore[no-untyped-call]
    return dual


class _Swapped(nn.Module):
    """Does something while the model has other tensors in place of its weights."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def run(self, weights: Mapping[str, Tensor], work: Callable[[], Tensor]) -> Tensor:
        swapped = {f"model.{name}": weight for name, weight in weights.items()}
        result: Tensor = functional_call(self, swapped, (work,))
        return result

    def forward(self, work: Callable[[], Tensor]) -> Tensor:
        return work()
