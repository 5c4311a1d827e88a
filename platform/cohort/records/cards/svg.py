"""A record's charts as SVG without any script or outside reference: lines over steps, and suites before and after
with intervals.

Colours come from classes, so that card.html sets them for light, dark and print; `standalone` adds a style
for use without a page around it. Every text is escaped.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from cohort.evidence.plain_text import MINUS
from cohort.records.cards.reading import Reading, Series
from grpo_core.text import printable

WIDTH, LEFT, RIGHT = 640, 52, 70
MOST_POINTS = 320
"""Beyond it each point is the mean of several steps, and the chart notes it."""

STYLE = (
    "text{font-family:'DejaVu Sans',sans-serif;font-size:11px;fill:#66635d}.ink{fill:#1b1b1a}"
    ".grid{stroke:#e3e1dc;stroke-width:1}.line{fill:none;stroke:#3a58d6;stroke-width:1.6}.mark{fill:#3a58d6}"
    ".hollow{fill:#fff;stroke:#3a58d6;stroke-width:1.6}.span{stroke:#3a58d6;stroke-width:1.6}"
)


def standalone(svg: str) -> str:
    """The chart with its colours, for a separate file."""
    head, end, rest = svg.partition(">")
    return f"{head}{end}<style>{STYLE}</style>{rest}"


def over_steps(series: Series, name: str, *, title: str, share: bool = False) -> str | None:
    """A line of one metric by step, `share` in percent; None when fewer than two steps measured it."""
    pairs = series.points(name)
    if len(pairs) < 2:
        return None
    points, width = _thinned(pairs)
    low, high = _bounds([value for _, value in points], share=share)
    first, last = pairs[0][0], pairs[-1][0]
    height, top, bottom = 200, 26, 28

    def x(step: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * (step - first) / (last - first)

    def y(value: float) -> float:
        return top + (height - top - bottom) * (high - value) / (high - low)

    written = percent if share else number
    parts = [_open(height, f"{title}: {written(pairs[0][1])} at step {first}, {written(pairs[-1][1])} at step {last}")]
    parts.append(f'<text class="ink" x="0" y="13">{escape(title)}</text>')
    drawn = "every step" if width == 1 else f"means of {width} steps"
    parts.append(f'<text x="{WIDTH}" y="13" text-anchor="end">{drawn}, {first:,} to {last:,}</text>')
    for tick in _ticks(low, high):
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y(tick):.1f}" y2="{y(tick):.1f}"/>')
        parts.append(f'<text x="{LEFT - 6}" y="{y(tick) + 4:.1f}" text-anchor="end">{written(tick)}</text>')
    for step, anchor in ((first, "start"), (last, "end")):
        parts.append(f'<text x="{x(step):.1f}" y="{height - 8}" text-anchor="{anchor}">step {step:,}</text>')
    path = " ".join(f"{x(step):.1f},{y(value):.1f}" for step, value in points)
    parts.append(f'<polyline class="line" points="{path}"/>')
    at, value = points[-1]
    parts.append(f'<circle class="mark" cx="{x(at):.1f}" cy="{y(value):.1f}" r="3"/>')
    parts.append(f'<text class="ink" x="{x(at) + 8:.1f}" y="{y(value) + 4:.1f}">{written(value)}</text></svg>')
    return "".join(parts)


def before_after(comparisons: Sequence[Mapping[str, Any]]) -> str | None:
    """Each suite's share before (hollow) and after (filled) with its 95 % interval; None without a suite."""
    if not comparisons:
        return None
    left, row, top, bottom = 190, 40, 26, 28
    height = top + row * len(comparisons) + bottom

    def x(share: float) -> float:
        return left + (WIDTH - left - 20) * share

    parts = [_open(height, "Share of items scored, before and after training, with 95 % intervals")]
    parts.append('<text class="ink" x="0" y="13">Score before and after</text>')
    parts.append(f'<text x="{WIDTH}" y="13" text-anchor="end">hollow before, filled after; 95 % intervals</text>')
    foot = top + row * len(comparisons)
    for tick in (0.0, 0.25, 0.5, 0.75, 1.0):
        parts.append(f'<line class="grid" x1="{x(tick):.1f}" x2="{x(tick):.1f}" y1="{top}" y2="{foot}"/>')
        parts.append(f'<text x="{x(tick):.1f}" y="{foot + 18}" text-anchor="middle">{percent(tick)}</text>')
    for at, comparison in enumerate(comparisons):
        middle = top + row * at + row / 2
        name = str(comparison.get("title") or comparison["suite"])
        shown = name if len(name) <= 26 else f"{name[:25]}…"
        parts.append(f'<text class="ink" x="0" y="{middle + 4:.1f}">{_inert(shown)}</text>')
        for side, offset, mark in (("before", -7, "hollow"), ("after", 7, "mark")):
            if (score := comparison.get(side)) is None:
                continue
            y, span = middle + offset, score["interval"]
            low, high = x(max(0.0, span["low"])), x(min(1.0, span["high"]))
            parts.append(f'<line class="span" x1="{low:.1f}" x2="{high:.1f}" y1="{y:.1f}" y2="{y:.1f}"/>')
            parts.append(f'<circle class="{mark}" cx="{x(score["share"]):.1f}" cy="{y:.1f}" r="4"/>')
    return "".join([*parts, "</svg>"])


def _open(height: int, label: str) -> str:
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" '
        f'role="img" aria-label="{_inert(label)}">'
    )


def _inert(text: str) -> str:
    return escape(printable(text))


def _thinned(pairs: Sequence[tuple[int, float]]) -> tuple[list[tuple[float, float]], int]:
    """(points, how many steps each is the mean of)."""
    width = -(-len(pairs) // MOST_POINTS)
    portions = [pairs[at : at + width] for at in range(0, len(pairs), width)]
    means = [(sum(s for s, _ in part) / len(part), sum(v for _, v in part) / len(part)) for part in portions]
    return means, width


def _bounds(values: Sequence[float], *, share: bool) -> tuple[float, float]:
    if share:
        return 0.0, 1.0
    low, high = min(values), max(values)
    room = (high - low) * 0.06 or abs(high) * 0.1 or 1.0
    return low - room, high + room


def _ticks(low: float, high: float) -> list[float]:
    """Four to eight round numbers between the bounds."""
    size: float = 1.0
    for power in range(-12, 13):
        for digit in (1, 2, 5):
            size = digit * 10.0**power
            if (high - low) / size <= 6:
                first = -int(-low // size) if low < 0 else int(low // size) + (low % size > 0)
                return [n * size for n in range(first - 1, first + 9) if low <= n * size <= high]
    return [low, high]


def number(value: float) -> str:
    return f"{value:.3g}".replace("-", MINUS) if value else "0"


def percent(value: float) -> str:
    return f"{100 * value:.0f} %"


_STEP_CHARTS = (
    ("reward", "Mean reward of training completions", False),
    ("frac_reward_zero_std", "Share of groups without signal (all rewards equal)", True),
)
_ROWS = 12


@dataclass(frozen=True)
class Chart:
    title: str
    svg: str
    columns: tuple[str, ...] = ()
    rows: tuple[tuple[str, ...], ...] = ()
    """The plotted numbers as text; empty where the page has them in a table."""
    note: str = ""
    """Which of the numbers the table shows."""


def charts(reading: Reading) -> list[Chart]:
    """The charts that the audience's data allow; before and after first."""
    chart_list = []
    if drawn := before_after(reading.comparisons):
        chart_list.append(Chart("Score before and after training, with 95 % intervals", drawn))
    if reading.series is not None:
        for name, title, share in _STEP_CHARTS:
            if drawn := over_steps(reading.series, name, title=title, share=share):
                rows, caption = _numbers(reading.series, name, share=share)
                chart_list.append(Chart(title, drawn, ("step", "value"), rows, caption))
    return chart_list


def _numbers(series: Series, name: str, *, share: bool) -> tuple[tuple[tuple[str, str], ...], str]:
    values = series.points(name)
    last = len(values) - 1
    picked = sorted({round(last * at / (_ROWS - 1)) for at in range(_ROWS)}) if last >= _ROWS else range(len(values))
    rows = tuple((f"{values[at][0]:,}", percent(values[at][1]) if share else number(values[at][1])) for at in picked)
    caption = f"{len(rows)} of {len(values):,} steps; all are in metrics.jsonl" if len(rows) < len(values) else ""
    return rows, caption
