"""What a preset is. Knows no preset and no config; loads no torch."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

Family = Literal["grpo", "ratio", "baseline", "critic", "own"]

FAMILIES: Mapping[Family, str] = {
    "grpo": "Group mean as baseline",
    "ratio": "Other ratios and clips",
    "baseline": "Other baselines",
    "critic": "With a critic",
    "own": "Cohort's own",
}
"""Families of presets as people are shown them, in this order."""


@dataclass(frozen=True, slots=True)
class Preset:
    name: str
    """As in `RunConfig.preset`."""
    family: Family
    title: str
    paper: str
    """Short name of the source; "Cohort" for our own."""
    citation: str
    settings: Mapping[str, Mapping[str, Any]]
    """Part of a RunConfig: {part: {field: value}}."""
    notes: str
    """What the paper does that these settings do not express, and what here is not the paper's."""

    @property
    def called(self) -> str:
        """Its name in a sentence: "differs from DAPO in"."""
        return self.paper if self.paper != "Cohort" else f"preset {self.name}"

    def leaves(self) -> list[tuple[str, Any]]:
        """(dotted path, value) of every field it sets."""
        return leaves(self.settings)


def leaves(settings: Mapping[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    """(dotted path, value) of every innermost field."""
    pairs: list[tuple[str, Any]] = []
    for name, value in settings.items():
        path = f"{prefix}{name}"
        pairs += leaves(value, f"{path}.") if isinstance(value, Mapping) else [(path, value)]
    return pairs
