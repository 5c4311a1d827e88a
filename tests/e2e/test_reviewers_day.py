"""A reviewer's day at a whole Cohort, in a real browser and with a real worker: from a chart to the token that was
clipped; in a run whose reward pays form alone, the wrong answers by a second reward, ten of them judged by ten keys,
blind, by two people; then version 2 of the record has what they say.

COHORT_TEST_SCREENSHOTS names a folder to keep pictures of the pages in.
"""

import re
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import expect

from tests.e2e.person import MINUTES, Person, choose
from tests.e2e.test_researchers_day import checked, form, launch, opened, prepare
from tests.e2e.test_whole_system import signed_in_with_the_demo
from tests.needs import needs
from tests.processes import cohort
from tests.web.windows import serious_faults

pytestmark = pytest.mark.slow

JUDGED = 10
POINT = """(chart, step) => {
  const {left, top} = chart.getBoundingClientRect(), {xaxis, yaxis, _size} = chart._fullLayout;
  const line = chart.data.findLast((line) => line.x.includes(step)), at = line.x.indexOf(step);
  return [left + _size.l + xaxis.d2p(step), top + _size.t + yaxis.d2p(line.y[at])];
}"""
"""Where the point of a step lies in the window."""


def test_from_a_chart_to_version_two_of_the_record(cohort_home: Path, tmp_path: Path) -> None:
    needs("bwrap")
    with signed_in_with_the_demo(cohort_home, tmp_path, cold_steps="120") as (alice, _):
        prepare(alice)
        page = alice.page
        run = trained_on_form_alone(alice)
        to_the_clipped_token(page, run)
        rescore = scored_again(page, run)
        queue = queue_of_what_differs(page, run, rescore)
        other = second_reviewer(alice, cohort_home)
        judged(page, queue, "2222222211")
        judged(other, queue, "2222222121")
        page.goto(queue)
        expect(page.locator("#content")).to_contain_text("95 % interval")
        expect(page.locator("#content")).to_contain_text("They differ on 2 samples")
        checked(page, "day-queue-done")
        sealed(page, run)


def trained_on_form_alone(alice: Person) -> str:
    """A run that pays any answer tag, updates twice a step so that tokens are clipped, and keeps all of them."""
    page = alice.page
    page.goto(f"{alice.address}/p/lab/rewards/new/")
    page.locator("#id_name").fill("form alone")
    page.locator("#id_component-0-kind").select_option("regex")
    page.locator("#id_component-0-name").fill("tagged")
    page.locator("#id_component-0-p_pattern").fill("[0-9]+")
    page.get_by_role("button", name="Save", exact=True).click()
    page.get_by_role("heading", name="form alone", exact=True).wait_for()
    form(alice, "form", steps=4, reward="form alone")
    values = {"algorithm-inner-iterations": "3", "optim-lr": "0.003"}
    for field, value in values.items():
        opened(page, field.replace("-", ".", 1).replace("-", "_"))
        page.locator(f"#f-{field}").fill(value)
    opened(page, "traces.tokens")
    for box in page.locator("#f-traces-tokens input").all():
        box.set_checked(box.get_attribute("value") == "all")
    page.get_by_text("every setting is valid").wait_for()
    launch(page)
    page.wait_for_url(re.compile(r"/p/lab/runs/\d+/$"))
    run = str(page.url)
    page.locator("#card-link").wait_for(timeout=15 * MINUTES)
    return run


def to_the_clipped_token(page: Any, run: str) -> None:
    page.goto(run)
    plot = page.locator("[data-chart=reward] .nsewdrag").first
    plot.scroll_into_view_if_needed()
    drawn = page.locator("[data-chart=reward] .js-plotly-plot, [data-chart=reward].js-plotly-plot")
    x, y = drawn.first.evaluate(POINT, 2)
    page.mouse.move(x - 1, y)
    page.mouse.move(x, y)
    expect(page.locator("[data-chart=reward] .hovertext")).to_have_count(1)
    page.mouse.click(x, y)
    page.wait_for_url("**/groups/?step=*")
    page.goto(f"{run}samples/?clipped_min=0.01&sort=-clipped")
    checked(page, "day-samples")
    page.locator(".run-samples tbody th a").first.click()
    page.wait_for_url(re.compile(r"/groups/\d+/\?sample=\d+"))
    page.locator("[data-sample].selected").get_by_role("link", name=re.compile(r"tokens$")).click()
    page.wait_for_url(re.compile(r"/samples/\d+/$"))
    page.get_by_role("link", name="log ratio", exact=True).click()
    page.wait_for_url("**signal=ratio**")
    expect(page.locator("#token-keys")).to_be_visible()
    page.keyboard.press("c")
    clipped = page.locator("#tokens .clip[aria-current], #tokens .clip.current, #tokens .clip:focus")
    expect(clipped).to_have_count(1)
    checked(page, "day-tokens")


def scored_again(page: Any, run: str) -> str:
    page.goto(f"{run}rescores/")
    choose(page, "version", "right sum")
    page.get_by_role("button", name="Choose", exact=True).click()
    page.get_by_role("button", name="Re-score", exact=True).click()
    page.wait_for_url(re.compile(r"/rescores/\d+/$"))
    rescore = str(page.url)
    page.get_by_text("Confusion").or_(page.get_by_text("Agreement")).first.wait_for(timeout=5 * MINUTES)
    page.reload()
    checked(page, "day-rescore")
    return rescore.rstrip("/").rsplit("/", 1)[1]


def queue_of_what_differs(page: Any, run: str, rescore: str) -> str:
    """What the run's own reward passed and the second one did not: wrong sums in a tag."""
    page.goto(f"{run}samples/?verifier=right&rescore={rescore}:differs")
    expect(page.locator(".run-samples tbody tr").first).to_be_visible()
    page.get_by_role("link", name="Make a review queue").click()
    page.locator("#id_name").fill("wrong sums")
    page.locator("#id_size").fill(str(JUDGED))
    page.locator("#id_reviewers").select_option("2")
    page.get_by_label("Blind").check()
    checked(page, "day-queue-new")
    page.get_by_role("button", name="Make the queue").click()
    page.wait_for_url(re.compile(r"/queues/\d+/$"))
    return str(page.url)


def second_reviewer(alice: Person, home: Path) -> Any:
    made = cohort("user", "rita", "--project", "lab", "--role", "reviewer", "--home", str(home))
    password = re.search(r"password (\S+)", made.stdout)
    assert password is not None, made.stderr
    page = alice.page.context.browser.new_page(viewport={"width": 1440, "height": 900})
    page.set_default_timeout(5 * MINUTES)
    page.goto(alice.address)
    page.locator("#id_username").fill("rita")
    page.locator("#id_password").fill(password[1])
    page.get_by_role("button", name="Sign in").click()
    page.wait_for_url("**/p/lab/")
    return page


def judged(page: Any, queue: str, keys: str) -> None:
    """One key a sample. Before the first, Enter in the note: it stores the note and no verdict."""
    page.goto(f"{queue}next/")
    card = page.locator("[data-sample]")
    expect(card).to_be_focused()
    seen = page.content()
    assert "1.00" not in seen.split("<main")[1], "no reward in a blind item"
    page.keyboard.press("n")
    page.keyboard.type("a sum of two numbers")
    page.keyboard.press("Enter")
    expect(page.locator("#stored")).to_contain_text("not judged; note saved")
    assert serious_faults(page, "item") == []
    for number, key in enumerate(keys, start=1):
        expect(card).to_have_attribute("aria-label", f"Sample {number} of {JUDGED}")
        expect(card).to_be_focused()
        page.keyboard.press(key)
    page.wait_for_url(queue)


def sealed(page: Any, run: str) -> None:
    page.goto(f"{run}review/")
    expect(page.locator("#content")).to_contain_text("False positives")
    checked(page, "day-review")
    page.goto(f"{run}record/")
    expect(page.locator("#content")).to_contain_text("20 judgements since version 1 are not in it")
    checked(page, "day-news")
    page.locator("#version-reason").fill("Two people judged ten samples.")
    page.get_by_role("button", name="Seal version 2").click()
    for _ in range(60):
        page.goto(f"{run}record/")
        text = page.locator("#content").inner_text()
        if "since version 1" not in text and "not sealed yet" not in text:
            break
        page.wait_for_timeout(2000)
    assert "version 2" in text
    assert re.search(r"false positives \d+ of \d+, \d+\.\d % \[", text)
    assert re.search(r"κ", text)
    checked(page, "day-version-two")
