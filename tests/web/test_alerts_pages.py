"""The desk of alerts, pages of rules and channels, and alerts on the first page, a run's page and the list of runs."""

from typing import Any

import pytest
from django.test import Client
from django.utils import timezone

from cohort.accounts.models import Project, User
from cohort.alerts.delivery import channel_deliver
from cohort.alerts.desk import alerts_acknowledge
from cohort.alerts.models import Alert, AlertChannel, AlertDelivery, AlertRule, Condition
from cohort.alerts.opening import alerts_check
from cohort.runs.models import Run, RunEvent
from cohort.web.alerts.desk import PAGE
from tests.core.rewards.judge_server import Server, http
from tests.factories.alerts import diagnosed, rule_of, webhook
from tests.factories.runs import Maker, add_steps, put_in
from tests.web.pages import html
from tests.web.run_page import page_of, queries, words

pytestmark = pytest.mark.django_db

DESK = "/p/ours/alerts/"
ANSWER = f"{DESK}answer/"
RULES, CHANNELS = f"{DESK}rules/", f"{DESK}channels/"


@pytest.fixture
def live(maker: Maker) -> Run:
    run = maker.run("live", state="training")
    attempt = maker.attempt(run)
    add_steps(attempt, [{"reward": 0.5}] * 3)
    return run


def opened(run: Run, *causes: str) -> list[Alert]:
    for cause in causes:
        diagnosed(run.attempts.get(), cause)
    assert alerts_check() == len(causes)
    return list(Alert.objects.order_by("-pk")[: len(causes)][::-1])


def failed(maker: Maker, name: str) -> Run:
    """With the event of its end, as run_move writes it."""
    run = maker.run(name, state="failed")
    Run.objects.filter(pk=run.pk).update(ended_at=timezone.now(), reason="out of memory")
    data = {"from": "training", "to": "failed"}
    whose = {"run": run, "at": timezone.now(), "actor": "node:node-a"}
    RunEvent.objects.create(kind="state", message="out of memory", data=data, **whose)
    assert alerts_check() == 1
    return run


# ---------------------------------------------------------------------- the desk


def test_the_desk_shows_open_alerts_and_where_they_were_sent(viewer: Client, live: Run, alice: User) -> None:
    webhook(live.project, alice, "https://example.org/hook")
    first, second = opened(live, "part_unscored", "machine_failed")
    AlertDelivery.objects.filter(alert=first).update(tries=2, error="It answered with status 500.")
    page = html(viewer.get(DESK))
    text = words(page)
    listed = ("completions not scored", "server failed", "live", "step 3", "12 of 16 were not scored.")
    for part in (*listed, "showing 2 of 2"):
        assert part in text
    assert "hook, waiting after 2 tries: It answered with status 500." in text
    assert 'id="count-alerts">2 open<' in page
    assert ANSWER not in page, "a viewer answers none"
    detail = words(html(viewer.get(f"{DESK}{first.pk}/")))
    for part in ("Mend the verifier.", "part_unscored", "hook", "waiting", "It answered with status 500."):
        assert part in detail
    assert "deliveries" in html(viewer.get(f"{DESK}{second.pk}/"))


def test_an_operator_acknowledges_and_closes_one_or_many(
    operator: Client, viewer: Client, live: Run, oscar: User
) -> None:
    alerts = opened(live, "part_unscored", "machine_failed", "ruined")
    assert viewer.post(ANSWER, {"action": "close", "alert": alerts[0].pk}).status_code == 403
    sent = {"action": "acknowledge", "alert": [alerts[0].pk, alerts[1].pk], "note": "known", "query": "state=open"}
    answer = operator.post(ANSWER, sent)
    assert answer["Location"] == f"{DESK}?state=open"
    assert [alert.state for alert in Alert.objects.order_by("pk")] == ["acknowledged", "acknowledged", "open"]
    text = words(html(operator.get(DESK)))
    assert ("2 alerts acknowledged." in text, "ruined" in text, "server failed" in text) == (True, True, False)
    text = words(html(operator.get(DESK, {"state": "acknowledged"})))
    assert ("known" in text, "acknowledged by oscar" in text, "ruined" in text) == (True, True, False)
    back = operator.post(ANSWER, {"action": "close", "alert": alerts[2].pk, "from": f"alert-{alerts[2].pk}"})
    assert back["Location"] == f"{DESK}{alerts[2].pk}/"
    assert "closed by oscar" in words(html(operator.get(back["Location"])))
    again = operator.post(ANSWER, {"action": "close", "alert": alerts[2].pk}, follow=True)
    assert "Nothing was changed: it was closed already." in words(html(again))
    assert Alert.objects.filter(closed_by=oscar).count() == 1


@pytest.mark.parametrize(
    ("sent", "text"),
    [
        ({"alert": ["1"]}, "choose to acknowledge or to close"),
        ({"action": "close"}, "choose alerts first"),
        ({"action": "close", "alert": [str(pk) for pk in range(1, 202)]}, "at most 200 are answered at once"),
        ({"action": "close", "alert": ["1"], "note": "x" * 2001}, "A note has at most 2,000 characters"),
    ],
)
def test_what_cannot_be_answered_is_refused_in_words(
    operator: Client, live: Run, sent: dict[str, Any], text: str
) -> None:
    opened(live, "part_unscored")
    page = words(html(operator.post(ANSWER, sent, follow=True)))
    assert ("Nothing was done: " in page, text in page) == (True, True)
    assert Alert.objects.get().state == "open"


def test_alerts_of_another_project_are_not_answered(operator: Client, stranger: Client, live: Run) -> None:
    [alert] = opened(live, "part_unscored")
    assert stranger.post("/p/theirs/alerts/answer/", {"action": "close", "alert": alert.pk}).status_code == 302
    assert stranger.get(f"/p/theirs/alerts/{alert.pk}/").status_code == 404
    alert.refresh_from_db()
    assert alert.state == "open"


def test_the_desk_is_filtered_by_run_rule_and_state(viewer: Client, maker: Maker, live: Run, oscar: User) -> None:
    opened(live, "part_unscored")
    broken = failed(maker, "broken")
    alerts_acknowledge(alerts=Alert.objects.filter(run=live), actor=oscar)

    def shown(**query: Any) -> list[str]:
        return [alert.run.name for alert in viewer.get(DESK, query).context["page"].rows]

    assert shown() == ["broken"]
    assert shown(state="all") == ["broken", "live"]
    assert shown(state="acknowledged") == ["live"]
    assert shown(state="all", run="LIV") == ["live"]
    assert shown(state="all", run=str(broken.pk)) == ["broken"]
    assert shown(state="all", rule=str(rule_of(live.project, Condition.DIAGNOSIS).pk)) == ["live"]
    assert shown(state="closed") == []
    assert shown(state="nonsense") == ["broken"], "as without it"
    assert "No alert matches" in html(viewer.get(DESK, {"state": "closed"}))


def test_pages_follow_each_other_and_cost_the_same(operator: Client, live: Run) -> None:
    opened(live, "part_unscored")
    few = queries(lambda: operator.get(DESK))
    alert = Alert.objects.get()
    kept = {field.attname: getattr(alert, field.attname) for field in Alert._meta.fields if field.attname != "id"}
    Alert.objects.bulk_create(Alert(**kept | {"cause": f"cause {number}"}) for number in range(PAGE + 4))
    assert queries(lambda: operator.get(DESK)) == few
    first = operator.get(DESK)
    edge = first.context["page"].following
    assert f"before={edge}" in html(first)
    rest = operator.get(DESK, {"before": edge})
    ids = [row.pk for page in (first, rest) for row in page.context["page"].rows]
    assert ids == sorted(Alert.objects.values_list("pk", flat=True), reverse=True)
    assert (rest.context["page"].following, "Newest" in html(rest)) == (None, True)


# ---------------------------------------------------------------------- where else they are shown


def test_a_run_s_page_shows_its_open_alerts_and_takes_the_answer(operator: Client, live: Run) -> None:
    opened(live, "part_unscored", "ruined")
    page = page_of(operator, live)
    assert "2 open alerts" in page
    ids = [str(pk) for pk in Alert.objects.values_list("pk", flat=True)]
    answer = operator.post(ANSWER, {"action": "acknowledge", "alert": ids, "from": f"run-{live.pk}"})
    assert answer["Location"] == f"/p/ours/runs/{live.pk}/"
    assert "open alert" not in page_of(operator, live)


def test_the_list_shows_an_alert_once_among_the_badges(viewer: Client, maker: Maker, live: Run) -> None:
    """The trainer's report and its alert are one badge; the state of a failed run is its own."""
    opened(live, "part_unscored")
    ended = maker.run("ended", state="training")
    maker.attempt(ended)
    opened(ended, "ruined")
    ended.attempts.update(ended_at=timezone.now(), state="finished")
    put_in(ended, "succeeded")
    failed(maker, "broken")
    page = html(viewer.get("/p/ours/runs/"))
    badge = '<span class="badge is-suspect">{}</span>'
    assert page.count(badge.format("completions not scored")) == 1
    assert page.count(badge.format("policy ruined")) == 1, "though its trainer reports no more"
    assert "run failed" not in page
    few = queries(lambda: viewer.get("/p/ours/runs/"))
    opened(ended, "machine_failed", "duplicates")
    assert queries(lambda: viewer.get("/p/ours/runs/")) == few


def test_the_first_page_names_alerts_until_they_are_acknowledged(
    operator: Client, viewer: Client, maker: Maker
) -> None:
    run = failed(maker, "broken")
    alert = Alert.objects.get()
    home = operator.get("/p/ours/")
    needs = [(need.run.name, need.what, need.why, need.alert) for need in home.context["page"].needs]
    assert needs == [("broken", "run failed", "out of memory", alert)], "once, not as a failed run too"
    assert viewer.get("/p/ours/").context["page"].needs == []
    answer = operator.post(ANSWER, {"action": "acknowledge", "alert": alert.pk, "from": "home"})
    assert answer["Location"] == "/p/ours/"
    assert operator.get("/p/ours/").context["page"].needs == []
    assert run.name not in words(html(operator.get(DESK)))


# ---------------------------------------------------------------------- rules


def test_an_operator_adds_changes_and_removes_a_rule(
    operator: Client, viewer: Client, ours: Project, alice: User
) -> None:
    channel = webhook(ours, alice, "https://example.org/hook")
    sent = {"name": "low", "condition": "search", "query": "step>20", "channels": [channel.pk], "enabled": "on"}
    assert operator.post(f"{RULES}new/", sent)["Location"] == RULES
    rule = AlertRule.objects.get(name="low")
    assert (rule.query, list(rule.channels.all()), rule.enabled) == ("step>20", [channel], True)
    page = html(viewer.get(RULES))
    assert ("step&gt;20" in page, f"{RULES}new/" in page) == (True, False)
    form = html(operator.get(f"{RULES}{rule.pk}/"))
    assert ('value="step&gt;20"' in form, 'name="condition"' in form) == (True, False)
    operator.post(f"{RULES}{rule.pk}/", {"name": "lower", "query": "step>30"})
    rule.refresh_from_db()
    assert (rule.name, rule.query, rule.enabled, rule.channels.count()) == ("lower", "step>30", False, 0)
    operator.post(f"{RULES}{rule.pk}/remove/")
    assert not AlertRule.objects.filter(name="lower").exists()
    default = rule_of(ours, Condition.ENDED)
    refusal = operator.post(f"{RULES}{default.pk}/remove/", follow=True)
    assert "Switch it off instead" in words(html(refusal))


@pytest.mark.parametrize(
    ("sent", "text"),
    [
        ({"condition": "ended"}, "This field is required."),
        ({"name": "n", "condition": "search", "query": "rewrd<1"}, "is called rewrd"),
        ({"name": "n", "condition": "search"}, "Write a search"),
        ({"name": "n", "condition": "diagnosis", "causes": "part_unscored, Not One"}, "is no cause"),
        ({"name": "n", "condition": "ended", "channels": ["77777"]}, "no channel of this project"),
    ],
)
def test_a_rule_s_form_says_what_is_wrong_and_keeps_what_was_typed(
    operator: Client, ours: Project, sent: dict[str, Any], text: str
) -> None:
    answer = operator.post(f"{RULES}new/", sent)
    assert (answer.status_code, text in words(html(answer))) == (422, True)
    assert AlertRule.objects.filter(project=ours).count() == 3
    if "query" in sent:
        assert f'value="{sent["query"].replace("<", "&lt;")}"' in html(answer)


# ---------------------------------------------------------------------- channels


@pytest.mark.parametrize(
    ("kind", "address", "word"),
    [
        ("webhook", "http://127.0.0.1/hook", "of this machine"),
        ("webhook", "http://[::1]:8000/", "of this machine"),
        ("webhook", "http://2130706433/", "of this machine"),
        ("webhook", "http://a.localhost/", "of this machine"),
        ("webhook", "http://169.254.169.254/latest", "metadata"),
        ("webhook", "ftp://example.org/hook", "no web address"),
        ("webhook", "https://me:secret@example.org/", "user name or a password"),
        ("webhook", "https://example.org/" + "x" * 5000, "at most 500 characters"),
        ("webhook", "", "required"),
        ("email", "nobody", "no e-mail address"),
    ],
)
def test_an_address_that_cannot_be_is_an_error_of_its_field(admin: Client, kind: str, address: str, word: str) -> None:
    sent = {"name": "hook", "kind": kind, "address": address, "enabled": "on"}
    answer = admin.post(f"{CHANNELS}new/", sent)
    assert answer.status_code == 422
    page = html(answer)
    fault = page.partition('id="id_address_error"')[2].partition("</div>")[0]
    assert word in fault
    assert not address or f'value="{address}"' in page, "what was typed stays"
    assert not AlertChannel.objects.exists()


def test_an_e_mail_channel_says_that_no_relay_is_set_up(admin: Client, settings: Any) -> None:
    sent = {"name": "team", "kind": "email", "address": "team@example.org", "enabled": "on"}
    assert "E-mail is not set up on this server" in html(admin.post(f"{CHANNELS}new/", sent, follow=True))
    settings.EMAIL_HOST = "relay.example.org"
    assert "not set up" not in html(admin.post(f"{CHANNELS}new/", sent | {"name": "other"}, follow=True))


def test_an_admin_adds_a_webhook_and_its_secret_is_shown_once(admin: Client, viewer: Client) -> None:
    sent = {"name": "hook", "kind": "webhook", "address": "https://example.org/t0ken", "enabled": "on"}
    answer = admin.post(f"{CHANNELS}new/", sent)
    channel = AlertChannel.objects.get()
    assert (answer.status_code, channel.secret in html(answer)) == (201, True)
    for page in (CHANNELS, f"{CHANNELS}{channel.pk}/"):
        assert "whsec_" not in html(admin.get(page))
    assert "https://example.org/t0ken" in html(admin.get(CHANNELS))
    seen = html(viewer.get(CHANNELS))
    assert ("https://example.org/…" in seen, "t0ken" in seen) == (True, False)
    first = channel.secret
    renewed = html(admin.post(f"{CHANNELS}{channel.pk}/secret/"))
    channel.refresh_from_db()
    assert (channel.secret in renewed, first in renewed) == (True, False)


def test_a_channel_is_changed_and_removed(admin: Client, ours: Project, alice: User) -> None:
    channel = webhook(ours, alice, "https://example.org/a")
    admin.post(f"{CHANNELS}{channel.pk}/", {"name": "other", "address": "https://example.org/b", "private": "on"})
    channel.refresh_from_db()
    assert (channel.name, channel.address, channel.private, channel.enabled) == (
        "other",
        "https://example.org/b",
        True,
        False,
    )
    refusal = admin.post(f"{CHANNELS}{channel.pk}/", {"name": "other", "address": "nowhere"})
    assert (refusal.status_code, "This is no web address" in html(refusal)) == (422, True)
    assert 'value="nowhere"' in html(refusal)
    admin.post(f"{CHANNELS}{channel.pk}/remove/")
    assert not AlertChannel.objects.exists()


def test_who_does_not_manage_the_server_sets_no_private_address(stranger: Client) -> None:
    """An admin of another project; the box is there, and is theirs not to tick."""
    sent = {"name": "hook", "kind": "webhook", "address": "http://hooks.lan/", "private": "on"}
    assert stranger.post("/p/theirs/alerts/channels/new/", sent).status_code == 201
    assert AlertChannel.objects.get().private is False
    answer = stranger.post("/p/theirs/alerts/channels/new/", sent | {"name": "b", "address": "http://10.0.0.7/"})
    assert (answer.status_code, "This address is private" in html(answer)) == (422, True)
    page = html(stranger.get("/p/theirs/alerts/channels/new/"))
    box = page[page.index('name="private"') :]
    assert "disabled" in box[: box.index(">")]


@pytest.mark.parametrize(
    ("reply", "text"),
    [
        (http("200 OK", b"{}"), "test taken with status 200"),
        (http("404 Not Found", b""), "test failed: It answered with status 404"),
    ],
)
def test_a_test_is_sent_and_its_answer_shown(
    admin: Client, ours: Project, alice: User, reply: bytes, text: str
) -> None:
    with Server(lambda _: reply) as server:
        channel = webhook(ours, alice, server.url, private=True)
        waits = html(admin.post(f"{CHANNELS}{channel.pk}/test/", follow=True))
        assert ("test requested, waits" in words(waits), 'hx-trigger="every 2s"' in waits) == (True, True)
        channel_deliver(channel.pk)
        [seen] = server.seen
    part = html(admin.get(CHANNELS, headers={"HX-Request": "true"}))
    assert (text in words(part), "hx-trigger" in part, "<html" in part) == (True, False, False)
    assert (seen.body["type"], seen.body["run"]) == ("alert.test", None)
    assert "alice tests the channel hook of" in seen.body["text"]


def test_a_test_by_e_mail_says_that_it_is_not_set_up(admin: Client) -> None:
    admin.post(f"{CHANNELS}new/", {"name": "mail", "kind": "email", "address": "a@example.org", "enabled": "on"})
    channel = AlertChannel.objects.get()
    admin.post(f"{CHANNELS}{channel.pk}/test/")
    channel_deliver(channel.pk)
    assert "E-mail is not set up on this server" in words(html(admin.get(CHANNELS)))
