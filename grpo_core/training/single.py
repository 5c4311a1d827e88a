"""The update: AdamW on the chosen loss, or a step of TRPO (`trust_region`), on one device or on several ranks that step
together. The weights are held by plain PyTorch or by DeepSpeed (`trainable.TrainableWeights`).

Departures from the papers, all without effect on the result:
- With one update for a sampled batch the old policy is the current one, so its log-probabilities are the detached
  current ones and no extra forward pass is made. The ratio is 1, the clip cannot act, and clip ratios are not reported.
  (Groups of an earlier step have their sampler's numbers as old ones, unless correction.stale says `weight`.)
- Where a completion with advantage 0 has no gradient it is not run through the model. It stays in the denominators, and
  the optimiser still steps, because momentum and weight decay move the weights without a gradient too.
- Denominators are those of the whole optimiser update, over all ranks and micro-batches. Gradients are summed.

Shapes: N completion tokens of a micro-batch, row after row · R its rows.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager

import torch
from torch import Tensor

from grpo_core.algo.aggregation import row_weights
from grpo_core.algo.kl import adapted_coef
from grpo_core.algo.masks import entropy_threshold
from grpo_core.config.kinds import LearningConfig
from grpo_core.config.run import RunConfig
from grpo_core.distributed.ranks import Ranks
from grpo_core.errors import CheckpointError, NotFinite
from grpo_core.model.layers import compile_layers, recompute_layers
from grpo_core.model.layout import plan_rows
from grpo_core.model.layout_choice import resolve_layout
from grpo_core.model.load import LoadedModel
from grpo_core.runtime.fault_injection import fault
from grpo_core.runtime.watchdog import doing
from grpo_core.training.base import (
    TrainRow,
    UpdateResult,
    gives_gradient,
    mini_batches,
    owners,
    row_facts,
)
from grpo_core.training.critic import Critic
from grpo_core.training.logprob_pass import CachedLogprobs, LogprobPass, idle_terms, keep, shared, texts
from grpo_core.training.micro_batch import Batch, MetricSums, MicroBatch, Mismatch, row_loss, update_metrics
from grpo_core.training.reference import Reference
from grpo_core.training.trainable import LocalWeights, TrainableWeights
from grpo_core.training.trust_region import SurrogatePlan, TrustRegion


class SingleTraining:
    """Owns the policy's optimiser, and the critic's and the moving reference's state through them."""

    def __init__(
        self,
        policy: LoadedModel,
        reference: LoadedModel | None,
        config: LearningConfig,
        *,
        check: Callable[[], None] = lambda: None,
        ranks: Ranks | None = None,
        critic: Critic | None = None,
        weights: TrainableWeights | None = None,
    ) -> None:
        """`reference` is frozen, next to the policy; None where the policy has adapters or none is needed. `check`
        is called before every micro-batch and may raise to stop. `weights`: the policy's, with their optimiser; made
        here when not given."""
        algorithm = config.algorithm
        if (algorithm.needs_reference and not config.model.lora.rank) != (reference is not None):
            raise ValueError("a reference model is needed exactly with KL to the reference and without adapters")
        if algorithm.estimator.critic != (critic is not None):
            raise ValueError("a critic is needed exactly with an estimator that has one")
        engine = config.engine
        resolve_layout(policy, engine.layout)  # before the layers are changed
        if engine.torch_compile:
            compile_layers(policy.model)
        if engine.gradient_checkpointing:
            recompute_layers(policy.model)
        self._policy = policy
        self._reference = Reference(policy, reference, config) if algorithm.needs_reference else None
        self._critic = critic
        self._config = config
        self._check = check
        self._ranks = ranks or Ranks()
        self._logprob_pass = LogprobPass(policy, self._reference, critic, config, check)
        self._given: CachedLogprobs | None = None
        self.kl_coef = algorithm.kl.coef
        """The current β; the adaptive controller moves it."""
        self.changed_in = 0
        named = {name: p for name, p in policy.model.named_parameters() if p.requires_grad}  # tied weights come once
        self._trained = weights or LocalWeights(named, lr=config.optim.lr, optim=config.optim, ranks=ranks)
        self._trust_region: TrustRegion | None = None
        if isinstance(config, RunConfig) and config.optim.method == "trpo":
            self._trust_region = TrustRegion(policy, named, config, ranks=self._ranks, check=check)

    def whole(self) -> AbstractContextManager[None]:
        """See `Training`."""
        return self._trained.whole()

    # ------------------------------------------------------------------ into a checkpoint and back

    def state(self) -> dict[str, dict[str, Tensor]]:
        """See `Training`."""
        parts = {"policy": self._trained.exact()}
        if self._trust_region is None:  # whose next step depends on the weights alone
            parts["policy-optimizer"] = self._trained.moments()
        if self._critic is not None:
            parts |= {"critic": self._critic.trained.exact(), "critic-optimizer": self._critic.trained.moments()}
        if self._reference is not None and self._reference.moves:
            parts["reference"] = self._reference.exact()
        return parts

    def restore(self, parts: Mapping[str, Mapping[str, Tensor]], *, kl_coef: float, step: int) -> None:
        """See `Training`."""
        needed = ["policy"] if self._trust_region is not None else ["policy", "policy-optimizer"]
        if self._critic is not None:
            needed += ["critic", "critic-optimizer"]
        if self._reference is not None and self._reference.moves:
            needed.append("reference")
        if parts.keys() != set(needed):
            expected, present = (", ".join(sorted(names)) for names in (needed, parts))
            raise CheckpointError(f"the checkpoint holds {present}; this run needs {expected}")
        self._trained.restore(parts["policy"], parts.get("policy-optimizer", {}))
        if self._critic is not None:
            self._critic.trained.restore(parts["critic"], parts["critic-optimizer"])
        if self._reference is not None and self._reference.moves:
            self._reference.restore(parts["reference"])
        self.kl_coef = kl_coef
        self.changed_in = step

    # ------------------------------------------------------------------ before advantages

    def measure(self, rows: Sequence[TrainRow]) -> CachedLogprobs:
        """Old and reference log-probabilities and values of all rows, on every rank; the next update uses them."""
        everything = list(range(len(rows)))
        owner = owners(rows, [everything], self._ranks.world)
        algorithm = self._config.algorithm
        with self._trained.whole():
            mine = self._logprob_pass.measure(
                rows, [p for p in everything if owner[p] == self._ranks.rank], entropy=algorithm.top_entropy_share < 1
            )
        self._given = CachedLogprobs(
            old=shared(mine.old, rows, owner, self._ranks),
            reference=shared(mine.reference, rows, owner, self._ranks) if self._reference is not None else {},
            entropy=shared(mine.entropy, rows, owner, self._ranks) if algorithm.top_entropy_share < 1 else {},
            values=shared(mine.values, rows, owner, self._ranks) if self._critic is not None else {},
        )
        return self._given

    # ------------------------------------------------------------------ the update

    def update(
        self, rows: Sequence[TrainRow], *, step: int, returns: Sequence[Sequence[float]] | None = None
    ) -> UpdateResult:
        """μ × mini-batches optimiser updates on `rows`. `returns`: what the critic should have predicted at each token,
        row by row. Raises TrainingError on NaN or infinity."""
        algorithm, ranks = self._config.algorithm, self._ranks
        skip = self._config.engine.skip_zero_advantage and algorithm.zero_advantage_is_inert
        cut = mini_batches(rows, algorithm.mini_batches)
        used = [index for index, row in enumerate(rows) if row.used]
        active = {index for index in used if gives_gradient(rows[index], zero_is_inert=skip)}
        # A mask or a threshold that depends on all used rows must see all of them, not only those with a gradient.
        asks_all = algorithm.correction.mode == "sequence_mask" or algorithm.top_entropy_share < 1
        # So must a trust region, which is around the policy's distributions at all of their tokens.
        seen = set(used) if asks_all or self._trust_region is not None else active
        owner = owners(rows, [[index for index in batch if index in seen] for batch in cut], ranks.world)
        mine = [index for index in sorted(owner) if owner[index] == ranks.rank]

        measured = self._given or CachedLogprobs()
        if self._given is None and (asks_all or algorithm.mini_batches > 1):
            with self._trained.whole():
                measured = self._logprob_pass.measure(rows, mine, entropy=algorithm.top_entropy_share < 1)
        self._given = None
        weighs, loss = algorithm.weighs_stale, algorithm.loss_spec
        for index in mine:
            sampled = rows[index].sampler_logprobs
            if rows[index].stale and sampled is not None and not weighs:
                measured.old[index] = torch.tensor(sampled)
        # A ratio to the sampler itself (DPPO) leaves nothing to weigh.
        correction = algorithm.correction
        if loss.ratio == "sampler" and correction.mode == "token_truncate":
            correction = correction.model_copy(update={"mode": "none"})
        mismatch = Mismatch(correction, stale=weighs)
        dropped: set[int] = set()
        if algorithm.correction.mode == "sequence_mask":
            off = [index for index in mine if not mismatch.admits(index, rows[index], measured.old[index])]
            dropped = {index for theirs in ranks.gather(off) for index in theirs}
        working = [index for index in mine if index in active and index not in dropped]
        batches = [self._prepare(rows, batch, mine, working, dropped, measured) for batch in cut]
        if self._trained.even_passes and algorithm.kl.place == "loss":
            self._measure_adapterless(rows, working, measured)

        measured_before = set(measured.old)
        rate = self._config.optim.learning_rate(step)
        self._trained.set_rate(rate)
        metric_sums, norms, value_norms, region_metrics = MetricSums(), [], [], dict[str, float]()
        for _ in range(algorithm.inner_iterations):
            for batch in batches:
                portions = self._portions(rows, batch.indices)
                passes = self._passes(len(portions))
                self._trained.zero_gradients(passes)
                if self._critic is not None:
                    self._critic.trained.zero_gradients()
                for number, indices in enumerate(portions, start=1):
                    self._check()
                    doing("update", f"micro-batch {number} of {len(portions)}")
                    self._micro_batch(rows, indices, batch, measured, mismatch, metric_sums, step)
                    if self._critic is not None and returns is not None:
                        value_loss = self._critic.learn_rows(
                            rows, indices, measured.values, returns, batch.value_weight
                        )
                        metric_sums.add(value_loss=value_loss)
                for _ in range(passes - len(portions)):  # they add nothing, next to those of ranks with more rows
                    idle = self._trained.forward(lambda: 0 * idle_terms(self._policy, self._config).logprobs_N.sum())
                    self._trained.backward(idle)
                if self._trust_region is None:
                    norms.append(self._step(step))
                else:
                    kept = [index for index in mine if index not in dropped]
                    plan = SurrogatePlan(rows, kept, batch, measured, mismatch)
                    norm, region_metrics = self._natural_step(step, self._trust_region, plan)
                    norms.append(norm)
                if self._critic is not None:
                    ranks.sum_in_place(self._critic.trained.gradients())
                    value_norms.append(self._critic.step(self._config.optim.max_grad_norm))

        several, stale = algorithm.updates_per_batch > 1, any(rows[index].stale for index in used) and not weighs
        tokens = sum(rows[index].length for index in active - dropped)
        clips = loss.clips and tokens > 0 and (loss.ratio == "sampler" or several or stale)
        metrics = update_metrics(
            metric_sums,
            self._config,
            ranks,
            updates=len(norms),
            used_tokens=sum(rows[index].length for index in used if index not in dropped),
            clips=clips,
            kl=algorithm.kl.coef > 0 and algorithm.kl.place == "loss",
        )
        metrics |= {"grad_norm": sum(norms) / len(norms)} | region_metrics
        if self._trust_region is None:
            metrics["learning_rate"] = rate
        metrics |= mismatch.metrics(ranks)
        if value_norms:
            metrics["value_grad_norm"] = sum(value_norms) / len(value_norms)
        if self._reference is not None and self._reference.moves:
            with self._trained.whole():
                if self._reference.after_step(step):
                    metrics["reference_refreshed"] = 1.0
        shares = ranks.gather([*metric_sums.clipped.items()]) if clips else []
        clipped = {index: share for theirs in shares for index, share in theirs}
        own = [index for index, row in enumerate(rows) if row.traced and owner.get(index, 0) == ranks.rank]
        signals = {index: measured.signals(index, old=several or index in measured_before) for index in own}
        if any(row.traced for row in rows):
            gathered = ranks.gather(list(signals.items()))
            signals = {index: columns for theirs in gathered for index, columns in theirs}
        return UpdateResult(metrics, tokens, dict.fromkeys(dropped, "importance"), clipped, signals)

    def adapt_kl(self, nats_per_completion: float, completions: int) -> None:
        """Let the adaptive controller change β by this step's divergence."""
        kl = self._config.algorithm.kl
        if kl.controller == "adaptive":
            self.kl_coef = adapted_coef(
                self.kl_coef,
                nats_per_completion,
                target_nats=kl.target_nats,
                horizon=kl.horizon,
                completions=completions,
            )

    def _prepare(
        self,
        rows: Sequence[TrainRow],
        batch: list[int],
        mine: list[int],
        working: list[int],
        dropped: set[int],
        measured: CachedLogprobs,
    ) -> Batch:
        """Denominators of one mini-batch, from all ranks' rows, and this rank's part of it."""
        algorithm = self._config.algorithm
        facts = row_facts(rows, batch, lambda index: index not in dropped)
        weights = row_weights(facts, algorithm)
        threshold = -math.inf
        if algorithm.top_entropy_share < 1:
            empty = torch.empty(0)
            # This rank's alone: after `measure` every rank knows all of them.
            counted = set(batch).intersection(mine) - dropped
            ours = [measured.entropy[index] for index in sorted(counted)]
            everyone_N = self._ranks.gather_numbers(torch.cat(ours or [empty]))
            if len(everyone_N):
                threshold = entropy_threshold(everyone_N, algorithm.top_entropy_share)
        tokens = sum(fact.length for fact in facts if fact.used)
        inside = set(batch)
        return Batch(
            indices=[index for index in working if index in inside],
            policy_weights=dict(zip(batch, weights.policy_B.tolist(), strict=True)),
            penalty_weights=dict(zip(batch, weights.penalty_B.tolist(), strict=True)),
            entropy_from=threshold,
            value_weight=1 / tokens if tokens else 0.0,
        )

    def _portions(self, rows: Sequence[TrainRow], indices: list[int]) -> list[list[int]]:
        """Micro-batches of this rank's rows."""
        prompts, completions, _ = texts(rows, indices)
        engine = self._config.engine
        layout = resolve_layout(self._policy, engine.layout)
        plan = plan_rows(prompts, completions, engine.micro_batch_tokens, layout)
        return [[indices[i] for i in part] for part in plan]

    def _micro_batch(
        self,
        rows: Sequence[TrainRow],
        indices: list[int],
        batch: Batch,
        measured: CachedLogprobs,
        mismatch: Mismatch,
        metric_sums: MetricSums,
        step: int,
    ) -> None:
        """Forward and backward of one micro-batch; adds to the gradient and to `metric_sums`."""
        config = self._config
        prompts, completions, sizes = texts(rows, indices)
        # The reference first: nothing of the policy's pass is alive then.
        referred = self._reference is not None and config.algorithm.kl.place == "loss"
        if referred and self._reference is not None and indices[0] not in measured.reference:
            keep(measured.reference, indices, sizes, self._reference.logprobs(prompts, completions))
        loss_of = MicroBatch(
            rows,
            indices,
            batch,
            config,
            measured=measured,
            mismatch=mismatch,
            metric_sums=metric_sums,
            kl_coef=self.kl_coef,
            referred=referred,
            device=self._policy.device,
        )
        loss = self._trained.forward(lambda: row_loss(self._policy, config, prompts, completions, loss_of))
        value = loss.item()
        if not math.isfinite(value) and self._ranks.world == 1:  # with several, all must stop together: see _step
            raise NotFinite(
                f"step {step}: the loss is {value}; the weights of step {step - 1} are the last good ones. "
                "A lower optim.lr or a lower algorithm.clip_high often helps"
            )
        loss_of.close()
        self._trained.backward(loss)
        metric_sums.add(loss=value)

    def _passes(self, own: int) -> int:
        """Passes of this rank in an update for which its rows need `own`."""
        if not self._trained.even_passes:
            return own
        everyone: list[int] = self._ranks.gather(own)
        return max([1, *everyone])

    @torch.no_grad()
    def _measure_adapterless(self, rows: Sequence[TrainRow], indices: list[int], measured: CachedLogprobs) -> None:
        """Measure a reference that is the policy with its adapters off, before the passes: between them the policy's
        weights are not whole."""
        if self._reference is None or not self._reference.is_policy:
            return
        with self._trained.whole():
            for portion in self._portions(rows, [index for index in indices if index not in measured.reference]):
                prompts, completions, sizes = texts(rows, portion)
                keep(measured.reference, portion, sizes, self._reference.logprobs(prompts, completions))

    def _step(self, step: int) -> float:
        """Add up the ranks' gradients, clip, update the weights; returns the gradient's norm before clipping."""
        norm = self._finite_norm(step, self._config.optim.max_grad_norm)
        self.changed_in = step
        fault(f"updating:{step}")
        self._trained.step()
        return norm

    def _natural_step(self, step: int, region: TrustRegion, plan: SurrogatePlan) -> tuple[float, dict[str, float]]:
        """Add up the ranks' gradients and take the step of the trust region, if one is accepted; returns the gradient's
        norm, and metrics."""
        norm = self._finite_norm(step, math.inf)
        chosen, metrics = region.find(plan)
        self.changed_in = step
        fault(f"updating:{step}")
        region.take(chosen)
        return norm, metrics

    def _finite_norm(self, step: int, bound: float) -> float:
        """Of the ranks' gradients, added up, before they are clipped at `bound`."""
        norm = self._trained.finish(bound)
        if not math.isfinite(norm):
            raise NotFinite(
                f"step {step}: the gradient is {norm}; the weights of step {step - 1} are the last good ones. "
                f"A lower {'optim.lr' if self._trust_region is None else 'optim.trpo.max_kl'} often helps"
            )
        return norm
