"""GRPO in its simplest written form: the ratio of the whole completion times its advantage, without a clip."""

from grpo_core.losses.base import Loss, LossSettings, Surrogate, Tokens, unclipped


def sequence_ratio_loss(tokens: Tokens, settings: LossSettings) -> Surrogate:
    """L = −r·A, with r = π/π_old of the whole row: the product of its tokens' ratios.

    Nothing is clipped and nothing is divided by length; r grows and shrinks exponentially with length, and a ratio too
    large for the number format makes the loss infinite, which ends the step with an error. With aggregation
    sequence_total the row's loss counts once and rows are summed, as in

        L = −Σ_j Σ_k r_jk·A_jk + β·Σ_j KL(π ‖ π_old)

    over prompts j and completions k, where the KL is that to the old policy (kl.target: old).
    """
    ratio_N = tokens.row_sum(tokens.logprobs_N - tokens.old_logprobs_N).exp()
    return unclipped(-ratio_N * tokens.advantages_N)


SPEC = Loss(
    "sequence_ratio",
    sequence_ratio_loss,
    words="unclipped ratio of whole completions",
    bound="none: the ratio is not clipped",
    formula="−A times the product of ratios",
    source="the simplified form",
    aggregations=("sequence_total",),
    aggregation_reason="sums over completions and divides by nothing",
    per_completion=True,
    clips=False,
    bounded=False,
)
