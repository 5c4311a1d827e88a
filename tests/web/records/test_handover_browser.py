"""Handing a record over, in a browser: for whom a download is, the summary, paper, and several records compared."""

import os
from collections.abc import Callable, Iterator
from io import BytesIO
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect
from pypdf import PdfReader
from pytest_django.live_server_helper import LiveServer

from cohort.accounts.models import User
from cohort.records.after_seal import services
from cohort.records.models import Record
from cohort.records.statements.services import statement_make
from cohort.runs.models import Run
from tests.browser import picture
from tests.factories import sealed_run
from tests.web.records.scenarios import ANSWERS
from tests.web.windows import serious_faults, windows

pytestmark = pytest.mark.slow


@pytest.fixture
def open_page(browser: Browser, transactional_db: None, live_server: LiveServer) -> Iterator[Callable[..., Page]]:
    with windows(browser, live_server.url) as opened:
        yield opened


@pytest.fixture
def records(launch: Callable[..., Run], alice: User, rita: User) -> list[Record]:
    """Of runs that differ in seed and steps; the first is stated, and approved by both."""
    made = []
    for seed in range(5):
        run = launch(name=f"addition, seed {seed}", settings={**sealed_run.SETTINGS, "seed": seed})
        if not made:
            for field, answer in ANSWERS.items():
                statement_make(run=run, actor=alice, field=field, **answer)
            statement_make(run=run, actor=alice, field="method.rationale", text="Fewer steps.\nSo it is quick.")
        made.append(sealed_run.sealed(run))
    return made


def test_a_record_is_handed_over(open_page: Callable[..., Page], records: list[Record], alice: User) -> None:
    record = records[0]
    page = open_page(f"runs/{record.run_id}/record/")
    with page.expect_download() as taken:
        page.get_by_role("link", name="Download public card").click()
    assert taken.value.suggested_filename.endswith("-public.zip")
    page.get_by_text("For others…").click()
    menu = page.locator("#download-for")
    expect(menu).to_contain_text("with the names of who did it")
    faults = serious_faults(page, "record")
    picture(page, "handover-menu")
    with page.expect_download() as taken:
        menu.get_by_role("link", name="Card (PDF)").nth(3).click()
    assert taken.value.suggested_filename.endswith("-internal.pdf")
    services.revoke(record=record, actor=alice, reason="The held-out problems were in the training data.")
    page.get_by_role("link", name="Summary", exact=True).first.click()
    expect(page.get_by_text("Revoked on")).to_be_visible()
    faults += serious_faults(page, "summary")
    picture(page, "handover-summary")
    assert faults == []


def test_paper_has_the_record_and_no_buttons(open_page: Callable[..., Page], records: list[Record]) -> None:
    page = open_page(f"runs/{records[0].run_id}/record/")
    text = printed(page, "handover-record")
    for words in ("So it is quick.", "scored higher after", "What this does not prove", records[0].seal[:20]):
        assert words in text, words
    for words in ("Download public card", "Audit log", "Sign out", "Compare runs"):
        assert words not in text, words
    page.get_by_role("link", name="Summary", exact=True).first.click()
    page.wait_for_url("**/summary/**")
    text = printed(page, "handover-summary", pages=1)
    assert ("Short digest" in text, "Download as PDF" in text) == (True, False)


def printed(page: Page, name: str, pages: int | None = None) -> str:
    """The text of the page on A4 paper."""
    content = page.pdf(prefer_css_page_size=True)
    if folder := os.environ.get("COHORT_TEST_SCREENSHOTS"):
        (Path(folder) / f"{name}.pdf").write_bytes(content)
    paper = PdfReader(BytesIO(content)).pages
    assert pages is None or len(paper) == pages
    return "\n".join(each.extract_text() for each in paper)


def test_several_records_are_ticked_and_compared(open_page: Callable[..., Page], records: list[Record]) -> None:
    page, faults = open_page("records/"), []
    for count in (3, 5):
        page.goto(page.url.split("records/")[0] + "records/")
        for box in page.get_by_role("checkbox").all()[:count]:
            box.check()
        page.get_by_role("button", name="Compare the chosen").click()
        expect(page.locator("#diff-chosen tbody tr")).to_have_count(1)  # the seed
        expect(page.locator("#diff-chosen tbody tr").first.locator("td")).to_have_count(count)
        faults += serious_faults(page, f"{count} records")
        picture(page, f"handover-compare-{count}")
    page.set_viewport_size({"width": 360, "height": 900})
    assert page.evaluate("document.documentElement.scrollWidth") == 360
    assert faults == []
