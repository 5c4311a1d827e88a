"""The rows of the list of runs as HTML, made in Python: a page has five hundred cells, and templates, or a call of
`format_html` for each, take most of the page's time.

So these functions put HTML together themselves. What people or models wrote is escaped by `_text` or `_attribute`; the
rest is the platform's own words and numbers as cohort.base.formatting writes them, which hold no markup.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, lru_cache
from typing import Any

from django.utils.html import escape
from django.utils.safestring import SafeString, mark_safe

from cohort.base.formatting import ago, fixed, num
from cohort.base.formatting import percent as percent_text
from cohort.lab.judged import TrainingRewardJudge
from cohort.runs.models import Desired, RunKind, RunState
from cohort.runs.run_values import VARIANT
from cohort.web.context import LIVE
from cohort.web.launch.schema import preset_source
from cohort.web.launch.variants import ALL
from cohort.web.runs.columns import Column, cell_text, percent
from cohort.web.runs.trend import HEIGHT, WIDTH, Trend
from cohort.web.templatetags.cohort import progress, state_badge, visible, visible_text
from grpo_core.config.evaluation import HELDOUT
from grpo_core.config.presets import PRESETS

_NOTHING = '<span class="muted">–</span>'
_text = lru_cache(maxsize=4096)(visible)
_badge = lru_cache(maxsize=None)(state_badge)
_bar = lru_cache(maxsize=4096)(progress)

Cell = tuple[str, str]
"""(classes, content as HTML) of a cell; with the class `bare`, one without a value."""


@lru_cache(maxsize=4096)
def _attribute(text: str) -> str:
    """As the value of an attribute, which takes no markup."""
    return escape(visible_text(text))


class RunRow:
    """One run with what its cells are made of. `scores`: share right by key of `RunValue`."""

    def __init__(
        self,
        run: Any,
        scores: Mapping[str, float],
        *,
        variant: str,
        health: Sequence[str],
        values: Mapping[str, Any],
        judge: TrainingRewardJudge | None = None,
        verdicts: Mapping[str, str],
        trend: Trend | None = None,
    ) -> None:
        """`run`: a row of `list_rows.SHOWN`. `variant`: key of web.launch.variants. `health`: what is wrong with it, in
        short: its open alerts, and what its trainer reports. `values`: of its other fields, by the name of the
        column. `judge`: what judges held-out problems, where that is the training reward. `verdicts`: what the newest
        record says of each suite."""
        self.verdicts = verdicts
        self.run, self.scores, self.variant, self.health = run, scores, variant, health
        self.values, self.judge, self.trend = values, judge, trend

    @property
    def live(self) -> bool:
        return self.run.state in LIVE

    @cached_property
    def suite(self) -> str:
        """The one whose scores the list shows: the held-out problems, else the first by name."""
        suites = sorted(key.split(".", 2)[2] for key in self.scores if key.startswith("evaluation.newest."))
        return HELDOUT if HELDOUT in suites else next(iter(suites), "")

    def value(self, column: Column) -> Any:
        """Of the column's field; None where the run has none."""
        assert column.field is not None, "a usual column has its own cell"
        key = column.field.key
        if key == VARIANT:
            return self.variant
        return self.scores.get(key) if column.field.scored else self.values[column.name]


def rows_html(rows: Sequence[RunRow], columns: Sequence[Column], list_address: str) -> SafeString:
    """The rows of the table. A run's page is beneath the address of the list."""
    makers = [
        (_CELLS.get(column.name, _of_field), column, _attribute(_LABELS.get(column.name, column.label)))
        for column in columns
    ]
    pieces = []
    for row in rows:
        pieces.append(_head(row, list_address))
        for make, column, label in makers:
            classes, content = make(row, column, list_address)
            pieces.append(f'<td class="{classes}" data-label="{label}">{content}</td>\n')
        pieces.append("</tr>\n")
    return mark_safe("".join(pieces))  # every piece is escaped where it is made


def _head(row: RunRow, list_address: str) -> str:
    """The row's beginning, its box and the run's name."""
    run, name = row.run, row.run.name
    classes = archived = note = ""
    if run.archived_at:
        classes, archived = ' class="archived"', ' <span class="badge is-plain">archived</span>'
    if run.note:
        note = (
            f'<details class="row-note" id="note-{run.pk}"><summary>note</summary>'
            f'<p class="note-text">{visible(run.note)}</p></details>'
        )
    return (
        f"<tr{classes}>\n"
        f'<td class="pick"><input type="checkbox" name="run" value="{run.pk}" form="bulk"'
        f' aria-label="Choose {_attribute(name)}"></td>\n'
        f'<th scope="row"><a id="run-{run.pk}" href="{list_address}{run.pk}/">{_text(name)}</a>{archived}{note}</th>\n'
    )


def _of_field(row: RunRow, column: Column, _: str) -> Cell:
    assert column.field is not None, "a usual column has its own cell"
    text, kind = cell_text(column.field, row.value(column)), "num" if column.number else "anywhere"
    return (kind, _text(text)) if text else (f"{kind} bare", _NOTHING)


def _state(row: RunRow, column: Column, _: str) -> Cell:
    run, unscored = row.run, float(row.run.unscored or 0)
    words = {Desired.CANCEL: "cancel requested", Desired.PAUSE: "pause requested"}.get(run.desired, "")
    marks = [words] if words else []
    if run.stalled_at:
        marks.append("stalled")
    if run.state == RunState.QUEUED and run.fence > 0:  # a worker has had it before
        marks.append(f"try {run.retries}" if run.retries else "requeued")
    if unscored:
        marks.append(f"{percent_text(unscored, 1)} not scored")
    marks += row.health[:2]
    return "", _badge(run.state) + "".join(f' <span class="badge is-suspect">{_text(mark)}</span>' for mark in marks)


def _step(row: RunRow, column: Column, _: str) -> Cell:
    run = row.run
    bar = _bar(run.step, run.steps_total, "Steps done")
    steps = f'{num(run.step)} <span class="muted">of {num(run.steps_total)}</span>'
    return "stepcell", f'<span class="nowrap">{steps}</span>{bar}'


def _reward(row: RunRow, column: Column, _: str) -> Cell:
    reward = row.run.reward
    return ("num bare", _NOTHING) if reward is None else ("num", fixed(reward, 2))


def _trend(row: RunRow, column: Column, _: str) -> Cell:
    trend = row.trend
    if trend is None:
        return "trend bare", ""
    x, y = trend.newest
    return "trend", (
        f'<svg width="{WIDTH}" height="{HEIGHT}" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{trend.words}">'
        f'<title>{trend.words}</title><polyline points="{trend.points}"/><circle cx="{x}" cy="{y}" r="1.8"/></svg>'
    )


def _scores(row: RunRow, _: Column, __: str) -> Cell:
    if not row.suite:
        return "num bare", _NOTHING
    shares = [row.scores.get(f"evaluation.{phase}.{row.suite}") for phase in ("before", "after")]
    before, after = ("–" if share is None else percent(share) for share in shares)
    verdict = row.verdicts.get(row.suite, "")
    shown = f' <span class="muted small scored-on anywhere">{_text(verdict)}</span>' if verdict else ""
    return "num nowrap", f"{before} → {after}{_scored_on(row)}{shown}"


def _scored_on(row: RunRow) -> str:
    """What the two scores are of, and who judged held-out problems."""
    judge = row.run.eval_verifier_version__verifier__name
    if row.suite == HELDOUT and row.judge is not None:
        text = row.judge.text
    elif row.suite == HELDOUT:  # of a reward model pairs, which nobody else judges
        text = f"by {judge} v{row.run.eval_verifier_version__number}" if judge else "held-out pairs"
    else:
        text = row.suite
    return f' <span class="muted small scored-on anywhere">{_text(text)}</span>'


def _model(row: RunRow, column: Column, _: str) -> Cell:
    return "anywhere", _text(row.run.base_model__name)


def _recipe(row: RunRow, column: Column, list_address: str) -> Cell:
    """Preset and normalization variant of GRPO; else the kind, as a link to the runs of it."""
    if row.run.kind != RunKind.GRPO:
        return "muted", f'<a href="{list_address}?q=kind:{row.run.kind}">{_text(RunKind(row.run.kind).label)}</a>'
    preset, variant = PRESETS.get(row.run.preset), ALL[row.variant].short
    return "muted", _text(f"{preset_source(preset)} · {variant}" if preset else variant)


def _tags(row: RunRow, column: Column, list_address: str) -> Cell:
    """A tag has no character that an address would have to quote (cohort.runs.marks)."""
    tags = map(_attribute, row.run.tags)
    links = " ".join(f'<a class="tag" href="{list_address}?q=tag:{tag}">{tag}</a>' for tag in tags)
    return "" if links else "bare", links


def _person(row: RunRow, _: Column, __: str) -> Cell:
    return "", _text(row.run.created_by__username)


def _when(row: RunRow, column: Column, _: str) -> Cell:
    moment = row.run.created_at
    return "nowrap muted", f'<time datetime="{moment.isoformat()}" data-ago>{ago(moment)}</time>'


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
_LABELS = {"scores": "Scores", "person": "By"}
"""Of cells on a narrow page, where they differ from the column's."""
