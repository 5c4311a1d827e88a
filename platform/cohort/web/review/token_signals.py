"""What the token view can colour by: a number for each token, made of the stored arrays; its scale in a few levels that
are told apart without hue; where it is largest; and its curve over positions. Knows nothing of requests."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal

from cohort.base.formatting import num, signed
from cohort.web.svg import Plot, Tick
from grpo_core.files.token_file import COLUMNS

Values = list[float | None]
Columns = Mapping[str, Sequence[Any]]
LEVELS = 4
"""Of a colour, on each side of the middle."""
COMMON_SHARE = 0.98
"""Tokens whose size the levels divide; the rest, far outliers, share the last level."""
LISTED = 20


@dataclass(frozen=True)
class Signal:
    name: str
    title: str
    words: str
    scale: Literal["diverging", "sequential", "flag"]
    values_of: Callable[[Columns], Values | None]
    """None where the sample lacks what it is made of."""
    centre: float = 0.0
    """Of a diverging scale."""


def _column(name: str) -> Callable[[Columns], Values | None]:
    def values(columns: Columns) -> Values | None:
        return list(columns[name]) if name in columns else None

    return values


def _flags(name: str) -> Callable[[Columns], Values | None]:
    def values(columns: Columns) -> Values | None:
        return [float(flag) for flag in columns[name]] if name in columns else None

    return values


def _log_ratio(columns: Columns) -> Values | None:
    """Natural logarithm of the ratio: a factor of 2 is as far from 1 upward as downward."""
    if "ratio" not in columns:
        return None
    return [math.log(ratio) if 0 < ratio < math.inf else None for ratio in columns["ratio"]]


def _difference(columns: Columns) -> Values | None:
    """Sampler minus the trainer's log-probability of the policy that is nearest to the one that sampled."""
    trainer = columns.get("old_logprob") or columns.get("policy_logprob")
    if trainer is None:
        return None
    return [sampler - own for sampler, own in zip(columns["sampler_logprob"], trainer, strict=True)]


def _to_reference(columns: Columns) -> Values | None:
    policy, reference = columns.get("policy_logprob"), columns.get("reference_logprob")
    if policy is None or reference is None:
        return None
    return [now - then for now, then in zip(policy, reference, strict=True)]


def _push(columns: Columns) -> Values | None:
    """Of a token that is clipped or not in the loss nothing is pushed."""
    count = len(columns["advantage"])
    ratios, clipped = columns.get("ratio", [1.0] * count), columns.get("clipped", [False] * count)
    rows = zip(columns["advantage"], ratios, clipped, columns["in_loss"], strict=True)
    return [advantage * ratio if used and not held else 0.0 for advantage, ratio, held, used in rows]


SIGNALS = {
    signal.name: signal
    for signal in (
        Signal("advantage", "Advantage", COLUMNS["advantage"].words, "diverging", _column("advantage")),
        Signal("push", "Push", "advantage × ratio; 0 where clipped or masked", "diverging", _push),
        Signal("ratio", "log ratio", "ln of the ratio that the loss takes", "diverging", _log_ratio),
        Signal("clipped", "Clipped", COLUMNS["clipped"].words, "flag", _flags("clipped")),
        Signal("entropy", "Entropy", COLUMNS["entropy"].words, "sequential", _column("entropy")),
        Signal("logprob", "Log-prob", COLUMNS["policy_logprob"].words, "sequential", _column("policy_logprob")),
        Signal("sampler", "By the sampler", COLUMNS["sampler_logprob"].words, "sequential", _column("sampler_logprob")),
        Signal("difference", "Sampler − trainer", "log-prob, sampler minus trainer", "diverging", _difference),
        Signal("reference", "To the reference", "log π − log π of the reference", "diverging", _to_reference),
        Signal("value", "Value", COLUMNS["value"].words, "diverging", _column("value")),
        Signal("step_reward", "Step reward", COLUMNS["step_reward"].words, "diverging", _column("step_reward")),
        Signal("mask", "In the loss", "dimmed where masked", "flag", _flags("in_loss")),
    )
}  # fmt: skip


def available(columns: Columns) -> dict[str, Signal]:
    """The signals that the sample has."""
    return {name: signal for name, signal in SIGNALS.items() if signal.values_of(columns) is not None}


@dataclass(frozen=True)
class Swatch:
    level: str
    """CSS class."""
    words: str


@dataclass(frozen=True)
class Scale:
    """Levels of a signal over all tokens of the sample."""

    kind: str
    low: float
    reach: float
    """Size of the common values: the distance from the middle, or from the lowest, that the levels divide."""

    def level(self, value: float | None) -> str:
        """CSS class of a value."""
        if value is None or not math.isfinite(value):
            return "none"
        if self.kind == "flag":
            return "on" if value else "off"
        share = (value - self.low) / self.reach if self.reach else 0.0
        if self.kind == "sequential":
            return f"up{min(LEVELS, max(0, math.ceil(share * LEVELS - 1e-9)))}"
        size = min(LEVELS, math.ceil(abs(share) * LEVELS - 1e-9))
        return f"{'down' if share < 0 else 'up'}{size}" if size else "up0"

    def legend(self) -> list[Swatch]:
        if self.kind == "flag":
            return [Swatch("on", "yes"), Swatch("off", "no")]
        if not self.reach:
            return [Swatch("up0", num(self.low))]
        bounds = [self.low + self.reach * part / LEVELS for part in range(LEVELS + 1)]
        upward = [Swatch(f"up{at}", f"to {num(bound)}") for at, bound in enumerate(bounds[1:-1], start=1)]
        upward.append(Swatch(f"up{LEVELS}", f"above {num(bounds[-2])}"))
        if self.kind == "sequential":
            return [Swatch("up0", num(self.low)), *upward]
        below = [Swatch(f"down{at}", f"to {num(-bound)}") for at, bound in enumerate(bounds[1:-1], start=1)]
        below.append(Swatch(f"down{LEVELS}", f"below {num(-bounds[-2])}"))
        return [*reversed(below), Swatch("up0", "0"), *upward]


def scale_of(signal: Signal, values: Iterable[float | None]) -> Scale:
    known = sorted(value for value in values if value is not None and math.isfinite(value))
    if signal.scale == "flag" or not known:
        return Scale(signal.scale, 0.0, 0.0)
    if signal.scale == "diverging":
        return Scale(signal.scale, 0.0, _common(sorted(abs(value) for value in known)))
    low = known[len(known) - 1 - _place(len(known))]
    return Scale(signal.scale, low, known[_place(len(known))] - low)


def _place(count: int) -> int:
    return min(count - 1, math.ceil(COMMON_SHARE * count) - 1)


def _common(sizes: Sequence[float]) -> float:
    """The size that most stay below; the largest where most are 0."""
    return sizes[_place(len(sizes))] or sizes[-1]


# ---------------------------------------------------------------------- the largest


@dataclass(frozen=True)
class Largest:
    """Tokens with the largest values of one sign, or of both."""

    position: int
    """From 1."""
    piece: str
    shown: str


def largest(values: Values, pieces: Sequence[str], *, sign: int = 0) -> list[Largest]:
    """At most `LISTED` tokens, the largest first. `sign`: only positive (1) or negative (−1) values."""
    known = [
        (value, index)
        for index, value in enumerate(values)
        if value and math.isfinite(value) and (not sign or value * sign > 0)
    ]
    known.sort(key=lambda pair: (-abs(pair[0]), pair[1]))
    return [Largest(index + 1, pieces[index], signed(value)) for value, index in known[:LISTED]]


def is_uniform(values: Values) -> bool:
    """Whether no token stands out: all that are not 0 have one value."""
    known = [value for value in values if value]
    return not known or max(known) - min(known) <= 1e-6 * max(abs(value) for value in known)


# ---------------------------------------------------------------------- over positions

PARTS = 240


@dataclass(frozen=True)
class Part:
    """Neighbouring tokens in one point of the curve."""

    first: int
    last: int
    low: float
    mean: float
    high: float


@dataclass(frozen=True)
class PositionCurve:
    parts: tuple[Part, ...]
    line: str
    band: str
    across: tuple[Tick, ...]
    up: tuple[Tick, ...]
    shown_from: float
    """Left edge of the window that the page shows, and its width."""
    shown_width: float
    plot: Plot


def position_curve(values: Values, first: int, last: int) -> PositionCurve | None:
    """Mean, lowest and highest of each stretch of neighbouring tokens; None without a number. `first`, `last`: indexes
    of the window that is shown."""
    count = len(values)
    edges = sorted({round(count * part / PARTS) for part in range(PARTS + 1)})
    parts = []
    for begin, end in pairwise(edges):
        known = [value for value in values[begin:end] if value is not None and math.isfinite(value)]
        if known:
            parts.append(Part(begin + 1, end, min(known), sum(known) / len(known), max(known)))
    if not parts:
        return None
    low, high = min(part.low for part in parts), max(part.high for part in parts)
    if low == high:
        low, high = low - 0.5, high + 0.5

    plot = Plot(
        first=1, last=max(count, 2), low=low, high=high, width=900, height=150, left=54, margin=26, top=10, bottom=26
    )

    middles = [(plot.x((part.first + part.last) / 2), part) for part in parts]
    upper = [f"{at},{plot.y(part.high)}" for at, part in middles]
    lower = [f"{at},{plot.y(part.low)}" for at, part in reversed(middles)]
    return PositionCurve(
        parts=tuple(parts),
        line=" ".join(f"{at},{plot.y(part.mean)}" for at, part in middles),
        band=" ".join([*upper, *lower]),
        across=plot.across(sorted({1, (count + 1) // 2, count}), num),
        up=plot.up((low, (low + high) / 2, high), num),
        shown_from=plot.x(first + 1),
        shown_width=round(plot.x(last) - plot.x(first + 1), 2),
        plot=plot,
    )
