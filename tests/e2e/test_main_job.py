"""The main job as a person does it, in a real browser against a real `cohort up`: sign in, register a model, upload
problems, define a reward, define a run, launch it, watch it, open a group, take the card away and check it.

With COHORT_TEST_SCREENSHOTS set to a folder, pictures of the pages are kept there; docs/images came so, but for
run.png, which shows the whole demo.
"""

import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from cohort.evidence.verify import verify_card
from tests.browser import picture
from tests.e2e.person import MINUTES, Person, signed_in
from tests.forged_card import each_changed
from tests.processes import cohort

pytestmark = pytest.mark.e2e

STEPS = int(os.environ.get("COHORT_TEST_STEPS", "24"))


def test_from_sign_in_to_a_verified_card(cohort_home: Path, tmp_path: Path) -> None:
    with signed_in(cohort_home, tmp_path) as alice:
        drive(alice)


def drive(alice: Person) -> None:
    page, address, password = alice.page, alice.address, alice.password
    page.get_by_role("link", name="Change it").click()  # the password that was handed out
    page.locator("#id_old_password").fill(password)
    for field in ("#id_new_password1", "#id_new_password2"):
        page.locator(field).fill("a sentence of her own")
    page.get_by_role("button", name="Change password").click()
    page.get_by_text("Your password is changed.").wait_for()

    # What the run is made from.
    alice.register_model()
    alice.upload("additions", "add-train.jsonl")
    alice.upload("additions held out", "add-heldout.jsonl")
    page.goto(f"{address}/p/lab/rewards/new/")
    page.locator("#id_name").fill("right sum")
    page.locator("#id_component-0-kind").select_option("exact")
    page.locator("#id_component-0-name").fill("correct")
    page.locator("#id_component-0-p_extract").select_option("answer_tag")
    page.get_by_role("button", name="Save", exact=True).click()
    page.get_by_role("heading", name="right sum", exact=True).wait_for()

    # The run form: a fault is shown beside its field, then mended.
    page.goto(f"{address}/p/lab/runs/new/")
    page.locator("#f-preset").select_option("demo")  # and until its form has come, no field takes text
    page.locator("#f-name").fill("Two-digit addition")
    choose(page, "base_model", "adder")
    choose(page, "dataset", "additions")
    choose(page, "eval_dataset", "additions held out")
    choose(page, "verifier_version", "right sum")
    page.get_by_text("every setting is valid").wait_for()
    picture(page, "launch", whole=False)
    page.locator("#f-sampling-group-size").fill("1")
    page.get_by_role("button", name="Launch").click()
    fault = page.locator(".field", has=page.locator("#f-sampling-group-size")).locator(".error-text")
    fault.wait_for()
    assert "2" in fault.inner_text()
    picture(page, "launch-fault", whole=False)
    page.locator("#f-sampling-group-size").fill("8")
    page.locator("#f-optim-steps").fill(str(STEPS))
    # The page takes the message away as soon as the run moves on, which may be before anybody looks.
    launched = re.compile(r"/p/lab/runs/\d+/$")
    with page.expect_response(lambda answer: launched.search(answer.url) is not None) as answered:
        page.get_by_role("button", name="Launch").click()
    assert "is in the queue." in answered.value.text()
    page.wait_for_url(launched)
    page.get_by_role("heading", name="Two-digit addition").wait_for()

    # Live: the chart of the reward gets more points while the run trains.
    page.locator(".badge", has_text="Training").first.wait_for(timeout=5 * MINUTES)
    page.get_by_text("is in the queue.").wait_for(state="detached")
    first = until(page, lambda: drawn_points(page), at_least=2)
    until(page, lambda: drawn_points(page), at_least=first + 1)
    until(page, lambda: drawn_points(page), at_least=STEPS // 2)
    picture(page, "run-live", whole=False)

    page.locator("#card-link").wait_for(timeout=15 * MINUTES)
    page.locator(".title .badge", has_text="Succeeded").wait_for()
    assert page.locator("#count-runs").inner_text() == ""
    picture(page, "run", whole=False)

    # A group: G samples with reward and advantage.
    mixed = page.locator("#live-groups tbody tr").filter(has_not_text="no signal")
    (mixed.first if mixed.count() else page.locator("#live-groups tbody tr").first).locator("a").first.click()
    page.wait_for_url(re.compile(r"/groups/\d+/$"))
    assert page.locator("article.sample").count() == 8
    assert page.get_by_text("How rewards became advantages").is_visible()
    picture(page, "group", whole=False)

    page.go_back()
    for tab in ("Groups", "Evaluations", "Logs", "Config", "Events"):
        page.locator(".tabs").get_by_role("link", name=re.compile(f"^{tab}")).click()
        page.wait_for_load_state("networkidle")
        picture(page, tab.lower(), whole=False)
    page.locator(".tabs").get_by_role("link", name=re.compile("^Record")).click()
    page.locator("#record-seal").wait_for()
    assert page.get_by_text("not stated").count() > 0
    picture(page, "record", whole=False)
    with page.expect_download() as downloading:
        page.locator("#download-card").click()
    card = alice.data / "card.zip"
    downloading.value.save_as(card)

    checked = cohort("verify", str(card))
    assert checked.returncode == 0, checked.stdout + checked.stderr
    for name, changed in each_changed(card):
        assert not verify_card(changed).accepted, name
    assert cohort("verify", str(changed)).returncode == 1


def choose(page, select: str, text: str) -> None:
    """Choose the option whose label is `text`, or begins with it and goes on after a separator."""
    options = page.locator(f"select[name={select}] option")
    label = next(
        option
        for option in options.all_inner_texts()
        if option == text or option.startswith((f"{text} ·", f"{text} v"))
    )
    page.locator(f"select[name={select}]").select_option(label=label)


def drawn_points(page) -> int:
    """Steps that the reward chart has drawn (its last trace only marks the newest)."""
    return page.evaluate("() => document.querySelector('[data-chart=reward] .plot')?.data?.at(-2)?.x?.length ?? 0")


def until(page, ask: Callable[[], int], *, at_least: int, minutes: int = 10) -> int:
    """Ask again and again; the page's CSP forbids Playwright's own way of waiting for an expression."""
    for _ in range(minutes * 300):
        if (found := ask()) >= at_least:
            return found
        page.wait_for_timeout(200)
    raise AssertionError(f"{ask()} after {minutes} minutes, not {at_least}")
