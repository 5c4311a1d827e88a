"""Input of a card's reading copies: the record as its audience gets it, and the series for charts.

An export contains nothing that is not here; fields withheld from the audience are absent.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from cohort.evidence.canonical import dig
from cohort.records.document_view import DocumentView, view_document

CHARTED = ("reward", "frac_reward_zero_std")


@dataclass
class Series:
    """Metrics of the current steps, as in metrics.jsonl."""

    steps: list[int] = field(default_factory=list)
    values: dict[str, list[float | None]] = field(default_factory=lambda: {name: [] for name in CHARTED})
    """By the metric's name, one value a step; None where the step did not measure it."""

    def points(self, name: str) -> list[tuple[int, float]]:
        """(step, value) of the steps that measured the metric."""
        return [(step, value) for step, value in zip(self.steps, self.values[name], strict=True) if value is not None]

    def add(self, step: int, metrics: Mapping[str, Any]) -> None:
        self.steps.append(step)
        for name, values in self.values.items():
            values.append(metrics.get(name))


@dataclass(frozen=True)
class Reading:
    document: Mapping[str, Any]
    """record.json of the card's audience, as a value."""
    series: Series | None = None
    """None where the audience does not get metrics.jsonl."""
    weights: Mapping[str, str] = field(default_factory=dict)
    """SHA-256 of each file of the final weights; empty when the run kept none."""
    log: str = "localhost/log"
    """Name of the platform's audit log, by which the platform is known."""

    @cached_property
    def view(self) -> DocumentView:
        """The record arranged for reading."""
        return view_document(self.document)

    @property
    def kind(self) -> str:
        """What the run did, as `grpo_core.config.stage.Kind` has it: the record of a GRPO run has no section on it."""
        return str(self.value("stage.kind") or "grpo")

    @property
    def audience(self) -> str:
        return str(self.document["audience"])

    @property
    def head(self) -> Mapping[str, Any]:
        return dict(self.document["head"])

    @property
    def seal(self) -> str:
        return str(self.document["seal"])

    @property
    def short_digest(self) -> str:
        return self.view.short_digest

    def withheld(self, path: str) -> str | None:
        """The field's audience, when it is withheld from this one."""
        entry = dig(self.document["sections"], *path.split(".")) or {}
        return str(entry["audience"]) if "withheld" in entry else None

    def filled_entry(self, path: str) -> Mapping[str, Any] | None:
        """The entry `section.field`: measured, set, stated or not applicable. None where it is not stated, the record
        has none, or this audience does not get it."""
        entry: Mapping[str, Any] | None = dig(self.document["sections"], *path.split("."))
        return None if entry is None or "withheld" in entry or entry["source"] == "not stated" else entry

    def value(self, path: str, *keys: str) -> Any:
        """The element at `keys` of the entry's value; None where any key is missing."""
        return dig(self.filled_entry(path), "value", *keys)

    def text(self, path: str) -> str | None:
        """The entry's text; None where it is not stated."""
        entry = self.filled_entry(path)
        return None if entry is None else str(entry["text"])

    @property
    def comparisons(self) -> list[Mapping[str, Any]]:
        """One a suite; empty when nothing was evaluated."""
        return list(self.value("behaviour.performance") or [])
