"""What a page says when something asked for does not come, in a real browser."""

from collections.abc import Callable, Iterator

import pytest
from playwright.sync_api import Browser, Page, expect
from pytest_django.live_server_helper import LiveServer

from cohort.review.services import MOST_CHARACTERS
from cohort.runs.models import Run
from cohort.runs.views import form as form_views
from tests.web.run_rows import Maker, add_group
from tests.web.windows import serious_faults, windows


@pytest.fixture
def run(transactional_db: None, maker: Maker) -> Run:
    return maker.run("add two digits", state="training", sampling={"group_size": 8, "prompts_per_step": 3})


@pytest.fixture
def open_page(browser: Browser, run: Run, live_server: LiveServer) -> Iterator[Callable[..., Page]]:
    with windows(
        browser,
        live_server.url,
        meant=[
            "ERR_CONNECTION_REFUSED",
            "htmx:",
            "Status Error Code",
            "status of 500",
            "status of 403",
            "status of 422",
        ],
    ) as opened:
        yield opened


def test_a_form_that_gets_no_answer_says_so_and_keeps_what_was_typed(open_page: Callable[..., Page]) -> None:
    page = open_page("runs/new/")
    page.get_by_label("Name", exact=True).fill("mine")
    trouble = page.get_by_role("alert").filter(has_text="No answer came")
    page.route("**/runs/new/", lambda route: route.abort("connectionrefused"))
    page.get_by_label("Preset").select_option("dapo")
    expect(trouble).to_be_visible()
    expect(trouble).to_be_in_viewport()
    expect(page.get_by_label("Name", exact=True)).to_have_value("mine")
    expect(page.get_by_label("Preset")).to_have_value("")
    page.unroute("**/runs/new/")
    page.get_by_label("Preset").select_option("dapo")
    expect(page.get_by_label("Group size G")).to_have_value("16")
    expect(trouble).to_be_hidden()


def test_what_is_said_is_readable(open_page: Callable[..., Page]) -> None:
    page = open_page("runs/new/", width=360)
    page.route("**/runs/new/", lambda route: route.abort("connectionrefused"))
    page.get_by_label("Steps", exact=True).fill("7")
    expect(page.get_by_role("alert").filter(has_text="No answer came")).to_be_visible()
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
    assert serious_faults(page, "trouble") == []


def test_what_was_said_goes_when_the_server_answers_again(open_page: Callable[..., Page]) -> None:
    page = open_page("runs/new/")
    trouble = page.get_by_role("alert").filter(has_text="No answer came")
    page.route("**/runs/new/", lambda route: route.abort("connectionrefused"))
    page.get_by_label("Steps", exact=True).fill("7")
    expect(trouble).to_be_visible()
    page.unroute("**/runs/new/")
    page.get_by_label("Steps", exact=True).fill("8")
    expect(page.locator("#outlook dd").first).to_contain_text("8")
    expect(trouble).to_be_hidden()


def test_a_server_that_fails_is_told_in_its_own_words(
    open_page: Callable[..., Page], monkeypatch: pytest.MonkeyPatch
) -> None:
    page = open_page("runs/new/")

    def broken(*_: object) -> None:
        raise RuntimeError("broken by this test")

    monkeypatch.setattr(form_views, "_partial", broken)
    page.get_by_label("Steps", exact=True).fill("7")
    trouble = page.locator(".trouble")
    expect(trouble).to_contain_text("Something broke on our side. The page could not be made.")
    expect(trouble).not_to_contain_text("broken by this test")


def test_a_refusal_is_told_with_what_to_do(open_page: Callable[..., Page], maker: Maker, run: Run) -> None:
    group = add_group(maker.attempt(run), [1.0, 0.0], step=1)
    page = open_page(f"runs/{run.pk}/groups/{group.pk}/")
    page.context.clear_cookies(name="csrftoken")
    page.locator("#judgement-0").get_by_role("button", name="Wrong").click()
    trouble = page.get_by_role("alert")
    expect(trouble).to_contain_text("This form is out of date. Nothing was changed.")
    expect(trouble).to_contain_text("reload the page and send the form again.")


def test_a_poll_that_fails_says_nothing_for_it_comes_again(open_page: Callable[..., Page], run: Run) -> None:
    page = open_page(f"runs/{run.pk}/")
    tried: list[str] = []
    page.route("**/live/**", lambda route: (tried.append(route.request.url), route.abort("connectionrefused")))
    with page.expect_event("requestfailed"):
        pass
    with page.expect_event("requestfailed"):
        pass
    assert len(tried) >= 2
    expect(page.locator(".trouble")).to_be_hidden()


def test_a_judgement_that_is_refused_says_why(open_page: Callable[..., Page], maker: Maker, run: Run) -> None:
    group = add_group(maker.attempt(run), [1.0, 0.0], step=1)
    page = open_page(f"runs/{run.pk}/groups/{group.pk}/")
    first, note = page.locator("#judgement-0"), "x" * (MOST_CHARACTERS + 1)
    first.get_by_label("Note").fill(note)
    first.get_by_role("button", name="Wrong").click()
    expect(first.get_by_role("alert")).to_contain_text("at most 2,000 can be kept")
    expect(first.get_by_label("Note")).to_have_value(note)
    expect(page.locator(".trouble")).to_be_hidden()
