"""Pause and resume from the pages: what is offered when, to whom, and what is said; and that a run's header and the
list of runs tell the truth about why it stands still."""

import re
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone

from cohort.accounts.models import User
from cohort.runs.models import Attempt, Node, Run
from cohort.runs.services import run_pause
from tests.web.control import do, ended, poll_of
from tests.web.run_page import freeze, page_of, words
from tests.web.run_rows import HOSTILE, HOSTILE_SHOWN, Maker, add_checkpoint, put_in

ClientFor = Callable[[User], Client]
BUTTONS = ("submit", "pause", "resume", "retry", "extend", "clone", "cancel")


def offered(page: str) -> set[str]:
    return {name for name in BUTTONS if f'id="{name}-run"' in page}


# ---------------------------------------------------------------- what is offered


@pytest.mark.parametrize(
    ("state", "buttons"),
    [
        ("draft", {"submit", "clone", "cancel"}),
        ("queued", {"pause", "clone", "cancel"}),
        ("starting", {"pause", "clone", "cancel"}),
        ("evaluating", {"pause", "clone", "cancel"}),
        ("training", {"pause", "clone", "cancel"}),
        ("paused", {"resume", "extend", "clone", "cancel"}),
        ("sealing", {"clone"}),
        ("succeeded", {"extend", "clone"}),
        ("failed", {"retry", "extend", "clone"}),
        ("cancelled", {"retry", "extend", "clone"}),
    ],
)
def test_each_state_offers_what_it_allows(
    client_for: ClientFor, oscar: User, rita: User, maker: Maker, state: str, buttons: set[str]
) -> None:
    run = maker.run(state=state)
    if state not in ("draft", "queued"):
        maker.attempt(run, state="running" if state in ("starting", "evaluating", "training") else "finished")
    assert offered(page_of(client_for(oscar), run)) == buttons
    assert offered(page_of(client_for(rita), run)) == set(), "a reviewer steers nothing"


def test_a_run_that_never_started_can_be_retried_but_not_extended(
    client_for: ClientFor, oscar: User, maker: Maker
) -> None:
    run = maker.run(state="cancelled")
    client = client_for(oscar)
    assert offered(page_of(client, run)) == {"retry", "clone"}
    assert "It never started, so there is nothing to go on from." in words(page_of(client, run, "retry/"))
    assert "Cancelled and never started" in words(page_of(client, run, "extend/")).replace("cancelled", "Cancelled")
    do(client, run, "retry", **{"from": "start"})
    assert run.state == "queued"


@pytest.mark.parametrize("action", ["pause", "resume", "retry", "extend", "priority"])
@pytest.mark.parametrize("who", ["bob", "rita"])
def test_viewers_and_reviewers_may_not(
    request: pytest.FixtureRequest, client_for: ClientFor, trained: Run, who: str, action: str
) -> None:
    client = client_for(request.getfixturevalue(who))
    assert client.post(f"/p/ours/runs/{trained.pk}/{action}/", {"priority": "10"}).status_code == 403
    if action in ("retry", "extend"):
        assert client.get(f"/p/ours/runs/{trained.pk}/{action}/").status_code == 403
    trained.refresh_from_db()
    assert (trained.state, trained.desired, trained.priority) == ("training", "run", 0)


# ---------------------------------------------------------------- pause and resume


def test_a_live_run_is_asked_to_pause_and_the_pause_taken_back(
    client_for: ClientFor, oscar: User, trained: Run
) -> None:
    client = client_for(oscar)
    text = do(client, trained, "pause", reason="needs the node")
    assert (trained.state, trained.desired) == ("training", "pause")
    assert "adder is being paused: the worker has the trainer write a checkpoint and stop." in text
    assert "pause asked for" in text
    assert "Being paused : needs the node." in text
    page = page_of(client, trained)
    assert offered(page) == {"resume", "clone", "cancel"}
    assert "Keep running" in page
    text = do(client, trained, "resume")
    assert trained.desired == "run"
    assert "the pause was taken back before the worker came to it" in text
    assert "pause asked for" not in text


def test_a_waiting_run_is_paused_at_once_and_resumed(client_for: ClientFor, oscar: User, maker: Maker) -> None:
    run = maker.run(state="queued")
    client = client_for(oscar)
    text = do(client, run, "pause", reason=HOSTILE)
    assert run.state == "paused"
    assert "adder is paused: it is out of the queue until somebody resumes it." in text
    page = page_of(client, run)
    said = r"‖ Paused by oscar before it started: &lt;script&gt;.* · (now|\d+ s ago) No worker has had it"
    assert re.search(said, words(page)), "who, since when and why"
    assert HOSTILE_SHOWN in page
    text = do(client, run, "resume")
    assert run.state == "queued"
    assert "adder is in the queue again. " in text, "there is nothing to go on from"


@pytest.mark.parametrize(
    ("chosen", "said"), [("", "from step 6"), ("4", "from step 4"), ("start", "at its first step")]
)
def test_a_resumed_run_goes_on_where_it_was_to(
    client_for: ClientFor, oscar: User, trained: Run, chosen: str, said: str
) -> None:
    ended(trained.attempts.get(), "paused")
    place = trained.checkpoints.get(step=4) if chosen == "4" else None
    put_in(trained, "paused", resume_from=place, from_start=chosen == "start")
    text = do(client_for(oscar), trained, "resume")
    assert f"adder is in the queue again and goes on {said}." in text
    assert trained.state == "queued"


def test_a_paused_run_says_where_it_goes_on(client_for: ClientFor, bob: User, maker: Maker) -> None:
    run = maker.run(state="training")
    attempt = maker.attempt(run)
    for step in (0, 2):
        add_checkpoint(attempt, step)
    ended(attempt, "paused", end_code="disk_full")
    put_in(run, "paused", reason="The disk of node-a is nearly full: 1.2 GB are left in its folder of runs")
    text = words(page_of(client_for(bob), run))
    assert "The disk of node-a is nearly full" in text
    assert "Resumed, it goes on from step 2." in text
    assert "data-poll" in page_of(client_for(bob), run), "somebody else may resume it"


@pytest.mark.parametrize(
    ("state", "action", "said"),
    [
        ("succeeded", "pause", "adder is succeeded. It has already ended."),
        ("sealing", "pause", "adder is sealing. It has been trained and only waits for its record."),
        ("draft", "pause", "adder is draft. It has not been launched."),
        ("queued", "resume", "adder is queued. It is waiting for a worker already."),
        ("training", "resume", "adder is training. A worker has it: pause or cancel it first."),
        ("training", "retry", "adder is training. A worker has it: pause or cancel it first."),
        ("paused", "retry", "adder is paused. Resume it, or cancel it."),
        ("queued", "extend", "adder is queued. It is waiting for a worker already."),
    ],
)
def test_what_cannot_be_done_says_why(
    client_for: ClientFor, oscar: User, maker: Maker, state: str, action: str, said: str
) -> None:
    run = maker.run(state=state)
    text = do(client_for(oscar), run, action, steps="5", **{"from": "start"})
    assert f"Nothing was done: {said}" in text
    assert run.state == state


def test_a_run_being_cancelled_is_not_paused(client_for: ClientFor, oscar: User, trained: Run) -> None:
    client = client_for(oscar)
    do(client, trained, "cancel")
    text = do(client, trained, "pause")
    assert trained.desired == "cancel"
    assert "Nothing was done: it is being cancelled; a cancel cannot be taken back." in text


def test_a_paused_run_is_cancelled(client_for: ClientFor, oscar: User, maker: Maker) -> None:
    run = maker.run(state="queued")
    run_pause(run=run, actor=oscar)
    text = do(client_for(oscar), run, "cancel")
    assert run.state == "cancelled"
    assert "adder is cancelled. It had not started." in text


def test_a_paused_run_that_was_trained_is_cancelled(client_for: ClientFor, oscar: User, trained: Run) -> None:
    ended(trained.attempts.get(), "paused")
    put_in(trained, "paused")
    text = do(client_for(oscar), trained, "cancel")
    assert "adder is cancelled. No worker has it now." in text


# ---------------------------------------------------------------- what the header says


def test_queued_again_says_why_when_and_from_where(client_for: ClientFor, bob: User, trained: Run) -> None:
    ended(trained.attempts.get(), "lost", end_code="worker_lost")
    due = timezone.now() + timedelta(seconds=25)
    reason = "node-a was lost. Goes back to the queue and tries again in 30 s from step 6 (2 of 5)"
    put_in(trained, "queued", reason=reason, retries=2, not_before=due)
    with freeze(due - timedelta(seconds=24)):
        page = page_of(client_for(bob), trained)
    text = words(page)
    assert "○ Queued again, try 2 of 5" in text
    assert f"Queued again. {reason}" in text
    assert "Tries again in 24 s ." in text
    assert f'datetime="{due.isoformat()[:19]}' in page
    assert "after a failure (try 2 of 5)" in text
    assert "goes on from step 6" in text


def test_a_resumed_attempt_says_from_where(client_for: ClientFor, bob: User, maker: Maker, trained: Run) -> None:
    ended(trained.attempts.get(), "preempted", valid_through=4)
    put_in(trained, "training", step=4)
    second = maker.attempt(trained)
    Attempt.objects.filter(pk=second.pk).update(resumed_step=4)
    text = words(page_of(client_for(bob), trained))
    assert "step 4 of 120" in text
    assert re.search(r"attempt 2 on node-a, from step 4, heard from", text)


def test_progress_inside_an_evaluation(client_for: ClientFor, bob: User, maker: Maker) -> None:
    run = maker.run(state="evaluating")
    attempt = maker.attempt(run)
    Run.objects.filter(pk=run.pk).update(phase="evaluating_before")
    client = client_for(bob)
    address = poll_of(page_of(client, run))
    Attempt.objects.filter(pk=attempt.pk).update(
        progress={"phase": "evaluating_before", "done": 1130, "total": 5012}, progress_at=timezone.now()
    )
    assert client.get(address).status_code == 200, "it has moved"
    assert "evaluating before training, 1,130 of 5,012" in words(page_of(client, run))


def test_a_stalled_run_is_said_although_its_worker_lives(client_for: ClientFor, oscar: User, trained: Run) -> None:
    now = timezone.now()
    Run.objects.filter(pk=trained.pk).update(phase="training", stalled_at=now, seconds_per_step=2.0)
    Attempt.objects.update(progress_at=now - timedelta(minutes=14), heartbeat_at=now)
    with freeze(now):
        text = words(page_of(client_for(oscar), trained))
    assert "! stalled" in text
    assert "! Nothing has moved for 14 min , though the worker is alive: node-a was heard from now" in text
    assert "Last seen: training, step 6 of 120." in text
    assert "left" not in text.split("step 6 of 120")[1][:40], "no promise of an end"


def test_a_node_that_is_emptied(client_for: ClientFor, bob: User, trained: Run) -> None:
    Node.objects.update(draining="move")
    text = words(page_of(client_for(bob), trained))
    assert "moves to another node" in text
    assert "node-a is being emptied. The trainer writes a checkpoint and stops there" in text


@pytest.mark.parametrize(
    "change",
    [
        {"desired": "pause"},
        {"stalled_at": "2026-01-01T00:00:00Z"},
        {"reason": "another"},
        {"step": 3},
        {"steps_total": 99},
    ],
)
def test_each_of_these_is_news(client_for: ClientFor, bob: User, trained: Run, change: dict[str, Any]) -> None:
    client = client_for(bob)
    address = poll_of(page_of(client, trained))
    assert client.get(address).status_code == 204
    Run.objects.filter(pk=trained.pk).update(**change)
    assert client.get(address).status_code == 200


def test_what_becomes_of_a_waiting_run_is_news(client_for: ClientFor, bob: User, maker: Maker) -> None:
    run = maker.run(state="queued")
    client = client_for(bob)
    address = poll_of(page_of(client, run))
    assert client.get(address).status_code == 204
    for change in ({"priority": 10}, {"retries": 1}, {"not_before": timezone.now() + timedelta(hours=1)}):
        Run.objects.filter(pk=run.pk).update(**change)
        answer = client.get(address)
        assert answer.status_code == 200, change
        address = poll_of(answer.content.decode())
    Node.objects.create(name="node-b", token_digest="1" * 64, last_seen_at=timezone.now())
    Run.objects.filter(pk=run.pk).update(not_before=None)
    assert "a node takes it within seconds" in client.get(address).content.decode()


# ---------------------------------------------------------------- the list


def test_the_list_shows_and_finds_what_stands_still(client_for: ClientFor, bob: User, maker: Maker) -> None:
    stalled, again, pausing = maker.run("stalled one", state="training"), maker.run("again"), maker.run("pausing")
    maker.attempt(stalled)
    Run.objects.filter(pk=stalled.pk).update(stalled_at=timezone.now())
    maker.attempt(again, state="lost")
    put_in(again, "queued", retries=3)
    put_in(pausing, "training", desired="pause")
    maker.run("held", state="paused")
    client = client_for(bob)
    text = words(client.get("/p/ours/runs/").content.decode())
    assert "● Training ! stalled" in text
    assert "○ Queued again, try 3" in text
    assert "● Training pause asked for" in text
    for state, name in (("stalled", "stalled one"), ("again", "again"), ("paused", "held")):
        page = client.get("/p/ours/runs/", {"state": state}).content.decode()
        assert re.findall(r'<a id="run-\d+" href="[^"]+">([^<]*)</a>', page) == [name]
