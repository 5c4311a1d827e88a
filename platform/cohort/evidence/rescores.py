"""How a second reward agrees with the one that a run was trained with, from how often each said what: what pages show,
records seal and the offline check computes again. Knows no Django."""

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any

from cohort.evidence.judgements import rate
from grpo_core.stats.agreement import cohen_kappa

VERDICTS = ("right", "wrong", "neither")
"""Of either reward; neither: it cannot say, or there is no score."""
CHANGES = ("same", "lower", "higher", "unscored")
"""What the second reward makes of a sample's reward; unscored: one of the two has none."""


def agreement_figures(confusion: Sequence[Sequence[int]]) -> dict[str, Any]:
    """Over the samples that both call right or wrong: how often they agree, with Wilson's 95 % interval, and Cohen's κ.

    `confusion`: [first][second] → samples, both in the order of `VERDICTS`.
    """
    pairs = Counter({(first, second): confusion[first][second] for first in range(2) for second in range(2)})
    kappa = cohen_kappa(pairs)
    return {
        "agreement": rate(pairs[0, 0] + pairs[1, 1], pairs.total()),
        "kappa": {"value": kappa.value, "low": kappa.low, "high": kappa.high, "reason": kappa.reason}
        if kappa.n
        else None,
    }


def check_rescore(entry: Mapping[str, Any]) -> dict[str, Any]:
    """The figures of one re-score of a record, from its counts. Raises KeyError, TypeError or ValueError for counts
    that are none, or that do not add up to its samples."""
    confusion = [[entry["confusion"][first][second] for second in VERDICTS] for first in VERDICTS]
    changes = [entry["changes"][name] for name in CHANGES]
    for counts in ([*chain(*confusion)], changes):
        if not all(type(count) is int and 0 <= count < 2**53 for count in counts):
            raise TypeError("counts must be whole numbers from 0")
        if sum(counts) != entry["samples"]:
            raise ValueError(f"counts that add up to {sum(counts):,}, not to its {entry['samples']!a} samples")
    return agreement_figures(confusion)
