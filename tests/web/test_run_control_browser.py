"""Steering a run in a real browser: pause and resume, a retry from a chosen checkpoint, more steps, a pin, priorities
in the queue; by mouse and by keyboard, on narrow screens, within the policy, and by axe's rules."""

import re
from collections.abc import Callable, Iterator
from datetime import timedelta

import pytest
from django.utils import timezone
from playwright.sync_api import Browser, Page, expect
from pytest_django.live_server_helper import LiveServer

from cohort.runs.models import Attempt, Node, Run
from tests.web.control import waited_for_its_record
from tests.web.run_rows import HOSTILE, Maker, add_checkpoint, add_evaluation, add_group, add_steps, put_in
from tests.web.windows import serious_faults, windows

REASON = "node-a was lost. Goes back to the queue and tries again in 30 s from step 6 (2 of 5)"


@pytest.fixture
def run(transactional_db: None, maker: Maker) -> Run:
    """Trained to step 8 by attempt 1, which was lost; on its node and the platform lie checkpoints."""
    run = maker.run("add two digits", state="training", optim={"steps": 12})
    first = maker.attempt(run)
    add_steps(first, [{"reward": 0.1 * step} for step in range(8)])
    add_group(first, [1.0, 0.0], step=8)
    add_evaluation(first, "before", [1, 0, 1, 0])
    for step in (0, 2, 4, 6, 8):
        add_checkpoint(first, step, best=step == 4, stored=step == 6, removed=step == 2)
    Attempt.objects.filter(pk=first.pk).update(
        state="lost",
        ended_at=timezone.now(),
        end_code="worker_lost",
        end_reason=f"No sign of life for 60 s {HOSTILE}",
        valid_through=6,
    )
    put_in(run, "training", step=6)
    second = maker.attempt(run)
    Attempt.objects.filter(pk=second.pk).update(resumed_step=6)
    Run.objects.filter(pk=run.pk).update(phase="training", seconds_per_step=1.0)
    labels = {"hostname": "a", "devices": [{"kind": "cuda"}], "cpus": 4, "memory_bytes": 1, "labels": ["a100", "fast"]}
    Node.objects.update(last_seen_at=timezone.now() + timedelta(minutes=5), info=labels)
    return Run.objects.get(pk=run.pk)


@pytest.fixture
def open_page(browser: Browser, run: Run, live_server: LiveServer) -> Iterator[Callable[..., Page]]:
    with windows(browser, live_server.url, meant=["422"]) as opened:
        yield opened


def end(run: Run, state: str, **fields: object) -> None:
    """As the worker's finish does."""
    Attempt.objects.filter(run=run, state="running").update(state="paused" if state == "paused" else "failed")
    put_in(run, state, desired="run", **fields)


def test_a_press_outlasts_what_comes_meanwhile(open_page: Callable[..., Page], run: Run) -> None:
    """The page's head is polled; a button that is replaced between press and release is not clicked."""
    page = open_page(f"runs/{run.pk}/")
    page.get_by_role("button", name="Pause").hover()
    page.mouse.down()
    with page.expect_response(lambda answer: "/live/" in answer.url and answer.status == 200):
        add_steps(run.attempts.get(state="running"), [{"reward": 0.5}], first=7)
    page.wait_for_timeout(500)
    page.mouse.up()
    expect(page.locator(".title")).to_contain_text("pause asked for")
    expect(page.locator(".run-progress")).to_contain_text("step 7 of 12")


def test_the_last_answer_comes_after_a_press(open_page: Callable[..., Page], run: Run) -> None:
    page = open_page(f"runs/{run.pk}/")
    page.get_by_role("button", name="Pause").hover()
    page.mouse.down()
    with page.expect_response(lambda answer: "/live/" in answer.url and answer.status == 286):
        end(run, "failed", ended_at=timezone.now() - timedelta(days=1))
    page.wait_for_timeout(500)
    expect(page.locator(".title .badge").first).to_contain_text("Training")
    page.mouse.move(1, 1)
    page.mouse.up()
    expect(page.locator(".title .badge").first).to_contain_text("Failed")


def test_pause_take_it_back_pause_and_resume(open_page: Callable[..., Page], run: Run) -> None:
    page = open_page(f"runs/{run.pk}/")
    page.get_by_role("button", name="Pause").click()
    expect(page.locator(".title")).to_contain_text("pause asked for")
    page.get_by_role("button", name="Keep running").click()
    expect(page.locator(".title")).not_to_contain_text("pause asked for")
    page.get_by_role("button", name="Pause").click()
    expect(page.locator("#live-top")).to_contain_text("Being paused")
    end(run, "paused", reason="Paused by alice after 6 steps")
    expect(page.locator(".title .badge").first).to_have_text("‖Paused")  # by the poll
    expect(page.locator("#live-top")).to_contain_text("Paused by alice after 6 steps")
    page.get_by_role("button", name="Resume").click()
    expect(page.locator(".messages")).to_contain_text("is in the queue again")
    expect(page.locator("#live-top")).to_contain_text("Place 1 in the queue")
    run.refresh_from_db()
    assert run.state == "queued"


def test_a_retry_from_a_chosen_checkpoint_by_keyboard(open_page: Callable[..., Page], run: Run) -> None:
    end(run, "failed", reason="not finite", error_code="not_finite", ended_at=timezone.now())
    waited_for_its_record(run)
    page = open_page(f"runs/{run.pk}/")
    page.locator("#retry-run").focus()
    page.keyboard.press("Enter")
    dialog = page.get_by_role("dialog", name="Retry add two digits")
    expect(dialog).to_be_visible()
    expect(dialog.get_by_role("radio").first).to_be_checked()
    page.keyboard.press("Escape")
    expect(dialog).to_be_hidden()
    expect(page.locator("#retry-run")).to_be_focused()
    page.keyboard.press("Enter")
    expect(dialog).to_be_visible()
    dialog.get_by_role("radio").first.focus()
    page.keyboard.press("ArrowDown")
    expect(dialog.get_by_role("radio", name=re.compile("step 4"))).to_be_checked()
    dialog.get_by_label("Reason").fill("the spike at step 5")
    page.keyboard.press("Enter")
    expect(page.locator(".messages")).to_contain_text("is in the queue again and goes on from step 4.")
    run.refresh_from_db()
    assert run.resume_from is not None
    assert (run.state, run.resume_from.step) == ("queued", 4)
    page.goto(page.url + "events/")
    expect(page.locator(".events")).to_contain_text("Retried from step 4: the spike at step 5")


def test_leaving_the_dialog_changes_nothing(open_page: Callable[..., Page], run: Run) -> None:
    end(run, "failed", ended_at=timezone.now())
    page = open_page(f"runs/{run.pk}/")
    page.locator("#retry-run").click()
    page.get_by_role("button", name="Leave it as it is").click()
    expect(page.locator("#dialog")).to_be_hidden()
    run.refresh_from_db()
    assert run.state == "failed"


def test_a_run_is_extended(open_page: Callable[..., Page], run: Run) -> None:
    end(run, "succeeded", ended_at=timezone.now())
    waited_for_its_record(run)
    page = open_page(f"runs/{run.pk}/")
    page.locator("#extend-run").click()
    dialog = page.get_by_role("dialog", name="Extend add two digits")
    expect(dialog).to_contain_text("Constant: the added steps go on with")
    dialog.get_by_label("Steps more").fill("0")
    dialog.get_by_role("button", name="Extend").click()
    expect(page.get_by_role("alert")).to_contain_text("a run is extended by one step or more")  # as a page of its own
    page.get_by_label("Steps more").fill("8")
    page.get_by_role("button", name="Extend").click()
    expect(page.locator(".messages")).to_contain_text("goes on to step 20")
    expect(page.locator(".run-progress")).to_contain_text("step 6 of 20")


def test_a_checkpoint_is_pinned(open_page: Callable[..., Page], run: Run) -> None:
    page = open_page(f"runs/{run.pk}/attempts/")
    row = page.locator(".checkpoints tbody tr").filter(has=page.locator("th", has_text=re.compile(r"^4$")))
    row.get_by_role("button", name="Pin").click()
    expect(row).to_contain_text("pinned")
    expect(row.get_by_role("button", name="Unpin")).to_have_attribute("aria-pressed", "true")
    assert run.checkpoints.get(step=4).pinned


def test_the_queue_by_priority(open_page: Callable[..., Page], run: Run, maker: Maker) -> None:
    first, second = maker.run("first", state="queued"), maker.run("second", state="queued")
    page = open_page("queue/")
    rows = page.locator("#queue .queue").first.locator("tbody tr")
    expect(rows.first).to_contain_text("first")
    expect(rows.first).to_contain_text("node-a, the only node that could take it, is busy")
    expect(page.locator("#count-waiting")).to_have_text("2")
    rows.nth(1).get_by_role("button", name="high").click()
    expect(rows.first).to_contain_text("second")
    expect(rows.first.get_by_role("button", name="high")).to_have_attribute("aria-pressed", "true")
    second.refresh_from_db()
    assert (first.priority, second.priority) == (0, 10)
    put_in(first, "cancelled")
    expect(rows).to_have_count(1)  # by the poll


def test_a_wait_counts_down(open_page: Callable[..., Page], run: Run) -> None:
    due = timezone.now() + timedelta(minutes=5)
    end(run, "queued", reason=REASON, retries=2, not_before=due)
    page = open_page(f"runs/{run.pk}/")
    shown = page.locator("time[data-until]")
    before = shown.inner_text()
    assert re.fullmatch(r"[1-4]\smin( \d+\ss)?", before)
    page.wait_for_function("(before) => document.querySelector('time[data-until]').textContent !== before", arg=before)


def pages(run: Run) -> list[str]:
    below = ["", "attempts/", "attempts/?all=1", "retry/", "extend/", f"groups/{run.groups.get().pk}/", "evaluations/"]
    return ["queue/", "limits/", "runs/new/", "runs/", *(f"runs/{run.pk}/{tab}" for tab in below)]


STATES = ("training", "paused", "queued", "failed")


def in_state(run: Run, state: str, maker: Maker) -> None:
    if state == "training":
        Run.objects.filter(pk=run.pk).update(stalled_at=timezone.now())
        Attempt.objects.filter(state="running").update(progress_at=timezone.now() - timedelta(minutes=14))
    elif state == "queued":
        end(run, "queued", reason=REASON, retries=2, not_before=timezone.now() + timedelta(hours=1))
        Run.objects.filter(pk=maker.run("another", state="queued").pk).update(node_label="a100", priority=10)
    else:
        end(run, state, reason=REASON, ended_at=timezone.now() if state == "failed" else None)


@pytest.mark.parametrize("state", STATES)
def test_axe_finds_nothing_serious_and_nothing_is_wider_than_a_phone(
    open_page: Callable[..., Page], live_server: LiveServer, run: Run, maker: Maker, state: str
) -> None:
    in_state(run, state, maker)
    page, found = open_page("queue/", width=360), []
    wanted = pages(run) if state == "failed" else [f"runs/{run.pk}/", "queue/"]
    for path in wanted:
        page.goto(f"{live_server.url}/p/ours/{path}")
        if path == f"runs/{run.pk}/" and state == "failed":
            page.locator("#retry-run").click()
            expect(page.get_by_role("dialog")).to_be_visible()
        assert page.evaluate("document.documentElement.scrollWidth") <= 360, path
        found += serious_faults(page, path)
    assert found == []
