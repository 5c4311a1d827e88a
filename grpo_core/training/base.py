"""What a training engine takes and gives for one step."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True)
class TrainRow:
    """One completion as the update sees it."""

    prompt: Sequence[int]
    completion: Sequence[int]
    advantage: float
    used: bool
    """False for a masked sample: it is in no sum and in no denominator."""


class Training(Protocol):
    """Something that improves the policy from one sampled batch."""

    def update(self, rows: Sequence[TrainRow], *, step: int) -> dict[str, float]:
        """μ optimiser updates on `rows`; returns metrics by name. Raises TrainingError on a number that is none."""
        ...
