"""Groups as they were sampled and scored, and the batch of them that a step is trained on."""

from dataclasses import dataclass, field

from grpo_core.data.prompts import Prompted
from grpo_core.records.types import Discard
from grpo_core.rewards import Scored
from grpo_core.rollout.base import Completion


@dataclass(frozen=True)
class SampledGroup:
    """One group as it was sampled and scored."""

    prompted: Prompted
    completions: list[Completion]
    texts: list[str]
    scores: list[Scored]
    sampled_at: int
    """Step whose policy sampled it."""


@dataclass(frozen=True)
class StepBatch:
    """The groups of one step, and their cost."""

    kept: list[SampledGroup]
    discarded: list[tuple[SampledGroup, Discard]]
    fresh: list[SampledGroup]
    """Everything sampled in this step: kept, discarded and left over."""
    batches: int
    surplus: int
    """Groups left over for the next step."""
    seconds: dict[str, float] = field(default_factory=dict)
    """Wall time of sampling by phase, where it was prefetched during the step before."""

    @property
    def completions(self) -> list[Completion]:
        """All that were sampled in this step."""
        return [completion for group in self.fresh for completion in group.completions]

    @property
    def completion_tokens(self) -> int:
        """Of all that were sampled in this step."""
        return sum(len(completion.tokens) for completion in self.completions)

    @property
    def prompt_tokens(self) -> int:
        """Once for each completion."""
        return sum(len(group.prompted.tokens) * len(group.completions) for group in self.fresh)

    def with_times(self, seconds: dict[str, float]) -> dict[str, float]:
        """The step's seconds by phase, with those of prefetching. These are not in `total`, which is the step's own."""
        return seconds | {name: seconds.get(name, 0.0) + more for name, more in self.seconds.items()}

    def staleness(self, step: int) -> float | None:
        """How many updates old the completions that are trained on are, on average; None without any."""
        counts = [len(group.completions) for group in self.kept]
        ages = [(step - group.sampled_at) * count for group, count in zip(self.kept, counts, strict=True)]
        return sum(ages) / sum(counts) if counts else None

    def metrics(self) -> dict[str, float]:
        """Metrics of dynamic sampling."""
        counts = {"batches": self.batches, "discarded_groups": len(self.discarded), "surplus_groups": self.surplus}
        return {f"dynamic_sampling/{name}": float(number) for name, number in counts.items()}

    def shortage(self, step: int, expected: int) -> str | None:
        """A warning where fewer groups than `expected` are trained on."""
        if len(self.kept) >= expected:
            return None
        return (
            f"step {step}: {len(self.kept)} of {expected} groups carry a signal after {self.batches} batches "
            "(dynamic_sampling.max_batches); the step was trained on those"
        )


@dataclass(frozen=True)
class Position:
    """State of the sampler between two steps."""

    drawn: int
    surplus: tuple[SampledGroup, ...]
    ahead: StepBatch | None = None
    """The next step's groups, where they are prefetched."""
