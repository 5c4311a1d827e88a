"""Alerts in a real browser: a webhook is added and tested, a reported fault reaches it and the desk, and is answered by
keyboard."""

import pytest
from playwright.sync_api import Browser, expect
from pytest_django.live_server_helper import LiveServer

from cohort.accounts.models import Project, User
from cohort.alerts.delivery import channel_deliver
from cohort.alerts.models import Alert, AlertChannel, AlertRule
from cohort.alerts.opening import alerts_check
from cohort.alerts.rules import rule_create
from tests.core.rewards.judge_server import Server, http
from tests.factories.alerts import diagnosed, is_signed, webhook
from tests.factories.runs import Maker, add_steps
from tests.web.control import at_once
from tests.web.windows import windows

pytestmark = pytest.mark.slow


def deliver(channel: AlertChannel) -> None:
    """In another thread, as the browser's own holds this one's event loop."""
    assert at_once(lambda: channel_deliver(channel.pk)) == [True]


def test_a_fault_reaches_the_webhook_and_the_desk_and_is_answered(
    browser: Browser, transactional_db: None, live_server: LiveServer, maker: Maker
) -> None:
    run = maker.run("hacker", state="training")
    attempt = maker.attempt(run)
    add_steps(attempt, [{"reward": 0.5}] * 3)
    with Server(lambda _: http("204 No Content", b"")) as receiver, windows(browser, live_server.url) as opened:
        page = opened("alerts/channels/new/")
        page.get_by_label("Name").fill("hook")
        page.get_by_label("Address", exact=True).fill(receiver.url)
        page.get_by_label("May reach private addresses").check()
        page.get_by_role("button", name="Add channel").click()
        secret = page.locator("#secret").inner_text()
        page.get_by_role("button", name="Send a test").click()
        expect(page.locator("#channels")).to_contain_text("test requested")
        channel = AlertChannel.objects.get()
        deliver(channel)
        expect(page.locator("#channels")).to_contain_text("test taken with status 204")
        page.get_by_role("link", name="Rules", exact=True).click()
        page.get_by_role("link", name="Edit The trainer reports a fault").click()
        page.get_by_label("hook").check()
        page.get_by_role("button", name="Save").click()
        for cause in ("length_drift", "machine_failed", "part_unscored"):
            diagnosed(attempt, cause)
        assert alerts_check() == 3
        deliver(channel)
        assert [seen.body["cause"] for seen in receiver.seen[1:]] == ["length_drift", "machine_failed", "part_unscored"]
        assert all(is_signed(seen, secret) for seen in receiver.seen)
        page.goto(f"{live_server.url}/p/ours/alerts/")
        expect(page.locator("#count-alerts")).to_have_text("3 open")
        for key in ("j", "x", "j", "x"):
            page.keyboard.press(key)
        boxes = page.locator('input[name="alert"]')
        assert [box.is_checked() for box in boxes.all()] == [True, True, False]
        page.get_by_label("Choose every alert of this page").check()
        expect(page.locator('input[name="alert"]:checked')).to_have_count(3)
        boxes.nth(2).uncheck()
        page.get_by_placeholder("note, optional").fill("the reward is mended")
        page.get_by_role("button", name="Acknowledge").click()
        expect(page.locator("#alert-rows tbody tr")).to_have_count(1)
        page.goto(f"{live_server.url}/p/ours/runs/{run.pk}/")
        expect(page.locator("#run-alerts")).to_contain_text("lengths drift")
        page.get_by_role("button", name="Acknowledge").click()
        expect(page.locator("#run-alerts")).to_have_count(0)
    assert {alert.state for alert in Alert.objects.all()} == {"acknowledged"}
    assert Alert.objects.filter(note="the reward is mended").count() == 2


def test_a_channel_and_a_rule_are_removed_after_a_question(
    browser: Browser, transactional_db: None, live_server: LiveServer, ours: Project, alice: User
) -> None:
    channel = webhook(ours, alice, "https://example.org/hook")
    rule = rule_create(project=ours, actor=alice, name="lost", condition="ended")
    removals = (
        (f"alerts/channels/{channel.pk}/", "Remove channel", AlertChannel.objects.all(), "channels/"),
        (f"alerts/rules/{rule.pk}/", "Remove rule", AlertRule.objects.filter(name="lost"), "rules/"),
    )
    with windows(browser, live_server.url) as opened:
        for address, button, rows, listed in removals:
            page = opened(address)
            page.once("dialog", lambda dialog: dialog.dismiss())
            page.get_by_role("button", name=button).click()
            assert rows.count() == 1
            page.once("dialog", lambda dialog: dialog.accept())
            page.get_by_role("button", name=button).click()
            page.wait_for_url(f"**/alerts/{listed}")
            assert rows.count() == 0
