"""Rules, channels and what trainers report, for the tests of alerts."""

import base64
import hashlib
import hmac
from typing import Any

from django.utils import timezone

from cohort.accounts.models import Project, User
from cohort.alerts.channels import channel_create
from cohort.alerts.models import AlertChannel, AlertRule, Condition
from cohort.runs.models import Attempt, RunEvent
from tests.core.rewards.judge_server import Seen


def diagnosed(attempt: Attempt, cause: str = "part_unscored", *, step: int = 3, **data: Any) -> RunEvent:
    """The trainer's event, as ingest stores it."""
    content = {"cause": cause, "step": step, "text": "12 of 16 were not scored.", "advice": "Mend the verifier."} | data
    return RunEvent.objects.create(
        run=attempt.run,
        attempt=attempt,
        at=timezone.now(),
        actor="trainer",
        kind="diagnosis",
        message=f"step {step}: {content['text']}",
        data=content,
    )


def rule_of(project: Project, condition: Condition) -> AlertRule:
    """The one that the project has from its beginning."""
    return AlertRule.objects.get(project=project, condition=condition, created_by=None)


def any_cause(project: Project) -> None:
    """Its rule about faults opens an alert of every cause, as rules of projects from before do."""
    AlertRule.objects.filter(project=project, condition=Condition.DIAGNOSIS, created_by=None).update(causes=[])


def webhook(project: Project, actor: User, address: str, *, name: str = "hook", **more: Any) -> AlertChannel:
    """A channel that every rule of the project sends by."""
    channel = channel_create(project=project, actor=actor, name=name, kind="webhook", address=address, **more)
    for rule in AlertRule.objects.filter(project=project):
        rule.channels.add(channel)
    return channel


def is_signed(seen: Seen, secret: str) -> bool:
    """By the specification's own words, not by the product's code."""
    headers = seen.headers
    key = base64.b64decode(secret.removeprefix("whsec_"))
    signed = f"{headers['webhook-id']}.{headers['webhook-timestamp']}.".encode() + seen.raw
    expected = "v1," + base64.b64encode(hmac.new(key, signed, hashlib.sha256).digest()).decode()
    return hmac.compare_digest(expected, headers["webhook-signature"])
