"""A compliance officer's day at a whole Cohort, in a real browser and with a real worker: a sample is judged, questions
are answered, version 2 is sealed and signed off by two people, its card is handed over, and the record is revoked. The
card, its papers, `cohort verify` and the page that checks cards say each.

COHORT_TEST_SCREENSHOTS names a folder to keep pictures of the pages in.
"""

import io
import re
import zipfile
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import expect
from pypdf import PdfReader

from tests.e2e.person import MINUTES, Person
from tests.e2e.test_researchers_day import checked, form, launch, prepare
from tests.e2e.test_reviewers_day import second_reviewer
from tests.e2e.test_whole_system import signed_in_with_the_demo
from tests.needs import needs
from tests.processes import cohort

pytestmark = pytest.mark.slow


def test_from_the_seal_to_the_revocation(cohort_home: Path, tmp_path: Path) -> None:
    needs("bwrap")
    with signed_in_with_the_demo(cohort_home, tmp_path, cold_steps="120") as (alice, _):
        prepare(alice)
        page = alice.page
        form(alice, "for the officer", steps=3)
        launch(page)
        page.wait_for_url(re.compile(r"/p/lab/runs/\d+/$"))
        run = str(page.url)
        page.locator("#card-link").wait_for(timeout=15 * MINUTES)
        first = downloaded(page, run, tmp_path / "first.zip")
        assert verdict(cohort_home, first) == (0, "accepted")
        rita = second_reviewer(alice, cohort_home)
        judge(rita, run)
        state(rita, run)
        seal_version_two(rita, run)
        assert verdict(cohort_home, first) == (5, "superseded")
        signed(page, run, "operator")
        signed(rita, run, "reviewer")
        page.goto(f"{run}record/summary/")
        expect(page.locator("#content")).to_contain_text("Signed off by both")
        checked(page, "officer-summary")
        second = downloaded(page, run, tmp_path / "second.zip", until="Signed off by both")
        assert verdict(cohort_home, second) == (0, "accepted")
        assert "Signed off by both" in paper(second, "STATUS.pdf")
        assert "Sums of two numbers. Nothing else was tried." in paper(second, "card.pdf")
        revoke(page, run)
        third = downloaded(page, run, tmp_path / "third.zip", until="Revoked on")
        assert "Revoked on" in paper(third, "STATUS.pdf")
        assert verdict(cohort_home, third, "--offline") == (4, "revoked")
        assert verdict(cohort_home, second) == (4, "revoked"), "the platform was asked"
        checks_page(alice, second)


def downloaded(page: Any, run: str, path: Path, *, until: str = "") -> Path:
    """The public card, as the primary button gives it, once its status has the words `until`."""
    for _ in range(60):
        page.goto(f"{run}record/")
        with page.expect_download() as download:
            page.locator("#download-card").click()
        download.value.save_as(path)
        with zipfile.ZipFile(path) as card:
            if until in card.read("status.json").decode():
                return path
        page.wait_for_timeout(1000)
    raise AssertionError(f"no status says {until!r}")


def paper(card: Path, name: str) -> str:
    with zipfile.ZipFile(card) as opened:
        document = PdfReader(io.BytesIO(opened.read(name)))
    return " ".join(" ".join(page.extract_text() for page in document.pages).split())


def verdict(home: Path, card: Path, *options: str) -> tuple[int, str]:
    done = cohort("verify", str(card), *options, COHORT_HOME=str(home))
    return done.returncode, done.stdout.partition(":")[0]


def judge(page: Any, run: str) -> None:
    page.goto(f"{run}samples/")
    page.locator(".run-samples tbody th a").first.click()
    page.locator("[data-sample].selected").focus()
    page.keyboard.press("1")
    expect(page.locator("[data-sample].selected")).to_contain_text("Right")


def state(page: Any, run: str) -> None:
    """Two questions on one form, saved at once; what was typed is there after the page was left."""
    answers = {"reward-brittleness": "Sums of two numbers.\nNothing else was tried.", "data-choice": "It is small."}
    page.goto(f"{run}statements/")
    for name, text in answers.items():
        page.locator(f"#{name}-text").fill(text)
        expect(page.locator(f"#{name}-draft")).to_contain_text("draft, not saved")
    page.reload()
    for name, text in answers.items():
        expect(page.locator(f"#{name}-text")).to_have_value(text)
    page.get_by_role("button", name="Save all answers").click()
    expect(page.get_by_text("2 answers saved.")).to_be_visible()


def seal_version_two(page: Any, run: str) -> None:
    page.goto(f"{run}record/")
    page.locator("#version-reason").fill("A sample was judged, and two questions answered.")
    page.get_by_role("button", name="Seal version 2").click()
    for _ in range(60):
        page.goto(f"{run}record/")
        if "version 2" in page.locator(".page-head").inner_text():
            return
        page.wait_for_timeout(2000)
    raise AssertionError("version 2 was not sealed")


def signed(page: Any, run: str, role: str) -> None:
    page.goto(f"{run}record/")
    offer = page.locator("#life-sign_off")
    offer.locator("summary").click()
    offer.get_by_label("You sign as").select_option(role)
    offer.get_by_label("You decide").select_option("approved")
    offer.get_by_label("Reason").fill("The figures were checked against the items.")
    offer.get_by_role("button").click()
    expect(page.locator("#life .life-signed")).to_contain_text("approved")


def revoke(page: Any, run: str) -> None:
    page.goto(f"{run}record/")
    offer = page.locator("#life-revoke")
    offer.locator("summary").click()
    offer.get_by_label("Reason").fill("The held-out problems had leaked.")
    offer.get_by_label("Revoke for good").check()
    offer.get_by_role("button").click()
    expect(page.locator("#content")).to_contain_text("revoked")
    checked(page, "officer-revoked")


def checks_page(alice: Person, card: Path) -> None:
    """A card that was downloaded before the revocation."""
    page = alice.page
    page.goto(f"{alice.address}/verify/")
    page.locator("#id_card").set_input_files(card)
    page.get_by_role("button", name=re.compile("Check")).click()
    expect(page.locator("#verdict h2")).to_contain_text("Revoked")
    checked(page, "officer-verify")
