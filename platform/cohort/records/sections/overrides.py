"""Who accepted which flag of a monitor, and why: before a seal by a statement, after it by an entry added to a record
of the run. And which alerts of the run people answered."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, get_args

from cohort.evidence.plain_text import counted
from cohort.records.answers import count, measured, moment, not_applicable, stated
from cohort.records.models import EntryKind, RecordEntry, Statement
from cohort.records.schema_types import Answer
from cohort.records.sections.monitors import FLAG_WORDS
from cohort.records.statements.questions import override_field
from cohort.runs.models import Run
from grpo_core.monitors.recorded import Name

_BY_WORDS: dict[str, Name] = {words: name for name, words in FLAG_WORDS.items()}


def overrides_added(run: Run) -> list[RecordEntry]:
    """Overrides added to records of the run after their seal, the first one first; without those that a later entry
    corrects."""
    entries = RecordEntry.objects.filter(record__run=run, kind=EntryKind.OVERRIDE).select_related("by").order_by("pk")
    rows = list(entries)
    corrected = {entry.data["corrects"] for entry in rows if "corrects" in entry.data}
    return [entry for entry in rows if entry.pk not in corrected]


def monitor_of(entry: RecordEntry) -> Name | None:
    """The monitor whose flag it overrides; None where it names a flag in other words."""
    return _BY_WORDS.get(entry.data["what"])


def overrides_answer(
    raised: Mapping[str, bool | None], statements: Mapping[str, Statement], added: Sequence[RecordEntry]
) -> Answer:
    """`raised`: monitor → whether its flag was raised, None where it was not computed. `statements`: field → the one in
    force."""
    made = [(name, statement) for name in get_args(Name) if (statement := statements.get(override_field(name)))]
    flagged = sum(flag is True for flag in raised.values())
    if not made and not added:
        if all(flag is None for flag in raised.values()):
            return not_applicable("No monitor could be computed, so there was no flag to override.")
        return measured([], f"{flagged or 'none'} raised, none overridden")
    value: list[dict[str, Any]] = []
    parts = []
    for name, statement in made:
        value.append(_value(name, raised, statement))
        parts.append(_text(FLAG_WORDS[name], statement))
    for entry in added:
        value.append(_value(monitor_of(entry), raised, entry) | {"flag": entry.data["what"], "entry": entry.pk})
        parts.append(_text(entry.data["what"], entry))
    names = ", ".join(dict.fromkeys(override["by"] for override in value))
    note = "A flag that was overridden stays a flag."
    if added:
        note += f" {counted(len(added), 'override')} came after an earlier version was sealed."
    return stated(value, "; ".join(parts), by=names, note=note)


def _value(monitor: str | None, raised: Mapping[str, bool | None], row: Statement | RecordEntry) -> dict[str, Any]:
    return {
        "monitor": monitor,
        "raised": raised.get(monitor or "") is True,
        "by": row.by.username,
        "at": row.at.isoformat(),
        "why": row.text,
    }


def _text(flag: str, row: Statement | RecordEntry) -> str:
    return f"{flag}, by {row.by.username} on {moment(row.at)}: {row.text}"


@dataclass(frozen=True)
class AlertsAnswered:
    opened: int
    answered: list[dict[str, Any]]
    """Those that a person acknowledged or closed; others are counted alone."""


def alerts_of(run: Run) -> AlertsAnswered:
    rows = list(run.alerts.select_related("acknowledged_by", "closed_by").order_by("pk"))
    by_people = [row for row in rows if row.acknowledged_by is not None or row.closed_by is not None]
    return AlertsAnswered(len(rows), [_alert(row) for row in by_people])


def alerts_answer(alerts: AlertsAnswered) -> Answer:
    opened, answered = alerts.opened, alerts.answered
    value = {"opened": opened, "answered": answered}
    if not opened:
        return measured(value, "none opened")
    text = f"{count(opened)} opened, {count(len(answered)) if answered else 'none'} answered by a person"
    text += "".join(f"; {_alert_text(alert)}" for alert in answered)
    note = "An alert reports that a rule's condition held; who closes it says that it is over, not that it was wrong."
    return measured(value, text, note=note)


def _alert(row: Any) -> dict[str, Any]:
    return {
        "alert": row.pk,
        "title": row.title,
        "step": row.step,
        "opened": row.opened_at.isoformat(),
        "acknowledged": _act(row.acknowledged_by, row.acknowledged_at),
        "closed": _act(row.closed_by, row.closed_at),
        "note": row.note,
    }


def _act(by: Any, at: Any) -> dict[str, str] | None:
    return {"by": by.username, "at": at.isoformat()} if by is not None else None


def _alert_text(alert: dict[str, Any]) -> str:
    acts = [f"{name} by {alert[name]['by']}" for name in ("acknowledged", "closed") if alert[name]]
    return f"{alert['title']}: {' and '.join(acts)}" + (f", “{alert['note']}”" if alert["note"] else "")
