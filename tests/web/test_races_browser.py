"""What only a real browser shows: requests that overtake each other, presses that outlast a swap, polls that meet a
sign-out, what is said when no answer comes, native validation, and layout that depends on the numbers.
"""

import re
from collections.abc import Callable, Iterator
from datetime import timedelta

import pytest
from django.utils import timezone
from playwright.sync_api import Browser, Page, Route, expect
from pytest_django.live_server_helper import LiveServer

from cohort.lab.models import LabJob
from cohort.runs.logs import log_append, log_size
from cohort.runs.models import Attempt, Run
from cohort.web.launch import form as form_views
from tests.browser import picture
from tests.factories.lab import measured, there
from tests.factories.runs import Maker, add_group, add_steps, put_in
from tests.web.control import fresh
from tests.web.windows import windows

pytestmark = pytest.mark.slow

OpenPage = Callable[..., Page]
MEANT = [
    "htmx:",
    "Status Error Code",
    "ERR_CONNECTION_REFUSED",
    *(f"status of {code}" for code in (403, 409, 422, 500)),
]


@pytest.fixture
def open_page(browser: Browser, transactional_db: None, maker: Maker, live_server: LiveServer) -> Iterator[OpenPage]:
    with windows(browser, live_server.url, meant=MEANT) as opened:
        yield opened


@pytest.fixture
def run(transactional_db: None, maker: Maker) -> Run:
    """In training at step 3."""
    run = maker.run("add two digits", state="training", optim={"steps": 12})
    add_steps(maker.attempt(run), [{"reward": 0.1}] * 3)
    return run


# ---------------------------------------------------------------- the launch form


def test_a_preset_on_its_way_is_not_overtaken_and_takes_no_text(open_page: OpenPage) -> None:
    """Leaving the field and choosing the preset both ask the server, the check a moment later. Its answer is a new
    form: until it has come nothing takes text."""
    page = open_page("runs/new/")
    held: list[Route] = []

    def keep_preset(route: Route) -> None:
        if "preset" in str(route.request.post_data).split("action")[-1]:
            held.append(route)
        else:
            route.continue_()

    page.route("**/runs/new/", keep_preset)
    page.get_by_label("Group size G").fill("4")
    with page.expect_request(lambda request: "preset" in str(request.post_data).split("action")[-1]):
        page.get_by_label("Preset").select_option("dapo")
    name = page.get_by_label("Name", exact=True)
    expect(name).to_be_disabled()
    held[0].continue_()
    name.fill("mine")
    expect(page.get_by_label("Group size G")).to_have_value("16")
    expect(name).to_have_value("mine")


def test_a_component_of_another_kind_on_its_way_takes_no_text(open_page: OpenPage) -> None:
    """Its fields come with the answer: what was typed before that would be gone with the old ones."""
    page = open_page("rewards/new/")
    held: list[Route] = []
    page.route("**/rewards/component/", lambda route: held.append(route))
    page.locator("#id_component-0-name").fill("before")
    page.locator("#id_component-0-kind").focus()
    with page.expect_request("**/rewards/component/"):
        page.locator("#id_component-0-kind").select_option("regex")
    name = page.locator("#id_component-0-name")
    expect(name).to_be_disabled()
    expect(page.locator("#id_component-0-kind")).to_be_focused()
    held[0].continue_()
    pattern = page.locator("#id_component-0-p_pattern")
    pattern.fill("7$")
    name.fill("seven")
    expect(name).to_have_value("seven")
    expect(pattern).to_have_value("7$")


def test_a_check_that_waits_for_another_does_not_take_the_measurements_place(open_page: OpenPage) -> None:
    """The click gives up the check under way; the one that waited behind it would be answered before the click."""
    page = open_page("runs/new/")
    sent: list[str] = []

    def late(route: Route) -> None:
        sent.append("estimate" if "estimate" in str(route.request.post_data).split("action")[-1] else "check")
        if sent != ["check"]:  # the first is not answered until it is given up
            route.continue_()

    page.route("**/runs/new/", late)
    with page.expect_request("**/runs/new/"):
        page.locator("#f-optim-steps").fill("77")
    page.get_by_label("Group size G").fill("6")
    panel = page.locator("#estimate")
    panel.get_by_role("button", name="Estimate time and memory").click()
    expect(panel).to_contain_text("Waits for a worker")
    assert sent[:2] == ["check", "estimate"]
    job = LabJob.objects.get()
    config = job.config or {}
    assert (config["optim"]["steps"], config["sampling"]["group_size"]) == (77, 6)
    measured(job, there())
    expect(panel).to_contain_text("Peak memory")  # by the poll
    page.locator("#f-optim-steps").fill("78")
    expect(panel).to_contain_text("settings have changed")


def test_no_answer_an_error_and_an_answer_again(open_page: OpenPage, monkeypatch: pytest.MonkeyPatch) -> None:
    page = open_page("runs/new/", width=360)
    trouble, preset = page.locator(".trouble"), page.get_by_label("Preset")
    page.get_by_label("Name", exact=True).fill("mine")
    page.route("**/runs/new/", lambda route: route.abort("connectionrefused"))
    preset.select_option("dapo")
    expect(trouble).to_contain_text("No answer came")
    expect(trouble).to_be_in_viewport()
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
    expect(page.get_by_label("Name", exact=True)).to_have_value("mine")
    expect(preset).to_have_value("")
    page.unroute("**/runs/new/")
    preset.select_option("dapo")
    expect(page.get_by_label("Group size G")).to_have_value("16")
    expect(trouble).to_be_hidden()
    with page.expect_response("**/runs/new/"):
        page.get_by_label("Name", exact=True).press("Enter")
    assert not Run.objects.exists(), "Enter checks and launches nothing"

    def broken(*_: object) -> None:
        raise RuntimeError("broken by this test")

    monkeypatch.setattr(form_views, "_checked", broken)
    page.get_by_label("Steps", exact=True).fill("7")
    expect(trouble).to_contain_text("Something broke on our side")
    expect(trouble).not_to_contain_text("broken by this test")


# ---------------------------------------------------------------- a run that lives


def test_a_press_outlasts_what_comes_meanwhile(open_page: OpenPage, run: Run) -> None:
    """The page's head is polled; a button that is replaced between press and release is not clicked."""
    page = open_page(f"runs/{run.pk}/")
    page.get_by_role("button", name="Pause").hover()
    page.mouse.down()
    with page.expect_response(lambda answer: "/live/" in answer.url and answer.status == 200):
        add_steps(run.attempts.get(), [{"reward": 0.5}], first=4)
    page.mouse.up()
    expect(page.locator(".title")).to_contain_text("pause requested")
    expect(page.locator(".run-progress")).to_contain_text("step 4 of 12")
    page.get_by_role("button", name="Keep running").hover()
    page.mouse.down()
    with page.expect_response(lambda answer: "/live/" in answer.url and answer.status == 286):
        put_in(run, "failed", ended_at=timezone.now() - timedelta(days=1))
    page.mouse.move(1, 1)
    page.mouse.up()  # the last answer comes after the press
    expect(page.locator(".title .badge").first).to_contain_text("Failed")


def test_cancel_asks_even_in_the_moment_after_a_poll(open_page: OpenPage, run: Run) -> None:
    """A button that has just been swapped in does all that it does later, or the click goes past the question."""
    page = open_page(f"runs/{run.pk}/")
    click = "() => setTimeout(() => document.getElementById('cancel-run').click())"
    page.evaluate(f"document.addEventListener('htmx:afterSwap', {click}, {{ once: true }})")
    with page.expect_event("dialog") as question:
        add_steps(run.attempts.get(), [{"reward": 0.5}], first=4)
    question.value.dismiss()
    expect(page.locator(".run-progress")).to_contain_text("step 4 of 12")
    assert fresh(run).desired == "run"
    page.once("dialog", lambda dialog: dialog.accept())
    page.get_by_role("button", name="Cancel").click()
    expect(page.locator(".title")).to_contain_text("cancel requested")


def test_a_refusal_says_what_to_do_and_a_failing_poll_nothing(open_page: OpenPage, run: Run) -> None:
    group = add_group(run.attempts.get(), [1.0, 0.0], step=1)
    page = open_page(f"runs/{run.pk}/")
    page.route("**/live/**", lambda route: route.abort("connectionrefused"))
    for _ in range(2):
        with page.expect_event("requestfailed"):
            pass
    expect(page.locator(".trouble")).to_be_hidden()
    page.goto(page.url + f"groups/{group.pk}/")
    page.context.clear_cookies(name="csrftoken")
    page.locator("#judgement-0").get_by_role("button", name="Wrong").click()
    expect(page.locator(".trouble")).to_contain_text("reload the page")


@pytest.mark.parametrize("width", [360, 1440])
def test_small_numbers_fit_their_tiles_and_axes(open_page: OpenPage, maker: Maker, width: int) -> None:
    run = maker.run("tiny", state="training", preset="demo")
    numbers = {"sampling/logp_difference/mean": 1e-6, "entropy": 0.123456}
    add_steps(maker.attempt(run), [numbers | {"reward": reward} for reward in (0.0, 0.0078125) for _ in range(10)])
    page = open_page(f"runs/{run.pk}/", width=width)
    tiles, chart = page.locator("#live-tiles .tile"), page.locator("[data-chart=mismatch] .plot")
    expect(tiles.first).to_contain_text("+0.00781")
    wider = "all => all.filter(tile => tile.scrollWidth > tile.clientWidth).map(tile => tile.innerText)"
    assert tiles.evaluate_all(wider) == []
    chart.scroll_into_view_if_needed()  # a chart is drawn once it is in sight
    ticks = chart.locator(".ytick text")
    expect(ticks.last).to_have_text(re.compile(r"10\W*−6"))
    title = chart.locator(".ytitle").bounding_box()
    assert title is not None
    assert title["x"] + title["width"] <= min(box["x"] for tick in ticks.all() if (box := tick.bounding_box()))


# ---------------------------------------------------------------- the log


def test_a_log_is_followed_while_it_is_printed(open_page: OpenPage, run: Run) -> None:
    attempt = run.attempts.get()

    def prints(first: int, last: int) -> None:
        text = "".join(f"step {step}/400 of the run\n" for step in range(first, last))
        log_append(attempt=attempt, fence=attempt.fence, offset=log_size(attempt), body=text.encode())

    prints(1, 200)
    page = open_page(f"runs/{run.pk}/logs/")
    follow, newest = page.get_by_label("follow"), page.get_by_text("step 250/400 of the run")
    expect(page.get_by_text("step 199/400 of the run")).to_be_in_viewport()
    prints(200, 251)
    expect(newest).to_be_in_viewport()
    page.locator("#log").evaluate("log => (log.scrollTop = 0)")
    expect(follow).not_to_be_checked()
    prints(251, 300)
    expect(page.get_by_text("step 299/400 of the run")).to_be_attached()
    expect(newest).not_to_be_in_viewport()
    follow.check()
    expect(page.get_by_text("step 299/400 of the run")).to_be_in_viewport()
    picture(page, "log")
    Attempt.objects.filter(pk=attempt.pk).update(state="finished", ended_at=timezone.now())
    expect(follow).not_to_be_attached()
