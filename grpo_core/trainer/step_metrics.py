"""Adds a step to the run's sums and gives its metrics, from what was drawn and what the update told."""

from grpo_core.config.run import RunConfig
from grpo_core.trainer.groups import StepGroups
from grpo_core.trainer.learn import Learned
from grpo_core.trainer.metrics import Counts, group_metrics, mean_entropy
from grpo_core.trainer.sampled import StepDraw


def count_step(
    counts: Counts, step: int, groups: StepGroups, drawn: StepDraw, learned: Learned, config: RunConfig
) -> dict[str, float]:
    """All metrics of the step but those of time."""
    algorithm, flat = config.algorithm, drawn.completions
    lengths = [len(completion.tokens) for completion in flat]
    totals = counts.totals
    totals.add(groups.counted, tokens=sum(lengths) + drawn.prompt_tokens)
    if learned.advantages is not None:
        counts.informative += int(learned.advantages.informative_P.sum())
    totals.add_masked("importance", len(learned.masked))
    told = group_metrics(groups.counted, success=config.success_component, ddof=algorithm.std_ddof)
    told |= learned.metrics
    if algorithm.correction.mode == "sequence_mask":
        told["masked/importance"] = float(len(learned.masked))
    if algorithm.dynamic_sampling.enabled:
        totals.add_discarded([reason for _, reason in drawn.discarded])
        told |= drawn.metrics()
    age = drawn.staleness(step)
    if age is not None and (algorithm.dynamic_sampling.enabled or config.engine.one_step_off):
        told["sampling/staleness"] = age
    if (entropy := mean_entropy([completion.entropy for completion in flat], lengths)) is not None:
        told["entropy"] = entropy
    return told | {"num_tokens": totals.as_dict()["tokens"]}
