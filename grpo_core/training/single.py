"""The update in plain PyTorch: AdamW on the chosen loss, on one device or on several ranks that step together.

Departures from the papers, all without effect on the result:
- With one update for a sampled batch the old policy is the current one, so its log-probabilities are the detached
  current ones and no extra forward pass is made. The ratio is 1, the clip cannot act, and clip ratios are not reported.
- Where a completion with advantage 0 has no gradient it is not run through the model. It stays in the denominators, and
  the optimiser still steps, because momentum and weight decay move the weights without a gradient too.
- Denominators are those of the whole optimiser update, over all ranks and micro-batches. Gradients are summed.

Shapes: N completion tokens of a micro-batch, row after row · R its rows.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from grpo_core.algo.aggregation import row_weights
from grpo_core.algo.kl import adapted_coef, kl_estimate
from grpo_core.algo.losses import Tokens, policy_loss
from grpo_core.algo.losses.masks import entropy_threshold, high_entropy_keep, off_policy_keep
from grpo_core.config import OptimConfig, RunConfig
from grpo_core.errors import CheckpointError, NotFinite
from grpo_core.faults import fault
from grpo_core.model.layout import plan_micro_batches
from grpo_core.model.load import LoadedModel
from grpo_core.training.base import TrainRow, UpdateResult
from grpo_core.training.critic import Critic
from grpo_core.training.measure import Gauge, Measured, keep, policy_terms, shared, texts
from grpo_core.training.mismatch import Mismatch
from grpo_core.training.plan import gives_gradient, mini_batches, owners, row_facts, total_length
from grpo_core.training.ranks import Ranks
from grpo_core.training.reference import Reference
from grpo_core.training.tally import Tally, update_metrics
from grpo_core.training.trained import TrainedWeights

CLIPPED = ("clip", "gspo", "gspo_token", "gmpo", "luspo", "cispo")
"""Losses that hold a ratio back; the others have no clip ratio to tell."""


def learning_rate(optim: OptimConfig, step: int) -> float:
    """Rate of step `step` (from 1): linear warm-up that reaches `lr` at `warmup_steps`, then constant, or linear so
    that it would be 0 one step after the last."""
    if step <= optim.warmup_steps:
        return optim.lr * step / optim.warmup_steps
    if optim.schedule == "constant":
        return optim.lr
    return optim.lr * (optim.steps - step + 1) / (optim.steps - optim.warmup_steps)


@dataclass
class _Batch:
    """What one optimiser update needs to know of its mini-batch."""

    places: list[int]
    """This rank's rows that go through the model."""
    policy_weights: dict[int, float]
    penalty_weights: dict[int, float]
    entropy_from: float
    """Tokens below this entropy give no policy gradient."""
    value_weight: float
    """What a token counts in the critic's loss."""


class SingleTraining:
    """Owns the policy's optimiser, and the critic's and the moving reference's state through them."""

    changed_in: int
    """Newest step whose update has moved weights, if only in part. While it is the step in hand, there is no state to
    go on from but the one at its end."""

    def __init__(
        self,
        policy: LoadedModel,
        reference: LoadedModel | None,
        config: RunConfig,
        *,
        check: Callable[[], None] = lambda: None,
        ranks: Ranks | None = None,
        critic: Critic | None = None,
    ) -> None:
        """`reference` stands frozen beside the policy; None where the policy has adapters or none is needed. `check`
        is called before every micro-batch and may raise to stop."""
        algorithm = config.algorithm
        if (algorithm.needs_reference and not config.model.lora.rank) != (reference is not None):
            raise ValueError("a reference model is needed exactly with KL to the reference and without adapters")
        if (algorithm.advantage == "gae") != (critic is not None):
            raise ValueError("a critic is needed exactly with advantage: gae")
        self._policy = policy
        self._reference = Reference(policy, reference, config) if algorithm.needs_reference else None
        self._critic = critic
        self._config = config
        self._check = check
        self._ranks = ranks or Ranks()
        self._gauge = Gauge(policy, self._reference, critic, config, check)
        self._given: Measured | None = None
        self._kl_coef = algorithm.kl.coef
        self.changed_in = 0
        named = {name: p for name, p in policy.model.named_parameters() if p.requires_grad}  # tied weights come once
        self._trained = TrainedWeights(named, lr=config.optim.lr, optim=config.optim)

    @property
    def kl_coef(self) -> float:
        """β as it stands now; the adaptive controller moves it."""
        return self._kl_coef

    # ------------------------------------------------------------------ into a checkpoint and back

    def state(self) -> dict[str, dict[str, Tensor]]:
        """All tensors that training needs to go on between two steps, by what they belong to. They are the live ones:
        to be written before the next step."""
        parts = {"policy": self._trained.exact(), "policy-optimizer": self._trained.moments()}
        if self._critic is not None:
            parts |= {"critic": self._critic.trained.exact(), "critic-optimizer": self._critic.trained.moments()}
        if self._reference is not None and self._reference.moves:
            parts["reference"] = self._reference.exact()
        return parts

    def restore(self, parts: Mapping[str, Mapping[str, Tensor]], *, kl_coef: float, step: int) -> None:
        """Take over what `state` gave after `step` steps. Raises CheckpointError when it is of another model."""
        if parts.keys() != self.state().keys():
            wanted, found = (", ".join(sorted(names)) for names in (self.state(), parts))
            raise CheckpointError(f"the checkpoint holds {found}; this run needs {wanted}")
        self._trained.restore(parts["policy"], parts["policy-optimizer"])
        if self._critic is not None:
            self._critic.trained.restore(parts["critic"], parts["critic-optimizer"])
        if self._reference is not None and self._reference.moves:
            self._reference.restore(parts["reference"])
        self._kl_coef = kl_coef
        self.changed_in = step

    # ------------------------------------------------------------------ before advantages

    def measure(self, rows: Sequence[TrainRow]) -> Measured:
        """Old and reference log-probabilities and values of all rows, on every rank; the next update uses them."""
        everything = list(range(len(rows)))
        owner = owners(rows, [everything], self._ranks.world)
        algorithm = self._config.algorithm
        mine = self._gauge.measure(
            rows, [p for p in everything if owner[p] == self._ranks.rank], entropy=algorithm.top_entropy_share < 1
        )
        self._given = Measured(
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
        """See `base.Training`. `returns`: what the critic should have said at each token, row by row."""
        algorithm, ranks = self._config.algorithm, self._ranks
        skip = self._config.engine.skip_zero_advantage and algorithm.zero_advantage_is_inert
        cut = mini_batches(rows, algorithm.mini_batches)
        used = [place for place, row in enumerate(rows) if row.used]
        active = {place for place in used if gives_gradient(rows[place], zero_is_inert=skip)}
        # A mask or a threshold that asks about all used rows must see all of them, not only those with a gradient.
        asks_all = algorithm.correction.mode == "sequence_mask" or algorithm.top_entropy_share < 1
        seen = set(used) if asks_all else active
        owner = owners(rows, [[place for place in batch if place in seen] for batch in cut], ranks.world)
        mine = [place for place in sorted(owner) if owner[place] == ranks.rank]

        measured = self._given or Measured()
        if self._given is None and (asks_all or algorithm.mini_batches > 1):
            measured = self._gauge.measure(rows, mine, entropy=algorithm.top_entropy_share < 1)
        self._given = None
        for place in mine:
            sampled = rows[place].sampler_logprobs
            if rows[place].stale and sampled is not None:
                measured.old[place] = torch.tensor(sampled)
        # DPPO's ratio is to the sampler itself, so there is nothing left to weigh.
        correction = algorithm.correction
        if algorithm.loss == "dppo" and correction.mode == "token_truncate":
            correction = correction.model_copy(update={"mode": "none"})
        mismatch = Mismatch(correction)
        dropped: set[int] = set()
        if algorithm.correction.mode == "sequence_mask":
            off = [place for place in mine if not mismatch.admits(place, rows[place], measured.old[place])]
            dropped = {place for theirs in ranks.gather(off) for place in theirs}
        working = [place for place in mine if place in active and place not in dropped]
        batches = [self._prepare(rows, batch, mine, working, dropped, measured) for batch in cut]

        rate = learning_rate(self._config.optim, step)
        self._trained.set_rate(rate)
        tally, norms, value_norms = Tally(), [], []
        for _ in range(algorithm.inner_iterations):
            for batch in batches:
                self._zero_gradients()
                for places in self._portions(rows, batch.places):
                    self._check()
                    self._micro_batch(rows, places, batch, measured, mismatch, tally, step)
                    if self._critic is not None and returns is not None:
                        self._learn_values(rows, places, batch, measured, returns, tally)
                norms.append(self._step(step))
                if self._critic is not None:
                    ranks.sum_in_place(self._critic.trained.gradients())
                    value_norms.append(self._critic.step(self._config.optim.max_grad_norm))

        several, stale = algorithm.updates_per_batch > 1, any(rows[place].stale for place in used)
        metrics = update_metrics(
            tally,
            self._config,
            ranks,
            updates=len(norms),
            used_tokens=sum(len(rows[place].completion) for place in used if place not in dropped),
            clips=algorithm.loss == "dppo" or (algorithm.loss in CLIPPED and (several or stale)),
            kl=algorithm.kl.coef > 0 and algorithm.kl.place == "loss",
        )
        metrics |= {"grad_norm": sum(norms) / len(norms), "learning_rate": rate}
        metrics |= mismatch.metrics(ranks)
        if value_norms:
            metrics["value_grad_norm"] = sum(value_norms) / len(value_norms)
        if self._reference is not None and self._reference.after_step(step):
            metrics["reference_refreshed"] = 1.0
        return UpdateResult(metrics, dict.fromkeys(dropped, "importance"))

    def adapt_kl(self, nats_per_completion: float, completions: int) -> None:
        """Let the adaptive controller answer this step's divergence."""
        kl = self._config.algorithm.kl
        if kl.controller == "adaptive":
            self._kl_coef = adapted_coef(
                self._kl_coef,
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
        measured: Measured,
    ) -> _Batch:
        """Denominators of one mini-batch, from all ranks' rows, and this rank's part of it."""
        algorithm = self._config.algorithm
        facts = row_facts(rows, batch, lambda place: place not in dropped)
        weights = row_weights(facts, algorithm)
        threshold = -math.inf
        if algorithm.top_entropy_share < 1:
            empty = torch.empty(0)
            # This rank's alone: after `measure` every rank knows all of them.
            counted = set(batch).intersection(mine) - dropped
            ours = [measured.entropy[place] for place in sorted(counted)]
            everyone_N = self._ranks.gather_numbers(torch.cat(ours or [empty]))
            if len(everyone_N):
                threshold = entropy_threshold(everyone_N, algorithm.top_entropy_share)
        tokens = sum(fact.length for fact in facts if fact.used)
        inside = set(batch)
        return _Batch(
            places=[place for place in working if place in inside],
            policy_weights=dict(zip(batch, weights.policy_B.tolist(), strict=True)),
            penalty_weights=dict(zip(batch, weights.penalty_B.tolist(), strict=True)),
            entropy_from=threshold,
            value_weight=1 / tokens if tokens else 0.0,
        )

    def _portions(self, rows: Sequence[TrainRow], places: list[int]) -> list[list[int]]:
        """Micro-batches of this rank's rows."""
        engine = self._config.engine
        lengths = [total_length(rows[place]) for place in places]
        return [
            [places[i] for i in portion]
            for portion in plan_micro_batches(lengths, engine.micro_batch_tokens, engine.layout)
        ]

    def _micro_batch(
        self,
        rows: Sequence[TrainRow],
        places: list[int],
        batch: _Batch,
        measured: Measured,
        mismatch: Mismatch,
        tally: Tally,
        step: int,
    ) -> None:
        """Forward and backward of one micro-batch; adds to the gradient and to `tally`."""
        algorithm = self._config.algorithm
        prompts, completions, sizes = texts(rows, places)
        terms = policy_terms(self._policy, self._config, prompts, completions, entropy=algorithm.entropy_coef > 0)
        device, lengths = terms.logprobs_N.device, torch.tensor(sizes)

        def spread(values: list[float]) -> Tensor:
            return torch.tensor(values).repeat_interleave(lengths).to(device)

        def gathered(stored: dict[int, Tensor]) -> Tensor:
            return torch.cat([stored[place] for place in places]).to(device)

        unseen = [place for place in places if place not in measured.old]
        if unseen:
            parts = dict(zip(places, torch.split(terms.logprobs_N.detach().cpu(), sizes), strict=True))
            measured.old.update({place: parts[place] for place in unseen})
        if self._reference is not None and algorithm.kl.place == "loss" and places[0] not in measured.reference:
            keep(measured.reference, places, sizes, self._reference.logprobs(prompts, completions))

        # DPPO's ratio and DeepSeek-V3.2's mask are to the policy as the sampler had it.
        sampler_N = torch.cat([_sampler(rows[place], measured.old[place]) for place in places]).to(device)
        tokens = Tokens(
            logprobs_N=terms.logprobs_N,
            old_logprobs_N=sampler_N if algorithm.loss == "dppo" else gathered(measured.old),
            advantages_N=torch.cat([_per_token(rows[place]) for place in places]).to(device),
            rows_N=torch.arange(len(places)).repeat_interleave(lengths).to(device),
        )
        surrogate = policy_loss(tokens, algorithm)
        loss_N = surrogate.loss_N * mismatch.weights(rows, places, measured.old).to(device)
        if algorithm.off_policy_threshold is not None:
            kept_N = off_policy_keep(replace(tokens, old_logprobs_N=sampler_N), algorithm.off_policy_threshold)
            tally.add(off_policy=float((~kept_N).sum()))
            loss_N = torch.where(kept_N, loss_N, torch.zeros_like(loss_N))
        if algorithm.top_entropy_share < 1:
            kept_N = high_entropy_keep(gathered(measured.entropy), batch.entropy_from)
            loss_N = torch.where(kept_N, loss_N, torch.zeros_like(loss_N))
        loss = (loss_N * spread([batch.policy_weights[place] for place in places])).sum()
        penalty_weights_N = spread([batch.penalty_weights[place] for place in places])
        if algorithm.kl.coef > 0 and algorithm.kl.place == "loss":
            other_N = gathered(measured.reference if self._reference is not None else measured.old)
            kl_N = kl_estimate(terms.logprobs_N, other_N, algorithm.kl.estimator)
            loss = loss + self._kl_coef * (kl_N * penalty_weights_N).sum()
            tally.add(kl=kl_N.detach().double().sum().item())
        if terms.entropy_N is not None:
            loss = loss - algorithm.entropy_coef * (terms.entropy_N * penalty_weights_N).sum()
            tally.add(entropy=terms.entropy_N.detach().double().sum().item())
        value = loss.item()
        if not math.isfinite(value) and self._ranks.world == 1:  # with several, all must stop together: see _step
            raise NotFinite(
                f"step {step}: the loss is {value}; the weights of step {step - 1} are the last good ones. "
                "A lower optim.lr or a lower algorithm.clip_high often helps"
            )
        loss.backward()  # type: ignore[no-untyped-call]
        self._trained.collect_gradients()
        tally.add(
            loss=value,
            tokens=float(sum(sizes)),
            rows=float(len(places)),
            clipped_low=float(surrogate.clipped_low_N.sum()),
            clipped_high=float(surrogate.clipped_high_N.sum()),
        )

    def _learn_values(
        self,
        rows: Sequence[TrainRow],
        places: list[int],
        batch: _Batch,
        measured: Measured,
        returns: Sequence[Sequence[float]],
        tally: Tally,
    ) -> None:
        assert self._critic is not None
        old_N = torch.cat([measured.values[place] for place in places])
        returns_N = torch.cat([torch.tensor(returns[place], dtype=torch.float32) for place in places])
        prompts, completions, _ = texts(rows, places)
        value_loss = self._critic.learn(
            prompts,
            completions,
            old_N,
            returns_N,
            torch.full_like(returns_N, batch.value_weight),
        )
        tally.add(value_loss=value_loss)

    def _zero_gradients(self) -> None:
        self._trained.zero_gradients()
        if self._critic is not None:
            self._critic.zero_gradients()

    def _step(self, step: int) -> float:
        """Add up the ranks' gradients, clip, update the weights; returns the gradient's norm before clipping."""
        self._ranks.sum_in_place(self._trained.gradients())
        norm = self._trained.clip(self._config.optim.max_grad_norm)
        if not math.isfinite(norm):
            raise NotFinite(
                f"step {step}: the gradient is {norm}; the weights of step {step - 1} are the last good ones"
            )
        self.changed_in = step
        fault(f"updating:{step}")
        self._trained.step()
        return norm


def _sampler(row: TrainRow, old_T: Tensor) -> Tensor:
    """The sampler's log-probabilities; the trainer's old ones where it gave none."""
    return old_T if row.sampler_logprobs is None else torch.tensor(row.sampler_logprobs)


def _per_token(row: TrainRow) -> Tensor:
    """The row's advantage at each of its tokens, fp32."""
    if isinstance(row.advantage, float):
        return torch.full((len(row.completion),), row.advantage)
    return torch.tensor(row.advantage, dtype=torch.float32)
