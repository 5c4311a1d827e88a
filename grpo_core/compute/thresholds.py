"""How far a modification is from what the Commission's guidelines take as an indication that who modifies a model
becomes the provider of the modified one.

Guidelines on the scope of the obligations for providers of general-purpose AI models, C(2025) 7719 final of 19 November
2025, points 57 to 63: only a significant change makes one; the indication is training compute above a third of the
original model's. Where that cannot be known or estimated: a third of 10²³ FLOP, and a third of 10²⁵ FLOP where the
original is a model with systemic risk (Article 51(2)). An indication is no judgement, and none is made here.
"""

from dataclasses import dataclass
from typing import Literal

GUIDELINES = "Commission guidelines C(2025) 7719 final, points 57 to 63 and Annex A"
READ = "2026-11-28"
"""Day on which the guidelines were read."""
UNKNOWN, SYSTEMIC = 1e23 / 3, 1e25 / 3

Key = Literal["third_of_original", "original_unknown", "systemic_risk"]
TITLES: dict[Key, str] = {
    "third_of_original": "a third of the original model's training compute",
    "original_unknown": "a third of 10²³ FLOP, for an original whose training compute is not known",
    "systemic_risk": "a third of 10²⁵ FLOP, for such an original with systemic risk",
}


@dataclass(frozen=True)
class Threshold:
    key: Key
    flop: float | None
    """None of a third of what nobody stated."""
    share: float | None
    """What of it the modification takes: 1 is the threshold itself. None where either is not known."""

    applies: bool
    """Whether it can be the indication: a third of the original's where that is known, else the other two, of which
    one is for originals with systemic risk."""

    @property
    def reached(self) -> bool | None:
        """Whether the modification is above it; None where that is not known, or it does not apply."""
        return self.share > 1 if self.applies and self.share is not None else None


def thresholds(flop: float | None, *, original: float | None) -> tuple[Threshold, ...]:
    """All three, for a modification of `flop` operations of a model that took `original` to train."""
    limits: dict[Key, float | None] = {
        "third_of_original": None if original is None else original / 3,
        "original_unknown": UNKNOWN,
        "systemic_risk": SYSTEMIC,
    }
    return tuple(
        Threshold(
            key,
            limit,
            None if flop is None or limit is None else flop / limit,
            applies=(original is None) != (key == "third_of_original"),
        )
        for key, limit in limits.items()
    )
