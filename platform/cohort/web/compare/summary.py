"""The one table of a comparison: each run with the settings that differ and its final numbers, as a page, a CSV file
and Markdown."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from cohort.base.formatting import num, percent
from cohort.evaluations.across_runs import Share, shares_across
from cohort.evaluations.selectors import HELDOUT_TITLE
from cohort.runs.models import EvalResult, Run
from cohort.web.compare.chosen import Choice
from cohort.web.compare.curves import LastReward, last_rewards
from cohort.web.compare.settings_table import SettingsTable
from cohort.web.diff.export import markdown_cell
from grpo_core.config.evaluation import HELDOUT

Results = Mapping[str, Mapping[int, Mapping[str, EvalResult]]]


@dataclass(frozen=True)
class Cell:
    text: str
    note: str = ""
    """Interval or spread."""
    value: Any = None
    """Position on a parallel axis: a number, or a text for a category; None where there is none."""


@dataclass(frozen=True)
class Column:
    label: str
    kind: str
    """number or category."""


@dataclass(frozen=True)
class Summary:
    columns: tuple[Column, ...]
    rows: tuple[tuple[Run, tuple[Cell, ...]], ...]
    settings: SettingsTable
    rewards: Mapping[int, LastReward]
    shares: Mapping[str, Mapping[int, Share]]


def summary(choice: Choice, settings: SettingsTable, results: Results) -> Summary:
    rewards, shares = last_rewards(choice.runs), shares_across(results)
    columns = [Column(row.label, "number" if row.numeric else "category") for row in settings.differing]
    columns.append(Column("reward, last ten steps", "number"))
    columns += [Column(f"{suite_title(name)}, after", "number") for name in shares]
    rows = []
    for at, run in enumerate(choice.runs):
        cells = [Cell(row.cells[at].text, value=_axis_value(row.cells[at].value)) for row in settings.differing]
        cells.append(_reward(rewards.get(run.pk)))
        cells += [_share(by_run.get(run.pk)) for by_run in shares.values()]
        rows.append((run, tuple(cells)))
    return Summary(tuple(columns), tuple(rows), settings, rewards, shares)


def suite_title(name: str) -> str:
    return HELDOUT_TITLE if name == HELDOUT else name


def _axis_value(value: Any) -> Any:
    """Numbers stay numbers; all else is a category by its words."""
    return value if isinstance(value, int | float) and not isinstance(value, bool) else str(value)


def _reward(last: LastReward | None) -> Cell:
    if last is None:
        return Cell("–")
    spread = f"± {num(last.std)}" if last.steps > 1 else ""
    return Cell(num(last.mean), spread, last.mean)


def _share(share: Share | None) -> Cell:
    if share is None:
        return Cell("–")
    interval = share.interval
    note = f"[{percent(interval.low)}, {percent(interval.high)}]" if interval else ""
    note += f", {share.unscored:,} unscored" if share.unscored else ""
    return Cell(percent(share.share), note, share.share)


def csv_rows(made: Summary) -> Iterator[list[Any]]:
    """Header and one row a run, for csv_line: numbers as numbers, bounds in columns of their own."""
    suites = [f"{name} {part}" for name in made.shares for part in ("after", "low", "high", "problems", "unscored")]
    fields = [row.path for row in made.settings.differing]
    yield ["run", "name", "state", "step", *fields, "reward mean", "reward std", "reward steps", *suites]
    for at, (run, _) in enumerate(made.rows):
        last = made.rewards.get(run.pk)
        cells = [row.cells[at].value if row.numeric else row.cells[at].text for row in made.settings.differing]
        numbers: list[Any] = [last.mean, last.std, last.steps] if last else [""] * 3
        for by_run in made.shares.values():
            share = by_run.get(run.pk)
            bounds: list[Any] = [share.interval.low, share.interval.high] if share and share.interval else [""] * 2
            numbers += [share.share, *bounds, share.problems, share.unscored] if share else [""] * 5
        yield [run.pk, run.name, run.state, run.step, *cells, *numbers]


def to_markdown(made: Summary) -> str:
    """The same as the page shows; what people wrote cannot become markup."""
    names = ["run", *(column.label for column in made.columns)]
    lines = [_line(names), "| --- " * len(names) + "|"]
    for run, cells in made.rows:
        texts = [f"{cell.text} {cell.note}".strip() for cell in cells]
        lines.append(_line([f"{run.name} (run {run.pk})", *texts]))
    return "\n".join(lines) + "\n"


def _line(cells: list[str]) -> str:
    return "| " + " | ".join(map(markdown_cell, cells)) + " |"
