"""The figures of a record's re-scores, from how often both rewards said what: what the offline check computes again.
Knows no Django."""

from collections.abc import Mapping
from itertools import chain
from typing import Any

from grpo_core.stats.agreement import VERDICTS, agreement_figures

CHANGES = ("same", "lower", "higher", "unscored")
"""What the second reward makes of a sample's reward; unscored: one of the two has none."""


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
