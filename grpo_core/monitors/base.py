"""What a monitor is, and what it judges by."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from grpo_core.config.run import RunConfig
from grpo_core.monitors.history import History

BEGAN = "diagnosis"
"""Type of the event with which a cause begins."""
OVER = "diagnosis_over"
"""And of the one that says it is over."""
Samples = Literal["all", "errors", "truncated"]
"""Which groups of a step are shown as what stands behind it."""


@dataclass(frozen=True)
class Evidence:
    """Numbers of some steps together."""

    sums: Mapping[str, int]
    """As in `trainer.metrics.Counts.sums`."""
    config: RunConfig
    ends: str = ""
    """The end tokens."""
    metrics: Mapping[str, float] = field(default_factory=dict)
    """Of the newest step; empty where the whole run is judged."""
    error: str = ""
    """One of the newest step's errors."""
    history: History = field(default_factory=History)
    """Empty where the whole run is judged."""

    def share(self, name: str, of: str) -> float:
        return self.sums.get(name, 0) / self.sums[of] if self.sums.get(of) else 0.0

    def part(self, name: str, of: str) -> str:
        """Such as "12 of 64"."""
        return f"{self.sums.get(name, 0):,} of {self.sums.get(of, 0):,}"

    @property
    def success(self) -> str:
        return self.config.reward.success_component


@dataclass(frozen=True)
class Figure:
    """What a monitor measures now."""

    value: float | None
    why: str = ""
    """Why it cannot be computed; empty where it can."""


@dataclass(frozen=True)
class Monitor:
    """One thing that may be wrong with a run."""

    code: str
    title: str
    """What the matter is, in a few words."""
    formula: str
    """How the figure is made."""
    limit: str
    """When it is raised, in words, with the threshold."""
    says: Callable[[Evidence], str]
    """What is the matter, with its numbers; empty where it is not."""
    advice: Callable[[RunConfig], str]
    """What to do."""
    metrics: tuple[str, ...]
    """What its curve draws; {success} stands for the component that means right, {suite} for what `heldout_of` gives.
    A name that ends in * stands for all that begin so."""
    figure: Callable[[History, RunConfig], Figure]
    share: bool = True
    """Whether the figure is a share, which is shown in percent."""
    samples: Samples = "all"
    alarm: bool = False
    """A suspicion that the run learns the wrong thing or falls apart, whose rate of false alarms is measured
    (docs/monitors.md). The others advise."""
    lasting: bool = False
    """It does not pass by itself."""

    def drawn(self, config: RunConfig) -> tuple[str, ...]:
        """Names of the metrics of its curve in a run of this config; a * may be left at an end."""
        names = {"success": config.reward.success_component, "suite": heldout_of(config)}
        return tuple(name.format(**names) for name in self.metrics)


def heldout_of(config: RunConfig) -> str:
    """What shows whether training carries over: the suite that decides the best checkpoint (`checkpoints.best_by`),
    else the held-out problems."""
    chosen = config.checkpoints.best_by
    return chosen if chosen in {suite.name for suite in config.eval.suites} else "heldout"
