"""Time and memory of a run, in a real browser against a real `cohort up` with its workers: measured from the launch
page, shown, stale when a setting changes, launched with it, and its error found on the run's page and in the record."""

import re
from pathlib import Path

import pytest

from tests.browser import picture
from tests.e2e.person import MINUTES, Person, signed_in

pytestmark = pytest.mark.slow


def test_measured_launched_recorded(cohort_home: Path, tmp_path: Path) -> None:
    with signed_in(cohort_home, tmp_path) as (alice, _):
        drive(alice)


def drive(alice: Person) -> None:
    page, address = alice.page, alice.address
    alice.register_model()
    alice.upload("additions", "add-train.jsonl")
    page.goto(f"{address}/p/lab/rewards/new/?example=exact")
    page.locator("#id_name").fill("exact")
    page.get_by_role("button", name="Save", exact=True).click()
    page.get_by_role("heading", name="exact", exact=True).wait_for()

    # Measured by a worker, from the page where it will be launched.
    page.goto(f"{address}/p/lab/runs/new/?preset=demo")
    page.locator("#f-name").fill("measured")
    page.locator("#f-optim-steps").fill("4")
    page.get_by_text("every setting is valid").wait_for()
    panel = page.locator("#estimate")
    panel.get_by_role("button", name="Measure on a worker").click()
    panel.get_by_text(re.compile("Waits for a worker|Measuring|starting|loading|sampling|learning")).first.wait_for()
    panel.get_by_text("Peak memory").wait_for(timeout=5 * MINUTES)
    told = panel.inner_text()
    for words in ("A step", "sampling", "update", "Whole run", "Completions"):
        assert words in told
    picture(page, "estimate-done")

    # Of these settings and no others.
    page.locator("#f-optim-steps").fill("5")
    panel.get_by_text("The settings have changed since this was measured").wait_for()
    picture(page, "estimate-stale")
    page.locator("#f-optim-steps").fill("4")
    panel.get_by_text("The settings have changed").wait_for(state="detached")
    page.locator("#f-name").fill("measured, and called otherwise")
    page.get_by_text("every setting is valid").wait_for()

    # Launched with it, and compared with what it took.
    page.get_by_role("button", name="Launch").click()
    page.wait_for_url(re.compile(r"/p/lab/runs/\d+/$"))
    page.locator("#card-link").wait_for(timeout=10 * MINUTES)
    page.reload()
    compared = page.locator("#estimated")
    assert re.search(r"Time per step.*[+\N{MINUS SIGN}]\d+ %", compared.inner_text(), re.DOTALL)
    assert re.search(
        r"Peak memory.*GB.*[+\N{MINUS SIGN}]\d+ %|Peak memory.*MB.*[+\N{MINUS SIGN}]\d+ %",
        compared.inner_text(),
        re.DOTALL,
    )
    picture(page, "run-estimated")

    # And the record has the error.
    page.locator(".tabs").get_by_role("link", name=re.compile("^Record")).click()
    page.locator("#record-seal").wait_for()
    text = page.locator("#content").inner_text()
    assert "Time per step: estimate and actual" in text
    assert text.count("the estimate is off by") == 2
    picture(page, "record-estimated")
