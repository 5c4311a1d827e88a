"""The picture of a pipeline: a box for each stage, in columns by how many stages come before it, and an arrow for each
thing that is passed. Plain SVG with the theme's own colours, made by the server; the table below it says the same."""

from collections.abc import Mapping
from dataclasses import dataclass

from cohort.pipelines.states import StageNow
from grpo_core.pipeline.config import PipelineConfig
from grpo_core.pipeline.references import GIVES, OUTPUT_WORDS

BOX_WIDTH, BOX_HEIGHT = 230, 74
GAP_X, GAP_Y = 160, 26
EDGE = 10


@dataclass(frozen=True)
class Box:
    now: StageNow
    x: int
    y: int
    score: str
    """Of the suite that was measured first, before and after; else how far the run is."""


@dataclass(frozen=True)
class Arrow:
    path: str
    """`d` of an SVG path."""
    x: int
    y: int
    """Of its words."""
    words: str
    passed: bool
    """Whether the later stage's run was made with it."""


@dataclass(frozen=True)
class Picture:
    boxes: list[Box]
    arrows: list[Arrow]
    width: int
    height: int


def picture(config: PipelineConfig, states: Mapping[str, StageNow], scores: Mapping[str, str]) -> Picture:
    depth: dict[str, int] = {}
    for slug in config.order:
        depth[slug] = max((depth[name] + 1 for name in config.inputs[slug]), default=0)
    rows: dict[int, int] = {}
    places: dict[str, tuple[int, int]] = {}
    for slug in config.order:
        column, row = depth[slug], rows.get(depth[slug], 0)
        rows[column] = row + 1
        places[slug] = EDGE + column * (BOX_WIDTH + GAP_X), EDGE + row * (BOX_HEIGHT + GAP_Y)
    arrows = [_arrow(config, states, name, slug, places) for slug in config.order for name in config.inputs[slug]]
    return Picture(
        [Box(states[slug], *places[slug], scores.get(slug) or _progress(states[slug])) for slug in config.order],
        arrows,
        2 * EDGE + len(rows) * (BOX_WIDTH + GAP_X) - GAP_X,
        2 * EDGE + max(rows.values()) * (BOX_HEIGHT + GAP_Y) - GAP_Y,
    )


def _progress(now: StageNow) -> str:
    return f"step {now.run.step:,} of {now.run.steps_total:,}" if now.run is not None and now.run.step else ""


def _arrow(
    config: PipelineConfig,
    states: Mapping[str, StageNow],
    source: str,
    target: str,
    places: Mapping[str, tuple[int, int]],
) -> Arrow:
    left, top = places[source]
    x1, y1 = left + BOX_WIDTH, top + BOX_HEIGHT / 2
    x2, y2 = places[target][0], places[target][1] + BOX_HEIGHT / 2
    bend = GAP_X / 2
    output, current = states[source].output, states[target].stage.current
    given = None if current is None else current.given.get(source)
    return Arrow(
        f"M{x1} {y1:g} C{x1 + bend:g} {y1:g} {x2 - bend:g} {y2:g} {x2 - 6} {y2:g}",
        round(x2 - GAP_X / 2),
        round(y2 - 6 if x2 - x1 > GAP_X else (y1 + y2) / 2 - 6),
        output.words if output is not None else OUTPUT_WORDS[GIVES[config.stage(source).kind]],
        output is not None and given == output.digest,
    )
