"""The pages of records in a browser: axe's rules, narrow screens, and the tick that a launch with overlap needs."""

from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect
from pytest_django.live_server_helper import LiveServer

from cohort.accounts.models import User
from cohort.background.tasks import check_overlap as check
from cohort.catalog.services import dataset_create
from cohort.contamination.models import DataOverlap
from cohort.records.after_seal import services
from cohort.records.models import Record
from cohort.records.services import record_seal
from cohort.records.statements.services import flag_override, statement_make
from cohort.runs.models import Run
from tests.factories import sealed_run
from tests.factories.runs import Maker
from tests.factories.suites import add_suite
from tests.web.records.scenarios import ANSWERS, changed
from tests.web.windows import serious_faults, windows

pytestmark = pytest.mark.slow
UNFOLD = "for (const details of document.querySelectorAll('main details')) details.open = true"
HOSTILE = "<script>alert(1)</script> \u202e <img src=x onerror=alert(2)>"


@pytest.fixture
def open_page(browser: Browser, transactional_db: None, live_server: LiveServer) -> Iterator[Callable[..., Page]]:
    with windows(browser, live_server.url, meant=["the server responded with a status of"]) as opened:
        yield opened


def test_a_launch_with_overlap_needs_a_tick(open_page: Callable[..., Page], maker: Maker) -> None:
    """An item of a suite stands in the dataset; axe on its page, and on the form as it is refused."""
    add_suite(maker.project, maker.actor)
    rows = [b'{"prompt": "What is the capital of italy?", "answer": "x"}\n'] * 9
    leaky = dataset_create(project=maker.project, actor=maker.actor, name="leaky", format="plain", chunks=rows)
    for row in DataOverlap.objects.all():
        check(row.pk)
    page = open_page(f"datasets/{leaky.pk}/")
    page.locator("#overlaps summary").click()
    faults = serious_faults(page, "dataset")
    page.goto(page.url.replace(f"datasets/{leaky.pk}/", "runs/new/"))
    page.locator("#f-dataset").select_option(value=str(leaky.pk))
    page.locator("[name='eval.holdout']").fill("4")
    page.locator("[name^='suite.'][type=checkbox]").first.check(force=True)
    tick, launch = page.locator("#overlap-seen"), page.get_by_role("button", name="Launch", exact=True)
    expect(tick).to_be_visible()
    page.get_by_label("Reason for the override").fill("The reward is of this test alone.")
    launch.click()
    expect(page.get_by_text("Tick that you have seen it to launch.")).to_be_visible()
    assert faults + serious_faults(page, "form") == []
    tick.check()
    page.wait_for_load_state("networkidle")  # the summary is swapped in meanwhile
    expect(tick).to_be_checked()
    launch.click()
    page.wait_for_url("**/runs/*/")
    assert Run.objects.get().launch_overlap.acknowledged


@pytest.fixture
def pages(sealed: Record, launch: Callable[..., Run], alice: User, rita: User) -> dict[str, str]:
    """Of a run with suites, slices, touched items, statements, a flag, entries of every kind and a public page."""
    run = launch(name="<i>seed</i> 1", suites=["refusal_calibration", "multilingual"])
    for field, answer in ANSWERS.items():
        statement_make(run=run, actor=alice, field=field, **answer)
    flag_override(run=run, actor=alice, flag="truncation", reason="short on purpose")
    before = {"refusal_calibration": [1.0] * 40 + [0.0] * 20, "multilingual": [1.0, 0.0] * 30}
    after = {"refusal_calibration": [1.0] * 20 + [0.0] * 40, "multilingual": [1.0] * 60}
    slices, overlap = {"multilingual": ["de", "en"]}, {"heldout": sealed_run.touched("add-3", items=100)}
    reported = sealed_run.with_suites(run, before, after, slices=slices, overlap=overlap)
    metrics = {"reward": 0.5, "completions/clipped_ratio": 0.4}
    record = record_seal(run=sealed_run.finished(run, changed(reported, "step", metrics=metrics)))
    statement_make(run=run, actor=alice, field="method.rationale", text="The demo's settings with fewer steps.")
    given: dict[str, Any] = {"record": record, "actor": rita}
    services.incident(**given, severity="high", when=datetime(2026, 11, 20, 8, tzinfo=UTC), what=f"German. {HOSTILE}")
    wrong = services.feedback(**given, text="It is rude.", source="a caller")
    services.feedback(**given, text="Another model was.", source="a caller", corrects=wrong.pk)
    period = (date(2026, 10, 1), date(2026, 10, 31))
    services.monitoring(**given, text="As expected " * 9, period=period, figures=[("refusals", "12 of 480")])
    services.override(**given, what="entropy collapse", reason="Expected at this length.")
    services.sign_off(record=record, actor=alice, role="operator", decision="approved", reason="Every item read.")
    services.revoke(record=record, actor=alice, reason="The held-out problems were in the training data.")
    at = f"runs/{run.pk}/record/"
    return {
        "list": "/p/ours/records/",
        "record": f"/p/ours/{at}",
        "life": f"/p/ours/{at}1/life/",
        "statements": f"/p/ours/runs/{run.pk}/statements/",
        "diff": f"/p/ours/records/compare/?record={sealed.pk}&record={record.pk}",
        "choose": f"/p/ours/records/compare/?record={sealed.pk}",
        "public": f"/c/{services.public_link_make(record=record, actor=alice).token}/",
        "none": f"/c/{'A' * 43}/",
    }


def test_pages_have_no_serious_fault_and_fit_a_phone(
    open_page: Callable[..., Page], live_server: LiveServer, pages: dict[str, str]
) -> None:
    page, faults = open_page("records/"), []
    for name, path in pages.items():
        page.set_viewport_size({"width": 1440, "height": 900})
        page.goto(live_server.url + path)
        page.evaluate(UNFOLD)
        faults += serious_faults(page, name)
        page.set_viewport_size({"width": 360, "height": 900})
        if page.evaluate("document.documentElement.scrollWidth") > 360:
            faults.append(f"{name} is wider than a phone")
    assert faults == []
