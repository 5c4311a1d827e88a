"""Operations and training content in a browser: axe's rules, narrow screens, dark."""

from collections.abc import Callable, Iterator

import pytest
from playwright.sync_api import Browser, Page, expect
from pytest_django.live_server_helper import LiveServer

from cohort.catalog.pretraining import pretraining_state
from cohort.evidence.preregistration import REGISTERED
from cohort.records.services import record_seal
from cohort.runs.models import Run
from tests.browser import picture
from tests.factories import sealed_run
from tests.web.records.conftest import World
from tests.web.records.records import logged
from tests.web.records.scenarios import changed
from tests.web.windows import serious_faults, windows

pytestmark = pytest.mark.slow
SHAPE = {"parameters": 494_000_000, "lookup": 0, "head": 136_000_000, "layers": 24, "attention": 896}


@pytest.fixture
def open_page(browser: Browser, transactional_db: None, live_server: LiveServer) -> Iterator[Callable[..., Page]]:
    with windows(browser, live_server.url) as opened:
        yield opened


def test_operations_from_launch_to_record(open_page: Callable[..., Page], world: World) -> None:
    run = world.launch()
    pretraining_state(model=run.base_model, actor=world.oscar, flop="8.8e15", source="its maker's report, section 3")
    model = {"parameters": SHAPE["parameters"], "shape": SHAPE, "context": 32768}
    reported = changed(sealed_run.whole(run), "manifest", model=model, platform={"device": "NVIDIA A100-SXM4-80GB"})
    run = sealed_run.finished(run, reported)
    record = record_seal(run=run)
    faults = []

    page = open_page("runs/new/")
    page.locator("#f-dataset").select_option(value=str(run.dataset_id))
    page.locator("[name='eval.holdout']").fill("4")
    expect(page.locator("#compute")).to_be_visible()
    page.locator("#compute summary").click()
    faults += serious_faults(page, "form")
    picture(page, "launch-compute")

    here = page.url.partition("runs/new/")[0]
    page.locator("#sweep summary").click()
    page.get_by_label("Fields and their values").fill("seed: 1, 2")
    expect(page.locator("#sweep-plan")).to_contain_text("Sweep: 2 runs")
    page.locator("summary:has(#sum-registration)").click()
    page.get_by_label("Hypotheses").fill("Held-out accuracy rises by 5 points.\nTruncation stays below 5 %.")
    expect(page.locator("#sum-registration")).to_contain_text("2 hypotheses")
    faults += serious_faults(page, "hypotheses")
    picture(page, "launch-hypotheses")
    page.locator("[name=probe_override]").fill("The reward is of this test alone.")
    page.get_by_role("button", name="Launch").click()
    page.wait_for_url("**/sweeps/*/")
    of_sweep = Run.objects.filter(sweep__isnull=False)
    registered = {body["subject"]: body["data"] for body in logged(REGISTERED)}
    for swept in of_sweep:
        assert registered[f"run:{swept.pk}"]["config_sha256"] == swept.config_digest
        assert len(registered[f"run:{swept.pk}"]["hypotheses"]) == 2
    assert len({swept.config_digest for swept in of_sweep}) == 2

    page.goto(f"{here}runs/{run.pk}/")
    page.locator("#compute summary").click()
    expect(page.locator("#compute")).to_contain_text("at most")
    faults += serious_faults(page, "run")
    picture(page, "run-compute")

    page.goto(f"{here}runs/{run.pk}/record/")
    expect(page.locator("#budget")).to_contain_text("estimated by architecture")
    expect(page.locator("#budget")).to_contain_text("NVIDIA A100 data sheet")
    picture(page, "record-compute")
    page.goto(f"{here}runs/{run.pk}/record/{record.end}/{record.version}/training-content/")
    expect(page.get_by_role("heading", name="2.5 Synthetic data")).to_be_visible()
    faults += serious_faults(page, "training content")
    picture(page, "training-content")

    page.goto(f"{here}models/{run.base_model_id}/")
    expect(page.locator("#pretraining")).to_contain_text("8.8 × 10¹⁵ FLOP")
    faults += serious_faults(page, "base model")
    picture(page, "base-model-compute")
    assert faults == []
