"""The pages of records in a real browser: one journey from the seal to the public page; axe's rules, narrow screens."""

import json
from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect
from pytest_django.live_server_helper import LiveServer

from cohort.accounts.models import User
from cohort.catalog.services import dataset_create
from cohort.contamination.models import DataOverlap
from cohort.contamination.tasks import check
from cohort.governance.life import public, services
from cohort.governance.models import Record
from cohort.governance.services import record_seal
from cohort.governance.statements.services import flag_override, statement_make
from cohort.runs.models import Run
from tests.factories import sealed_run
from tests.factories.runs import Maker
from tests.factories.suites import add_suite
from tests.web.governance.scenarios import changed
from tests.web.windows import serious_faults, windows

UNFOLD = "for (const one of document.querySelectorAll('main details')) one.open = true"
HOSTILE = "<script>alert(1)</script> \u202e <img src=x onerror=alert(2)>"


@pytest.fixture
def sealed(transactional_db: None, launch: Callable[..., Run]) -> Record:
    return sealed_run.sealed(launch(name="add two digits"))


@pytest.fixture
def open_page(browser: Browser, transactional_db: None, live_server: LiveServer) -> Iterator[Callable[..., Page]]:
    with windows(browser, live_server.url, meant=["the server responded with a status of"]) as opened:
        yield opened


def test_from_the_seal_to_the_public_page(open_page: Callable[..., Page], sealed: Record, browser: Browser) -> None:
    page = open_page(f"runs/{sealed.run_id}/record/1/")
    page.get_by_text("Sign off", exact=True).click()
    page.locator("#life-sign_off").get_by_role("button", name="Sign").click()  # nothing was filled in
    form = page.locator("#life-sign_off")
    expect(form.locator(".error").first).to_be_visible()
    expect(form).to_have_attribute("open", "")
    form.get_by_label("You decide").select_option("approved")
    form.get_by_label("Reason").fill("Every item read.")
    form.get_by_role("button", name="Sign").click()
    expect(page.locator(".page-head")).to_contain_text("signed by the operator only")
    page.get_by_role("button", name="Make the public page").click()
    token = page.locator("#public-address").inner_text().rstrip("/").rsplit("/", 1)[1]
    guest = browser.new_page(base_url=page.url)
    guest.goto(f"/c/{token}/")
    expect(guest.locator("#short-digest")).to_have_text(sealed.short_digest)
    page.get_by_text("Revoke this record").click()
    page.locator("#life-revoke").get_by_label("Reason").fill("The held-out problems leaked.")
    page.locator("#life-revoke").get_by_role("button", name="Revoke").click()
    expect(page.locator(".notice.is-revoked")).to_contain_text("The held-out problems leaked.")
    guest.reload()
    expect(guest.locator(".notice.is-revoked")).to_contain_text("The held-out problems leaked.")
    page.get_by_role("button", name="Take it back").click()
    expect(page.locator(".messages")).to_contain_text("taken back")
    guest.reload()
    expect(guest.get_by_role("heading", level=1)).to_have_text("Nothing is here")
    guest.close()


@pytest.mark.slow
def test_a_launch_with_overlap_needs_a_tick(open_page: Callable[..., Page], maker: Maker) -> None:
    """Two of the three items of a suite stand in the dataset; axe on its page, and on the form as it is refused."""
    prompts = ["What is the capital of italy?", "what is the CAPITAL of japan", *(f"River {n}?" for n in range(9))]
    content = b"".join(json.dumps({"prompt": prompt, "answer": "x"}).encode() + b"\n" for prompt in prompts)
    add_suite(maker.project, maker.actor)
    leaky = dataset_create(project=maker.project, actor=maker.actor, name="leaky", format="jsonl", chunks=[content])
    for row in DataOverlap.objects.all():
        check(row.pk)
    page = open_page(f"datasets/{leaky.pk}/")
    page.locator("#overlaps summary").click()
    found = serious_faults(page, "dataset")
    page.goto(page.url.replace(f"datasets/{leaky.pk}/", "runs/new/"))
    page.locator("#f-dataset").select_option(value=str(leaky.pk))
    page.locator("[name='eval.holdout']").fill("4")
    page.locator("[name^='suite.'][type=checkbox]").first.check(force=True)
    tick, launch = page.locator("#overlap-seen"), page.get_by_role("button", name="Launch", exact=True)
    expect(tick).to_be_visible()
    launch.click()
    expect(page.get_by_text("Tick that you have seen it to launch.")).to_be_visible()
    assert not Run.objects.exists()
    found += serious_faults(page, "form")
    tick.check()
    page.wait_for_load_state("networkidle")  # the summary is swapped in meanwhile
    expect(tick).to_be_checked()
    launch.click()
    page.wait_for_url("**/runs/*/")
    assert Run.objects.get().launch_overlap.acknowledged
    assert found == []


@pytest.fixture
def pages(sealed: Record, launch: Callable[..., Run], alice: User, rita: User) -> dict[str, str]:
    """Of a run with suites, slices, touched items, statements, a flag, entries of every kind and a public page."""
    run = launch(name="<i>seed</i> 1", suites=["refusal_calibration", "multilingual"])
    sealed_run.stated(run, alice)
    flag_override(run=run, actor=alice, flag="truncation", reason="short on purpose")
    before = {"refusal_calibration": [1.0] * 40 + [0.0] * 20, "multilingual": [1.0, 0.0] * 30}
    after = {"refusal_calibration": [1.0] * 20 + [0.0] * 40, "multilingual": [1.0] * 60}
    more = {"slices": {"multilingual": ["de", "en"]}, "overlap": {"heldout": sealed_run.touched("add-3", items=100)}}
    told = sealed_run.with_suites(run, before, after, **more)  # type: ignore[arg-type]
    cut = {"reward": 0.5, "completions/clipped_ratio": 0.4}
    record = record_seal(run=sealed_run.finished(run, changed(told, "step", metrics=cut)))
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
        "public": f"/c/{public.public_link_make(record=record, actor=alice).token}/",
        "none": f"/c/{'A' * 43}/",
    }


@pytest.mark.slow
def test_pages_have_no_serious_fault_and_fit_a_phone(
    open_page: Callable[..., Page], live_server: LiveServer, pages: dict[str, str]
) -> None:
    page, found = open_page("records/"), []
    for name, path in pages.items():
        page.set_viewport_size({"width": 1440, "height": 900})
        page.goto(live_server.url + path)
        page.evaluate(UNFOLD)
        found += serious_faults(page, name)
        page.set_viewport_size({"width": 360, "height": 900})
        if page.evaluate("document.documentElement.scrollWidth") > 360:
            found.append(f"{name} is wider than a phone")
    assert found == []
