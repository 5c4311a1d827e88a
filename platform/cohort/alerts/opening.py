"""Opening alerts: from events that a trigger has noted (`AlertPending`), and from searches that are made again.

Runs every few seconds and may run twice at once: pending events are taken under a lock and go with their alerts, and
the database holds one alert of a rule, run and cause at most (`alert_once`).
"""

import logging
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.db import transaction
from django.db.models import F, Q, QuerySet
from django.db.models.functions import Now

from cohort.alerts.desk import archived_close
from cohort.alerts.models import Alert, AlertDelivery, AlertPending, AlertRule, Condition
from cohort.audit.entries import clock
from cohort.base.formatting import exact
from cohort.base.storable import storable
from cohort.runs import dispatch
from cohort.runs.models import Run, RunEvent, RunState
from cohort.runs.search.fields import Fields
from cohort.runs.search.filters import search
from cohort.runs.search.syntax import SearchError, Term
from cohort.runs.transitions import ENDED
from grpo_core.monitors.base import BEGAN
from grpo_core.monitors.table import title_of

DELIVER_TASK = "cohort.alerts.deliver"
MOST_EVENTS = 500
"""Taken in one transaction; the next one takes the rest."""
MOST_RUNS = 200
"""Of one search in one round; the next one opens the rest."""
MOST_OF_RUN = 30
"""Causes of one run that one rule opens alerts of; the last of them says so. Codes come from a machine that runs
untrusted code."""
MARGIN = timedelta(hours=1)
"""Runs that ended so long before a search was last made are searched again: scores may be stored after the end."""
_TEXT_CHARACTERS = 4000
_LARGEST_STEP = 2**31 - 1

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Report:
    """What an alert says."""

    condition: Condition
    cause: str
    title: str
    text: str
    advice: str = ""
    step: int | None = None


def alerts_check() -> int:
    """One round: of events, of searches, of runs that were archived. Returns how many alerts were opened."""
    opened = 0
    while taken := events_take():
        opened += taken[1]
    opened += searches_check()
    archived_close()
    return opened


# ---------------------------------------------------------------------- events


@transaction.atomic
def events_take() -> tuple[int, int] | None:
    """Apply the rules to the oldest pending events. Returns (events, alerts opened); None when none is pending."""
    pending = AlertPending.objects.select_for_update().order_by("pk").values_list("pk", flat=True)
    ids = list(pending[:MOST_EVENTS])
    if not ids:
        return None
    opened = 0
    for event in RunEvent.objects.filter(pk__in=ids).select_related("run__project").order_by("pk"):
        opened += _take(event)
    AlertPending.objects.filter(pk__in=ids).delete()
    return len(ids), opened


def _take(event: RunEvent) -> int:
    match event.kind, event.data:
        case "state", {"to": RunState.QUEUED}:
            _over(event.run, "it was requeued", condition__in=(Condition.ENDED, Condition.UNSEALED))
            return 0
        case "sealed", _:
            _over(event.run, "its record was sealed", condition=Condition.UNSEALED)
            return 0
    report = _report(event)
    if report is None or event.run.archived_at is not None:
        return 0
    rules = AlertRule.objects.filter(project=event.run.project_id, enabled=True, condition=report.condition)
    if report.condition == Condition.DIAGNOSIS:
        rules = rules.filter(Q(causes=[]) | Q(causes__contains=[report.cause]))
    return sum(_open(rule, event.run, report) for rule in rules)


def _over(run: Run, why: str, **condition: Any) -> None:
    rows = Alert.objects.filter(run=run, closed_at=None, **condition)
    rows.update(closed_at=Now(), closed_why=why, holds=False)


def _report(event: RunEvent) -> Report | None:
    """None for an end that a person requested."""
    if event.kind == BEGAN:
        return _diagnosis(event)
    if event.kind == "seal_failed":
        return Report(Condition.UNSEALED, "unsealed", "record not sealed", _cut(event.message))
    if _requested(event):
        return None
    state = RunState(event.data["to"])
    return Report(Condition.ENDED, state.value, f"run {state.label.lower()}", _cut(event.message), step=event.run.step)


def _diagnosis(event: RunEvent) -> Report:
    """What a trainer sent is of any form: its machine runs untrusted code."""
    data: dict[str, Any] = event.data if isinstance(event.data, dict) else {}
    cause, step = str(data.get("cause") or "unnamed")[:60], data.get("step")
    fits = type(step) is int and 0 <= step <= _LARGEST_STEP
    return Report(
        condition=Condition.DIAGNOSIS,
        cause=cause,
        title=title_of(cause),
        text=_cut(str(data.get("text") or event.message)),
        advice=_cut(str(data.get("advice") or "")),
        step=step if fits else None,
    )


def _requested(event: RunEvent) -> bool:
    """Whether a person ended the run, at once or by a request that its worker answered."""
    if event.actor.startswith("user:"):
        return True
    if event.data["to"] != RunState.CANCELLED:
        return False
    queued = Q(kind="state", data__to=RunState.QUEUED)
    earlier = RunEvent.objects.filter(Q(kind="cancel_asked") | queued, run=event.run_id, pk__lt=event.pk)
    newest = earlier.order_by("-pk").first()
    return newest is not None and newest.kind == "cancel_asked"


def _cut(text: str) -> str:
    text = storable(text)
    return text if len(text) <= _TEXT_CHARACTERS else f"{text[:_TEXT_CHARACTERS]}… ({len(text):,} characters)"


# ---------------------------------------------------------------------- searches


def searches_check() -> int:
    """Every rule's search, of runs that are live or ended lately. Returns how many alerts were opened."""
    rules = AlertRule.objects.filter(enabled=True, condition=Condition.SEARCH)
    return sum(_search(pk) for pk in rules.order_by("pk").values_list("pk", flat=True))


@transaction.atomic
def _search(rule_pk: int) -> int:
    rule = AlertRule.objects.select_for_update(of=("self",)).select_related("project").filter(pk=rule_pk).first()
    if rule is None:  # removed since
        return 0
    now = clock()
    try:
        searched = search(rule.project, rule.query)
    except SearchError as error:
        AlertRule.objects.filter(pk=rule.pk).update(fault=str(error))
        return 0
    matching = _lately(searched.runs, rule)
    known = Alert.objects.filter(rule=rule, holds=True)
    known.filter(closed_at__isnull=False).exclude(run__in=matching.values("pk")).update(holds=False)
    runs = list(matching.exclude(pk__in=known.values("run")).order_by("pk")[:MOST_RUNS])
    fields = Fields(rule.project)
    opened = sum(_open(rule, run, _match(rule, run, searched.terms, fields)) for run in runs)
    whole = len(runs) < MOST_RUNS
    AlertRule.objects.filter(pk=rule.pk).update(fault="", checked_at=now if whole else F("checked_at"))
    return opened


def _lately(runs: QuerySet[Run], rule: AlertRule) -> QuerySet[Run]:
    since: datetime = rule.since if rule.checked_at is None else max(rule.since, rule.checked_at - MARGIN)
    live = ~Q(state__in=[*ENDED, RunState.DRAFT])
    slim = runs.filter(live | Q(state__in=ENDED, ended_at__gte=since), archived_at=None)
    return slim.defer("config", "log_tail", "first_metrics")


def _match(rule: AlertRule, run: Run, terms: Iterable[Term], fields: Fields) -> Report:
    """With the newest values of the metrics that are compared."""
    values: dict[str, str] = {}
    for term in terms:
        field = fields.field(term.field) if term.field else None
        if field is not None and field.source == "metric" and field.key in run.latest_metrics:
            values[field.name] = exact(run.latest_metrics[field.key])
    shown = "".join(f"; {name} is {value}" for name, value in values.items())
    text = _cut(f"Matches {rule.query}, at step {run.step:,}{shown}.")
    return Report(Condition.SEARCH, "search", rule.name, text, step=run.step)


# ---------------------------------------------------------------------- what they share


def _open(rule: AlertRule, run: Run, report: Report) -> int:
    """1 with the alert and what its channels are to send; 0 where it holds already. Needs a transaction."""
    of_run = Alert.objects.filter(rule=rule, run=run, holds=True)
    others = of_run.exclude(cause=report.cause).count()
    if others >= MOST_OF_RUN:
        return 0
    note = " Further causes of this run open no alert by this rule." if others == MOST_OF_RUN - 1 else ""
    alert, created = Alert.objects.get_or_create(
        rule=rule,
        run=run,
        cause=report.cause,
        holds=True,
        defaults={
            "project_id": run.project_id,
            "rule_name": rule.name,
            "condition": report.condition,
            "opened_at": Now(),
            "step": report.step,
            "title": report.title[:120],
            "text": report.text + note,
            "advice": report.advice,
        },
    )
    if not created:
        return 0
    for channel in rule.channels.filter(enabled=True):
        AlertDelivery.objects.create(alert=alert, channel=channel, channel_name=channel.name, next_try_at=Now())
        dispatch.publish_on_commit(DELIVER_TASK, channel.pk, dispatch.SEAL_QUEUE)
    log.info("run %s: alert %s opened by rule %s: %s", run.pk, alert.pk, rule.pk, report.title)
    return 1
