"""A reward that pays the form alone, in a real browser against a real `cohort up` with its workers: written, probed,
held back, launched for a reason, and the reason found in the record."""

import re
from pathlib import Path

import pytest

from tests.browser import picture
from tests.e2e.person import MINUTES, Person, signed_in
from tests.needs import needs

pytestmark = pytest.mark.e2e

SOURCE = '''def verify(sample):
    """Pays whatever stands in an answer tag."""
    before, opened, rest = sample.completion.partition("<answer>")
    inside, closed, after = rest.partition("</answer>")
    print("looked at", len(sample.completion), "characters")
    return {"value": float(bool(opened and closed)), "detail": "the form is there" if closed else "no answer tag"}
'''
REASON = "A warm-up on the form alone: the answers are rewarded in the run after it."


def test_written_probed_held_back_overridden_recorded(cohort_home: Path, tmp_path: Path) -> None:
    needs("bwrap")
    with signed_in(cohort_home, tmp_path) as alice:
        drive(alice)


def drive(alice: Person) -> None:
    page, address = alice.page, alice.address
    alice.register_model()
    alice.upload("additions", "add-train.jsonl")

    # Written, with what is wrong told as one types.
    page.goto(f"{address}/p/lab/rewards/new/")
    page.locator("#id_name").fill("form alone")
    page.locator("#id_component-0-kind").select_option("python")
    source = page.locator("#id_component-0-p_source")
    source.fill(SOURCE.replace("(sample):", "(sample)"))
    page.locator("#source-said-0").get_by_text("line 1").wait_for()
    source.fill(SOURCE)
    page.locator("#source-said-0").get_by_text("It parses").wait_for()
    page.locator("#id_component-0-name").fill("form")
    page.get_by_role("button", name="Save", exact=True).click()
    page.get_by_role("heading", name="form alone", exact=True).wait_for()
    page.get_by_text("not probed").first.wait_for()

    # Tried on text by a worker, in its sandbox; what it printed is kept.
    page.get_by_role("link", name="Reward lab").last.click()
    page.get_by_label("Reference answer").fill("7")
    page.get_by_label("Completion", exact=True).fill("<answer>anything</answer>")
    page.locator("#try-score").click()
    page.get_by_text("Mean reward").wait_for(timeout=5 * MINUTES)
    page.locator("#groups a").first.click()
    page.get_by_text("the form is there").wait_for()
    page.get_by_text("looked at 25 characters").wait_for()

    # What the base model earns with it.
    page.goto(page.url.split("/p/lab/")[0] + "/p/lab/lab/")
    page.get_by_role("link", name="form alone").first.click()
    page.locator("#sample").get_by_label("Problems", exact=True).fill("6")
    page.locator("#sample").get_by_label("Group size G").fill("4")
    page.locator("#sample").get_by_label("Longest completion, tokens").fill("32")
    page.get_by_role("button", name="Sample and score").click()
    page.get_by_text(re.compile(r"\d of 6 prompts carry no signal at this G")).wait_for(timeout=10 * MINUTES)
    picture(page, "lab-sampled")

    # Probed.
    page.get_by_role("link", name="Back to the lab").click()
    page.locator("#probe").get_by_label("Problems", exact=True).fill("4")
    page.locator("#ask-probe").click()
    page.locator("#verdict").wait_for(timeout=10 * MINUTES)
    assert "It pays wrong answers" in page.locator("#verdict").inner_text()
    picture(page, "lab-probed")

    # Held back.
    page.goto(f"{address}/p/lab/runs/new/?preset=demo")
    page.locator("#f-name").fill("warm-up")
    page.locator("#f-optim-steps").fill("3")
    page.locator("#reward-gate").get_by_text("pays wrong answers").wait_for()
    page.get_by_text("every setting is valid").wait_for()
    page.get_by_role("button", name="Launch").click()
    page.locator("#override-said .error-text").wait_for()
    assert "Held back" in page.locator("#override-said").inner_text()
    picture(page, "launch-held-back")

    # Overridden for a reason.
    page.get_by_label("Reason to launch all the same").fill(REASON)
    page.get_by_role("button", name="Launch").click()
    page.wait_for_url(re.compile(r"/p/lab/runs/\d+/$"))
    assert REASON in page.locator("#reward-at-launch").inner_text()
    page.locator("#card-link").wait_for(timeout=20 * MINUTES)

    # And found in the record.
    page.locator(".tabs").get_by_role("link", name=re.compile("^Record")).click()
    page.locator("#record-seal").wait_for()
    assert REASON in page.locator("#content").inner_text()
    picture(page, "record-overridden")
