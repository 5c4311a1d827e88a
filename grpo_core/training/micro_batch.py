"""The loss of one micro-batch, token by token: policy loss, sampler correction, KL penalty and entropy bonus, each
weighed by the denominators of the whole optimiser update.

Called portion by portion where every part of the loss looks at one token at a time, so that the output layer's
gradient can be formed while the logits are there; else called once.

Shapes: N completion tokens of the micro-batch, row after row; small n for a portion.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace

import torch
from torch import Tensor

from grpo_core.algo.correction import SamplerFacts, merged, sampler_correction
from grpo_core.algo.kl import kl_estimate
from grpo_core.algo.masks import high_entropy_keep, off_policy_keep
from grpo_core.config.algorithm import AlgorithmConfig, CorrectionConfig
from grpo_core.config.kinds import LearningConfig
from grpo_core.config.sft import SftConfig
from grpo_core.distributed.ranks import Ranks
from grpo_core.losses.base import Surrogate, Tokens
from grpo_core.model.layout_choice import resolve_layout
from grpo_core.model.load import LoadedModel
from grpo_core.model.logprobs import Terms, completion_loss
from grpo_core.training.base import TrainRow, products
from grpo_core.training.logprob_pass import CachedLogprobs, keep

# How far the sampler's probabilities are from the trainer's in one step, and the weights that correct for it. Keeps
# each row's weights from the first time it is seen, so that later passes (μ > 1) use the same.


@dataclass(eq=False)
class Mismatch:
    """One step's comparison of sampler and trainer, over this rank's rows."""

    config: CorrectionConfig
    stale: bool
    """Whether rows of an earlier step are compared too: no ratio of the loss is to their sampler."""
    known: dict[int, Tensor] = field(default_factory=dict)
    """What each token's policy loss is multiplied by, of the rows seen so far, on the CPU."""
    facts: list[SamplerFacts] = field(default_factory=list)

    def admits(self, index: int, row: TrainRow, old_T: Tensor) -> bool:
        """Compare one row; False when it is to be left out. A row without the sampler's numbers is let in, and one from
        an earlier step where its old log-probabilities are the sampler's: there is nothing to compare."""
        if row.sampler_logprobs is None or not self.compares(row):
            self.known[index] = torch.ones(len(row.completion))
            return True
        sampler_T = torch.tensor(row.sampler_logprobs, dtype=torch.float64)
        correction = sampler_correction(
            old_T, sampler_T, torch.zeros(len(sampler_T), dtype=torch.long), rows=1, config=self.config
        )
        self.known[index] = correction.weights_N
        self.facts.append(correction.facts)
        return bool(correction.keep_R[0])

    def compares(self, row: TrainRow) -> bool:
        """Whether the row's sampler is another than the policy before the update."""
        return row.sampler_logprobs is not None and (self.stale or not row.stale)

    def look(self, rows: Sequence[TrainRow], indices: Sequence[int], old: Mapping[int, Tensor]) -> None:
        """Compare the rows that have not been seen."""
        for index in indices:
            if index not in self.known:
                self.admits(index, rows[index], old[index])

    def metrics(self, ranks: Ranks) -> dict[str, float]:
        """The raw ratios over all ranks' rows that went through the model; empty when there was none."""
        facts = merged(SamplerFacts(**part) for part in ranks.gather(asdict(merged(self.facts))))
        if facts.tokens == 0:
            return {}
        metrics = {
            "sampling/importance_ratio/mean": facts.ratio_sum / facts.tokens,
            "sampling/importance_ratio/min": facts.ratio_min,
            "sampling/importance_ratio/max": facts.ratio_max,
            "sampling/logp_difference/mean": facts.difference_sum / facts.tokens,
            "sampling/logp_difference/max": facts.difference_max,
        }
        if self.config.mode == "token_truncate":
            metrics["sampling/truncated_share"] = facts.truncated_tokens / facts.tokens
        if self.config.mode == "sequence_mask":
            metrics["sampling/dropped_share"] = facts.dropped_rows / facts.rows
        return metrics


# What the passes of one step add up to, and the metrics made of it. Sums and counts only, so that ranks and micro-
# batches can be added up and a mean is never taken of means. docs/metrics.md describes each metric.


@dataclass
class MetricSums:
    """Sums of this rank; `add` names them freely."""

    sums: dict[str, float] = field(
        default_factory=lambda: dict.fromkeys(
            (
                *("loss", "tokens", "rows", "kl", "clipped_low", "clipped_high", "entropy", "off_policy"),
                *("value_loss", "greedy"),
            ),
            0.0,
        )
    )
    clipped: dict[int, float] = field(default_factory=dict)
    """Index of a row → share of its tokens that was clipped in the last pass over it."""

    def add(self, **values: float) -> None:
        for name, value in values.items():
            self.sums[name] += value


def update_metrics(
    metric_sums: MetricSums,
    config: LearningConfig,
    ranks: Ranks,
    *,
    updates: int,
    used_tokens: int,
    clips: bool,
    kl: bool,
) -> dict[str, float]:
    """The step's metrics from all ranks' sums. `updates` optimiser updates were made, each token of the `used_tokens`
    was looked at μ times, and without any there is nothing to be a mean of; `clips`: the ratio could leave 1, so that
    clip ratios mean something; `kl`: a divergence was measured."""
    total = ranks.sums(metric_sums.sums)
    algorithm = config.algorithm
    looked = used_tokens * algorithm.inner_iterations
    if not looked:
        return {}
    metrics = {"loss": total["loss"] / updates}
    if kl and total["tokens"]:
        metrics["kl"] = total["kl"] / total["tokens"]
        metrics["kl_per_completion"] = total["kl"] / total["rows"]
    if clips:
        metrics["clip_ratio/low_mean"] = total["clipped_low"] / looked
        metrics["clip_ratio/high_mean"] = total["clipped_high"] / looked
    if algorithm.entropy_coef > 0 and total["tokens"]:
        metrics["policy_entropy"] = total["entropy"] / total["tokens"]
    if algorithm.off_policy_threshold is not None:
        metrics["off_policy_share"] = total["off_policy"] / looked
    if algorithm.estimator.critic:
        metrics["value_loss"] = total["value_loss"] / updates
    if isinstance(config, SftConfig):
        metrics["mean_token_accuracy"] = total["greedy"] / looked
    return metrics


def by_token(algorithm: AlgorithmConfig) -> bool:
    """Whether the loss is a sum over tokens of terms that depend on one token each."""
    return algorithm.loss_spec.by_token and algorithm.off_policy_threshold is None


@dataclass
class Batch:
    """What one optimiser update needs to know of its mini-batch."""

    indices: list[int]
    """This rank's rows that go through the model."""
    policy_weights: dict[int, float]
    penalty_weights: dict[int, float]
    entropy_from: float
    """Tokens below this entropy give no policy gradient."""
    value_weight: float
    """What a token counts in the critic's loss."""


class MicroBatch:
    """A `logprobs.LossOf`: the loss of rows `indices`. Its terms are added to `metric_sums`; old log-probabilities that
    were not measured are the current ones, and are left in `measured` by `close`."""

    def __init__(
        self,
        rows: Sequence[TrainRow],
        indices: Sequence[int],
        batch: Batch,
        config: LearningConfig,
        *,
        measured: CachedLogprobs,
        mismatch: Mismatch,
        metric_sums: MetricSums,
        kl_coef: float,
        referred: bool,
        device: torch.device,
    ) -> None:
        """`referred`: the penalty is to the reference's log-probabilities in `measured`, else to the old ones."""
        self._rows, self._indices, self._config = rows, list(indices), config
        self._measured, self._mismatch, self._tally = measured, mismatch, metric_sums
        self._kl_coef, self._referred, self._entropy_from = kl_coef, referred, batch.entropy_from
        self._sizes = [len(rows[index].completion) for index in indices]
        lengths = torch.tensor(self._sizes)

        def spread(values: list[float]) -> Tensor:
            return torch.tensor(values).repeat_interleave(lengths).to(device)

        def stored(by_row: dict[int, Tensor]) -> _Partly:
            return _Partly.of([by_row.get(index) for index in indices], self._sizes, device)

        self._rows_N = torch.arange(len(indices)).repeat_interleave(lengths).to(device)
        self._advantages_N = torch.cat([per_token(rows[index]) for index in indices]).to(device)
        self._policy_weights_N = spread([batch.policy_weights[index] for index in indices])
        self._penalty_weights_N = spread([batch.penalty_weights[index] for index in indices])
        self._old = stored(measured.old)
        sampled = {
            index: torch.tensor(logprobs) for index in indices if (logprobs := rows[index].sampler_logprobs) is not None
        }
        self._sampler = stored(sampled)
        self._compared = stored(
            {index: logprobs for index, logprobs in sampled.items() if mismatch.compares(rows[index])}
        )
        self._corrections = stored(mismatch.known)
        self._reference = stored(measured.reference)
        self._entropy = stored(measured.entropy)
        self._found_N = torch.empty(int(lengths.sum()), device=device)
        self._clipped_R = torch.zeros(len(self._indices), device=device)
        self._traced = [index for index in indices if rows[index].traced]
        self._signals: dict[str, Tensor] = {}

    def __call__(self, terms: Terms, here: slice) -> Tensor:
        algorithm, metric_sums = self._config.algorithm, self._tally
        now_n = terms.logprobs_N.detach()
        self._found_N[here] = now_n
        old_n = self._old.filled(here, now_n)
        # DPPO's ratio and DeepSeek-V3.2's mask are to the policy as the sampler had it.
        sampler_n = self._sampler.filled(here, old_n)
        if isinstance(self._config, SftConfig):
            metric_sums.add(greedy=float((terms.greedy_N & (self._advantages_N[here] != 0)).sum()))
        tokens = Tokens(
            logprobs_N=terms.logprobs_N,
            old_logprobs_N=sampler_n if algorithm.loss_spec.ratio == "sampler" else old_n,
            advantages_N=self._advantages_N[here],
            rows_N=self._rows_N[here],
        )
        surrogate = algorithm.loss_spec.compute(tokens, algorithm)
        loss_n = surrogate.loss_N * self._correction(here, old_n)
        kept_n = torch.ones_like(now_n, dtype=torch.bool)
        if algorithm.off_policy_threshold is not None:
            kept_n = off_policy_keep(replace(tokens, old_logprobs_N=sampler_n), algorithm.off_policy_threshold)
            metric_sums.add(off_policy=float((~kept_n).sum()))
            loss_n = torch.where(kept_n, loss_n, torch.zeros_like(loss_n))
        if algorithm.top_entropy_share < 1:
            uncertain_n = high_entropy_keep(self._entropy.values_N[here], self._entropy_from)
            loss_n = torch.where(uncertain_n, loss_n, torch.zeros_like(loss_n))
            kept_n = kept_n & uncertain_n
        loss = (loss_n * self._policy_weights_N[here]).sum()
        if algorithm.kl.coef > 0 and algorithm.kl.place == "loss":
            other_n = self._reference.values_N[here] if self._referred else old_n
            kl_n = kl_estimate(terms.logprobs_N, other_n, algorithm.kl.estimator)
            loss = loss + self._kl_coef * (kl_n * self._penalty_weights_N[here]).sum()
            metric_sums.add(kl=kl_n.detach().double().sum().item())
        if terms.entropy_N is not None:
            loss = loss - algorithm.entropy_coef * (terms.entropy_N * self._penalty_weights_N[here]).sum()
            metric_sums.add(entropy=terms.entropy_N.detach().double().sum().item())
        metric_sums.add(
            clipped_low=float(surrogate.clipped_low_N.sum()), clipped_high=float(surrogate.clipped_high_N.sum())
        )
        clipped_n = surrogate.clipped_low_N.float() + surrogate.clipped_high_N.float()
        self._clipped_R.index_add_(0, self._rows_N[here], clipped_n)
        if self._traced:
            self._trace(here, tokens, surrogate, terms.entropy_N, kept_n)
        return loss

    def _trace(
        self, here: slice, tokens: Tokens, surrogate: Surrogate, entropy_n: Tensor | None, kept_n: Tensor
    ) -> None:
        """Keep what was computed of a portion; nothing of it is read by the loss."""
        now_n = tokens.logprobs_N.detach()
        signals = {
            "policy_logprob": now_n,
            "ratio": (now_n - tokens.old_logprobs_N).exp(),
            "clipped": surrogate.clipped_low_N | surrogate.clipped_high_N,
            "in_loss": kept_n,
        }
        if entropy_n is not None:
            signals["entropy"] = entropy_n.detach()
        for name, values_n in signals.items():
            if name not in self._signals:
                self._signals[name] = values_n.new_zeros(len(self._found_N))
            self._signals[name][here] = values_n

    def close(self) -> None:
        """Keep what the micro-batch has shown, after the last portion."""
        unseen = [index for index in self._indices if index not in self._measured.old]
        if self._traced:
            self._keep_traced(set(unseen))
        if unseen:
            now: dict[int, Tensor] = {}
            keep(now, self._indices, self._sizes, self._found_N)
            self._measured.old.update({index: now[index] for index in unseen})
        self._mismatch.look(self._rows, self._indices, self._measured.old)
        self._tally.add(tokens=float(sum(self._sizes)), rows=float(len(self._indices)))
        counts = zip(self._indices, self._clipped_R.tolist(), self._sizes, strict=True)
        self._tally.clipped.update({index: count / size for index, count, size in counts})

    def _keep_traced(self, unseen: set[int]) -> None:
        """Cut the signals into rows. A ratio to the policy itself is always 1 and says nothing, so it is left out."""
        parts = {name: torch.split(values_N.cpu(), self._sizes) for name, values_N in self._signals.items()}
        to = self._config.algorithm.loss_spec.ratio
        for number, index in enumerate(self._indices):
            if self._rows[index].traced:
                signals = {name: rows[number] for name, rows in parts.items()}
                knows = self._rows[index].sampler_logprobs is not None if to == "sampler" else index not in unseen
                if to == "none" or not knows:
                    signals = {name: values for name, values in signals.items() if name not in ("ratio", "clipped")}
                self._measured.traced[index] = signals

    def _correction(self, here: slice, old_n: Tensor) -> Tensor:
        """What each token's policy loss is multiplied by: as it was when the row was first seen."""
        correction, sampler_n = self._mismatch.config, self._compared.filled(here, old_n)
        fresh_n = torch.ones_like(old_n)
        if correction.mode == "token_truncate":
            none_n = torch.zeros_like(old_n, dtype=torch.long)
            found_n = sampler_correction(old_n, sampler_n, none_n, rows=1, config=correction).weights_N
            unknown_N = self._compared.unknown_N
            fresh_n = found_n if unknown_N is None else torch.where(unknown_N[here], fresh_n, found_n)
        return self._corrections.filled(here, fresh_n)


@dataclass(frozen=True)
class _Partly:
    """Numbers that are known of some rows."""

    values_N: Tensor
    unknown_N: Tensor | None
    """bool; None where all are known."""

    @classmethod
    def of(cls, parts: Sequence[Tensor | None], sizes: Sequence[int], device: torch.device) -> "_Partly":
        values_N = torch.cat(
            [torch.zeros(size) if part is None else part.float() for part, size in zip(parts, sizes, strict=True)]
        )
        lacks = [part is None for part in parts]
        unknown_N = torch.tensor(lacks).repeat_interleave(torch.tensor(sizes)).to(device) if any(lacks) else None
        return cls(values_N.to(device), unknown_N)

    def filled(self, here: slice, other_n: Tensor) -> Tensor:
        """Those of a portion, with `other_n` where nothing is known."""
        values_n = self.values_N[here]
        return values_n if self.unknown_N is None else torch.where(self.unknown_N[here], other_n, values_n)


def row_loss(
    policy: LoadedModel,
    config: LearningConfig,
    prompts: Sequence[Sequence[int]],
    completions: Sequence[Sequence[int]],
    loss_of: MicroBatch,
) -> Tensor:
    """`loss_of` at the policy's current outputs, with the gradient, at the sampling temperature and in the config's
    layout."""
    with products(config.engine.autocast, policy.device):
        return completion_loss(
            policy.model,
            prompts,
            completions,
            loss_of,
            by_token=by_token(config.algorithm),
            temperature=config.sampling.temperature,
            layout=resolve_layout(policy, config.engine.layout),
            pad_id=policy.pad_id,
            entropy=config.algorithm.entropy_coef > 0,
        )


def per_token(row: TrainRow) -> Tensor:
    """The row's advantage at each of its tokens, fp32."""
    if isinstance(row.advantage, float):
        return torch.full((len(row.completion),), row.advantage)
    return torch.tensor(row.advantage, dtype=torch.float32)
