"""The launch page's estimate, the charts of the engine and a draft's launch in a real browser: what changes as one
types and waits, axe's rules, and narrow screens.

With COHORT_TEST_SCREENSHOTS set to a folder, pictures of the pages are kept there.
"""

import re
from collections.abc import Callable, Iterator

import pytest
from playwright.sync_api import Browser, Page, Route, expect
from pytest_django.live_server_helper import LiveServer

from cohort.accounts.models import Project, User
from cohort.lab.models import LabJob, LaunchEstimate
from cohort.runs.models import Run, RunState, StepMetric
from tests.browser import picture
from tests.web.estimate_rows import measured, there
from tests.web.lab_rows import format_only, probed
from tests.web.run_rows import Maker, add_steps
from tests.web.windows import GIVEN_UP, serious_faults, windows

STEPS = 40


@pytest.fixture
def open_page(browser: Browser, maker: Maker, live_server: LiveServer) -> Iterator[Callable[..., Page]]:
    with windows(browser, live_server.url, meant=["status of 422", *GIVEN_UP]) as opened:
        yield opened


def no_faults(page: Page, where: str) -> None:
    assert serious_faults(page, where) == []
    page.emulate_media(color_scheme="light")
    page.set_viewport_size({"width": 360, "height": 800})
    expect(page.locator("html")).to_have_js_property("scrollWidth", 360)


def test_measured_from_the_launch_page(open_page: Callable[..., Page], transactional_db: None) -> None:
    page = open_page("runs/new/")
    page.locator("#f-engine-rollout").evaluate("one => one.closest('details').open = true")
    picture(page, "launch-engine")
    panel = page.locator("#estimate")
    panel.get_by_role("button", name="Measure on a worker").click()
    expect(panel).to_contain_text("Waits for a worker")
    picture(page, "launch-estimate-waits")
    node = there()
    job = LabJob.objects.get()
    measured(job, node)
    expect(panel).to_contain_text("Peak memory")
    expect(panel).to_contain_text("evaluations take longer than the training")
    picture(page, "launch-estimate")
    page.locator("#f-optim-steps").fill("77")
    page.locator("#f-optim-steps").blur()
    expect(panel).to_contain_text("The settings have changed since this was measured")
    picture(page, "launch-estimate-stale")
    panel.get_by_role("button", name="Measure again").click()
    expect(panel).to_contain_text("Waits for a worker")
    assert LabJob.objects.count() == 2
    no_faults(page, "launch page")


def test_measured_at_once_after_typing_on_a_slow_server(open_page: Callable[..., Page], transactional_db: None) -> None:
    """The check of what was typed is due while the answer to the click is still on its way."""
    page = open_page("runs/new/")
    sent: list[str] = []

    def late(route: Route) -> None:
        sent.append("estimate" if "estimate" in str(route.request.post_data).split("action")[-1] else "check")
        page.wait_for_timeout(1500 if sent[-1] == "estimate" else 0)
        route.continue_()

    page.route("**/runs/new/", late)
    page.locator("#f-optim-steps").fill("77")
    with page.expect_response(lambda _: "estimate" in sent and sent[-1] == "check"):  # what was typed, after the click
        page.locator("#estimate").get_by_role("button", name="Measure on a worker").click()
        expect(page.locator("#estimate")).to_contain_text("Waits for a worker")
    expect(page.locator("#estimate")).to_contain_text("Waits for a worker")
    job = LabJob.objects.get()
    assert (job.config or {})["optim"]["steps"] == 77


def test_a_check_that_waits_for_another_does_not_take_the_measurements_place(
    open_page: Callable[..., Page], transactional_db: None
) -> None:
    """The click gives up the check under way; the one that waited behind it would be answered before the click."""
    page = open_page("runs/new/")
    sent: list[str] = []

    def late(route: Route) -> None:
        sent.append("estimate" if "estimate" in str(route.request.post_data).split("action")[-1] else "check")
        if sent == ["check"]:
            return  # not answered until it is given up
        page.wait_for_timeout(3000 if sent[-1] == "estimate" else 0)
        route.continue_()

    page.route("**/runs/new/", late)
    with page.expect_request("**/runs/new/"):
        page.locator("#f-optim-steps").fill("77")
    page.get_by_label("Group size G").fill("6")
    page.wait_for_timeout(1000)  # its check is due and waits
    page.locator("#estimate").get_by_role("button", name="Measure on a worker").click()
    expect(page.locator("#estimate")).to_contain_text("Waits for a worker")
    assert sent[:2] == ["check", "estimate"]
    config = LabJob.objects.get().config or {}
    assert (config["optim"]["steps"], config["sampling"]["group_size"]) == (77, 6)


def test_a_button_is_not_swapped_away_while_it_is_pressed(
    open_page: Callable[..., Page], transactional_db: None
) -> None:
    page = open_page("runs/new/")
    answered: list[str] = []
    page.on("requestfinished", lambda request: answered.append(request.method))
    page.locator("#f-optim-steps").fill("77")
    button = page.locator("#estimate").get_by_role("button", name="Measure on a worker")
    button.hover()
    page.mouse.down()
    while "POST" not in answered:
        page.wait_for_timeout(100)
    page.wait_for_timeout(500)
    page.mouse.move(1, 1)
    page.mouse.up()  # not on it: nothing was clicked, and what was typed is shown now
    expect(page.locator("#outlook dd").first).to_have_text("77")
    page.locator("#f-optim-steps").fill("78")
    button.hover()
    page.mouse.down()
    page.wait_for_timeout(2000)
    page.mouse.up()
    expect(page.locator("#estimate")).to_contain_text("Waits for a worker")
    assert (LabJob.objects.get().config or {})["optim"]["steps"] == 78


def test_a_run_with_an_estimate_and_the_engines_numbers(
    open_page: Callable[..., Page], transactional_db: None, maker: Maker, alice: User
) -> None:
    run = maker.run("measured", state="training", preset="demo")
    told = [
        {
            "reward": 0.4 + at / 100,
            "reward_group_std": 0.2,
            "tokens_per_second/sample": 900.0 + 10 * at,
            "tokens_per_second/update": 2100.0 - 5 * at,
            "memory/peak_bytes": 2.1e9 + 1e6 * at,
            "device_utilisation": 0.7 + (at % 7) / 50,
        }
        for at in range(STEPS)
    ]
    add_steps(maker.attempt(run), told)
    for row in StepMetric.objects.filter(run=run):
        spans = {"sample": 1.2, "reward": 0.1, "logprobs": 0.2, "update": 0.9 + row.step / 100, "checkpoint": 0.05}
        row.seconds = {**spans, "waiting": 0.0, "other": 0.04, "total": sum(spans.values()) + 0.04}
        row.save(update_fields=["seconds"])
    run.refresh_from_db()
    Run.objects.filter(pk=run.pk).update(seconds_per_step=2.6)
    result = {
        "config_digest": "c" * 64, "device": "cpu", "device_name": "AMD EPYC", "seconds_per_step": 2.2,
        "seconds_total": 130.0, "parts": {"sample": 1.3, "update": 0.9}, "peak_memory_bytes": 2_400_000_000,
        "completion_tokens": 21.5, "length_from": "calibration", "prompts": 8, "calibration_seconds": 4.0,
    }  # fmt: skip
    job = LabJob.objects.create(
        project=run.project, kind="estimate", spec={"components": []}, spec_digest="", config={}, result=result,
        config_digest="c" * 64, state="done", created_by=alice,
    )  # fmt: skip
    LaunchEstimate.objects.create(run=run, job=job, estimate=result, by=alice)
    page = open_page(f"runs/{run.pk}/")
    phases = page.locator('[data-chart="phases"]')
    expect(phases.locator(".js-plotly-plot")).to_be_visible()
    drawn = page.evaluate("[...document.querySelector('[data-chart=phases] .plot').data].map(one => one.y.at(-1))")
    assert drawn[0] == 1.2
    assert drawn[3] == pytest.approx(0.9 + STEPS / 100)
    phases.get_by_role("button", name="table").click()
    expect(phases.locator("thead")).to_contain_text("log-probs")
    phases.get_by_role("button", name="chart").click()
    for chart in ("speed", "memory", "utilisation"):
        expect(page.locator(f'[data-chart="{chart}"] .js-plotly-plot')).to_be_visible()
    memory = page.locator('[data-chart="memory"]')
    memory.get_by_text("what it says").click()
    expect(memory).to_contain_text("resident memory of the trainer")
    memory.get_by_text("what it says").click()
    expect(page.locator("#estimated")).to_contain_text("2.40 GB")
    picture(page, "run-engine")
    no_faults(page, "run page")
    page = open_page(f"lab/jobs/{job.pk}/")
    expect(page.locator("#estimate")).to_contain_text("2.2 s")
    picture(page, "job-estimate")
    no_faults(page, "job page")


@pytest.fixture
def open_held(browser: Browser, maker: Maker, live_server: LiveServer) -> Iterator[Callable[..., Page]]:
    """A launch that must be confirmed is answered 409, which the console counts as an error."""
    with windows(browser, live_server.url, meant=["status of 409"]) as opened:
        yield opened


def test_a_drafts_launch_is_confirmed(
    open_held: Callable[..., Page], transactional_db: None, ours: Project, maker: Maker, alice: User
) -> None:
    maker.verifier_version = format_only(ours, alice)
    probed(maker.verifier_version, alice, maker.dataset)
    run = maker.run("held back")
    page = open_held(f"runs/{run.pk}/")
    page.get_by_role("button", name=re.compile("^Launch")).first.click()
    expect(page.get_by_role("heading", name="Launch held back")).to_be_visible()
    expect(page.get_by_role("heading", name="Held back by the probe of its reward")).to_be_visible()
    picture(page, "launch-confirm")
    reason = page.get_by_label("Reason to launch all the same")
    reason.fill("short")
    page.get_by_role("button", name="Launch").click()
    expect(reason).to_be_focused()
    assert page.evaluate("document.querySelector('textarea[name=probe_override]').validity.tooShort")
    run.refresh_from_db()
    assert run.state == RunState.DRAFT
    no_faults(page, "launch confirmation")
    page.set_viewport_size({"width": 1440, "height": 900})
    reason.fill("Only the form is to be learned in this warm-up.")
    page.get_by_role("button", name="Launch").click()
    page.wait_for_url(re.compile(rf"/runs/{run.pk}/$"))
    run.refresh_from_db()
    assert run.state == RunState.QUEUED
