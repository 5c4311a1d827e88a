"""A policy in a browser: written with a fault, mended, demanded; the record that does not meet it has no public page
until two people sign. Axe, and narrow screens."""

from collections.abc import Callable, Iterator

import pytest
from playwright.sync_api import Browser, Page, expect
from pytest_django.live_server_helper import LiveServer

from cohort.records.after_seal import services
from cohort.records.services import record_seal
from cohort.runs.models import Run
from tests.browser import picture
from tests.factories.sealed_run import finished
from tests.web.records.conftest import World
from tests.web.windows import serious_faults, windows

pytestmark = pytest.mark.slow
RULES = """\
schema: cohort-policy/1
name: Before a record is public
rules:
- {name: the run succeeded, rule: ended}
- {name: two people signed, rule: sign_off}
"""


@pytest.fixture
def open_page(browser: Browser, transactional_db: None, live_server: LiveServer) -> Iterator[Callable[..., Page]]:
    with windows(browser, live_server.url, meant=["the server responded with a status of"]) as opened:
        yield opened


def test_a_policy_is_written_demanded_and_met(
    open_page: Callable[..., Page], world: World, launch: Callable[..., Run]
) -> None:
    record = record_seal(run=finished(launch(hypotheses="Held-out accuracy rises by 5 points.")))
    page = open_page("policy/")
    picture(page, "policy-first")
    page.get_by_label("Rules", exact=True).fill(RULES)
    page.get_by_label("Why", exact=True).fill("agreed by the board")
    page.get_by_role("button", name="Save").click()
    expect(page.get_by_text("line 5: rule must be one of")).to_be_visible()
    faults = serious_faults(page, "policy with a fault")
    page.get_by_label("Rules", exact=True).fill(RULES.replace("sign_off", "sign_offs"))
    page.get_by_label("Demanded before a record may be public").check()
    page.get_by_role("button", name="Save").click()
    expect(page.get_by_text("Version 1 of the policy is saved and in force.")).to_be_visible()
    faults += serious_faults(page, "policy")
    picture(page, "policy-page")
    page.get_by_role("link", name="1", exact=True).click()
    faults += serious_faults(page, "version")
    picture(page, "policy-version")
    page.goto(page.url.replace("policy/1/", f"runs/{record.run_id}/record/"))
    expect(page.locator("#policy-gate")).to_contain_text("nobody has signed as operator")
    expect(page.locator("#policy-gate")).to_contain_text("To do: Have the record signed off")
    expect(page.locator("#public-page")).to_contain_text("it is not met")
    faults += serious_faults(page, "record")
    picture(page, "policy-gate")
    for person, role in ((world.oscar, "operator"), (world.rita, "reviewer")):
        services.sign_off(record=record, actor=person, role=role, decision="approved", reason="read it")
    page.reload()
    expect(page.locator("#policy-gate")).to_contain_text("approved as operator by oscar")
    page.get_by_role("button", name="Make the public page").click()
    expect(page.locator("#public-address")).to_be_visible()
    picture(page, "policy-met")
    withdraw = page.get_by_role("button", name="Withdraw it")
    page.once("dialog", lambda dialog: dialog.dismiss())
    withdraw.click()
    expect(page.locator("#public-address")).to_be_visible()
    page.once("dialog", lambda dialog: dialog.accept())
    withdraw.click()
    expect(page.get_by_text("its address now answers as if it never was")).to_be_in_viewport()
    expect(page.locator("#public-address")).to_have_count(0)
    page.set_viewport_size({"width": 360, "height": 800})
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    page.goto(page.url.split("/runs/")[0] + "/policy/")
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert faults == []
