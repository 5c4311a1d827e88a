"""Alerts by webhook and e-mail, to real servers on this machine: signed, tried again, kept from private addresses."""

import base64
import json
import socket
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest
from django.core.exceptions import ValidationError
from django.db.models import F
from django.db.models.functions import Now

from cohort.accounts.models import Project, User
from cohort.alerts.channels import channel_change, channel_create, channel_remove, channel_secret_renew
from cohort.alerts.delivery import (
    NO_EMAIL,
    PAUSES,
    channel_deliver,
    channel_test_request,
    deliveries_republish,
    delivery_claim,
)
from cohort.alerts.models import AlertChannel, AlertDelivery, AlertRule
from cohort.alerts.opening import alerts_check
from cohort.alerts.webhook_signature import signed_headers
from cohort.background.tasks import deliver_alerts
from cohort.base.celery_app import app
from cohort.runs import dispatch
from cohort.runs.models import Run
from tests.core.rewards.judge_server import Server, http
from tests.factories.alerts import any_cause, diagnosed, is_signed, webhook
from tests.factories.runs import Maker
from tests.smtp_server import SmtpServer
from tests.tables import cases
from tests.web.records.records import logged

pytestmark = pytest.mark.django_db

OK = http("204 No Content", b"")


@pytest.fixture
def live(maker: Maker) -> Run:
    run = maker.run("live", state="training")
    maker.attempt(run)
    return run


@pytest.fixture
def manager(alice: User) -> User:
    """Admin of the server's first project, and so who manages the server."""
    assert Project.objects.order_by("pk")[0].memberships.get(user=alice).role == "admin"
    return alice


def sends(run: Run) -> AlertDelivery:
    """Of an alert that was just opened."""
    diagnosed(run.attempts.get())
    assert alerts_check() == 1
    return AlertDelivery.objects.order_by("-pk")[0]


def due_now(delivery: AlertDelivery) -> None:
    """The pause before its next try has gone by."""
    AlertDelivery.objects.filter(pk=delivery.pk).update(next_try_at=Now())


# ---------------------------------------------------------------------- webhooks


def test_the_signature_is_that_of_the_specification() -> None:
    """The example of the specification's reference libraries."""
    signed = signed_headers(
        secret="whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw",
        message_id="msg_p5jXN8AQM9LWM0D4loKWxJek",
        timestamp=1614265330,
        body=b'{"test": 2432232314}',
    )
    assert signed["webhook-signature"] == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="


def test_an_alert_reaches_its_webhook_signed(live: Run, manager: User) -> None:
    with Server(lambda _: OK) as server:
        channel = webhook(live.project, manager, f"{server.url}/hook?x=1", private=True)
        delivery = sends(live)
        deliver_alerts(channel.pk)
        deliver_alerts(channel.pk)
        [seen] = server.seen
    assert seen.path == "/v1/hook?x=1"
    assert is_signed(seen, channel.secret)
    assert not is_signed(seen, "whsec_" + base64.b64encode(b"another").decode())
    alert = delivery.alert
    assert seen.body == {
        "id": alert.pk,
        "type": "alert.opened",
        "at": alert.opened_at.isoformat(),
        "project": "ours",
        "title": "completions not scored",
        "url": f"http://127.0.0.1:8400/p/ours/alerts/{alert.pk}/",
        "run": {"id": live.pk, "name": "live", "url": f"http://127.0.0.1:8400/p/ours/runs/{live.pk}/"},
        "rule": "The trainer reports a fault",
        "cause": "part_unscored",
        "step": 3,
        "text": "12 of 16 were not scored.",
        "advice": "Mend the verifier.",
    }
    delivery.refresh_from_db()
    assert (delivery.state, delivery.status, delivery.tries, delivery.error) == ("delivered", 204, 1, "")


def test_what_fails_is_tried_again_with_the_same_id(live: Run, manager: User) -> None:
    answers = iter(
        [http("500 Internal Server Error", b"{}"), http("302 Found", b"", "Location: https://x.example/y"), OK]
    )
    with Server(lambda _: next(answers)) as server:
        channel = webhook(live.project, manager, server.url, private=True)
        delivery = sends(live)
        words = []
        for pause in PAUSES[:2]:
            before = AlertDelivery.objects.annotate(now=Now()).get().now  # type: ignore[attr-defined]  # annotated
            assert channel_deliver(channel.pk) == 0
            assert channel_deliver(channel.pk) == 0, "not before its pause has gone by"
            delivery.refresh_from_db()
            words.append(delivery.error)
            assert delivery.next_try_at is not None
            assert pause <= delivery.next_try_at - before < pause + timedelta(seconds=60)
            due_now(delivery)
        assert channel_deliver(channel.pk) == 1
        ids = {seen.headers["webhook-id"] for seen in server.seen}
    assert "status 500" in words[0]
    assert "redirects (302) to 'https://x.example/y', which is not followed" in words[1]
    assert (len(ids), len(server.seen)) == (1, 3)
    delivery.refresh_from_db()
    assert (delivery.state, delivery.tries, delivery.status) == ("delivered", 3, 204)


def test_after_the_last_pause_it_is_given_up(live: Run, manager: User) -> None:
    with Server(lambda _: http("503 Busy", b"")) as server:
        channel = webhook(live.project, manager, server.url, private=True)
        delivery = sends(live)
        for _ in range(len(PAUSES) + 3):
            channel_deliver(channel.pk)
            AlertDelivery.objects.filter(next_try_at__isnull=False).update(next_try_at=Now())
        assert len(server.seen) == len(PAUSES) + 1
    delivery.refresh_from_db()
    assert (delivery.state, delivery.status, delivery.tries) == ("given up", 503, len(PAUSES) + 1)


def test_a_receiver_that_is_gone_switches_its_channel_off(live: Run, manager: User) -> None:
    with Server(lambda _: http("410 Gone", b"")) as server:
        channel = webhook(live.project, manager, server.url, private=True)
        for cause in ("part_unscored", "ruined"):
            diagnosed(live.attempts.get(), cause)
        assert alerts_check() == 2
        assert channel_deliver(channel.pk) == 0
        assert len(server.seen) == 1
    channel.refresh_from_db()
    assert (channel.enabled, channel.disabled_why[:26]) == (False, "The receiver answered 410 ")
    assert {delivery.state for delivery in AlertDelivery.objects.all()} == {"given up"}
    entry = logged("alert_channel_disabled")[-1]
    assert (entry["actor"], entry["project"]) == ("platform", "ours")
    channel_change(channel=channel, actor=manager, name=channel.name, address=channel.address, private=True)
    channel.refresh_from_db()
    assert (channel.enabled, channel.disabled_why) == (True, "")


def test_a_failure_lets_what_follows_wait(live: Run, manager: User) -> None:
    """A receiver that is down costs one call a task, however much waits for it."""
    with Server(lambda _: http("500 Oh", b"")) as server:
        channel = webhook(live.project, manager, server.url, private=True)
        any_cause(live.project)
        for number in range(4):
            diagnosed(live.attempts.get(), f"cause_{number}")
        assert alerts_check() == 4
        channel_deliver(channel.pk)
        assert len(server.seen) == 1


def test_a_try_whose_process_died_is_made_again(live: Run, manager: User) -> None:
    with Server(lambda _: OK) as server:
        channel = webhook(live.project, manager, server.url, private=True)
        delivery = sends(live)
        assert delivery_claim(channel.pk) == delivery, "and the process ends here"
        assert channel_deliver(channel.pk) == 0
        AlertDelivery.objects.filter(pk=delivery.pk).update(next_try_at=F("next_try_at") - timedelta(minutes=2))
        assert channel_deliver(channel.pk) == 1
    delivery.refresh_from_db()
    assert (delivery.tries, delivery.state) == (2, "delivered")


@pytest.mark.parametrize(
    "host", ["127.0.0.1", "localhost", "[::1]", "[::ffff:127.0.0.1]", "2130706433", "private.test"]
)
def test_a_private_address_is_not_called_without_leave(
    live: Run, manager: User, host: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    look_up = socket.getaddrinfo

    def getaddrinfo(name: Any, *rest: Any, **more: Any) -> Any:
        return look_up("127.0.0.1" if name == "private.test" else name, *rest, **more)

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    with Server(lambda _: OK) as server:
        port = server.address.rpartition(":")[2]
        channel = webhook(live.project, manager, f"http://{host}:{port}/v1", private=True)
        AlertChannel.objects.update(private=False)
        delivery = sends(live)
        assert channel_deliver(channel.pk) == 0
        assert server.seen == []
    delivery.refresh_from_db()
    assert delivery.error.startswith("It was not called: ")
    assert "Who manages the server may allow that for this channel." in delivery.error
    assert delivery.state == "waiting", "who manages the server may allow it meanwhile"


def test_only_who_manages_the_server_allows_private_addresses(ours: Project, manager: User, charlie: User) -> None:
    theirs = Project.objects.get(slug="theirs")
    given = {"name": "hook", "kind": "webhook", "address": "http://hooks.lan/hook"}
    with pytest.raises(ValidationError) as refused:
        channel_create(project=theirs, actor=charlie, private=True, **given)
    assert list(refused.value.message_dict) == ["private"]
    channel = channel_create(project=theirs, actor=charlie, **given)
    allowed = {"name": "hook", "private": True}
    channel_change(channel=channel, actor=manager, address=channel.address, **allowed)
    assert logged("alert_channel_changed")[-1]["after"]["private"] is True
    channel_change(channel=channel, actor=charlie, address=channel.address, **(allowed | {"name": "renamed"}))
    with pytest.raises(ValidationError):
        channel_change(channel=channel, actor=charlie, address="http://others.lan/other", **allowed)
    channel.refresh_from_db()
    assert (channel.name, channel.address, channel.private) == ("renamed", "http://hooks.lan/hook", True)


def test_an_alert_is_sent_at_once_and_its_message_again_when_it_was_lost(
    live: Run, manager: User, committed: Callable[[], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    channel = webhook(live.project, manager, "https://example.org/hook")
    sent: list[tuple[str, list[int], str]] = []
    monkeypatch.setattr(app, "send_task", lambda name, args, queue: sent.append((name, args, queue)))
    monkeypatch.setattr(dispatch, "waiting_messages", lambda name: 0)  # of other tests there may be some
    with committed():
        delivery = sends(live)
    message = ("cohort.alerts.deliver", [channel.pk], "platform.seal")
    assert sent == [message]
    dispatch._published.clear()
    assert deliveries_republish() == [channel.pk]
    assert sent == [message, message]
    AlertDelivery.objects.filter(pk=delivery.pk).update(next_try_at=Now() + timedelta(seconds=5))
    dispatch._published.clear()
    assert deliveries_republish() == []


# ---------------------------------------------------------------------- e-mail


@pytest.fixture
def relay(settings: Any) -> Iterator[SmtpServer]:
    with SmtpServer(refused=("nobody@",)) as server:
        settings.EMAIL_BACKEND = "django.core.mail.backends.smtp.EmailBackend"
        settings.EMAIL_HOST, settings.EMAIL_PORT = "127.0.0.1", server.port
        settings.DEFAULT_FROM_EMAIL = "Cohort <cohort@example.org>"
        yield server


def by_email(project: Project, actor: User, address: str) -> AlertChannel:
    channel = channel_create(project=project, actor=actor, name="mail", kind="email", address=address)
    for rule in AlertRule.objects.filter(project=project):
        rule.channels.add(channel)
    return channel


def test_an_alert_is_sent_by_e_mail(live: Run, manager: User, relay: SmtpServer) -> None:
    Run.objects.filter(pk=live.pk).update(name="li\nve")
    channel = by_email(live.project, manager, "team@example.org")
    delivery = sends(live)
    assert channel_deliver(channel.pk) == 1
    [message] = relay.messages
    assert relay.receivers == ["team@example.org"]
    assert message["Subject"] == "[Cohort ours] li ve: completions not scored"
    assert message["From"] == "Cohort <cohort@example.org>"
    text = message.get_content()
    for part in (
        "12 of 16 were not scored.",
        "Mend the verifier.",
        f"/p/ours/alerts/{delivery.alert_id}/",
        f"/runs/{live.pk}/",
    ):
        assert part in text
    delivery.refresh_from_db()
    assert delivery.state == "delivered"


def test_a_relay_that_refuses_or_is_down_is_an_error_of_the_delivery(
    live: Run, manager: User, relay: SmtpServer, settings: Any
) -> None:
    channel = by_email(live.project, manager, "nobody@example.org")
    delivery = sends(live)
    assert channel_deliver(channel.pk) == 0
    delivery.refresh_from_db()
    assert "550" in delivery.error
    with socket.create_server(("127.0.0.1", 0)) as closed:
        settings.EMAIL_PORT = closed.getsockname()[1]
    due_now(delivery)
    channel_deliver(channel.pk)
    delivery.refresh_from_db()
    assert (delivery.state, "ConnectionRefusedError" in delivery.error) == ("waiting", True)


def test_without_a_relay_an_e_mail_channel_says_so(ours: Project, manager: User) -> None:
    channel = by_email(ours, manager, "team@example.org")
    channel_test_request(channel=channel, actor=manager)
    channel_deliver(channel.pk)
    channel.refresh_from_db()
    assert channel.test_error == NO_EMAIL


def test_a_test_that_was_lost_on_the_broker_is_requested_again(
    ours: Project, manager: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[int] = []
    monkeypatch.setattr(app, "send_task", lambda name, args, queue: sent.extend(args))
    monkeypatch.setattr(dispatch, "waiting_messages", lambda name: 0)  # of other tests there may be some
    with Server(lambda _: OK) as server:
        channel = webhook(ours, manager, server.url, private=True, enabled=False)
        channel_test_request(channel=channel, actor=manager)
        dispatch._published.clear()
        assert deliveries_republish() == [channel.pk]
        channel_deliver(channel.pk)
        channel_deliver(channel.pk)
        [seen] = server.seen
    assert is_signed(seen, channel.secret)
    assert logged("alert_channel_test_requested")[-1]["actor"] == "user:alice"
    dispatch._published.clear()
    assert deliveries_republish() == []


# ---------------------------------------------------------------------- channels


@pytest.mark.parametrize(
    ("kind", "name", "address", "field", "words"),
    cases("alerts/channel_faults", "kind", "name", "address", "field", "words"),
)
def test_a_channel_that_cannot_be_is_refused_in_words(
    ours: Project, alice: User, kind: str, name: str, address: str, field: str, words: str
) -> None:
    channel_create(project=ours, actor=alice, name="taken", kind="email", address="a@example.org")
    with pytest.raises(ValidationError) as refused:
        channel_create(project=ours, actor=alice, name=name, kind=kind, address=address)
    assert list(refused.value.message_dict) == [field]
    assert words in refused.value.messages[0]


def test_a_secret_is_another_after_it_was_renewed_and_in_no_entry(ours: Project, alice: User) -> None:
    address = "https://hooks.example.org/services/T0/B1/tOkEn?key=kEyOfIt"
    channel = channel_create(project=ours, actor=alice, name="hook", kind="webhook", address=address)
    other = channel_create(project=ours, actor=alice, name="other", kind="webhook", address=address)
    first = channel.secret
    assert len(base64.b64decode(first.removeprefix("whsec_"))) == 32
    assert other.secret != first
    assert AlertChannel.objects.get(pk=channel.pk).secret == first
    channel_secret_renew(channel=channel, actor=alice)
    assert AlertChannel.objects.get(pk=channel.pk).secret not in (first, other.secret)
    channel_remove(channel=other, actor=alice)
    kinds = ("alert_channel_created", "alert_channel_secret_renewed", "alert_channel_removed")
    entries = json.dumps([logged(kind) for kind in kinds], ensure_ascii=False)
    assert "https://hooks.example.org/…" in entries
    assert not any(part in entries for part in ("whsec_", "tOkEn", "kEyOfIt", first))


def test_what_waits_for_a_channel_that_is_switched_off_is_given_up(live: Run, manager: User) -> None:
    channel = webhook(live.project, manager, "https://example.org/hook")
    delivery = sends(live)
    channel_change(channel=channel, actor=manager, name="hook", address=channel.address, enabled=False)
    delivery.refresh_from_db()
    assert (delivery.state, delivery.error) == ("given up", "The channel was switched off before it was delivered.")
    diagnosed(live.attempts.get(), "ruined")
    assert alerts_check() == 1
    assert AlertDelivery.objects.count() == 1, "nothing is sent by it any more"
    channel_remove(channel=channel, actor=manager)
    delivery.refresh_from_db()
    assert (delivery.channel, delivery.channel_name) == (None, "hook")
