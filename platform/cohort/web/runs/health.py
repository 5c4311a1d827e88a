"""The health of a run on its page: every monitor with its state, its figure, its curve and the samples behind it."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from urllib.parse import urlencode

from django.utils.text import slugify

from cohort.base.formatting import fixed, percent
from cohort.runs.health import MonitorState, monitor_states
from cohort.runs.models import Run
from cohort.web.runs.chart_list import Chart, Group
from grpo_core.config.kinds import AnyConfig
from grpo_core.config.run import RunConfig


@dataclass(frozen=True)
class HealthRow:
    state: MonitorState
    chart: str
    """Id of the chart that draws its curve; empty where none does."""

    @property
    def suspect(self) -> bool:
        return self.state.event is not None

    @property
    def since(self) -> int | None:
        """Step from which its cause holds."""
        return self.state.event.data["step"] if self.state.event is not None else None

    @property
    def figure(self) -> str:
        """Empty where it cannot be computed."""
        value = self.state.figure.value
        if value is None:
            return ""
        return percent(value, 1) if self.state.monitor.share else fixed(value, 3)

    @property
    def groups_query(self) -> str:
        """Of the page of groups: the step in which the cause began, and which of its groups; else the newest."""
        query = {"step": str(self.since)} if self.suspect else {}
        return urlencode(query | {"show": self.state.monitor.samples})


class Health:
    """Three queries."""

    def __init__(self, run: Run, config: RunConfig, charts: Sequence[Group]) -> None:
        self._states = monitor_states(run, config)
        self._charts = [chart for group in charts for chart in group.charts]

    @cached_property
    def rows(self) -> list[HealthRow]:
        return [HealthRow(state, _chart_of(state.metrics, self._charts)) for state in self._states]

    @property
    def suspects(self) -> list[HealthRow]:
        """By the step in which their causes began."""
        return sorted((row for row in self.rows if row.suspect), key=lambda row: row.since or 0)

    @property
    def others(self) -> list[HealthRow]:
        return [row for row in self.rows if not row.suspect]

    @property
    def quiet(self) -> int:
        """Monitors that measure something and are not raised."""
        return sum(not row.suspect and bool(row.figure) for row in self.rows)

    @property
    def unknown(self) -> int:
        return len(self.rows) - self.quiet - len(self.suspects)


def health_of(run: Run, config: AnyConfig, charts: Sequence[Group]) -> Health | None:
    """None of a kind that no monitor watches: they are about groups and their rewards."""
    return Health(run, config, charts) if isinstance(config, RunConfig) else None


def _chart_of(metrics: Iterable[str], charts: Sequence[Chart]) -> str:
    """The first chart that draws one of the metrics."""
    for name in metrics:
        for chart in charts:
            if any(
                drawn.startswith(name[: name.index("*")]) if "*" in name else drawn == name for drawn in chart.metrics
            ):
                return slugify(chart.id)
    return ""
