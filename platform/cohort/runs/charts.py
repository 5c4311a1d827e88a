"""What the charts of a run draw, and how a long series is thinned without losing its spikes.

Reads numbers already stored; the drawing itself is charts.js.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from cohort.runs.buckets import Numbers, joined
from grpo_core.config import RunConfig
from grpo_core.config_algorithm import AlgorithmConfig

MAX_POINTS = 1000
"""Most points sent for one chart. A longer series is cut into stretches of which lowest, highest and last stay."""


@dataclass(frozen=True)
class Chart:
    id: str
    kind: str
    """band: a line with a shaded spread; stack: shares, one on the other; line: one for each column."""
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
    span: int = 0
    """Width in sixtieths of the page on a wide screen; given by `charts_of`."""

    @property
    def legend(self) -> list[tuple[str, str]]:
        """(name, colour) of what the chart's corner must tell apart; empty for one line."""
        one = self.kind == "band" or len(self.columns) == 1
        return [] if one else list(zip(self.names, self.colours, strict=True))


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
    Chart(
        "kl_coef",
        "line",
        "KL weight β",
        "moved towards its target",
        "β",
        ("kl_coef",),
        ("β",),
        ("--accent",),
        floor=0.0,
    ),
    Chart("entropy", "line", "Entropy", "mean per token", "nats", ("entropy",), ("entropy",), ("--accent",), floor=0.0),
    Chart(
        "clip",
        "line",
        "Clipped tokens",
        "of all updates",
        "share of tokens",
        ("clip_ratio/low_mean", "clip_ratio/high_mean"),
        ("below", "above"),
        ("--muted", "--accent"),
        floor=0.0,
    ),
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
        "stack",
        "Groups without variance",
        "equal rewards, by how many samples are right",
        "share of groups",
        ("frac_reward_zero_std/all_right", "frac_reward_zero_std/other", "frac_reward_zero_std/all_wrong"),
        ("all right", "other", "all wrong"),
        ("--right", "--accent", "--wrong"),
        floor=0.0,
        ceiling=1.0,
    ),
    Chart(
        "dynamic",
        "line",
        "Dynamic sampling",
        "groups",
        "groups",
        ("dynamic_sampling/discarded_groups", "dynamic_sampling/surplus_groups"),
        ("discarded", "left over"),
        ("--accent", "--muted"),
        floor=0.0,
    ),
    Chart(
        "overlong",
        "line",
        "Overlong punishment",
        "mean of the step, before its weight",
        "reward",
        ("rewards/overlong/mean",),
        ("punishment",),
        ("--accent",),
    ),
    Chart(
        "masked",
        "line",
        "Left out of the update",
        "completions",
        "completions",
        ("masked/truncated", "masked/importance"),
        ("cut off", "mismatch"),
        ("--accent", "--muted"),
        floor=0.0,
    ),
    Chart(
        "mismatch",
        "line",
        "Sampler against trainer",
        "mean |log ratio| per token",
        "nats",
        ("sampling/logp_difference/mean",),
        ("difference",),
        ("--accent",),
        floor=0.0,
    ),
    Chart(
        "value_loss",
        "line",
        "Value loss",
        "of the critic",
        "loss",
        ("value_loss",),
        ("loss",),
        ("--accent",),
        floor=0.0,
    ),
    Chart(
        "explained",
        "line",
        "Explained variance",
        "of the returns, by the critic; 1 is all",
        "share",
        ("explained_variance",),
        ("share",),
        ("--accent",),
    ),
)
"""The first stack column is drawn at the bottom."""


@dataclass(frozen=True)
class Piece:
    """One step, or several of one attempt as `buckets` has joined them."""

    first: int
    last: int
    metrics: Numbers


def clips(config: RunConfig) -> bool:
    """Whether tokens can be clipped at all: not with one update on each batch, whose ratio is 1, unless groups of an
    earlier step are in it; and not with a loss that holds no ratio."""
    algorithm = config.algorithm
    moves = algorithm.updates_per_batch > 1 or algorithm.dynamic_sampling.enabled
    return moves and holds_ratio(algorithm)


def holds_ratio(algorithm: AlgorithmConfig) -> bool:
    """Whether the loss stops at some ratio or distance, so that there are tokens to count."""
    return algorithm.loss in ("clip", "gspo", "gspo_token", "gmpo", "cispo", "luspo", "dppo")


_WANTED: Mapping[str, Callable[[RunConfig], bool]] = {
    "kl": lambda c: c.algorithm.kl.coef > 0,
    "kl_coef": lambda c: c.algorithm.kl.controller == "adaptive",
    "clip": clips,
    "dynamic": lambda c: c.algorithm.dynamic_sampling.enabled,
    "overlong": lambda c: c.algorithm.overlong.buffer_tokens is not None,
    "masked": lambda c: c.algorithm.overlong.mask_truncated or c.algorithm.correction.mode == "sequence_mask",
    "value_loss": lambda c: c.algorithm.advantage == "gae",
    "explained": lambda c: c.algorithm.advantage == "gae",
}
"""Charts that only some configs have numbers for. Where a reader would look for one, its tile says why it is absent."""
_WIDE = {"reward": 33, "signal": 27}
_A_ROW = 4


def charts_of(config: RunConfig) -> tuple[Chart, ...]:
    """What a run draws, with widths that leave no hole in a row."""
    drawn = [chart for chart in CHARTS if chart.id not in _WANTED or _WANTED[chart.id](config)]
    if config.algorithm.kl.target == "old":
        drawn = [replace(chart, title="KL to old policy") if chart.id == "kl" else chart for chart in drawn]
    spans = iter(_spans(sum(chart.id not in _WIDE for chart in drawn)))
    return tuple(replace(chart, span=_WIDE.get(chart.id) or next(spans)) for chart in drawn)


def _spans(count: int) -> list[int]:
    """Widths of so many charts in rows of at most four, the rows as even as they go."""
    rows = -(-count // _A_ROW)
    sizes = [count // rows + (row < count % rows) for row in range(rows)]
    return [60 // size for size in sizes for _ in range(size)]


def width_of(pieces: Sequence[Piece], *, limit: int = MAX_POINTS) -> int:
    """How many steps a drawn stretch of a long series has; 1 when steps are drawn one by one."""
    widest = max((piece.last - piece.first + 1 for piece in pieces), default=1)
    if widest == 1:
        return 1
    steps = pieces[-1].last - pieces[0].first + 1
    return widest * -(-steps // (widest * (limit // 3)))


def series(pieces: Sequence[Piece], *, limit: int = MAX_POINTS) -> dict[str, dict[str, list[Any]]]:
    """Per chart: `step` and one list per column, at most about `limit` points. A step without the first column is left
    out of that chart; a later column that is absent is null."""
    width = width_of(pieces, limit=limit)
    drawn: dict[str, dict[str, list[Any]]] = {}
    for chart in CHARTS:
        leading = chart.columns[0]
        present = [piece for piece in pieces if leading in piece.metrics]
        if width == 1:
            kept = [present[place] for place in thin([piece.metrics[leading][_LAST] for piece in present], limit)]
            points = [(one.last, [_value(one.metrics, column, _LAST) for column in chart.columns]) for one in kept]
        else:
            points = [point for stretch in _stretches(present, width) for point in _points(chart, stretch)]
        drawn[chart.id] = {
            "step": [step for step, _ in points],
            **{column: [values[at] for _, values in points] for at, column in enumerate(chart.columns)},
        }
    return drawn


_LOW, _HIGH, _LAST = 0, 1, 2


def _stretches(pieces: Sequence[Piece], width: int) -> list[Piece]:
    """The pieces joined so that each has about `width` steps."""
    parts: dict[int, list[Piece]] = {}
    for piece in pieces:
        parts.setdefault((piece.first - 1) // width, []).append(piece)
    return [Piece(some[0].first, some[-1].last, joined(one.metrics for one in some)) for some in parts.values()]


def _points(chart: Chart, stretch: Piece) -> list[tuple[int, list[float | None]]]:
    """What is drawn of a stretch: its lowest, highest and last values. Where in it the lowest and the highest were is
    not known; they stand at its beginning and in its middle. Shares of a whole are told as they last were, because
    lowest shares do not add up to one; a spread has no extremes of its own beside those of its line."""
    first, last, numbers = stretch.first, stretch.last, stretch.metrics
    flat = all(numbers[column][_LOW] == numbers[column][_HIGH] for column in chart.columns if column in numbers)
    if chart.kind == "stack" or flat:
        places = [(last, _LAST)]
    elif last - first < 2:
        places = [(first, _LOW), (last, _HIGH)]
    else:
        places = [(first, _LOW), ((first + last) // 2, _HIGH), (last, _LAST)]
    told = []
    for step, which in places:
        own = [_LAST if chart.kind == "band" and at else which for at in range(len(chart.columns))]
        told.append((step, [_value(numbers, column, one) for column, one in zip(chart.columns, own, strict=True)]))
    return told


def _value(numbers: Numbers, column: str, which: int) -> float | None:
    return numbers[column][which] if column in numbers else None


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
