"""The list of runs in a real browser: searching and keeping a view, many runs at once, the keyboard, and that a poll
takes nothing away that a person has chosen."""

from collections.abc import Callable, Iterator

import pytest
from playwright.sync_api import Browser, Page, expect
from pytest_django.live_server_helper import LiveServer

from cohort.runs.marks import run_note_set, run_tags_change
from cohort.runs.models import Run
from cohort.runs.run_values import evaluation_values_store
from tests.browser import picture
from tests.factories.runs import Maker, add_evaluation, add_steps
from tests.web.windows import serious_faults, windows

pytestmark = pytest.mark.slow

OpenPage = Callable[..., Page]


@pytest.fixture
def open_page(browser: Browser, transactional_db: None, maker: Maker, live_server: LiveServer) -> Iterator[OpenPage]:
    with windows(browser, live_server.url) as opened:
        yield opened


@pytest.fixture
def runs(transactional_db: None, maker: Maker) -> list[Run]:
    """Three: the newest in training with scores, one that waits, one that failed with a tag and a note."""
    failed = maker.run("hacker", state="failed", preset="dapo")
    run_tags_change(run=failed, actor=maker.actor, add=["hack", "baseline"])
    run_note_set(run=failed, actor=maker.actor, note="Learned to print the answer.\nSee step 40.")
    waits = maker.run("waits", state="queued", sampling={"group_size": 16})
    live = maker.run("add two digits", state="training", optim={"steps": 40})
    attempt = maker.attempt(live)
    add_steps(attempt, [{"reward": 0.2 + 0.02 * step + 0.05 * (step % 3), "kl": 0.01} for step in range(30)])
    add_evaluation(attempt, "before", [1, 0, 0, 0], suite="heldout")
    add_evaluation(attempt, "after", [1, 1, 1, 0], suite="heldout")
    evaluation_values_store(run_id=live.pk)
    return [live, waits, failed]


def box(page: Page, run: Run) -> str:
    return f'#run-rows input[name="run"][value="{run.pk}"]'


def test_a_search_is_saved_as_a_view_and_found_again(open_page: OpenPage, runs: list[Run]) -> None:
    page = open_page("runs/")
    picture(page, "runs-list")
    page.get_by_role("searchbox").fill("G>=")
    page.keyboard.press("Enter")
    expect(page.get_by_role("alert")).to_contain_text("A value is missing after G>=")
    expect(page.get_by_role("searchbox")).to_have_value("G>=")
    picture(page, "runs-list-wrong")
    page.get_by_role("searchbox").fill("G>=16 state=queued")
    page.keyboard.press("Enter")
    expect(page.locator("#run-rows tbody tr")).to_have_count(1)
    page.get_by_text("Columns", exact=True).click()
    page.get_by_role("checkbox", name="note", exact=True).check()
    page.get_by_label("Further fields").fill("optim.lr")
    page.get_by_role("button", name="Show these").click()
    expect(page.get_by_role("columnheader", name="optim.lr")).to_be_visible()
    page.get_by_text("Save this view").click()
    page.get_by_role("textbox", name="Name of the view", exact=True).fill("big groups")
    page.get_by_label("Opens with the list").check()
    page.get_by_role("button", name="Save", exact=True).click()
    page.goto(page.url.partition("?")[0])
    expect(page.get_by_role("searchbox")).to_have_value("G>=16 state=queued")
    expect(page.locator(".chip[aria-current]")).to_contain_text("big groups")
    expect(page.get_by_role("columnheader", name="optim.lr")).to_be_visible()
    page.get_by_role("link", name="All runs").click()
    expect(page.locator("#run-rows tbody tr")).to_have_count(3)
    for fold in page.locator(".list-tools > details").all():
        fold.locator("summary").click()
    picture(page, "runs-list-folds")
    page.once("dialog", lambda dialog: dialog.accept())
    with page.expect_event("dialog"), page.expect_navigation():
        page.get_by_role("button", name="Delete big groups").click()
    expect(page.get_by_role("status").first).to_contain_text("The view big groups is deleted.")
    assert serious_faults(page, "runs/") == []
    page.emulate_media(color_scheme="light")
    page.set_viewport_size({"width": 360, "height": 900})
    assert page.evaluate("document.documentElement.scrollWidth") <= 360


def test_many_at_once_and_what_could_not_be_done(open_page: OpenPage, runs: list[Run]) -> None:
    _, waits, failed = runs
    page = open_page("runs/")
    page.locator("#choose-page").check()
    expect(page.locator("#chosen")).to_have_text("3 chosen")
    page.get_by_role("button", name="Cancel…").click()
    picture(page, "runs-cancel")
    page.get_by_role("button", name="Cancel 3 runs").click()
    messages = page.get_by_role("status").first
    expect(messages).to_contain_text("Cancelled, or asked to stop: 2 runs.")
    expect(messages).to_contain_text("Not possible for 1 run. hacker: it has ended.")
    page.locator(box(page, waits)).check()
    page.locator(box(page, failed)).check()
    page.locator("#bulk-tags").fill("Sweep-3")
    page.locator("#bulk-tags").press("Enter")
    expect(page.get_by_role("link", name="sweep-3")).to_have_count(2)
    picture(page, "runs-list-bulk")
    page.locator(box(page, failed)).check()
    page.get_by_role("button", name="Archive", exact=True).click()
    expect(page.locator("#run-rows tbody tr")).to_have_count(2)


def test_the_keyboard_and_a_poll_that_takes_nothing_away(open_page: OpenPage, runs: list[Run]) -> None:
    live, waits, _ = runs
    page = open_page("runs/")
    page.keyboard.press("j")
    page.keyboard.press("j")
    expect(page.locator(f"#run-{waits.pk}")).to_be_focused()
    page.keyboard.press("x")
    expect(page.locator(box(page, waits))).to_be_checked()
    page.keyboard.press("k")
    expect(page.locator(f"#run-{live.pk}")).to_be_focused()
    Run.objects.filter(pk=live.pk).update(step=31)
    expect(page.locator(".stepcell progress").first).to_have_attribute("value", "31")
    expect(page.locator(f"#run-{live.pk}")).to_be_focused()
    expect(page.locator(box(page, waits))).to_be_checked()
    expect(page.locator("#chosen")).to_have_text("1 chosen")
    page.keyboard.press("/")
    expect(page.get_by_role("searchbox")).to_be_focused()
    page.keyboard.press("Escape")
    page.locator(f"#run-{waits.pk}").focus()
    page.keyboard.press("Enter")
    page.wait_for_url(f"**/runs/{waits.pk}/")
    page.get_by_role("link", name="Add tags or a note").click()
    page.get_by_label("Tags", exact=True).fill("kept")
    page.get_by_label("Note", exact=True).fill("To be looked at.")
    page.get_by_role("button", name="Save").click()
    expect(page.locator("#marks")).to_contain_text("To be looked at.")
    picture(page, "run-marks")
