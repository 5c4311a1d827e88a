"""The overlaps in a real browser: on a dataset's page and beside the run form, axe's rules, narrow screens."""

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect
from pytest_django.live_server_helper import LiveServer

from cohort.catalog.models import PromptDataset
from cohort.catalog.services import dataset_create
from cohort.contamination.models import DataOverlap
from cohort.contamination.tasks import check
from cohort.runs.models import Run
from tests.web.run_rows import Maker
from tests.web.suite_rows import add_suite
from tests.web.windows import serious_faults, windows

SHOTS = Path(os.environ["COHORT_TEST_SHOTS"]) if "COHORT_TEST_SHOTS" in os.environ else None


@pytest.fixture
def leaky(transactional_db: None, maker: Maker) -> PromptDataset:
    """Two of the three items of a suite stand in it; another suite is not compared yet."""
    prompts = [
        "What is the capital of Italy?",
        "what is the CAPITAL of japan",
        *(f"Which river is {n} long?" for n in range(9)),
    ]
    content = b"".join(json.dumps({"prompt": prompt, "answer": "x"}).encode() + b"\n" for prompt in prompts)
    add_suite(maker.project, maker.actor)
    dataset = dataset_create(project=maker.project, actor=maker.actor, name="leaky", format="jsonl", chunks=[content])
    for row in DataOverlap.objects.all():
        check(row.pk)
    add_suite(
        maker.project, maker.actor, "rivers", content=b'{"id": "r", "prompt": "Which river is it?", "target": "x"}\n'
    )
    return dataset


@pytest.fixture
def page(browser: Browser, leaky: PromptDataset, live_server: LiveServer) -> Iterator[Page]:
    with windows(browser, live_server.url, meant=["422"]) as opened:
        yield opened("datasets/")


def look(page: Page, name: str) -> None:
    if SHOTS:
        for theme, width in (("light", 1440), ("dark", 1440), ("light", 360)):
            page.emulate_media(color_scheme=theme)  # type: ignore[arg-type]
            page.set_viewport_size({"width": width, "height": 900})
            page.screenshot(path=SHOTS / f"{name}-{theme}-{width}.png", full_page=True)


def fits(page: Page) -> bool:
    page.set_viewport_size({"width": 360, "height": 800})
    return bool(page.evaluate("document.documentElement.scrollWidth <= window.innerWidth"))


def test_the_page_of_a_dataset(page: Page, leaky: PromptDataset) -> None:
    page.get_by_role("link", name="leaky").click()
    panel = page.locator("#overlaps")
    expect(panel.locator("tbody tr").first).to_contain_text("found")
    expect(panel.get_by_text("being checked")).to_be_visible()
    panel.locator("summary").click()
    expect(panel.get_by_text("what is the CAPITAL of japan").last).to_be_visible()
    look(page, "dataset")
    assert serious_faults(page, "dataset") == []
    assert fits(page)


def test_a_launch_with_a_tick(page: Page, leaky: PromptDataset) -> None:
    page.goto(page.url.replace("datasets/", "runs/new/"))
    page.locator("#f-dataset").select_option(value=str(leaky.pk))
    page.locator("[name='eval.holdout']").fill("4")
    page.locator("[name^='suite.'][type=checkbox]").first.check(force=True)
    tick = page.locator("#overlap-seen")
    expect(tick).to_be_visible()
    expect(page.locator("#outlook")).to_contain_text("2 of 3 items stand in the training data")
    look(page, "form")
    page.get_by_role("button", name="Launch", exact=True).click()
    expect(page.get_by_text("Tick that you have seen it to launch.")).to_be_visible()
    assert not Run.objects.exists()
    assert serious_faults(page, "form") == []
    page.locator("#overlap-seen").check()
    page.wait_for_load_state("networkidle")  # the summary is swapped in meanwhile
    expect(page.locator("#overlap-seen")).to_be_checked()
    page.get_by_role("button", name="Launch", exact=True).click()
    page.wait_for_url("**/runs/*/")
    assert Run.objects.get().launch_overlap.acknowledged
