"""The charts that a run shows, by its config, by what its steps report, and by what its project added."""

from collections.abc import Collection, Iterable, Iterator
from dataclasses import replace

from cohort.runs.models import ProjectChart
from cohort.web.runs.chart_kinds import GROUPS_OF
from cohort.web.runs.chart_list import (
    PHASES_OVERLAPPED,
    Chart,
    Group,
    component_charts,
    evaluation_chart,
    lines_of,
)
from grpo_core.config.kinds import AnyConfig, reward_of


def charts_of(config: AnyConfig, reported: Collection[str], own: Iterable[ProjectChart] = ()) -> tuple[Group, ...]:
    """Every metric among `reported` (names, as `ingest.buckets.numbers` has them) is in a chart, and no chart is empty.
    A project's charts show what they have of this run."""
    drawn = [
        replace(group, charts=tuple(_shown(_charts(group, config, reported), reported)))
        for group in GROUPS_OF[config.kind]
    ]
    drawn.append(
        Group("evaluations", "Evaluations while training", tuple(_shown([evaluation_chart(reported)], reported)))
    )
    known = {name for group in drawn for chart in group.charts for name in chart.metrics}
    rest = tuple(
        Chart(f"other/{name}", name, "value", lines_of({name: name}), floor=None)
        for name in sorted(set(reported) - known)
    )
    mine = Group("own", "Own charts", tuple(_shown(map(_own, own), reported)))
    return tuple(group for group in (mine, *drawn, Group("other", "Other", rest, folded=True)) if group.charts)


def _charts(group: Group, config: AnyConfig, reported: Collection[str]) -> Iterator[Chart]:
    for chart in group.charts:
        if chart.id == "kl" and config.algorithm.kl.target == "old":
            chart = replace(chart, title="KL to old policy")
        elif chart.id == "phases" and config.engine.one_step_off:
            chart = replace(chart, help=PHASES_OVERLAPPED)
        yield chart
        if chart.id == "reward" and (reward := reward_of(config)) is not None:
            yield from component_charts(reward, reported)


def _shown(charts: Iterable[Chart], reported: Collection[str]) -> Iterator[Chart]:
    """Without lines that no step reports, and without charts that have none left."""
    for chart in charts:
        lines = tuple(line for line in chart.lines if line.reported(reported))
        if lines:
            yield replace(chart, lines=lines)


def _own(chart: ProjectChart) -> Chart:
    lines = lines_of({metric: metric for metric in chart.metrics})
    return Chart(f"own/{chart.pk}", chart.title, "", lines, floor=None, log=chart.log, own=chart.pk)
