"""What a person typed when the session ends: put back after the sign-in, for that person alone."""

import re
from collections.abc import Callable, Iterator

import pytest
from django.contrib.sessions.models import Session
from playwright.sync_api import Browser, Page, expect
from pytest_django.live_server_helper import LiveServer

from cohort.accounts.models import Project, User
from cohort.catalog.models import Verifier
from cohort.runs.models import Run
from tests.browser import picture
from tests.factories.runs import Maker
from tests.web.conftest import PASSWORD
from tests.web.windows import windows

pytestmark = pytest.mark.slow

OpenPage = Callable[..., Page]
SOURCE = "def verify(sample):\n    return 0.25\n"
RESTORED = "Restored what you had typed. It is not sent yet."
KEPT = "sessionStorage.getItem('unsent-forms')"


@pytest.fixture
def open_page(
    browser: Browser, transactional_db: None, maker: Maker, bob: User, live_server: LiveServer
) -> Iterator[OpenPage]:
    with windows(browser, live_server.url, meant=["status of 403", "status of 404"]) as opened:
        yield opened


@pytest.fixture
def run(transactional_db: None, maker: Maker) -> Run:
    return maker.run("add two digits", state="training", optim={"steps": 12})


def sign_in(page: Page, name: str = "alice") -> None:
    page.get_by_label("User name").fill(name)
    page.get_by_label("Password").fill(PASSWORD)
    page.get_by_role("button", name="Sign in").click()


def end_session(page: Page) -> None:
    """And the page asks for something, as each does by itself."""
    Session.objects.all().delete()
    page.evaluate("htmx.ajax('GET', '/p/ours/counts/', { swap: 'none' })")
    page.wait_for_url("**/login/?next=*")


def test_a_reward_is_restored_with_its_rows_and_kinds_and_saved_once(open_page: OpenPage, ours: Project) -> None:
    page = open_page("rewards/new/")
    page.get_by_label("Name").first.fill("my check")
    page.get_by_role("button", name="Add a component").click()
    page.locator("[name=component-1-kind]").select_option("python")
    with page.expect_response("**/check/"):  # or it would meet the sign-in before the press does
        page.locator("[name=component-1-p_source]").fill(SOURCE)
    page.locator("[name=component-1-name]").fill("quarter")
    page.locator("[name=component-1-weight]").fill("0.5")
    page.evaluate("Object.defineProperty(document, 'hidden', { value: true })")  # so would a poll
    Session.objects.all().delete()
    page.get_by_role("button", name="Save", exact=True).last.click()
    expect(page.get_by_text("you are signed out")).to_be_visible()
    sign_in(page)
    page.wait_for_url("**/rewards/new/")
    expect(page.get_by_text(RESTORED)).to_be_visible()
    picture(page, "restored")
    expect(page.locator("[name=component-1-p_source]")).to_have_value(SOURCE)
    expect(page.locator("[name=component-1-weight]")).to_have_value("0.5")
    expect(page.get_by_label("Name").first).to_have_value("my check")
    page.get_by_role("button", name="Save", exact=True).last.click()
    page.wait_for_url(re.compile(r"/rewards/[0-9]+/"))
    assert Verifier.objects.filter(project=ours, name="my check").exists()
    page.get_by_role("link", name="Rewards", exact=True).first.click()
    page.get_by_role("link", name="New reward").click()
    expect(page.get_by_label("Name").first).to_have_value("")


def test_text_outlives_a_poll_and_a_form_out_of_date_but_not_a_sign_out_or_another_person(
    open_page: OpenPage, run: Run
) -> None:
    page = open_page(f"runs/{run.pk}/marks/")
    note = page.get_by_role("textbox", name="Note")
    note.fill("loss rises from step 40")
    end_session(page)
    sign_in(page)
    expect(page.get_by_text(RESTORED)).to_be_visible()
    expect(note).to_have_value("loss rises from step 40")

    page.context.clear_cookies(name="csrftoken")
    page.get_by_role("button", name="Save").click()
    expect(page.get_by_role("heading", name="This form is out of date")).to_be_visible()
    page.goto(page.url)
    expect(note).to_have_value("loss rises from step 40")

    end_session(page)
    sign_in(page, "bob")
    expect(page.get_by_text("Signed in as")).to_be_visible()
    assert page.evaluate(KEPT) is None

    page = open_page(f"runs/{run.pk}/marks/")
    other = page.context.new_page()
    other.goto(page.url)
    for window in (page, other):
        window.get_by_role("textbox", name="Note").fill("mine alone")
    page.get_by_role("button", name="Sign out").click()
    page.wait_for_url("**/login/")
    other.evaluate("htmx.ajax('GET', '/p/ours/counts/', { swap: 'none' })")
    other.wait_for_url("**/login/?next=*")
    assert [window.evaluate(KEPT) for window in (page, other)] == [None, None]


def test_a_form_of_a_dialog_is_restored_when_it_is_opened_again(open_page: OpenPage, run: Run) -> None:
    page = open_page(f"runs/{run.pk}/")
    page.get_by_role("link", name="Add tags or a note").click()
    page.get_by_role("dialog").get_by_label("Note").fill("typed in a dialog")
    end_session(page)
    sign_in(page)
    expect(page.get_by_text("put back when you open that form again")).to_be_visible()
    page.get_by_role("link", name="Add tags or a note").click()
    expect(page.get_by_role("dialog").get_by_label("Note")).to_have_value("typed in a dialog")
