"""The form of statements in a browser: what is typed is kept, one faulty answer keeps all from being saved, standing
answers are used, and what was saved makes a further version.

With COHORT_TEST_SCREENSHOTS set to a folder, pictures of the pages are kept there.
"""

import json
from collections.abc import Callable, Iterator

import pytest
from playwright.sync_api import Browser, Page, expect
from pytest_django.live_server_helper import LiveServer

from cohort.accounts.models import User
from cohort.records.models import Record, StatementDraft
from cohort.records.services import record_seal
from cohort.records.statements.answers import Given
from cohort.records.statements.edits import Edit
from cohort.records.statements.questions import BY_FIELD
from cohort.records.statements.standing import standing_save
from tests.browser import picture
from tests.web.records.conftest import World
from tests.web.windows import serious_faults, windows

pytestmark = pytest.mark.slow


@pytest.fixture
def open_page(browser: Browser, transactional_db: None, live_server: LiveServer) -> Iterator[Callable[..., Page]]:
    with windows(browser, live_server.url, meant=["the server responded with a status of"]) as opened:
        yield opened


def test_answers_from_drafts_to_a_further_version(
    open_page: Callable[..., Page], sealed: Record, world: World, rita: User
) -> None:
    kept = {"handling.inventory": "AI-7 of the register", "handling.monitoring": "Weekly, by the safety team"}
    edits = {field: Edit(Given.of(BY_FIELD[field], text=text)) for field, text in kept.items()}
    standing_save(project=sealed.run.project, actor=rita, edits=edits)
    page = open_page(f"runs/{sealed.run_id}/statements/")
    texts = {
        "reward-brittleness": "None known.",
        "data-choice": "It is small.\nIt is the demo's.",
        "method-rationale": "The demo's settings.",
        "budget-base_share": "much",
    }
    for name, text in texts.items():
        page.locator(f"#{name}-text").fill(text)
        expect(page.locator(f"#{name}-draft")).to_contain_text("draft, not saved")
    page.get_by_label("verifiable: anyone can check").check()
    expect(page.locator("#reward-verifiable_or_social-draft")).to_contain_text("draft, not saved")
    expect(page.locator("#answers-save")).to_contain_text("5 drafts, not saved")
    picture(page, "statements-drafts")

    page.locator("#subject-pipeline-text").fill("pretraining: by its maker")  # and left at once
    page.reload()
    for name, text in texts.items():
        expect(page.locator(f"#{name}-text")).to_have_value(text)
    expect(page.get_by_label("verifiable: anyone can check")).to_be_checked()
    page.reload()
    expect(page.locator("#subject-pipeline-text")).to_have_value("pretraining: by its maker")

    page.get_by_role("button", name="Save all answers").click()
    expect(page.locator("#budget-base_share-fault")).to_contain_text("Begin with a number")
    expect(page.locator("#data-choice-text")).to_have_value(texts["data-choice"])
    expect(page.get_by_text("0 of 17 answered").first).to_be_visible()
    picture(page, "statements-refused")
    faults = serious_faults(page, "refused")

    page.locator("#budget-base_share-text").fill("1.2e22, as its maker says")
    page.get_by_role("button", name="Save all answers").click()
    expect(page.get_by_text("6 answers saved.")).to_be_visible()
    expect(page.get_by_text("6 of 17 answered").first).to_be_visible()
    assert not StatementDraft.objects.exists()

    page.get_by_role("button", name="Use 2 standing answers").click()
    expect(page.locator("#handling-inventory-text")).to_have_value(kept["handling.inventory"])
    picture(page, "statements-standing")
    page.get_by_role("button", name="Save all answers").click()
    expect(page.get_by_text("2 answers saved.")).to_be_visible()
    picture(page, "statements-saved")
    faults += serious_faults(page, "saved")

    page.goto(page.url.replace("statements/", "record/").partition("#")[0])
    expect(page.get_by_role("heading", name="What version 2 would change")).to_be_visible()
    picture(page, "news")
    page.locator("#version-reason").fill("Stated since.")
    page.get_by_role("button", name="Seal version 2").click()
    expect(page.get_by_text("is not sealed yet")).to_be_visible()
    second = record_seal(run=sealed.run, reason="Stated since.", actor=world.alice)
    inventory = json.loads(second.document)["sections"]["handling"]["inventory"]
    assert (inventory["text"], "standing answer, kept by rita" in inventory["note"]) == (
        kept["handling.inventory"],
        True,
    )
    page.reload()
    expect(page.get_by_role("heading", name="What version 2 would change")).to_have_count(0)
    assert faults == []
