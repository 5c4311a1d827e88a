"""What people do from end to end, in a real browser: sign in, launch, watch a live run, read a group and the card; the
reward lab; nodes; statements after the seal; by keyboard alone, on a phone, in both themes, and by axe's rules.
"""

import re
from collections.abc import Callable, Iterator

import pytest
from django.utils import timezone
from playwright.sync_api import Browser, Page, expect
from pytest_django.live_server_helper import LiveServer

from cohort.accounts.models import User
from cohort.nodes.models import Node
from cohort.nodes.services import node_by_token
from cohort.records.services import record_seal
from cohort.records.status.services import status_issue
from cohort.runs.models import Run
from grpo_core.records.types import StepMetrics
from tests.factories import sealed_run
from tests.factories.runs import HOSTILE, Maker, add_checkpoint, add_evaluation, add_group, add_steps, put_in
from tests.web.control import fresh, waited_for_its_record
from tests.web.windows import GIVEN_UP, serious_faults, windows

OpenPage = Callable[..., Page]
POINTS = "(document.querySelector('[data-chart=reward] .plot')?.data?.at(-2)?.x?.length ?? 0)"


@pytest.fixture
def open_page(browser: Browser, transactional_db: None, maker: Maker, live_server: LiveServer) -> Iterator[OpenPage]:
    """Windows signed in as alice by the sign-in page, in a project with a full catalog."""
    with windows(
        browser, live_server.url, permissions=["clipboard-read", "clipboard-write"], meant=["422", *GIVEN_UP]
    ) as opened:
        yield opened


@pytest.fixture
def run(transactional_db: None, maker: Maker) -> Run:
    """In training at step 6, with a group of hostile text, checkpoints at 2 and 4, evaluated before."""
    run = maker.run("add two digits", state="training", preset="demo")
    Run.objects.filter(pk=run.pk).update(phase="training", seconds_per_step=1.0)
    attempt = maker.attempt(run)
    add_steps(attempt, [{"reward": step / 10, "entropy": 0.123456 / step, "kl": 0.0} for step in range(1, 7)])
    add_group(attempt, [1.0, 0.0, None, 1.0], step=6, completion=HOSTILE, advantages=[1, -2, 0, 1])
    add_evaluation(attempt, "before", [1, 0, 1, 0])
    for step in (2, 4):
        add_checkpoint(attempt, step)
    run.refresh_from_db()
    return run


def test_from_sign_in_over_launch_and_group_to_the_card(open_page: OpenPage) -> None:
    page = open_page("runs/new/?preset=demo")
    page.get_by_label("Name", exact=True).fill("the first")
    page.get_by_label("Group size G").fill("1")
    expect(page.locator("#said-f-sampling-group-size .error-text")).to_be_visible()
    expect(page.get_by_label("Group size G")).to_have_attribute("aria-invalid", "true")
    page.get_by_label("Group size G").fill("4")
    page.get_by_label("Steps", exact=True).fill("3")
    expect(page.locator("#outlook dd").nth(1)).to_have_text("384")  # by 32 prompts
    page.get_by_label("Reason for the override").fill("The reward is of this test alone.")
    page.get_by_role("button", name="Launch").click()
    page.wait_for_url(re.compile(r"/runs/\d+/$"))
    expect(page.locator("#live-top")).to_contain_text("Place 1 in the queue")

    run = Run.objects.get()
    attempt, records = sealed_run.claim(run), sealed_run.whole(run)
    (third,) = (at for at, record in enumerate(records) if isinstance(record, StepMetrics) and record.step == 3)
    sealed_run.ingest(attempt, records[:third])
    page.reload()
    page.wait_for_function(f"() => {POINTS} === 2")
    sealed_run.ingest(attempt, records[third:])
    page.wait_for_function(f"() => {POINTS} === 3")  # by the poll
    expect(page.locator(".run-progress")).to_contain_text("3 of 3")

    page.locator("#live-groups a[href*='/groups/']:not([href$='/groups/'])").first.click()
    page.wait_for_url(re.compile(r"/groups/\d+/"))
    page.keyboard.press(".")
    expect(page.locator(".sample.selected")).to_have_attribute("id", re.compile("sample-"))
    first = page.locator("#judgement-0")
    first.locator("summary").click()
    first.get_by_label("Note").fill("by hand")
    first.get_by_role("button", name="Wrong").click()
    expect(first.get_by_role("button", name="Wrong")).to_have_attribute("aria-pressed", "true")
    expect(first.get_by_label("Note")).to_have_value("by hand")

    record = record_seal(run=sealed_run.finish(attempt))
    status_issue(record=record)
    page.locator(".crumbs a", has_text="the first").click()
    with page.expect_download() as card:
        page.locator("#card-link").click()
    assert card.value.suggested_filename.endswith(".zip")
    page.get_by_role("link", name="Record", exact=True).click()
    expect(page.locator("main")).to_contain_text(record.short_digest)


def test_a_reward_is_built_in_the_lab_and_tried(open_page: OpenPage) -> None:
    page = open_page("rewards/new/?example=exact")
    page.get_by_label("Name").first.fill("two parts")
    page.locator("#id_component-0-kind").select_option("python")
    source, lines = page.locator("#id_component-0-p_source"), page.locator(".editor-lines > span")
    source.click()
    for line in ("def verify(sample):", "if sample.answer:"):
        page.keyboard.type(line)
        page.keyboard.press("Enter")
    page.keyboard.type("return (1")
    assert source.input_value() == "def verify(sample):\n    if sample.answer:\n        return (1"
    expect(lines).to_have_count(3)
    expect(page.locator(".editor-lines > .faulty")).to_have_text("3")
    page.keyboard.type(")")
    expect(page.locator(".editor-lines > .faulty")).to_have_count(0)

    page.locator("#id_component-0-kind").select_option("exact")
    expect(source).to_have_count(0)
    rows = page.locator("fieldset.component")
    page.get_by_role("button", name="Add a component").click()
    rows.nth(1).get_by_label("Kind").select_option("r1_format")
    expect(rows.nth(1).get_by_label("Allow whitespace")).to_be_visible()  # the kind's own fields have come
    rows.nth(1).get_by_label("Name").fill("format")
    rows.nth(1).get_by_label("Weight").fill("0.5")
    page.get_by_role("button", name="Save", exact=True).click()

    page.get_by_role("main").get_by_role("link", name="Reward lab").click()
    address = page.url
    page.get_by_label("Reference answer").fill("7")
    page.get_by_label("Completion", exact=True).fill("<think>3+4</think><answer>7</answer>")
    page.get_by_role("button", name="Score", exact=True).click()
    expect(page.get_by_text("Reward 1.5")).to_be_visible()
    expect(page.get_by_role("button", name="Score", exact=True)).to_be_focused()
    assert page.url == address, "scored in place"


def test_a_node_is_added_drained_and_revoked(open_page: OpenPage) -> None:
    page = open_page("nodes/")
    page.get_by_role("link", name="Add a node").click()
    page.get_by_label("Name").fill("gpu-9")
    page.get_by_role("button", name="Make the token").click()
    token = page.locator("#token").inner_text()
    node = node_by_token(token)
    assert node is not None
    page.get_by_role("button", name="Copy").first.click()
    expect(page.get_by_role("button", name="Copied")).to_be_visible()
    assert page.evaluate("navigator.clipboard.readText()") == token
    assert serious_faults(page, "the token") == []
    page.clock.install()
    page.get_by_role("link", name="Done").click()
    expect(page.get_by_text("No worker has used its token yet")).to_be_visible()
    Node.objects.filter(pk=node.pk).update(last_seen_at=timezone.now())
    page.clock.fast_forward(10_000)
    expect(page.get_by_text("No worker has used its token yet")).to_be_hidden()
    page.get_by_role("link", name="gpu-9").click()
    assert token not in page.content(), "it is shown once"

    drain = page.get_by_role("button", name="Drain", exact=False).first
    page.once("dialog", lambda dialog: dialog.dismiss())
    drain.click()
    assert fresh(node).draining == "", "it asks first"
    page.once("dialog", lambda dialog: dialog.accept())
    drain.click()
    expect(page.locator(".messages")).to_contain_text("draining")
    page.once("dialog", lambda dialog: dialog.accept())
    page.get_by_role("button", name="Revoke").click()
    expect(page.locator(".title")).to_contain_text("revoked")
    assert Node.objects.get(pk=node.pk).revoked_at is not None


def test_a_statement_after_the_seal_is_newer_than_the_record(open_page: OpenPage, launch: Callable[..., Run]) -> None:
    record = sealed_run.sealed(launch(name="add two digits"))
    page = open_page(f"runs/{record.run_id}/statements/")
    question = page.locator("#method-rationale")
    question.locator("textarea").first.fill("To learn the form.")
    page.get_by_role("button", name="Save all answers").click()
    expect(question).to_contain_text("✓answered")
    expect(page.locator(".panel.notice")).to_contain_text("newer than the sealed record")
    page.get_by_role("link", name="Record", exact=True).click()
    expect(page.locator("#news")).to_contain_text("To learn the form.")
    page.get_by_text("Sign off", exact=True).click()
    form = page.locator("#life-sign_off")
    form.get_by_label("You decide").select_option("approved")
    form.get_by_label("Reason").fill("Every item read.")
    form.get_by_role("button", name="Sign").click()
    expect(page.locator(".page-head")).to_contain_text("signed by the operator only")


def test_by_keyboard_alone(open_page: OpenPage, run: Run, alice: User) -> None:
    run.attempts.update(state="failed")
    put_in(run, "failed", reason="not finite", ended_at=run.created_at)
    waited_for_its_record(run)
    page = open_page("models/")
    page.keyboard.press("Tab")
    expect(page.get_by_role("link", name="Skip to content")).to_be_focused()
    page.keyboard.press("Enter")
    page.keyboard.press("Tab")
    expect(page.get_by_role("link", name="Register a model")).to_be_focused()

    page = open_page(f"runs/{run.pk}/")
    page.locator("#retry-run").focus()
    page.keyboard.press("Enter")
    dialog = page.get_by_role("dialog", name="Retry add two digits")
    expect(dialog.get_by_role("radio").first).to_be_checked()
    page.keyboard.press("Escape")
    expect(dialog).to_be_hidden()
    expect(page.locator("#retry-run")).to_be_focused()
    page.keyboard.press("Enter")
    dialog.get_by_role("radio").first.focus()
    page.keyboard.press("ArrowDown")
    expect(dialog.get_by_role("radio", name=re.compile("step 2"))).to_be_checked()
    dialog.get_by_label("Reason").fill("the spike at step 3")
    page.keyboard.press("Enter")
    expect(page.locator(".messages")).to_contain_text("from step 2")
    assert fresh(run).resume_from is not None
    assert (run.state, run.resume_from.step) == ("queued", 2)


def test_main_pages_fit_a_phone(open_page: OpenPage, run: Run, live_server: LiveServer) -> None:
    group = f"runs/{run.pk}/groups/{run.groups.get().pk}/"
    page = open_page("runs/", width=360)
    link = page.get_by_role("link", name="Rewards")
    expect(link).to_be_hidden()
    page.get_by_text("Menu", exact=True).click()
    expect(link).to_be_visible()
    for path in ("runs/", "runs/new/", f"runs/{run.pk}/evaluations/", group, "queue/", "nodes/", f"runs/{run.pk}/"):
        page.goto(f"{live_server.url}/p/ours/{path}")
        assert page.evaluate("document.documentElement.scrollWidth") <= 360, path
    page.wait_for_function(f"() => {POINTS} === 6")
    assert page.evaluate("document.documentElement.scrollWidth") <= 360, "with its charts"
    wider = "all => all.filter(tile => tile.scrollWidth > tile.clientWidth).map(tile => tile.innerText)"
    assert page.locator("#live-tiles .tile").evaluate_all(wider) == []


def test_the_theme_is_remembered_and_charts_follow_it(open_page: OpenPage, run: Run, live_server: LiveServer) -> None:
    page = open_page(f"runs/{run.pk}/")
    ground = "getComputedStyle(document.body).backgroundColor"
    colour = "document.querySelector('[data-chart=reward] .plot')?.data?.at(-2)?.line?.color"
    page.wait_for_function(f"() => {colour} === '#3a58d6'")
    assert page.evaluate(ground) == "rgb(247, 247, 245)"
    page.get_by_role("button", name="Dark theme").click()
    page.wait_for_function(f"() => {colour} === '#91a7ff'")
    page.goto(f"{live_server.url}/p/ours/models/")
    assert page.evaluate(ground) == "rgb(19, 20, 21)"
    page.get_by_role("button", name="Light theme").click()
    assert page.evaluate(ground) == "rgb(247, 247, 245)"


def test_axe_finds_nothing_serious_on_the_main_pages(open_page: OpenPage, run: Run, live_server: LiveServer) -> None:
    page, faults = open_page("runs/"), []
    for path in ("runs/", "runs/new/", f"runs/{run.pk}/groups/{run.groups.get().pk}/?sample=2", f"runs/{run.pk}/"):
        page.goto(f"{live_server.url}/p/ours/{path}")
        if path == f"runs/{run.pk}/":
            page.wait_for_function(f"() => {POINTS} === 6")
        faults += serious_faults(page, path)
    assert faults == []
