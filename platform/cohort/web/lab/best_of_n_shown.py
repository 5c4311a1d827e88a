"""A best-of-n as its page shows it: both curves as plain SVG over the doublings of n, the point where they part, and
the sentence. The table next to them has the same numbers."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from cohort.base.formatting import num
from cohort.lab.models import LabJob
from cohort.web.svg import Plot, Tick
from grpo_core.lab.best_of_n import BestOfN, BestOfPoint, MeanScore, parting_text

BADGES = {
    "falls": ("wrong", "✕", "the verifier falls"),
    "stops": ("suspect", "!", "the verifier stops rising"),
    "together": ("right", "✓", "they do not part"),
    "no_rise": ("plain", "○", "the reward does not rise"),
}
"""Outcome → (tone, sign, words)."""


@dataclass(frozen=True)
class Mark:
    x: float
    y: float
    low: float
    """Top and bottom of the interval, from the top of the picture."""
    high: float
    words: str


@dataclass(frozen=True)
class CurveDrawn:
    title: str
    side: str
    """`reward` or `verifier`, for the class."""
    line: str
    """Points of a polyline."""
    marks: tuple[Mark, ...]
    across: tuple[Tick, ...]
    up: tuple[Tick, ...]
    plot: Plot
    parted: float | None
    """Where the two part, from the left."""


def best_of_n_shown(job: LabJob) -> dict[str, Any]:
    """Of a job that is done; its result was checked when it came."""
    result = BestOfN.model_validate(job.result)
    tone, sign, words = BADGES[result.parting.outcome]
    return {
        "best": result,
        "tone": tone,
        "sign": sign,
        "words": words,
        "sentence": parting_text(result),
        "curves": [
            _drawn(result, "reward", "Reward, which chooses", lambda point: point.reward),
            _drawn(result, "verifier", "Verifier, taken for the truth", lambda point: point.verifier),
        ],
        "completions": sum(len(row.rewards) for row in result.scores),
    }


def _drawn(result: BestOfN, side: str, title: str, score: Callable[[BestOfPoint], MeanScore]) -> CurveDrawn:
    """Each n is as far from the next as any other: they are doublings, and at the end all samples."""
    scores = [score(point) for point in result.points]
    low, high = min(mean.low for mean in scores), max(mean.high for mean in scores)
    if high - low < 1e-9:  # a flat line, in the middle
        low, high = low - 0.5, high + 0.5
    plot = Plot(first=0, last=max(1, len(scores) - 1), low=low, high=high, height=220)
    names = {at: f"{point.n:,}" for at, point in enumerate(result.points)}
    parted = [at for at, point in enumerate(result.points) if point.n == result.parting.n]
    return CurveDrawn(
        title=title,
        side=side,
        line=" ".join(f"{plot.x(at)},{plot.y(mean.mean)}" for at, mean in enumerate(scores)),
        marks=tuple(
            Mark(
                plot.x(at),
                plot.y(mean.mean),
                plot.y(mean.low),
                plot.y(mean.high),
                f"n = {names[at]}: {num(mean.mean)} [{num(mean.low)}, {num(mean.high)}]",
            )
            for at, mean in enumerate(scores)
        ),
        across=plot.across(names, lambda at: names[int(at)]),
        up=plot.up((low, (low + high) / 2, high), num),
        plot=plot,
        parted=plot.x(parted[0]) if parted else None,
    )
