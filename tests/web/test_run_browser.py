"""Run pages in a real browser: charts grow while a run lives, the policy is never offended, the form answers as one
types, groups by keyboard, axe's rules, and narrow screens.
"""

import re
from collections.abc import Callable, Iterator

import pytest
from django.utils import timezone
from playwright.sync_api import Browser, Dialog, Page, Route, expect
from pytest_django.live_server_helper import LiveServer

from cohort.runs.models import Run
from tests.web.conftest import PASSWORD
from tests.web.run_rows import HOSTILE, Maker, add_evaluation, add_group, add_steps, gone_on, put_in
from tests.web.windows import GIVEN_UP, serious_faults, windows

POINTS = "(document.querySelector('[data-chart=reward] .plot')?.data?.at(-2)?.x?.length ?? 0)"


def numbers(step: int) -> dict[str, float]:
    return {
        "reward": 0.5 + step / 100,
        "reward_group_std": 0.2,
        "frac_reward_zero_std": 0.25,
        "frac_reward_zero_std/all_right": 0.15,
        "frac_reward_zero_std/all_wrong": 0.05,
        "frac_reward_zero_std/other": 0.05,
        "sampling/logp_difference/mean": 1e-6,
        "groups/all_right": 0.2,
        "groups/mixed": 0.7,
        "groups/all_wrong": 0.1,
        "entropy": 1.0 / step,
        "completions/mean_length": 40.0,
    }


@pytest.fixture
def run(transactional_db: None, maker: Maker) -> Run:
    """In training at step 12, with groups of hostile text, evaluated before."""
    run = maker.run("add two digits", state="training", preset="demo")
    Run.objects.filter(pk=run.pk).update(phase="training", seconds_per_step=1.0)
    run.refresh_from_db()
    attempt = maker.attempt(run)
    add_steps(attempt, [numbers(step) for step in range(1, 13)])
    for index in range(3):
        add_group(attempt, [1.0, 0.0, None, 1.0], step=12, index=index, completion=HOSTILE, advantages=[1, -2, 0, 1])
    add_evaluation(attempt, "before", [1, 0, 1, 0])
    add_evaluation(attempt, "after", [1, 1, 1, 0])
    return run


@pytest.fixture
def open_page(browser: Browser, run: Run, live_server: LiveServer) -> Iterator[Callable[..., Page]]:
    with windows(browser, live_server.url, meant=GIVEN_UP) as opened:
        yield opened


def test_an_axis_of_tiny_numbers_has_powers_of_ten_and_room_for_them(open_page: Callable[..., Page], run: Run) -> None:
    chart = open_page(f"runs/{run.pk}/").locator("[data-chart=mismatch] .plot")
    ticks = chart.locator(".ytick text")
    expect(ticks.last).to_have_text(re.compile(r"10\W*−6"))
    ends = [box["x"] for tick in ticks.all() if (box := tick.bounding_box())]
    title = chart.locator(".ytitle").bounding_box()
    assert title is not None
    assert title["x"] + title["width"] <= min(ends)


def test_charts_grow_while_the_run_lives_and_stop_with_it(open_page: Callable[..., Page], run: Run) -> None:
    page = open_page(f"runs/{run.pk}/")
    page.wait_for_function(f"() => {POINTS} === 12")
    expect(page.locator(".chart.is-empty")).to_have_count(0)
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))

    attempt = run.attempts.get()
    add_steps(attempt, [numbers(13), numbers(14)], first=13)
    page.wait_for_function(f"() => {POINTS} === 14")
    for chart in ("signal", "entropy"):  # drawn, not only held
        right_end = f"document.querySelector('[data-chart={chart}] .plot')._fullLayout.xaxis.range[1]"
        page.wait_for_function(f"() => {right_end} >= 14")
    expect(page.locator("#live-tiles .value").first).to_contain_text("0.640")
    expect(page.locator(".run-progress")).to_contain_text("step 14 of 120")
    assert [url for url in asked if "series.json" in url] == [
        next(url for url in asked if url.endswith("series.json?after=12&epoch="))
    ]

    put_in(run, "succeeded", ended_at=timezone.now())
    expect(page.locator(".title .badge")).to_contain_text("Succeeded")
    asked.clear()
    page.wait_for_timeout(5000)
    assert [url for url in asked if "/live/" in url] == [], "it polls no more"


def test_what_no_step_reports_is_not_promised_any_longer(
    open_page: Callable[..., Page], run: Run, maker: Maker
) -> None:
    """The page was opened before the first step; the node has no NVML."""
    begun = maker.run("begun", state="training", preset="demo")
    attempt = maker.attempt(begun)
    page = open_page(f"runs/{begun.pk}/")
    use = page.locator("[data-chart=utilisation]")
    expect(use).to_contain_text("Comes with the first step")
    add_steps(attempt, [numbers(1)])
    expect(use).to_contain_text("No step has reported it")
    expect(page.locator("[data-chart=reward] .plot-absent")).to_be_hidden()


def test_steps_that_come_while_the_charts_ask_are_drawn_too(open_page: Callable[..., Page], run: Run) -> None:
    """The last ones of a run among them, after which the page asks no more."""
    page = open_page(f"runs/{run.pk}/")
    page.wait_for_function(f"() => {POINTS} === 12")
    held: list[Route] = []
    page.route("**/series.json?after=12*", lambda route: held.append(route))
    add_steps(run.attempts.get(), [numbers(13)], first=13)
    while not held:
        page.wait_for_timeout(100)
    answer = held[0].fetch()  # of step 13
    add_steps(run.attempts.get(), [numbers(14)], first=14)
    put_in(run, "succeeded", ended_at=timezone.now())
    expect(page.locator(".title .badge")).to_contain_text("Succeeded")
    held[0].fulfill(response=answer)
    page.wait_for_function(f"() => {POINTS} === 14")


def test_hover_is_linked_and_a_table_has_the_same_numbers(open_page: Callable[..., Page], run: Run) -> None:
    page = open_page(f"runs/{run.pk}/")
    page.wait_for_function(f"() => {POINTS} === 12")
    page.locator("[data-chart=entropy] .nsewdrag").hover()
    for chart in ("entropy", "reward", "signal", "length"):
        expect(page.locator(f"[data-chart={chart}] .hovertext").first).to_be_visible()
    page.locator("[data-chart=reward]").get_by_role("button", name="table").click()
    table = page.locator("[data-chart=reward] table")
    expect(table.locator("tbody tr")).to_have_count(12)
    assert table.locator("tbody tr").first.locator("th, td").all_inner_texts() == ["12", "0.62", "0.2"]
    page.locator("[data-chart=reward]").get_by_role("button", name="chart").click()
    expect(page.locator("[data-chart=reward] .plot")).to_be_visible()


def test_a_resume_takes_the_charts_back_and_shows_the_seam(
    open_page: Callable[..., Page], run: Run, maker: Maker
) -> None:
    """The page has drawn 12 steps; the run goes on from its checkpoint at step 10 and is at step 11 again."""
    page = open_page(f"runs/{run.pk}/")
    page.wait_for_function(f"() => {POINTS} === 12")
    run.refresh_from_db()
    run.attempts.update(state="lost")
    second = maker.attempt(run)
    gone_on(second, 10, reason="not heard from")
    add_steps(second, [numbers(11)], first=11)
    page.wait_for_function(f"() => {POINTS} === 11")
    words = "resumed from step 10, attempt 2 (attempt 1 lost: not heard from)"
    chart = page.locator("[data-chart=reward]")
    assert page.evaluate("document.querySelector('[data-chart=reward] .plot').layout.shapes.map((one) => one.x0)") == [
        10.5
    ]
    expect(chart.locator(".annotation-text")).to_have_text("attempt 2")
    expect(chart.locator(".plot")).to_have_attribute("aria-label", re.compile(re.escape(words)))
    chart.get_by_role("button", name="table").click()
    rows = chart.locator("table tbody tr")
    expect(rows).to_have_count(12)
    assert [rows.nth(at).locator("th").inner_text() for at in range(3)] == ["11", words, "10"]


def test_charts_follow_the_theme(open_page: Callable[..., Page], run: Run) -> None:
    page = open_page(f"runs/{run.pk}/")
    page.wait_for_function(f"() => {POINTS} === 12")
    colour = "document.querySelector('[data-chart=entropy] .plot').data[0].line.color"
    assert page.evaluate(colour) == "#3a58d6"
    page.get_by_role("button", name="Dark theme").click()
    page.wait_for_function(f"() => {colour} === '#91a7ff'")


def test_a_group_by_keyboard(open_page: Callable[..., Page], run: Run) -> None:
    page = open_page(f"runs/{run.pk}/groups/")
    page.locator(".groups tbody a").first.click()
    page.wait_for_url(re.compile(r"/groups/\d+/$"))
    first = page.url
    page.keyboard.press("n")
    page.keyboard.press("n")
    expect(page.locator(".sample.selected")).to_have_attribute("id", "sample-2")
    assert page.url == f"{first}?sample=2"
    page.keyboard.press("p")
    expect(page.locator(".sample.selected")).to_have_attribute("id", "sample-1")
    page.keyboard.press("j")
    page.wait_for_url(lambda url: url != f"{first}?sample=1")
    expect(page.locator(".crumbs")).to_contain_text("group 2 of 3")
    page.keyboard.press("k")
    expect(page.locator(".crumbs")).to_contain_text("group 1 of 3")
    page.wait_for_load_state()  # a key is heard once the page's script is there
    expect(page.locator("#keys-text")).to_be_hidden()
    page.keyboard.press("?")
    expect(page.locator("#keys-text")).to_be_visible()
    page.keyboard.press("g")
    page.wait_for_url("**/groups/?step=12")


def test_the_form_answers_as_one_types(open_page: Callable[..., Page], run: Run) -> None:
    page = open_page("runs/new/")
    steps, said = page.locator("#outlook dd").first, page.locator("#said-f-sampling-group-size")
    page.get_by_label("Steps", exact=True).fill("7")
    expect(steps).to_contain_text("7")
    page.get_by_label("Group size G").fill("1")
    expect(said).to_contain_text("A group of 1 has no other completion")
    expect(page.locator("#outlook")).to_contain_text("1 setting is not valid")
    expect(page.get_by_label("Group size G")).to_have_attribute("aria-invalid", "true")
    page.get_by_label("Group size G").fill("4")
    expect(said).not_to_contain_text("A group of 1")
    expect(page.get_by_label("Group size G")).not_to_have_attribute("aria-invalid", "true")
    page.get_by_label("Preset").select_option("dapo")
    expect(page.get_by_label("Group size G")).to_have_value("16")
    expect(page.locator("#said-f-preset")).to_contain_text("As DAPO has it")
    page.get_by_label("Name", exact=True).press("Enter")
    page.wait_for_url("**/runs/new/")
    assert Run.objects.count() == 1, "the Enter key checks and launches nothing"


def test_a_preset_on_its_way_is_not_overtaken_by_a_check(open_page: Callable[..., Page], run: Run) -> None:
    """Leaving the field and choosing the preset both ask the server, the check a moment later."""
    page = open_page("runs/new/")

    def slowly(route: Route) -> None:
        page.wait_for_timeout(1500)
        route.continue_()

    page.route("**/runs/new/", slowly)
    page.get_by_label("Group size G").fill("4")
    page.get_by_label("Preset").select_option("dapo")
    expect(page.get_by_label("Group size G")).to_have_value("16")


def test_nothing_typed_is_lost_to_a_preset_on_its_way(open_page: Callable[..., Page], run: Run) -> None:
    """Its answer is a new form: until it has come nothing takes text."""
    page = open_page("runs/new/")
    held: list[Route] = []
    page.route("**/runs/new/", lambda route: route.continue_() if held else held.append(route))
    name = page.get_by_label("Name", exact=True)
    with page.expect_request("**/runs/new/"):
        page.get_by_label("Preset").select_option("dapo")
    expect(name).to_be_disabled()
    held[0].continue_()
    name.fill("mine")
    expect(page.get_by_label("Group size G")).to_have_value("16")
    expect(name).to_have_value("mine")


def test_a_page_that_polls_goes_to_the_sign_in_and_back(open_page: Callable[..., Page], run: Run) -> None:
    """Signed out in another tab: the next poll takes the whole page there, not the sign-in into the page."""
    page = open_page(f"runs/{run.pk}/")
    page.wait_for_function(f"() => {POINTS} === 12")
    page.context.clear_cookies()
    page.wait_for_url("**/login/?next=*")
    page.get_by_label("Name").fill("alice")
    page.get_by_label("Password").fill(PASSWORD)
    page.get_by_role("button", name="Sign in").click()
    page.wait_for_url(f"**/p/ours/runs/{run.pk}/")


def test_cancel_asks_first(open_page: Callable[..., Page], run: Run) -> None:
    page = open_page(f"runs/{run.pk}/")
    asked: list[str] = []

    def no(dialog: Dialog) -> None:
        asked.append(dialog.message)
        dialog.dismiss()

    page.once("dialog", no)
    page.get_by_role("button", name="Cancel").click()
    assert asked
    assert asked[0].startswith("Cancel this run? The trainer is stopped")
    run.refresh_from_db()
    assert run.desired == "run"
    page.once("dialog", lambda dialog: dialog.accept())
    page.get_by_role("button", name="Cancel").click()
    expect(page.locator(".title")).to_contain_text("cancel asked for")
    run.refresh_from_db()
    assert run.desired == "cancel"


def test_cancel_asks_too_in_the_moment_after_a_poll(open_page: Callable[..., Page], run: Run) -> None:
    """A button that has just been swapped in does all that it does later, or the click goes past the question."""
    page = open_page(f"runs/{run.pk}/")
    click = "() => setTimeout(() => document.getElementById('cancel-run').click())"
    page.evaluate(f"document.addEventListener('htmx:afterSwap', {click}, {{ once: true }})")
    with page.expect_event("dialog") as asked:
        add_steps(run.attempts.get(), [numbers(13)], first=13)
    asked.value.dismiss()
    expect(page.locator(".run-progress")).to_contain_text("step 13 of 120")
    run.refresh_from_db()
    assert run.desired == "run"


def pages(run: Run) -> list[str]:
    below = ["", "groups/", "evaluations/", "logs/", "config/", "events/", f"groups/{run.groups.first().pk}/?sample=2"]
    return ["runs/", "runs/?q=nothing", "runs/new/", *(f"runs/{run.pk}/{tab}" for tab in below)]


def test_axe_finds_nothing_serious(open_page: Callable[..., Page], live_server: LiveServer, run: Run) -> None:
    page, found = open_page("runs/"), []
    for path in pages(run):
        page.goto(f"{live_server.url}/p/ours/{path}")
        for fold in page.locator("details:not(.menu):not(.switcher) > summary").all():
            fold.click()
        if path.endswith(f"runs/{run.pk}/"):
            page.wait_for_function(f"() => {POINTS} === 12")
        found += serious_faults(page, path)
    assert found == []


def test_no_page_is_wider_than_a_phone(open_page: Callable[..., Page], live_server: LiveServer, run: Run) -> None:
    page = open_page("runs/", width=360)
    for path in pages(run):
        page.goto(f"{live_server.url}/p/ours/{path}")
        if re.search(r"runs/\d+/$", path):
            page.wait_for_function(f"() => {POINTS} === 12")
        assert page.evaluate("document.documentElement.scrollWidth") <= 360, path


@pytest.mark.parametrize("width", [360, 1440])
def test_long_numbers_stay_in_their_tiles(open_page: Callable[..., Page], run: Run, width: int) -> None:
    first = numbers(1) | {"reward": 0.0, "entropy": 0.123456}
    latest = numbers(12) | {"reward": 0.0078125, "entropy": 0.00123456}
    Run.objects.filter(pk=run.pk).update(first_metrics=first, latest_metrics=latest)
    page = open_page(f"runs/{run.pk}/", width=width)
    tiles = page.locator("#live-tiles .tile")
    expect(tiles.first).to_contain_text("+0.00781")
    wider = "all => all.filter(tile => tile.scrollWidth > tile.clientWidth).map(tile => tile.innerText)"
    assert tiles.evaluate_all(wider) == []
