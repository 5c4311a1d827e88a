"""The pages of a record and of statements in a real browser: axe's rules in both themes, narrow screens, and a long
text that comes back in its form."""

from collections.abc import Callable, Iterator

import pytest
from playwright.sync_api import Browser, Page, expect
from pytest_django.live_server_helper import LiveServer

from cohort.accounts.models import User
from cohort.governance.services import record_seal
from cohort.governance.statements.services import flag_override, statement_make
from cohort.runs.models import Run
from tests import sealed_run
from tests.web.windows import serious_faults, windows


@pytest.fixture
def run(transactional_db: None, launch: Callable[..., Run], alice: User) -> Run:
    """Sealed, with suites, slices, touched items, statements, a flag and a hostile name."""
    run = launch(name="<i>seed</i> 1", suites=["refusal_calibration", "multilingual"])
    sealed_run.stated(run, alice)
    flag_override(run=run, actor=alice, flag="truncation", reason="short on purpose")
    before = {"refusal_calibration": [1.0] * 40 + [0.0] * 20, "multilingual": [1.0, 0.0] * 30}
    after = {"refusal_calibration": [1.0] * 20 + [0.0] * 40, "multilingual": [1.0] * 60}
    told = sealed_run.with_suites(
        run,
        before,
        after,
        slices={"multilingual": ["de", "en", "sw"]},
        overlap={"heldout": sealed_run.touched("add-3", items=100)},
    )
    cut = {"reward": 0.5, "completions/clipped_ratio": 0.4}
    told = [one.model_copy(update={"metrics": cut}) if one.kind == "step" else one for one in told]
    record_seal(run=sealed_run.finished(run, told))
    statement_make(run=run, actor=alice, field="method.rationale", text="The demo's settings with fewer steps.")
    return Run.objects.get(pk=run.pk)


@pytest.fixture
def open_page(browser: Browser, run: Run, live_server: LiveServer) -> Iterator[Callable[..., Page]]:
    with windows(browser, live_server.url) as opened:
        yield opened


def test_pages_have_no_serious_fault_and_fit_a_phone(open_page: Callable[..., Page], run: Run) -> None:
    for kind in ("record", "statements"):
        page = open_page(f"runs/{run.pk}/{kind}/")
        page.evaluate("document.querySelectorAll('details').forEach((one) => { one.open = true })")
        assert serious_faults(page, kind) == []
        page.set_viewport_size({"width": 360, "height": 900})
        assert page.evaluate("document.documentElement.scrollWidth") == 360


def test_a_question_is_reached_from_the_record_answered_and_taken_back(
    open_page: Callable[..., Page], run: Run
) -> None:
    page = open_page(f"runs/{run.pk}/record/")
    page.locator("#handling").get_by_role("link", name="state it").first.click()
    question = page.locator("#handling-system_card")
    question.locator("summary").first.click()
    question.get_by_label("Link, or words").fill("https://cards.example/9")
    question.get_by_role("button", name="State", exact=True).click()
    expect(page.get_by_role("status").first).to_contain_text("Stated: System card.")
    question.locator("summary").first.click()
    expect(question.locator(".statement-holds")).to_contain_text("https://cards.example/9")
    question.get_by_text("Take back…").click()
    question.get_by_label("Why it is taken back").fill("it moved")
    question.get_by_role("button", name="Take back").click()
    question.locator("summary").first.click()
    question.get_by_text("History").click()
    expect(question).to_contain_text("taken back: it moved")
