"""What the reading copies of a card are made from: the record as its audience gets it, and the series for charts.

An export says nothing that is not here; a field that the audience does not get is absent for it as it is for a reader.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from cohort.records.document_view import DocumentView, view_document

Document = Mapping[str, Any]

MEASURED = "measured"


@dataclass(frozen=True)
class Series:
    """Numbers of the steps that stand, as metrics.jsonl has them."""

    steps: Sequence[int]
    values: Mapping[str, Sequence[float | None]]
    """By the metric's name, one value a step; None where the step did not measure it."""

    def __len__(self) -> int:
        return len(self.steps)


EMPTY = Series(steps=(), values={})


@dataclass(frozen=True)
class Reading:
    document: Document
    """record.json of the card's audience, as a value."""
    series: Series | None = None
    """None where the audience does not get metrics.jsonl."""
    weights: Mapping[str, str] = field(default_factory=dict)
    """SHA-256 of each file of the final weights; empty when the run kept none."""

    @cached_property
    def view(self) -> DocumentView:
        """The record arranged for reading."""
        return view_document(self.document)

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
        """The seal's first 16 digits in groups of four, to be read out and compared."""
        return " ".join(self.seal[at : at + 4] for at in range(0, 16, 4))

    def entry(self, path: str) -> Mapping[str, Any] | None:
        """The entry `section.field`, or None where the record has none or this audience does not get it."""
        section, name = path.split(".")
        found = self.document["sections"].get(section, {}).get(name)
        return None if found is None or "withheld" in found else found

    def withheld(self, path: str) -> str | None:
        """For which audience the field is, when this one does not get it."""
        section, name = path.split(".")
        found = self.document["sections"].get(section, {}).get(name, {})
        return str(found["audience"]) if "withheld" in found else None

    def said(self, path: str) -> Mapping[str, Any] | None:
        """The entry, when something stands in it: measured, set, stated or not applicable."""
        found = self.entry(path)
        return None if found is None or found["source"] == "not stated" else found

    def value(self, path: str, *keys: str) -> Any:
        """What stands at `keys` of the entry's value; None where anything on the way is missing."""
        here: Any = (self.said(path) or {}).get("value")
        for key in keys:
            if not isinstance(here, Mapping) or key not in here:
                return None
            here = here[key]
        return here

    def text(self, path: str) -> str | None:
        """The entry's words; None where nothing stands in it."""
        found = self.said(path)
        return None if found is None else str(found["text"])

    @property
    def comparisons(self) -> list[Mapping[str, Any]]:
        """One a suite; empty when nothing was evaluated."""
        return list(self.value("behaviour.performance") or [])
