"""What a reward model is worth on held-out pairs: how often it is right, whether its certainty is deserved, and whether
it goes by length. Loads no torch."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, pstdev
from typing import Any

from grpo_core.stats.clustered import effective_n
from grpo_core.stats.correlation import spearman
from grpo_core.stats.quantiles import wilson

BINS = 10
"""Of the calibration curve, of equal width between certainty 1/2 and 1."""


@dataclass(frozen=True, slots=True)
class RankedPair:
    """A held-out pair as a reward model ranks it."""

    difference: float
    """Reward of the chosen completion minus that of the rejected one."""
    longer: int
    """Tokens of the chosen completion minus those of the rejected one."""
    cluster: str
    """Digest of the prompt: pairs of one prompt are no independent evidence."""

    @property
    def score(self) -> float:
        """1 where the chosen completion is above, 1/2 at a tie, 0 below."""
        return 0.5 if self.difference == 0 else float(self.difference > 0)

    @property
    def certainty(self) -> float:
        """σ(|difference|), 1/2 to 1: by the Bradley–Terry model the probability that the one ranked above is the
        better one."""
        return 1 / (1 + math.exp(-abs(self.difference)))


def preference_facts(pairs: Sequence[RankedPair], rewards: Sequence[float]) -> dict[str, Any]:
    """JSON-ready, of at least one held-out pair; `rewards`: of all held-out completions, for their mean and standard
    deviation (population), which normalise the reward.

    `accuracy`: share of pairs ranked right, with Wilson's 95 % interval of the effective number of pairs, by prompt.
    `calibration`: `bins` of certainty with the share right of each, and `ece`, the expected calibration error
    Σ n_b/n·|certainty_b − share_b| (Naeini et al. 2015; Guo et al. 2017, arXiv 1706.04599, eq. 3). `length`: Spearman's
    ρ of difference in reward and difference in tokens, and the accuracy where the chosen completion is the shorter, and
    where it is the longer; null where there is none.
    """
    shorter = [pair for pair in pairs if pair.longer < 0]
    longer = [pair for pair in pairs if pair.longer > 0]
    return {
        "accuracy": accuracy(pairs),
        "calibration": _calibration(pairs),
        "length": {
            "rho": spearman([(pair.difference, float(pair.longer)) for pair in pairs]),
            "chosen_shorter": accuracy(shorter) if shorter else None,
            "chosen_longer": accuracy(longer) if longer else None,
            "equal": len(pairs) - len(shorter) - len(longer),
        },
        "rewards": {"mean": fmean(rewards), "std": pstdev(rewards), "n": len(rewards)},
    }


def accuracy(pairs: Sequence[RankedPair]) -> dict[str, Any]:
    """{share, low, high, pairs, prompts}, as `preference_facts` has it."""
    scores, clusters = [pair.score for pair in pairs], [pair.cluster for pair in pairs]
    share, worth = fmean(scores), effective_n(scores, clusters)
    around = wilson(share * worth, worth)
    return {
        "share": share,
        "low": around.low,
        "high": around.high,
        "pairs": len(pairs),
        "prompts": len(set(clusters)),
    }


def _calibration(pairs: Sequence[RankedPair]) -> dict[str, Any]:
    members: list[list[RankedPair]] = [[] for _ in range(BINS)]
    for pair in pairs:
        members[min(BINS - 1, int((pair.certainty - 0.5) * 2 * BINS))].append(pair)
    bins = []
    error = 0.0
    for index, own in enumerate(members):
        if not own:
            continue
        certainty, right = fmean(pair.certainty for pair in own), fmean(pair.score for pair in own)
        error += len(own) / len(pairs) * abs(certainty - right)
        low, high = 0.5 + index / (2 * BINS), 0.5 + (index + 1) / (2 * BINS)
        bins.append({"from": low, "to": high, "pairs": len(own), "certainty": certainty, "right": right})
    return {"bins": bins, "ece": error}
