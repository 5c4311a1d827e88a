"""What the charts of a run draw, and how a long series is thinned without losing its spikes.

Reads numbers already stored; the drawing itself is charts.js.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from grpo_core.config import RunConfig

MAX_POINTS = 1000
"""Most points sent for one chart. A longer series is cut into buckets of which min, max and last stay."""


@dataclass(frozen=True)
class Chart:
    id: str
    kind: str
    """band: a line with a shaded spread; stack: shares that add up to 1; line."""
    title: str
    note: str
    """What is drawn, in the chart's corner."""
    unit: str
    """Label of the vertical axis."""
    columns: tuple[str, ...]
    """Metric names; the first decides which points of a long series stay."""
    names: tuple[str, ...]
    """What people call the columns."""
    colours: tuple[str, ...]
    """Names of CSS custom properties."""
    wide: bool = False
    floor: float | None = None
    """Lowest value of the axis, where the quantity has one."""
    ceiling: float | None = None


CHARTS = (
    Chart(
        "reward",
        "band",
        "Reward",
        "mean of the step, and spread inside groups",
        "reward",
        ("reward", "reward_group_std"),
        ("mean", "spread"),
        ("--accent", "--band"),
        wide=True,
    ),
    Chart(
        "signal",
        "stack",
        "Learning signal",
        "groups by how many samples are right",
        "share of groups",
        ("groups/all_right", "groups/mixed", "groups/all_wrong"),
        ("all right", "mixed", "all wrong"),
        ("--right", "--accent", "--wrong"),
        floor=0.0,
        ceiling=1.0,
    ),
    Chart(
        "kl",
        "line",
        "KL to reference",
        "mean per token",
        "nats",
        ("kl",),
        ("KL",),
        ("--accent",),
    ),
    Chart("entropy", "line", "Entropy", "mean per token", "nats", ("entropy",), ("entropy",), ("--accent",), floor=0.0),
    Chart(
        "length",
        "line",
        "Completion length",
        "mean of the step",
        "tokens",
        ("completions/mean_length",),
        ("length",),
        ("--accent",),
        floor=0.0,
    ),
    Chart(
        "zero_std",
        "line",
        "Groups without variance",
        "all rewards equal: nothing to learn from",
        "share of groups",
        ("frac_reward_zero_std",),
        ("share",),
        ("--accent",),
        floor=0.0,
        ceiling=1.0,
    ),
)
"""The first stack column is drawn at the bottom."""

Row = tuple[int, dict[str, Any]]


def charts_of(config: RunConfig) -> tuple[Chart, ...]:
    """What a run draws: without a reference (β 0) there is no KL, and its tile says so."""
    return tuple(chart for chart in CHARTS if chart.id != "kl" or config.algorithm.kl.coef > 0)


def series(rows: Sequence[Row], *, limit: int = MAX_POINTS) -> dict[str, dict[str, list[Any]]]:
    """Per chart: `step` and one list per column, thinned to `limit` points. A step without the first column is left
    out of that chart; a later column that is absent is null."""
    drawn: dict[str, dict[str, list[Any]]] = {}
    for chart in CHARTS:
        leading = chart.columns[0]
        present = [(step, metrics) for step, metrics in rows if metrics.get(leading) is not None]
        kept = [present[place] for place in thin([metrics[leading] for _, metrics in present], limit)]
        drawn[chart.id] = {
            "step": [step for step, _ in kept],
            **{column: [metrics.get(column) for _, metrics in kept] for column in chart.columns},
        }
    return drawn


def thin(values: Sequence[float], limit: int) -> list[int]:
    """Places of the values to keep, in order: all of them up to `limit`, else the first of all and the lowest, highest
    and last of each bucket."""
    if len(values) <= limit:
        return list(range(len(values)))
    buckets = (limit - 1) // 3
    kept = {0}
    for bucket in range(buckets):
        start, end = bucket * len(values) // buckets, (bucket + 1) * len(values) // buckets
        places = range(start, end)
        kept |= {min(places, key=values.__getitem__), max(places, key=values.__getitem__), end - 1}
    return sorted(kept)
