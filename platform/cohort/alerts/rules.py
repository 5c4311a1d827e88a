"""A project's rules: those it has from its beginning, and those that people add, change and remove."""

import re
from collections.abc import Collection, Iterable, Sequence
from difflib import get_close_matches
from typing import Any

from django.core.exceptions import ValidationError
from django.db import transaction
from django.db.models import QuerySet
from django.db.models.functions import Now
from django.db.models.signals import post_save
from django.dispatch import receiver

from cohort.accounts.models import Project, User
from cohort.accounts.quotas import lock_project
from cohort.alerts.models import AlertChannel, AlertRule, Condition
from cohort.audit import services as audit
from cohort.base.storable import storable
from cohort.runs.search.filters import search
from cohort.runs.search.syntax import SearchError
from grpo_core.monitors.table import ALARMS, BY_CODE

MOST_RULES = 50
"""Of a project: each search is made again every few seconds."""
DEFAULTS: dict[Condition, str] = {
    Condition.DIAGNOSIS: "The trainer reports a fault",
    Condition.ENDED: "Run failed",
    Condition.UNSEALED: "Record not sealed",
}
"""Rules that every project has, by their names. They can be switched off, and not removed."""
DEFAULT_CAUSES = sorted({*ALARMS, "machine_failed", "part_unscored"})
"""Of the rule of a new project about faults: alarms, and scores that are missing. The other monitors advise: the run's
Health lists them."""

_BETWEEN = re.compile(r"[\s,]+")


def rules_of(project: Project) -> QuerySet[AlertRule]:
    """In the order in which they were added."""
    return AlertRule.objects.filter(project=project).prefetch_related("channels").order_by("pk")


@receiver(post_save, sender=Project)
def rules_default(instance: Project, created: bool, **_: Any) -> None:
    """A new project has its rules from its beginning."""
    if created:
        AlertRule.objects.bulk_create(
            AlertRule(
                project=instance,
                name=name,
                condition=condition,
                causes=DEFAULT_CAUSES if condition == Condition.DIAGNOSIS else [],
                since=Now(),
            )
            for condition, name in DEFAULTS.items()
        )


def causes_of(text: str) -> list[str]:
    """The codes that a person typed, with spaces or commas between them, each once. Raises ValidationError."""
    codes = [code for code in _BETWEEN.split(text.strip()) if code]
    for code in codes:
        if code not in BY_CODE:
            near = ", ".join(get_close_matches(code, BY_CODE, cutoff=0.5)) or ", ".join(BY_CODE)
            raise ValidationError({"causes": f"{code[:60]!r} is no cause's code. Near it: {near}."})
    return sorted(set(codes))


@transaction.atomic
def rule_create(
    *,
    project: Project,
    actor: User,
    name: str,
    condition: str,
    causes: Collection[str] = (),
    query: str = "",
    channels: Iterable[AlertChannel] = (),
    enabled: bool = True,
) -> AlertRule:
    """Raises ValidationError by field: for a name that is missing or taken, a search that cannot be understood, and
    what the condition does not have."""
    project = lock_project(project)
    if condition not in Condition.values:
        raise ValidationError({"condition": f"{condition!r} is no condition: {', '.join(Condition.values)} are."})
    rule = AlertRule(project=project, condition=condition, created_by=actor, since=Now())
    fields = _checked(rule, name=name, causes=causes, query=query, enabled=enabled)
    if AlertRule.objects.filter(project=project).count() >= MOST_RULES:
        raise ValidationError(f"{project.name} has {MOST_RULES} rules, which is the most. Remove one first.")
    for field, value in fields.items():
        setattr(rule, field, value)
    rule.save()
    rule.channels.set(_of_project(project, channels))
    _logged(rule, actor, "alert_rule_created", after={"condition": condition, **fields, "channels": _names(rule)})
    return rule


@transaction.atomic
def rule_change(
    *,
    rule: AlertRule,
    actor: User,
    name: str,
    causes: Collection[str] = (),
    query: str = "",
    channels: Iterable[AlertChannel] = (),
    enabled: bool = True,
) -> None:
    """All but its condition. A search that is changed or switched on again is made of runs that end from now on.
    Raises ValidationError as `rule_create` does."""
    lock_project(rule.project)
    rule.refresh_from_db()
    before = {field: getattr(rule, field) for field in ("name", "causes", "query", "enabled")} | {
        "channels": _names(rule)
    }
    fields = _checked(rule, name=name, causes=causes, query=query, enabled=enabled)
    for field, value in fields.items():
        setattr(rule, field, value)
    rule.channels.set(_of_project(rule.project, channels))
    after = {**fields, "channels": _names(rule)}
    if after == before:
        return
    if rule.query != before["query"] or (rule.enabled and not before["enabled"]):
        rule.since, rule.checked_at, rule.fault = Now(), None, ""
    rule.save()
    _logged(rule, actor, "alert_rule_changed", before=before, after=after)


@transaction.atomic
def rule_remove(*, rule: AlertRule, actor: User) -> None:
    """Its alerts stay, and those that are open are closed. Raises ValidationError for one of DEFAULTS."""
    if rule.created_by_id is None:
        raise ValidationError(f"{rule.name} belongs to every project. Switch it off instead.")
    rule.alerts.filter(closed_at=None).update(closed_at=Now(), closed_why="its rule was removed", holds=False)
    _logged(rule, actor, "alert_rule_removed", before={"name": rule.name, "query": rule.query, "causes": rule.causes})
    rule.delete()


def _checked(rule: AlertRule, *, name: str, causes: Collection[str], query: str, enabled: bool) -> dict[str, Any]:
    name, query = storable(" ".join(name.split())), storable(query.strip())
    faults: dict[str, str] = {}
    others = AlertRule.objects.filter(project=rule.project, name=name).exclude(pk=rule.pk)
    if not name:
        faults["name"] = "A rule needs a name."
    elif len(name) > 80:
        faults["name"] = f"At most 80 characters; these are {len(name)}."
    elif others.exists():
        faults["name"] = "The project has a rule with this name. Choose another, or edit that one."
    if rule.condition == Condition.SEARCH:
        if why := _search_fault(rule.project, query):
            faults["query"] = why
    elif query:
        faults["query"] = "This condition has no search. Leave it empty."
    codes = sorted(set(causes))
    if codes and rule.condition != Condition.DIAGNOSIS:
        faults["causes"] = "Only faults that the trainer reports have causes. Leave it empty."
    if faults:
        raise ValidationError(faults)
    return {"name": name, "causes": causes_of(" ".join(codes)), "query": query, "enabled": enabled}


def _search_fault(project: Project, query: str) -> str:
    if not query:
        return "Write a search, as in the list of runs: reward<0.1 step>20"
    try:
        search(project, query)
    except SearchError as error:
        return str(error)
    return ""


def _of_project(project: Project, channels: Iterable[AlertChannel]) -> Sequence[AlertChannel]:
    chosen = list(channels)
    if any(channel.project_id != project.pk for channel in chosen):
        raise ValidationError({"channels": "One of these is no channel of this project."})
    return chosen


def _names(rule: AlertRule) -> list[str]:
    return sorted(rule.channels.values_list("name", flat=True))


def _logged(rule: AlertRule, actor: User, kind: str, **entry: Any) -> None:
    audit.log(actor=audit.who(actor), kind=kind, subject=f"alert_rule:{rule.pk}", project=rule.project, **entry)
