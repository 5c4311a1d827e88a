"""LUSPO: GSPO with each completion's loss times its length, so that long answers are not undervalued.

L = −min(s·A, clip(s, 1−ε_low, 1+ε_high)·A) with GSPO's s, at each token of the row. The length comes in by aggregation
sequence_sum: the sum over a row's tokens of one number is the number times the length. Source: LUSPO (arXiv 2602.05261;
its ε 0.002 and 0.0025: section 5.1).
"""

from grpo_core.losses.base import Loss
from grpo_core.losses.gspo import BOUND, gspo_loss

SPEC = Loss(
    "luspo",
    gspo_loss,
    words="clipped ratio of whole completions, times their length (LUSPO)",
    bound=BOUND,
    formula="gspo's, times the length",
    source="arXiv 2602.05261",
    settings={"clip_low": "", "clip_high": ""},
    aggregations=("sequence_sum",),
    aggregation_reason="weighs each completion's loss by its length",
    per_completion=True,
)
