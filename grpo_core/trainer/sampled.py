"""What drawing gives: groups as they were sampled and scored, and what a step is trained on."""

from dataclasses import dataclass, field

from grpo_core.data.prompts import Prompted
from grpo_core.records.types import Discard
from grpo_core.rewards import Scored
from grpo_core.rollout.base import Completion


@dataclass(frozen=True)
class Drawn:
    """One group as it was sampled and scored."""

    prompted: Prompted
    completions: list[Completion]
    texts: list[str]
    scores: list[Scored]
    sampled_at: int
    """Step whose policy sampled it."""


@dataclass(frozen=True)
class StepDraw:
    """What a step is trained on, and what it cost."""

    kept: list[Drawn]
    discarded: list[tuple[Drawn, Discard]]
    fresh: list[Drawn]
    """Everything sampled in this step: kept, discarded and left over."""
    batches: int
    surplus: int
    """Groups left over for the next step."""
    seconds: dict[str, float] = field(default_factory=dict)
    """Wall time that drawing took where it was done ahead, beside the step before, by phase."""

    @property
    def completions(self) -> list[Completion]:
        """All that were sampled in this step."""
        return [completion for one in self.fresh for completion in one.completions]

    @property
    def completion_tokens(self) -> int:
        """Of all that were sampled in this step."""
        return sum(len(completion.tokens) for completion in self.completions)

    @property
    def prompt_tokens(self) -> int:
        """Once for each completion."""
        return sum(len(one.prompted.tokens) * len(one.completions) for one in self.fresh)

    def with_times(self, seconds: dict[str, float]) -> dict[str, float]:
        """The step's seconds by phase and those of drawing that went by beside the step before. These are not in
        `total`, which is the step's own."""
        return seconds | {name: seconds.get(name, 0.0) + more for name, more in self.seconds.items()}

    def staleness(self, step: int) -> float | None:
        """How many updates old the completions that are trained on are, on average; None without any."""
        counts = [len(one.completions) for one in self.kept]
        ages = [(step - one.sampled_at) * count for one, count in zip(self.kept, counts, strict=True)]
        return sum(ages) / sum(counts) if counts else None

    def metrics(self) -> dict[str, float]:
        """What dynamic sampling did."""
        told = {"batches": self.batches, "discarded_groups": len(self.discarded), "surplus_groups": self.surplus}
        return {f"dynamic_sampling/{name}": float(number) for name, number in told.items()}

    def shortage(self, step: int, wanted: int) -> str | None:
        """What to tell when fewer groups than `wanted` are trained on."""
        if len(self.kept) >= wanted:
            return None
        return (
            f"step {step}: {len(self.kept)} of {wanted} groups carry a signal after {self.batches} batches "
            "(dynamic_sampling.max_batches); the step was trained on those"
        )


@dataclass(frozen=True)
class Position:
    """Where drawing stands between two steps."""

    drawn: int
    surplus: tuple[Drawn, ...]
    ahead: StepDraw | None = None
    """The next step's groups, where they are drawn already."""
