"""Sign-off, revocation, comparison and the public page in a real browser, on records that were really sealed."""

from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect
from pytest_django.live_server_helper import LiveServer

from cohort.accounts.models import User
from cohort.governance.life import public, services
from cohort.governance.models import Record
from cohort.governance.services import record_seal
from cohort.runs.models import Run
from tests import sealed_run
from tests.browser import PATIENCE
from tests.web.conftest import PASSWORD
from tests.web.windows import serious_faults, windows

UNFOLD = "for (const one of document.querySelectorAll('main details')) one.open = true"
HOSTILE = "<script>alert(1)</script> \u202e <img src=x onerror=alert(2)>"


@pytest.fixture
def records(transactional_db: None, launch: Callable[..., Run], rita: User) -> list[Record]:
    """Two sealed runs that alice launched: the second under another protocol, with entries of every kind."""
    first = sealed_run.sealed(launch(name="add two digits"))
    run = launch(name="add two digits, once more", settings={**sealed_run.SETTINGS, "optim": {"steps": 4}})
    after = {**sealed_run.PROTOCOL, "seed": 1}
    second = record_seal(run=sealed_run.finished(run, sealed_run.whole(run, after_protocol=after)))
    when = datetime(2026, 11, 20, 8, 30, tzinfo=UTC)
    services.incident(record=second, actor=rita, severity="high", when=when, what=f"It answered in German. {HOSTILE}")
    wrong = services.feedback(record=second, actor=rita, text="It is rude.", source="a caller")
    services.feedback(record=second, actor=rita, text="Another model was.", source="a caller", corrects=wrong.pk)
    services.monitoring(
        record=second,
        actor=rita,
        text="As expected in the first weeks of use; refusals rose a little on the second Sunday.",
        period=(date(2026, 10, 1), date(2026, 10, 31)),
        figures=[("refusals", "12 of 480"), ("complaints", "0")],
    )
    services.override(record=second, actor=rita, what="entropy collapse", reason="Expected at this length.")
    return [first, second]


@pytest.fixture
def open_page(browser: Browser, records: list[Record], live_server: LiveServer) -> Iterator[Callable[..., Page]]:
    with windows(browser, live_server.url, meant=["the server responded with a status of"]) as opened:
        yield opened


@pytest.fixture
def as_person(browser: Browser, live_server: LiveServer) -> Iterator[Callable[..., Page]]:
    """A window of somebody else, at an address of the server."""
    contexts = []

    def make(name: str | None, path: str, **more: object) -> Page:
        context = browser.new_context(viewport={"width": 1280, "height": 900}, **more)  # type: ignore[arg-type]
        contexts.append(context)
        context.set_default_timeout(PATIENCE)
        page = context.new_page()
        if name is not None:
            page.goto(f"{live_server.url}/login/")
            page.get_by_label("Name").fill(name)
            page.get_by_label("Password").fill(PASSWORD)
            page.get_by_role("button", name="Sign in").click()
            page.wait_for_url("**/runs/")
        page.goto(f"{live_server.url}{path}")
        return page

    yield make
    for context in contexts:
        context.close()


def at(record: Record, more: str = "") -> str:
    return f"runs/{record.run_id}/record/{record.end}/{more}"


def test_from_the_seal_to_the_public_page(
    open_page: Callable[..., Page], as_person: Callable[..., Page], records: list[Record], rita: User, tmp_path: Path
) -> None:
    record = records[0]
    page = open_page(at(record))
    expect(page.locator(".page-head")).to_contain_text("not signed off")
    page.get_by_text("Sign off", exact=True).click()
    form = page.locator("#life-sign_off")
    expect(form).to_contain_text("You launched this run")
    form.get_by_role("button", name="Sign").click()  # nothing was filled in
    expect(page.locator("#life-sign_off .error").first).to_be_visible()
    expect(page.locator("#life-sign_off")).to_have_attribute("open", "")
    form = page.locator("#life-sign_off")
    form.get_by_label("You decide").select_option("approved")
    form.get_by_label("Reason").fill("Every item read.")
    form.get_by_role("button", name="Sign").click()
    expect(page.locator(".messages")).to_contain_text("Your sign-off is written down")
    expect(page.locator(".page-head")).to_contain_text("signed by the operator only")

    sealed = page.locator(".timeline li").last
    expect(sealed).to_contain_text("Sealed: the record")
    expect(sealed.get_by_role("link", name="proof")).to_be_visible()

    other = as_person("rita", f"/p/ours/{at(record)}", java_script_enabled=False)
    other.get_by_text("Sign off", exact=True).click()
    other.locator("#life-sign_off").get_by_label("You decide").select_option("approved")
    other.locator("#life-sign_off").get_by_label("Reason").fill("Independent of the run.")
    other.locator("#life-sign_off").get_by_role("button", name="Sign").click()
    expect(other.locator(".page-head")).to_contain_text("signed off by both")

    page.reload()
    page.get_by_role("button", name="Make the public page").click()
    address = page.locator("#public-address").inner_text()
    token = address.rstrip("/").rsplit("/", 1)[1]
    guest = as_person(None, f"/c/{token}/")
    expect(guest.get_by_role("heading", level=1)).to_contain_text("add two digits")
    expect(guest.locator(".page-head")).to_contain_text("signed off by both")
    expect(guest.locator("#short-digest")).to_have_text(record.short_digest)
    with guest.expect_download() as waiting:
        guest.get_by_role("link", name="Download the public card").click()
    assert waiting.value.suggested_filename == f"card-{record.seal[:16]}.zip"
    waiting.value.save_as(tmp_path / "card.zip")

    page.get_by_text("Revoke this record").click()
    page.locator("#life-revoke").get_by_label("Reason").fill("The held-out problems were in the training data.")
    page.locator("#life-revoke").get_by_role("button", name="Revoke").click()
    expect(page.locator(".notice.is-revoked")).to_contain_text("The held-out problems were in the training data.")
    guest.reload()
    expect(guest.locator(".notice.is-revoked")).to_contain_text("The held-out problems were in the training data.")
    page.get_by_role("button", name="Take it back").click()
    expect(page.locator(".messages")).to_contain_text("taken back")
    guest.reload()
    expect(guest.get_by_role("heading", level=1)).to_have_text("Nothing is here")


def test_ten_megabytes_are_refused_and_nothing_typed_is_lost(
    open_page: Callable[..., Page], records: list[Record]
) -> None:
    page = open_page(at(records[0], "life/"))
    page.get_by_text("Add feedback").click()
    form = page.locator("#life-feedback")
    form.get_by_label("From whom").fill("support")
    page.evaluate("document.querySelector('#life-feedback-text').value = 'x'.repeat(10_000_000)")
    form.get_by_role("button", name="Add").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Too much was sent")
    page.go_back()
    assert page.evaluate("document.querySelector('#life-feedback-text').value.length") == 10_000_000
    assert page.evaluate("document.querySelector('#life-feedback-source').value") == "support"
    assert not records[0].entries.exists()


def test_two_are_chosen_in_the_list_and_compared(open_page: Callable[..., Page], records: list[Record]) -> None:
    page = open_page("records/")
    for box in page.locator("input[name=record]").all():
        box.check()
    page.get_by_role("button", name="Compare the two chosen").click()
    expect(page.get_by_role("heading", name="At a glance")).to_be_visible()
    expect(page.locator("#diff-method")).to_have_attribute("open", "")
    with page.expect_download() as waiting:
        page.get_by_role("link", name="Markdown").click()
    assert waiting.value.suggested_filename.endswith(".md")


def pages(records: list[Record], token: str) -> dict[str, str]:
    first, second = records
    return {
        "list": "/p/ours/records/",
        "record": f"/p/ours/{at(second)}",
        "life": f"/p/ours/{at(second, 'life/')}",
        "diff": f"/p/ours/records/compare/?record={first.pk}&record={second.pk}",
        "choose": f"/p/ours/records/compare/?record={first.pk}",
        "public": f"/c/{token}/",
        "none": f"/c/{'A' * 43}/",
    }


@pytest.fixture
def token(records: list[Record], alice: User) -> str:
    services.sign_off(record=records[1], actor=alice, role="operator", decision="approved", reason="Every item read.")
    services.revoke(record=records[1], actor=alice, reason="The held-out problems were in the training data.")
    return public.public_link_make(record=records[1], actor=alice).token


def test_axe_finds_nothing_serious(
    open_page: Callable[..., Page], live_server: LiveServer, records: list[Record], token: str
) -> None:
    page, found = open_page("records/"), []
    for name, path in pages(records, token).items():
        page.goto(live_server.url + path)
        page.evaluate(UNFOLD)
        found += serious_faults(page, name)
    assert found == []


def test_no_page_is_wider_than_a_phone(
    open_page: Callable[..., Page], live_server: LiveServer, records: list[Record], token: str
) -> None:
    page = open_page("records/", width=360)
    for name, path in pages(records, token).items():
        page.goto(live_server.url + path)
        page.evaluate(UNFOLD)
        assert page.evaluate("document.documentElement.scrollWidth") <= 360, name
