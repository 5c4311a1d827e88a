"""What the passes of one step add up to, and the metrics made of it. Sums and counts only, so that ranks and
micro-batches can be added up and a mean is never taken of means. docs/metrics.md tells each metric."""

from dataclasses import dataclass, field

from grpo_core.config.run import RunConfig
from grpo_core.distributed.ranks import Ranks


@dataclass
class MetricSums:
    """Sums of this rank; `add` names them freely."""

    sums: dict[str, float] = field(
        default_factory=lambda: dict.fromkeys(
            ("loss", "tokens", "rows", "kl", "clipped_low", "clipped_high", "entropy", "off_policy", "value_loss"), 0.0
        )
    )

    def add(self, **values: float) -> None:
        for name, value in values.items():
            self.sums[name] += value


def update_metrics(
    metric_sums: MetricSums, config: RunConfig, ranks: Ranks, *, updates: int, used_tokens: int, clips: bool, kl: bool
) -> dict[str, float]:
    """The step's metrics from all ranks' sums. `updates` optimiser updates were made, each token of the `used_tokens`
    was looked at μ times; `clips`: the ratio could leave 1, so that clip ratios mean something; `kl`: a divergence was
    measured."""
    total = ranks.sums(metric_sums.sums)
    algorithm = config.algorithm
    metrics = {"loss": total["loss"] / updates}
    looked = max(used_tokens * algorithm.inner_iterations, 1)
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
    return metrics
