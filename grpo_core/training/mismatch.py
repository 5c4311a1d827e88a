"""How far the sampler's probabilities are from the trainer's in one step, and the weights that correct for it. Keeps
each row's weights from the first time it is seen, so that later passes (μ > 1) use the same."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict

import torch
from torch import Tensor

from grpo_core.algo.correction import SamplerFacts, merged, sampler_correction
from grpo_core.config.algorithm import CorrectionConfig
from grpo_core.distributed.ranks import Ranks
from grpo_core.training.base import TrainRow


class Mismatch:
    """One step's comparison of sampler and trainer, over this rank's rows."""

    def __init__(self, config: CorrectionConfig, *, stale: bool = False) -> None:
        """`stale`: whether rows of an earlier step are compared too: no ratio of the loss is to their sampler."""
        self.config = config
        self._stale = stale
        self.known: dict[int, Tensor] = {}
        """What each token's policy loss is multiplied by, of the rows seen so far, on the CPU."""
        self._facts: list[SamplerFacts] = []

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
        self._facts.append(correction.facts)
        return bool(correction.keep_R[0])

    def compares(self, row: TrainRow) -> bool:
        """Whether the row's sampler is another than the policy before the update."""
        return row.sampler_logprobs is not None and (self._stale or not row.stale)

    def look(self, rows: Sequence[TrainRow], indices: Sequence[int], old: Mapping[int, Tensor]) -> None:
        """Compare the rows that have not been seen."""
        for index in indices:
            if index not in self.known:
                self.admits(index, rows[index], old[index])

    def metrics(self, ranks: Ranks) -> dict[str, float]:
        """The raw ratios over all ranks' rows that went through the model; empty when there was none."""
        facts = merged(SamplerFacts(**part) for part in ranks.gather(asdict(merged(self._facts))))
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
