"""Sending alerts: webhooks by HTTP, signed, and e-mail. Each is tried several times, with longer pauses in between.

A receiver may get one message twice, with the same id: a process that ends before it has noted the answer leaves the
delivery to another try. A webhook reaches addresses of the public internet alone, unless who manages the server
allowed more for that channel (`AlertChannel.private`); redirects are not followed.
"""

import json
import logging
import smtplib
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from django.conf import settings
from django.core.mail import EmailMessage
from django.db import transaction
from django.db.models import Exists, OuterRef, Q, QuerySet
from django.db.models.functions import Now
from django.urls import reverse

from cohort.accounts.models import Project, User
from cohort.alerts.channels import channel_refused
from cohort.alerts.models import Alert, AlertChannel, AlertDelivery, ChannelKind
from cohort.alerts.opening import DELIVER_TASK
from cohort.alerts.webhook_signature import signed_headers
from cohort.audit import services as audit
from cohort.base.environment import environment
from cohort.base.storable import storable
from cohort.runs import dispatch
from grpo_core.runtime.http import HttpClient, HttpError

PAUSES = tuple(timedelta(seconds=seconds) for seconds in (5, 60, 600, 3600, 6 * 3600))
"""Between one try and the next; after the last one it is given up."""
CALL_SECONDS = 10.0
_CLAIMED = timedelta(minutes=2)
"""A try that has noted no answer for so long is made again."""
_MOST_REPLY_BYTES = 64 * 1024
_MOST_AT_ONCE = 50
"""Deliveries of one task; the next one sends the rest."""
GONE = 410
NO_EMAIL = (
    "E-mail is not set up on this server: whoever runs it sets COHORT_EMAIL_URL and COHORT_EMAIL_FROM "
    "(docs/operations.md)."
)

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Answer:
    """Of one try. `error` is empty when the receiver took it."""

    error: str = ""
    status: int | None = None

    @property
    def delivered(self) -> bool:
        return not self.error


def deliveries_republish() -> list[int]:
    """Send the messages of channels with something due, or a test, again. Returns the channels' ids."""
    due = AlertDelivery.objects.filter(channel=OuterRef("pk"), next_try_at__lte=Now())
    channels = AlertChannel.objects.filter(Q(Exists(due), enabled=True) | Q(test_requested_at__isnull=False))
    ids = channels.order_by("pk").values_list("pk", flat=True)
    return dispatch.republish(DELIVER_TASK, dict.fromkeys(ids, dispatch.SEAL_QUEUE))


def channel_deliver(channel_id: int) -> int:
    """Send the channel's test, and what is due by it, the oldest first, until one fails: what follows waits for its
    next try. Returns how many alerts were delivered."""
    channel_test(channel_id)
    delivered = 0
    for delivery in _claimed(channel_id):
        assert delivery.channel is not None, "the channel's own"
        answer = send(delivery.channel, payload_of(delivery.alert), message_id=f"alert-delivery-{delivery.pk}")
        delivery_note(delivery=delivery, answer=answer)
        if not answer.delivered:
            break
        delivered += 1
    return delivered


def _claimed(channel_id: int) -> Iterator[AlertDelivery]:
    for _ in range(_MOST_AT_ONCE):
        delivery = delivery_claim(channel_id)
        if delivery is None:
            return
        yield delivery


@transaction.atomic
def delivery_claim(channel_id: int) -> AlertDelivery | None:
    """The channel's oldest delivery that is due, with its try counted, so that no other process makes it too."""
    due = _due().filter(channel=channel_id, channel__enabled=True, next_try_at__lte=Now())
    delivery = due.select_for_update(of=("self",), skip_locked=True).order_by("next_try_at", "pk").first()
    if delivery is not None:
        delivery.tries += 1
        AlertDelivery.objects.filter(pk=delivery.pk).update(tries=delivery.tries, next_try_at=Now() + _CLAIMED)
    return delivery


def _due() -> QuerySet[AlertDelivery]:
    return AlertDelivery.objects.select_related("channel__project", "alert__project", "alert__run")


@transaction.atomic
def delivery_note(*, delivery: AlertDelivery, answer: Answer) -> None:
    """Note the answer and when the next try is. A receiver that answers 410 wants no more: its channel is switched
    off."""
    row = AlertDelivery.objects.filter(pk=delivery.pk)
    pause = PAUSES[delivery.tries - 1] if delivery.tries <= len(PAUSES) else None
    if answer.delivered:
        row.update(status=answer.status, error="", delivered_at=Now(), next_try_at=None)
        return
    next_try = None if pause is None else Now() + pause
    row.update(status=answer.status, error=answer.error, next_try_at=next_try)
    channel = delivery.channel
    assert channel is not None, "it was just sent by it"
    if answer.status == GONE:
        channel_refused(channel=channel, why="The receiver answered 410 Gone: it wants no more calls.")
    log.warning(
        "alert %s: try %s by channel %s failed: %s", delivery.alert_id, delivery.tries, channel.pk, answer.error
    )


@transaction.atomic
def channel_test_request(*, channel: AlertChannel, actor: User) -> None:
    """Request a message that says it is a test, from the worker that calls receivers: the web server may not reach
    them."""
    AlertChannel.objects.filter(pk=channel.pk).update(test_requested_at=Now(), test_requested_by=actor)
    audit.log(
        actor=audit.who(actor),
        kind="alert_channel_test_requested",
        subject=f"alert_channel:{channel.pk}",
        project=channel.project,
    )
    dispatch.publish_on_commit(DELIVER_TASK, channel.pk, dispatch.SEAL_QUEUE)


def channel_test(channel_id: int) -> None:
    """Send the test that was requested, if any, and note the receiver's answer."""
    requested = AlertChannel.objects.filter(pk=channel_id, test_requested_at__isnull=False)
    channel = requested.select_related("project", "test_requested_by").first()
    if channel is None:
        return
    at, actor = channel.test_requested_at, channel.test_requested_by
    assert at is not None, "as requested"
    assert actor is not None, "set with the moment"
    text = f"{actor.username} tests the channel {channel.name} of {channel.project.name}. Nothing is wrong."
    payload: dict[str, Any] = {
        "id": 0,
        "type": "alert.test",
        "at": at.isoformat(),
        "project": channel.project.slug,
        "title": "test",
        "url": _address("alert_channel_list", channel.project),
        "run": None,
        "rule": None,
        "cause": None,
        "step": None,
        "text": text,
        "advice": "",
    }
    answer = send(channel, payload, message_id=f"alert-test-{channel.pk}-{at.timestamp():.0f}")
    requested.filter(test_requested_at=at).update(
        test_requested_at=None, tested_at=Now(), test_status=answer.status, test_error=answer.error
    )


def payload_of(alert: Alert) -> dict[str, Any]:
    """What a webhook's body says (docs/alerts.md)."""
    return {
        "id": alert.pk,
        "type": "alert.opened",
        "at": alert.opened_at.isoformat(),
        "project": alert.project.slug,
        "title": alert.title,
        "url": _address("alert_detail", alert.project, alert.pk),
        "run": {
            "id": alert.run_id,
            "name": alert.run.name,
            "url": _address("run_detail", alert.project, alert.run_id),
        },
        "rule": alert.rule_name,
        "cause": alert.cause,
        "step": alert.step,
        "text": alert.text,
        "advice": alert.advice,
    }


def _address(name: str, project: Project, *args: Any) -> str:
    return environment().public_url.rstrip("/") + reverse(name, args=[project.slug, *args])


def send(channel: AlertChannel, payload: dict[str, Any], *, message_id: str) -> Answer:
    """One try. What fails is the answer's error, never raised."""
    return _send_email(channel, payload) if channel.kind == ChannelKind.EMAIL else _post(channel, payload, message_id)


def _post(channel: AlertChannel, payload: dict[str, Any], message_id: str) -> Answer:
    body = json.dumps(payload, ensure_ascii=False).encode()
    headers = signed_headers(secret=channel.secret, message_id=message_id, timestamp=int(time.time()), body=body)
    client = HttpClient(private=channel.private)
    try:
        reply = client.call(
            "POST",
            channel.address,
            headers={**headers, "Content-Type": "application/json"},
            body=body,
            max_bytes=_MOST_REPLY_BYTES,
            seconds=CALL_SECONDS,
            write=lambda _: None,  # what a receiver says beyond its status is not read
        )
    except HttpError as error:
        if error.cause == "private":
            fix = "Who manages the server may allow that for this channel."
            return Answer(f"It was not called: {error}, and this channel may not reach that. {fix}")
        return Answer(f"{str(error)[:1].upper()}{str(error)[1:]}.")
    finally:
        client.close()
    if reply.is_success:
        return Answer(status=reply.status)
    if 300 <= reply.status < 400:
        target = storable(str(reply.headers.get("Location", "")))[:200]
        return Answer(
            f"It redirects ({reply.status}) to {target!r}, which is not followed. Give that address.", reply.status
        )
    return Answer(f"It answered with status {reply.status}, and only 2xx means that it took the call.", reply.status)


def _send_email(channel: AlertChannel, payload: dict[str, Any]) -> Answer:
    if not settings.EMAIL_HOST:
        return Answer(NO_EMAIL)
    run = payload["run"]
    named = f"{run['name']}: " if run else ""
    subject = " ".join(f"[Cohort {payload['project']}] {named}{payload['title']}".split())
    lines = [payload["text"], payload["advice"], "", payload["url"]]
    if run:
        lines += ["", f"Run: {run['name']}, {run['url']}", f"Rule: {payload['rule']}"]
    message = EmailMessage(subject, "\n".join(line for line in lines if line is not None), to=[channel.address])
    try:
        message.send()
    except (smtplib.SMTPException, OSError) as error:
        return Answer(f"The mail relay did not take it: {type(error).__name__}: {error}")
    return Answer()
