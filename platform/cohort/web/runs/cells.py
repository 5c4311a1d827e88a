"""The cells of the list of runs as HTML, made in Python: a page has five hundred, and to decide of each in a template
which column it is of takes most of the page's time.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, lru_cache

from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString, mark_safe
from django.utils.timezone import localtime

from cohort.base.formatting import ago, fixed, num
from cohort.base.formatting import percent as percent_text
from cohort.runs.models import Desired, Run, RunState
from cohort.web.context import LIVE
from cohort.web.launch.schema import preset_source
from cohort.web.launch.variants import ALL
from cohort.web.runs.columns import Column, cell_text, percent
from cohort.web.runs.trend import HEIGHT, WIDTH, Trend
from cohort.web.templatetags.cohort import progress, state_badge, visible
from grpo_core.config.evaluation import HELDOUT
from grpo_core.config.presets import PRESETS

_NOTHING = mark_safe('<span class="muted">–</span>')  # our own words
_shown = lru_cache(maxsize=4096)(visible)
_badge = lru_cache(maxsize=None)(state_badge)


class RunRow:
    """One run with what its cells are made of. `scores`: share right by key of `RunValue`."""

    def __init__(
        self, run: Run, scores: Mapping[str, float], *, variant: str, health: Sequence[str], trend: Trend | None = None
    ) -> None:
        """`variant`: key of web.launch.variants. `health`: what is wrong with it, in short: its open alerts, and what
        its trainer reports."""
        self.run, self.scores, self.variant, self.health, self.trend = run, scores, variant, health, trend

    @property
    def live(self) -> bool:
        return self.run.state in LIVE

    @cached_property
    def suite(self) -> str:
        """The one whose scores the list shows: the held-out problems, else the first by name."""
        suites = sorted(key.split(".", 2)[2] for key in self.scores if key.startswith("evaluation.newest."))
        return HELDOUT if HELDOUT in suites else next(iter(suites), "")

    def cells(self, columns: Sequence[Column], list_address: str) -> SafeString:
        made = (self._cell(column, list_address) for column in columns)
        cells = ((cell.classes, cell.label, cell.html) for cell in made)
        return format_html_join("", '<td class="{}" data-label="{}">{}</td>', cells)

    def _cell(self, column: Column, list_address: str) -> "Cell":
        if column.field is None:
            return _CELLS[column.name](self, column, list_address)
        text = cell_text(column.field, self.run, self.scores)
        kind = "num" if column.number else "anywhere"
        return Cell(column.label, f"{kind} bare" if not text else kind, _shown(text) if text else _NOTHING)


class Cell:
    """`classes`: with `bare`, one without a value."""

    def __init__(self, label: str, classes: str, html: SafeString) -> None:
        self.label, self.classes, self.html = label, classes, html


def _state(row: RunRow, column: Column, _: str) -> Cell:
    run, unscored = row.run, float(row.run.latest_metrics.get("frac_unscored", 0.0))
    words = {Desired.CANCEL: "cancel requested", Desired.PAUSE: "pause requested"}.get(Desired(run.desired), "")
    marks = [words] if words else []
    if run.stalled_at:
        marks.append("stalled")
    if run.state == RunState.QUEUED and run.fence > 0:  # a worker has had it before
        marks.append(f"try {run.retries}" if run.retries else "requeued")
    if unscored:
        marks.append(f"{percent_text(unscored, 1)} not scored")
    marks += row.health[:2]
    badges = format_html_join("", ' <span class="badge is-suspect">{}</span>', ((_shown(mark),) for mark in marks))
    return Cell(column.label, "", _badge(run.state) + badges)


def _step(row: RunRow, column: Column, _: str) -> Cell:
    run = row.run
    text = '<span class="nowrap">{} <span class="muted">of {}</span></span>{}'
    bar = progress(run.step, run.steps_total, "Steps done")
    return Cell(column.label, "stepcell", format_html(text, num(run.step), num(run.steps_total), bar))


def _reward(row: RunRow, column: Column, _: str) -> Cell:
    reward = row.run.latest_metrics.get("reward")
    if reward is None:
        return Cell(column.label, "num bare", _NOTHING)
    return Cell(column.label, "num", format_html("{}", fixed(reward, 2)))


_LINE = (
    f'<svg width="{WIDTH}" height="{HEIGHT}" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{{words}}">'
    '<title>{words}</title><polyline points="{points}"/><circle cx="{x}" cy="{y}" r="1.8"/></svg>'
)


def _trend(row: RunRow, column: Column, _: str) -> Cell:
    if row.trend is None:
        return Cell(column.label, "trend bare", SafeString())
    x, y = row.trend.newest
    line = format_html(_LINE, words=row.trend.words, points=row.trend.points, x=x, y=y)
    return Cell(column.label, "trend", line)


def _scores(row: RunRow, _: Column, __: str) -> Cell:
    if not row.suite:
        return Cell("Scores", "num bare", _NOTHING)
    shares = [row.scores.get(f"evaluation.{phase}.{row.suite}") for phase in ("before", "after")]
    before, after = ("–" if share is None else percent(share) for share in shares)
    name = (
        SafeString()
        if row.suite == HELDOUT
        else format_html(' <span class="muted small suite anywhere">{}</span>', _shown(row.suite))
    )
    return Cell("Scores", "num nowrap", format_html("{} → {}{}", before, after, name))


def _model(row: RunRow, column: Column, _: str) -> Cell:
    return Cell(column.label, "anywhere", _shown(row.run.base_model.name))


def _recipe(row: RunRow, column: Column, _: str) -> Cell:
    """Preset and normalization variant."""
    preset, variant = PRESETS.get(row.run.preset), ALL[row.variant].short
    return Cell(column.label, "muted", _shown(f"{preset_source(preset)} · {variant}" if preset else variant))


def _tags(row: RunRow, column: Column, list_address: str) -> Cell:
    links = ((list_address, tag, tag) for tag in row.run.tags)
    html = format_html_join(" ", '<a class="tag" href="{}?q=tag:{}">{}</a>', links)
    return Cell(column.label, "" if row.run.tags else "bare", html)


def _person(row: RunRow, _: Column, __: str) -> Cell:
    return Cell("By", "", _shown(row.run.created_by.username))


def _when(row: RunRow, column: Column, _: str) -> Cell:
    moment = row.run.created_at
    html = format_html('<time datetime="{}" data-ago>{}</time>', localtime(moment).isoformat(), ago(moment))
    return Cell(column.label, "nowrap muted", html)


_CELLS: dict[str, Callable[[RunRow, Column, str], Cell]] = {
    "state": _state,
    "step": _step,
    "reward": _reward,
    "trend": _trend,
    "scores": _scores,
    "model": _model,
    "recipe": _recipe,
    "tags": _tags,
    "person": _person,
    "when": _when,
}
"""By name of `columns.USUAL`."""
