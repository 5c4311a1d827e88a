"""The charts of card.html and card.pdf, each with the numbers it is drawn from."""

from dataclasses import dataclass

from cohort.records.cards import svg
from cohort.records.cards.reading import Reading, Series

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
    if drawn := svg.before_after(reading.comparisons):
        chart_list.append(Chart("Score before and after training, with 95 % intervals", drawn))
    if reading.series is not None:
        for name, title, share in _STEP_CHARTS:
            if drawn := svg.over_steps(reading.series, name, title=title, share=share):
                rows, caption = _numbers(reading.series, name, share=share)
                chart_list.append(Chart(title, drawn, ("step", "value"), rows, caption))
    return chart_list


def _numbers(series: Series, name: str, *, share: bool) -> tuple[tuple[tuple[str, str], ...], str]:
    values = [(step, value) for step, value in zip(series.steps, series.values[name], strict=True) if value is not None]
    last = len(values) - 1
    picked = sorted({round(last * at / (_ROWS - 1)) for at in range(_ROWS)}) if last >= _ROWS else range(len(values))
    rows = tuple(
        (f"{values[at][0]:,}", svg.percent(values[at][1]) if share else svg.number(values[at][1])) for at in picked
    )
    caption = f"{len(rows)} of {len(values):,} steps; all are in metrics.jsonl" if len(rows) < len(values) else ""
    return rows, caption
