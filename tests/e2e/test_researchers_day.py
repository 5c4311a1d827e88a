"""A researcher's day at a whole Cohort, in a real browser and with a real worker: a sweep is launched, its runs are
compared and the best checkpoint is trained further; a reward that can be hacked raises an alert; a reward that fails on
many completions says so wherever the run is shown.

COHORT_TEST_SCREENSHOTS names a folder to keep pictures of the pages in.
"""

import re
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import expect

from tests.browser import picture
from tests.core.rewards.judge_server import Server, http
from tests.e2e.person import MINUTES, Person, choose
from tests.e2e.test_whole_system import signed_in_with_the_demo
from tests.factories.alerts import is_signed
from tests.needs import needs
from tests.processes import cohort
from tests.web.windows import serious_faults

pytestmark = pytest.mark.slow

FAILING = '''def verify(sample):
    """Fails on completions of an even length."""
    if len(sample.completion) % 2 == 0:
        raise ValueError("an even length")
    return float(sample.answer in sample.completion)
'''


def test_sweep_compare_and_train_further(cohort_home: Path, tmp_path: Path) -> None:
    needs("bwrap")
    with signed_in_with_the_demo(cohort_home, tmp_path, cold_steps="120") as (alice, _):
        prepare(alice)
        page = alice.page
        form(alice, "adder", steps=8)
        opened(page, "eval.every")
        page.locator("#f-eval-every").fill("4")
        page.locator("#sweep summary").click()
        page.get_by_label("Fields and their values").fill("G: 4, 8\nseed: 1, 2")
        expect(page.locator("#sweep-plan")).to_contain_text("Sweep: 4 runs")
        picture(page, "day-sweep")
        launch(page)
        page.wait_for_url(re.compile(r"/p/lab/sweeps/\d+/$"))
        sweep = page.url
        for _ in range(600):
            page.goto(sweep)
            if page.locator(".badge", has_text="Succeeded").count() == 4:
                break
            assert page.locator(".badge", has_text="Failed").count() == 0
            page.wait_for_timeout(2000)
        checked(page, "day-sweep-runs")
        page.get_by_role("link", name="Compare its runs").click()
        expect(page.locator("#curves[data-ready=step]")).to_be_visible()
        expect(page.locator("#curves")).to_contain_text("band")
        checked(page, "day-compare")
        page.goto(sweep)
        page.locator("tbody th a").first.click()
        page.locator(".tabs").get_by_role("link", name=re.compile("^Attempts")).click()
        best = page.locator("#checkpoints tbody tr", has_text="best")
        checked(page, "day-checkpoints")
        best.get_by_role("link", name="Use").click()
        checked(page, "day-checkpoint")
        page.get_by_role("button", name="Train further from this checkpoint").click()
        page.wait_for_url(re.compile(r"/p/lab/runs/new/"))
        page.locator("#f-name").fill("further")
        page.locator("#f-optim-steps").fill("2")
        page.get_by_text("every setting is valid").wait_for()
        checked(page, "day-further")
        for _ in range(60):  # until the worker has sent the checkpoint's files
            with page.expect_navigation():
                launch(page)
            if re.search(r"/p/lab/runs/\d+/$", page.url):
                break
            page.wait_for_timeout(3000)
        page.locator("#card-link").wait_for(timeout=10 * MINUTES)
        page.locator(".tabs").get_by_role("link", name=re.compile("^Record")).click()
        page.locator("#record-seal").wait_for()
        lineage = page.locator("#content").inner_text()
        assert re.search(r"adder.* step \d", lineage)
        checked(page, "day-further-record")


def test_a_reward_that_fails_says_so_everywhere(cohort_home: Path, tmp_path: Path) -> None:
    """On the list, in the header, in a chart and in the record; and its log is followed while it trains."""
    needs("bwrap")
    with signed_in_with_the_demo(cohort_home, tmp_path) as (alice, _):
        prepare(alice)
        page, address = alice.page, alice.address
        reward(alice, "half broken", FAILING)
        form(alice, "half scored", steps=8, reward="half broken")
        launch(page)
        page.wait_for_url(re.compile(r"/p/lab/runs/\d+/$"))
        run = page.url
        page.goto(f"{run}logs/")
        expect(page.locator("[data-follow] input")).to_be_checked()
        page.get_by_text(re.compile("step 1")).first.wait_for(timeout=5 * MINUTES)
        page.get_by_text(re.compile("step 4")).first.wait_for(timeout=5 * MINUTES)
        checked(page, "day-log")
        page.goto(run)
        page.locator("#card-link").wait_for(timeout=10 * MINUTES)
        checked(page, "day-unscored")
        expect(page.locator("#content")).to_contain_text("could not be scored")
        page.goto(f"{address}/p/lab/runs/?q=half")
        expect(page.locator("#run-rows tbody tr")).to_contain_text("% not scored")
        checked(page, "day-unscored-list")
        page.goto(f"{run}record/")
        expect(page.locator("#content")).to_contain_text(re.compile(r"could not be scored|not scored|unscored"))


def test_a_hacked_reward_raises_an_alert(cohort_home: Path, tmp_path: Path) -> None:
    """Answers that end in 7 are rewarded, right or not, and held-out problems are judged by another reward: seen on the
    overview, in the list, on the desk, and at the webhook with its signature."""
    with (
        Server(lambda _: http("204 No Content", b"")) as receiver,
        signed_in_with_the_demo(cohort_home, tmp_path, cold_steps="120") as (alice, _),
    ):
        page, address = alice.page, alice.address
        staff = cohort("user", "alice", "--staff", "--home", str(cohort_home))  # who may allow a private address
        assert staff.returncode == 0, staff.stderr
        prepare(alice)
        page.goto(f"{address}/p/lab/rewards/new/")
        page.locator("#id_name").fill("sevens")
        page.locator("#id_component-0-kind").select_option("regex")
        page.locator("#id_component-0-name").fill("seven")
        page.locator("#id_component-0-p_pattern").fill("7$")
        page.get_by_role("button", name="Save", exact=True).click()
        page.get_by_role("heading", name="sevens", exact=True).wait_for()
        page.goto(f"{address}/p/lab/alerts/channels/new/")
        page.get_by_label("Name").fill("hook")
        page.get_by_label("Address", exact=True).fill(receiver.url)
        page.get_by_label("May reach private addresses").check()
        page.get_by_role("button", name="Add channel").click()
        secret = page.locator("#secret").inner_text()
        page.goto(f"{address}/p/lab/alerts/rules/")
        page.get_by_role("link", name="Edit The trainer reports a fault").click()
        page.get_by_label("hook").check()
        page.get_by_role("button", name="Save").click()

        form(alice, "sevens alone", steps=32, reward="sevens")
        opened(page, "eval_verifier_version")
        choose(page, "eval_verifier_version", "right sum")
        for field, value in {"eval-every": "10", "sampling-prompts-per-step": "8", "optim-lr": "0.0003"}.items():
            opened(page, field.replace("-", ".", 1).replace("-", "_"))
            page.locator(f"#f-{field}").fill(value)
        page.get_by_text("every setting is valid").wait_for()
        launch(page)
        page.wait_for_url(re.compile(r"/p/lab/runs/\d+/$"))
        run = page.url
        page.locator("#card-link").wait_for(timeout=15 * MINUTES)
        page.reload()
        expect(page.locator("#run-alerts")).to_contain_text("held-out does not")
        checked(page, "day-hack")
        page.goto(f"{address}/p/lab/runs/")
        expect(page.locator("#run-rows tbody tr").first).to_contain_text("held-out does not")
        checked(page, "day-hack-list")
        page.goto(f"{address}/p/lab/alerts/")
        expect(page.locator("#alert-rows")).to_contain_text("sevens alone")
        checked(page, "day-alerts")
        causes = {seen.body["cause"]: seen for seen in receiver.seen}
        assert causes["reward_without_heldout"].body["run"]["url"] == run
        assert all(is_signed(seen, secret) for seen in receiver.seen)


def opened(page: Any, name: str) -> None:
    """Open the folds of the form that the field is in, the outermost first."""
    folds = page.locator(f"details:not([open]):has([name='{name}'])")
    while folds.count():
        folds.first.locator("> summary").click()


def prepare(alice: Person) -> None:
    """Model, problems and a reward, as the demo has them."""
    page = alice.page
    alice.register_model("adder")
    alice.upload("additions", "add-train.jsonl")
    alice.upload("additions held out", "add-heldout.jsonl")
    page.goto(f"{alice.address}/p/lab/rewards/new/")
    page.locator("#id_name").fill("right sum")
    page.locator("#id_component-0-kind").select_option("exact")
    page.locator("#id_component-0-name").fill("correct")
    page.locator("#id_component-0-p_extract").select_option("answer_tag")
    page.get_by_role("button", name="Save", exact=True).click()
    page.get_by_role("heading", name="right sum", exact=True).wait_for()


def reward(alice: Person, name: str, source: str) -> None:
    page = alice.page
    page.goto(f"{alice.address}/p/lab/rewards/new/")
    page.locator("#id_name").fill(name)
    page.locator("#id_component-0-kind").select_option("python")
    page.locator("#id_component-0-p_source").fill(source)
    page.locator("#source-said-0").get_by_text("It parses").wait_for()
    page.locator("#id_component-0-name").fill("correct")
    page.get_by_role("button", name="Save", exact=True).click()
    page.get_by_role("heading", name=name, exact=True).wait_for()


def form(alice: Person, name: str, *, steps: int, reward: str = "right sum") -> None:
    """The form of a new run, ready to launch."""
    page = alice.page
    page.goto(f"{alice.address}/p/lab/runs/new/")
    page.locator("#f-preset").select_option("demo")
    page.locator("#f-name").fill(name)
    choose(page, "base_model", "adder")
    choose(page, "dataset", "additions")
    choose(page, "eval_dataset", "additions held out")
    choose(page, "verifier_version", reward)
    page.locator("#f-sampling-group-size").fill("8")
    page.locator("#f-optim-steps").fill(str(steps))
    page.get_by_text("every setting is valid").wait_for()


def launch(page: Any) -> None:
    page.get_by_label("Reason for the override").fill("The reward is of this test alone.")
    page.get_by_role("button", name="Launch").click()


def checked(page: Any, name: str) -> None:
    """A picture of the page in both themes and at 360 px, where it must not be wider than the window; and axe."""
    picture(page, name)
    page.set_viewport_size({"width": 360, "height": 900})
    assert page.evaluate("document.documentElement.scrollWidth") <= 360, name
    page.set_viewport_size({"width": 1440, "height": 900})
    assert serious_faults(page, name) == []
