"""The log's pages in a real browser: both themes, a phone's width, axe's rules, filters by hand, files to take away."""

import json
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

from cohort.accounts.models import Project, Role, User
from cohort.accounts.services import membership_set, staff_make, user_create
from cohort.audit import rotate
from cohort.audit import services as audit
from cohort.audit.models import LogPush
from cohort.catalog.models import BaseModel, PromptDataset, VerifierVersion
from cohort.environment import environment
from cohort.evidence.keys import load
from tests.web.windows import serious_faults, windows

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def site(
    alice: User,
    ours: Project,
    bob: User,
    base_model: BaseModel,
    dataset: PromptDataset,
    verifier_version: VerifierVersion,
    live_server,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> str:
    """A server with a log of two keys and 20 entries, most of the project."""
    key = tmp_path / "key.pem"
    key.write_bytes(environment().signing_key_path.read_bytes())
    monkeypatch.setattr(environment(), "signing_key_file", key)
    audit.checkpoint()
    membership_set(project=ours, actor=alice, user=bob, role=Role.OPERATOR)
    membership_set(project=ours, actor=alice, user=user_create(username="zoe")[0], role=Role.VIEWER)
    rotate.rotate()
    staff_make(user=alice)
    audit.log(
        actor="user:bob",
        kind="run_cancel_asked",
        subject="run:12",
        project=ours,
        reason="The reward is paid for the word “answer” alone, see the group of step 40.",
        data={"note": "<b>x</b>", "numbers": [1, 2.5]},
    )
    audit.checkpoint()
    audit.log(actor="node:gpu-1", kind="run_moved", subject="run:12", project=ours, before={"state": "training"},
              after={"state": "cancelled"}, reason="Stopped by bob after 40 steps")  # fmt: skip
    LogPush.objects.create(
        target="git", error="git push ended with status 128: no such host", failed_at="2026-11-22T10:00Z"
    )
    assert load(key).name == "test.example/log"
    return str(live_server.url)


@pytest.fixture
def open_page(browser: Browser, site: str) -> Iterator[Callable[..., Page]]:
    with ExitStack() as stack:
        yield stack.enter_context(windows(browser, site, meant=["422"]))


PLACES = {
    "entries": "",
    "nothing found": "?kind=none",
    "a wrong date": "?since=x",
    "log": "/log/",
    "server": "/log/server/",
}


def test_the_pages_are_sound_in_both_themes_and_on_a_phone(open_page: Callable[..., Page], site: str) -> None:
    folder = os.environ.get("COHORT_TEST_PICTURES")
    found = []
    for width in (1440, 360):
        page = open_page("audit/", width=width)
        for name, place in PLACES.items():
            page.goto(f"{site}{place}" if place.startswith("/") else f"{site}/p/ours/audit/{place}")
            assert page.evaluate("document.documentElement.scrollWidth") <= width, name
            if width == 1440:
                found += serious_faults(page, name)
            for theme in ("light", "dark") if folder else ():
                page.emulate_media(color_scheme=theme)
                page.screenshot(path=f"{folder}/{name.replace(' ', '-')}-{width}-{theme}.png", full_page=width == 360)
    page.context.clear_cookies()
    page.goto(f"{site}/log/")
    expect(page.get_by_role("heading", name="Audit log of test.example/log")).to_be_visible()
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
    found += serious_faults(page, "log, not signed in")
    if folder:
        page.screenshot(path=f"{folder}/log-stranger-360.png", full_page=True)
        page.set_viewport_size({"width": 1440, "height": 900})
        page.screenshot(path=f"{folder}/log-stranger-1440.png")
    assert found == []


def test_filters_by_hand_and_what_they_leave_as_a_file(open_page: Callable[..., Page]) -> None:
    page = open_page("audit/")
    page.get_by_label("Who", exact=True).fill("bob")
    page.get_by_role("button", name="Filter").click()
    expect(page.get_by_role("row")).to_have_count(2)
    expect(page.get_by_text("The reward is paid for the word")).to_be_visible()
    with page.expect_download() as download:
        page.get_by_role("link", name="JSON lines").click()
    lines = Path(download.value.path()).read_bytes().splitlines()
    assert [json.loads(line)["kind"] for line in lines] == ["run_cancel_asked"]
    with page.expect_download() as download:
        page.get_by_role("link", name="proof", exact=True).click()
    assert Path(download.value.path()).read_text().startswith("c2sp.org/tlog-proof@v1\nindex ")
    page.get_by_role("link", name="Clear").click()
    page.get_by_label("What", exact=True).select_option("member_role_changed")
    page.get_by_role("button", name="Filter").click()
    expect(page.get_by_role("cell", name="role viewer → operator")).to_be_visible()
