"""The log's pages in a real browser: axe's rules, a phone's width, filters by hand and what they leave as a file."""

import json
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect
from pytest_django.live_server_helper import LiveServer

from cohort.accounts.models import Project, Role, User
from cohort.accounts.services import membership_set, staff_make
from cohort.audit import services as audit
from cohort.audit.models import LogPush
from tests.web.windows import serious_faults, windows

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.slow]


@pytest.fixture
def site(alice: User, ours: Project, bob: User, live_server: LiveServer) -> str:
    """A server with a log of which most is the project's."""
    membership_set(project=ours, actor=alice, user=bob, role=Role.OPERATOR)
    staff_make(user=alice)
    data = {"note": "<b>x</b>", "numbers": [1, 2.5]}
    told = {"actor": "user:bob", "subject": "run:12", "project": ours}
    audit.log(kind="run_cancel_asked", **told, reason="The reward is paid for the word “answer” alone", data=data)
    audit.checkpoint()
    audit.log(kind="run_moved", **told, before={"state": "training"}, after={"state": "cancelled"})
    LogPush.objects.create(target="git", error="no such host", failed_at="2026-11-22T10:00Z")
    return str(live_server.url)


def test_the_pages_are_sound_on_a_phone_too_and_filters_work(browser: Browser, site: str) -> None:
    found = []
    with windows(browser, site, meant=["422"]) as open_page:
        page = open_page("audit/")
        for place in ("/p/ours/audit/", "/p/ours/audit/?kind=none", "/p/ours/audit/?since=x", "/log/", "/log/server/"):
            page.goto(f"{site}{place}")
            found += serious_faults(page, place)
            page.set_viewport_size({"width": 360, "height": 900})
            assert page.evaluate("document.documentElement.scrollWidth") <= 360, place
            page.set_viewport_size({"width": 1440, "height": 900})
            page.emulate_media(color_scheme="light")
        assert found == []
        page.goto(f"{site}/p/ours/audit/")
        page.get_by_label("Who", exact=True).fill("bob")
        page.get_by_role("button", name="Filter").click()
        expect(page.get_by_role("row")).to_have_count(3)
        with page.expect_download() as download:
            page.get_by_role("link", name="JSON lines").click()
        lines = Path(download.value.path()).read_bytes().splitlines()
        assert [json.loads(line)["kind"] for line in lines] == ["run_moved", "run_cancel_asked"]
        page.get_by_role("link", name="Clear").click()
        page.get_by_label("What", exact=True).select_option("member_role_changed")
        page.get_by_role("button", name="Filter").click()
        expect(page.get_by_role("cell", name="role viewer → operator")).to_be_visible()
