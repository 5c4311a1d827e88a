"""Pause, resume, retry, extend, pin, priority and limits from the pages: what is offered when, to whom, and what is
said; and that a run's header tells the truth about why it stands still."""

import re
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone

from cohort.accounts.models import Project, User
from cohort.runs.models import Attempt, Node, Run, RunEvent
from cohort.runs.services import run_pause
from tests.web.control import waited_for_its_record
from tests.web.run_page import page_of, words
from tests.web.run_rows import (
    HOSTILE,
    HOSTILE_SHOWN,
    Maker,
    add_checkpoint,
    add_evaluation,
    add_group,
    add_steps,
    put_in,
)

ClientFor = Callable[[User], Client]
BUTTONS = ("submit", "pause", "resume", "retry", "extend", "clone", "cancel")


def offered(page: str) -> set[str]:
    return {name for name in BUTTONS if f'id="{name}-run"' in page}


def do(client: Client, run: Run, action: str, **data: str) -> str:
    response = client.post(f"/p/ours/runs/{run.pk}/{action}/", data, follow=True)
    run.refresh_from_db()
    return words(response.content.decode())


def ended(attempt: Attempt, state: str, **fields: Any) -> None:
    Attempt.objects.filter(pk=attempt.pk).update(state=state, ended_at=timezone.now(), **fields)
    attempt.refresh_from_db()


@pytest.fixture
def trained(maker: Maker) -> Run:
    """Six of 120 steps trained by attempt 1 on node-a, with checkpoints before step 1 and at 2, 4 and 6."""
    run = maker.run(state="training", optim={"steps": 120})
    attempt = maker.attempt(run)
    add_steps(attempt, [{"reward": 0.1 * step} for step in range(6)])
    for step in (0, 2, 4, 6):
        add_checkpoint(attempt, step, best=step == 4, removed=step == 2)
    Node.objects.update(last_seen_at=timezone.now())
    return run


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
    assert "adder is in the queue again" in text


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


# ---------------------------------------------------------------- retry


def test_a_retry_offers_checkpoints_newest_first_and_the_first_step_last(
    client_for: ClientFor, oscar: User, trained: Run
) -> None:
    ended(trained.attempts.get(), "failed")
    put_in(trained, "failed")
    page = page_of(client_for(oscar), trained, "retry/")
    labels = [words(label) for label in re.findall(r'<label class="option">(.*?)</label>', page, re.DOTALL)]
    assert [label.split(" now")[0].split(" 0 s")[0].split(" 1 s")[0] for label in labels[:3]] == [
        "step 6",
        "step 4 best",
        "before step 1",
    ], "what was removed is not offered"
    assert all("attempt 1 on node-a" in label.replace("·", "") for label in labels[:3])
    assert labels[3].startswith("the first step Everything recorded so far is superseded")
    checked = re.findall(r'value="(\w+)" checked', page)
    assert checked == [str(trained.checkpoints.get(step=6).pk)]


def test_a_checkpoint_of_a_node_that_is_gone_says_so_and_is_not_the_first_choice(
    client_for: ClientFor, oscar: User, trained: Run
) -> None:
    ended(trained.attempts.get(), "lost")
    trained.checkpoints.filter(step=4).update(stored_at=timezone.now())
    put_in(trained, "failed")
    Node.objects.update(last_seen_at=timezone.now() - timedelta(hours=1))
    page = page_of(client_for(oscar), trained, "retry/")
    assert "waits for its node" in page
    assert "on node-a, which is not here now and stored on the platform" in words(page)
    assert re.findall(r'value="(\w+)" checked', page) == [str(trained.checkpoints.get(step=4).pk)]


def test_a_retry_goes_on_from_the_chosen_checkpoint(client_for: ClientFor, oscar: User, trained: Run) -> None:
    ended(trained.attempts.get(), "failed")
    put_in(trained, "failed", reason="not finite", error_code="not_finite", ended_at=timezone.now())
    waited_for_its_record(trained)
    chosen = trained.checkpoints.get(step=4)
    text = do(client_for(oscar), trained, "retry", **{"from": str(chosen.pk), "reason": "the spike at 5"})
    assert (trained.state, trained.resume_from, trained.error_code, trained.ended_at) == ("queued", chosen, "", None)
    assert "adder is in the queue again and goes on from step 4." in text
    assert "goes on from step 4" in text.split("step 6 of 120")[1]
    event = RunEvent.objects.get(run=trained, kind="retried")
    assert (event.actor, event.message) == ("user:oscar", "Retried from step 4: the spike at 5")


def test_a_retry_from_the_first_step(client_for: ClientFor, oscar: User, trained: Run) -> None:
    ended(trained.attempts.get(), "failed")
    put_in(trained, "failed")
    text = do(client_for(oscar), trained, "retry", **{"from": "start"})
    assert (trained.state, trained.from_start) == ("queued", True)
    assert "goes on at its first step" in text


@pytest.mark.parametrize("asked", ["", "x", "999999", "9" * 30, "-1"])
def test_a_checkpoint_that_is_not_there_is_refused(
    client_for: ClientFor, oscar: User, trained: Run, asked: str
) -> None:
    ended(trained.attempts.get(), "failed")
    put_in(trained, "failed")
    response = client_for(oscar).post(f"/p/ours/runs/{trained.pk}/retry/", {"from": asked})
    assert response.status_code == 422
    assert "Choose a checkpoint of the list, or the first step." in response.content.decode()
    trained.refresh_from_db()
    assert trained.state == "failed"


def test_a_removed_checkpoint_and_another_runs_are_refused(
    client_for: ClientFor, oscar: User, maker: Maker, trained: Run
) -> None:
    other = maker.run("other", state="training")
    foreign = add_checkpoint(maker.attempt(other), 6)
    ended(trained.attempts.get(), "failed")
    put_in(trained, "failed")
    for checkpoint in (trained.checkpoints.get(step=2), foreign):
        response = client_for(oscar).post(f"/p/ours/runs/{trained.pk}/retry/", {"from": str(checkpoint.pk)})
        assert response.status_code == 422
    trained.refresh_from_db()
    assert trained.state == "failed"


def test_the_dialog_is_the_form_alone(client_for: ClientFor, oscar: User, trained: Run) -> None:
    ended(trained.attempts.get(), "failed")
    put_in(trained, "failed")
    for action in ("retry", "extend"):
        page = client_for(oscar).get(f"/p/ours/runs/{trained.pk}/{action}/", headers={"HX-Request": "true"})
        assert "<html" not in page.content.decode()
        assert 'formmethod="dialog"' in page.content.decode()
        whole = page_of(client_for(oscar), trained, f"{action}/")
        assert "<html" in whole
        assert "formmethod" not in whole


# ---------------------------------------------------------------- extend


@pytest.mark.parametrize(
    ("schedule", "said"),
    [
        ("constant", "Constant: the added steps go on with 0.000001"),
        ("linear", "Linear: from here on it is worked out for the new length"),
    ],
)
def test_extend_says_what_becomes_of_the_learning_rate(
    client_for: ClientFor, oscar: User, maker: Maker, schedule: str, said: str
) -> None:
    run = maker.run(state="succeeded", optim={"steps": 12, "schedule": schedule})
    add_checkpoint(maker.attempt(run, state="finished"), 12)
    text = words(page_of(client_for(oscar), run, "extend/"))
    assert said.replace("0.000001", "1e−6") in text
    assert "On top of the 12 planned." in text


def test_a_run_is_extended(client_for: ClientFor, oscar: User, maker: Maker) -> None:
    run = maker.run(state="succeeded", optim={"steps": 12})
    add_checkpoint(maker.attempt(run, state="finished"), 12)
    digest = run.config_digest
    text = do(client_for(oscar), run, "extend", steps="8")
    assert (run.state, run.steps_total, run.config["optim"]["steps"]) == ("queued", 20, 20)
    assert run.config_digest != digest
    assert "adder is in the queue again and goes on to step 20." in text
    assert "Extended by 8 steps, from 12 to 20" in RunEvent.objects.get(run=run, kind="extended").message


@pytest.mark.parametrize(
    ("steps", "said"),
    [
        ("", "Steps must be a whole number, 1 or more."),
        ("many", "Steps must be a whole number, 1 or more; given many."),
        ("0", "a run is extended by one step or more, not by 0."),
        ("9" * 18, "Nothing was done: "),
    ],
)
def test_steps_that_are_none_are_refused(
    client_for: ClientFor, oscar: User, maker: Maker, steps: str, said: str
) -> None:
    run = maker.run(state="succeeded", optim={"steps": 12})
    add_checkpoint(maker.attempt(run, state="finished"), 12)
    response = client_for(oscar).post(f"/p/ours/runs/{run.pk}/extend/", {"steps": steps})
    assert response.status_code == 422
    assert said in words(response.content.decode())
    run.refresh_from_db()
    assert (run.state, run.steps_total) == ("succeeded", 12)


def test_nothing_to_go_on_from_is_not_extended(client_for: ClientFor, oscar: User, maker: Maker) -> None:
    run = maker.run(state="succeeded")
    add_checkpoint(maker.attempt(run, state="finished"), 12, final=True)
    client = client_for(oscar)
    assert "It has no checkpoint to go on from" in words(page_of(client, run, "extend/"))
    assert "so more steps would train it anew" in do(client, run, "extend", steps="5")
    assert run.state == "succeeded"


# ---------------------------------------------------------------- what the header says


def poll_of(page: str) -> str:
    found = re.search(r'data-poll hx-get="([^"]+)"', page)
    assert found is not None
    return found[1].replace("&amp;", "&")


def test_queued_again_says_why_when_and_from_where(client_for: ClientFor, bob: User, trained: Run) -> None:
    ended(trained.attempts.get(), "lost", end_code="worker_lost")
    due = timezone.now() + timedelta(seconds=25)
    reason = "node-a was lost. Goes back to the queue and tries again in 30 s from step 6 (2 of 5)"
    put_in(trained, "queued", reason=reason, retries=2, not_before=due)
    page = page_of(client_for(bob), trained)
    text = words(page)
    assert "○ Queued again, try 2 of 5" in text
    assert f"Queued again. {reason}" in text
    assert re.search(r"Tries again in 2[0-5] s \.", text)
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
    text = words(page_of(client_for(oscar), trained))
    assert "! stalled" in text
    assert "! Nothing has moved for 14 min , though the worker is alive: node-a was heard from" in text
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


def test_a_clone_says_of_what(client_for: ClientFor, oscar: User, maker: Maker, chosen: dict[str, str]) -> None:
    first = maker.run("first & best")
    Run.objects.filter(pk=first.pk).update(priority=10, node_label="a100")
    client = client_for(oscar)
    page = client.get(f"/p/ours/runs/new/?clone={first.pk}").content.decode()
    assert f'name="cloned_from" value="{first.pk}"' in page
    assert '<option value="10" selected>high' in page
    assert 'name="node_label" value="a100"' in page
    data = chosen | {"cloned_from": str(first.pk), "priority": "10", "node_label": "a100", "action": "draft"}
    client.post("/p/ours/runs/new/", data)
    clone = Run.objects.get(name="adder")
    assert (clone.cloned_from, clone.priority, clone.node_label) == (first, 10, "a100")
    assert f'cloned from <a href="/p/ours/runs/{first.pk}/">first &amp; best</a>' in page_of(client, clone)


# ---------------------------------------------------------------- attempts and checkpoints


def test_attempts_say_from_to_how_they_ended_and_what_is_superseded(
    client_for: ClientFor, bob: User, maker: Maker, trained: Run
) -> None:
    first = trained.attempts.get()
    ended(first, "lost", end_code="worker_lost", end_reason=f"no sign of life {HOSTILE}", valid_through=4)
    second = maker.attempt(trained)
    Attempt.objects.filter(pk=second.pk).update(resumed_step=4)
    second.refresh_from_db()
    add_steps(second, [{"reward": 0.5}], first=5)
    page = page_of(client_for(bob), trained, "attempts/")
    rows = [words(row) for row in re.findall(r"<tr>(.*?)</tr>", page.split("Checkpoints</h2>")[0], re.DOTALL)][1:]
    assert rows[0].startswith("2 node-a 5 to 5 ")
    assert "superseded" not in rows[0]
    assert rows[1].startswith("1 node-a 1 to 6 2 superseded ")
    assert "✕ Lost worker_lost no sign of life &lt;script&gt;" in rows[1]
    assert rows[1].endswith(" 10"), "six steps and four checkpoints"
    assert "<script>alert" not in page
    assert "showing 2 of 2" in words(page)


def test_checkpoints_say_where_they_lie(client_for: ClientFor, bob: User, oscar: User, trained: Run) -> None:
    trained.checkpoints.filter(step=6).update(stored_at=timezone.now(), pinned=True)
    page = page_of(client_for(bob), trained, "attempts/")
    text = words(page.split("Checkpoints</h2>")[1])
    assert "showing 3 of 4; 1 made room for newer ones" in text
    assert re.search(r"6 1 (now|\d s ago) in 400 ms 12.0 MB on node-a and stored on the platform pinned", text)
    assert "★ best" in text
    assert "Pin" not in text, "a viewer pins nothing"
    every = words(page_of(client_for(oscar), trained, "attempts/", all="1").split("Checkpoints</h2>")[1])
    assert "showing 4 of 4" in every
    assert "removed" in every


def test_a_checkpoint_is_pinned_and_let_go(client_for: ClientFor, oscar: User, bob: User, trained: Run) -> None:
    checkpoint = trained.checkpoints.get(step=4)
    address = f"/p/ours/runs/{trained.pk}/checkpoints/{checkpoint.pk}/pin/"
    assert client_for(bob).post(address, {"pinned": "true"}).status_code == 403
    client = client_for(oscar)
    for pinned, said in (("true", "is pinned: it stays"), ("false", "is no longer pinned")):
        response = client.post(address, {"pinned": pinned}, follow=True)
        assert f"The checkpoint at step 4 {said}" in response.content.decode()
        assert response.redirect_chain[-1][0].endswith("/attempts/#checkpoints")
        checkpoint.refresh_from_db()
        assert checkpoint.pinned == (pinned == "true")
    removed = trained.checkpoints.get(step=2)
    text = client.post(f"/p/ours/runs/{trained.pk}/checkpoints/{removed.pk}/pin/", {"pinned": "true"}, follow=True)
    assert "Nothing was done: the checkpoint at step 2 has been removed." in text.content.decode()
    foreign = f"/p/ours/runs/{trained.pk}/checkpoints/{checkpoint.pk + 1000}/pin/"
    assert client.post(foreign, {"pinned": "true"}).status_code == 404


def test_what_is_superseded_says_so_where_it_is_shown(
    client_for: ClientFor, bob: User, maker: Maker, trained: Run
) -> None:
    first = trained.attempts.get()
    stands, gone = add_group(first, [1.0, 0.0], step=4), add_group(first, [1.0, 0.0], step=5)
    add_evaluation(first, "before", [1, 0, 1])
    add_evaluation(first, "after", [1, 1, 0, 0])
    ended(first, "lost", valid_through=4)
    second = maker.attempt(trained)
    Attempt.objects.filter(pk=second.pk).update(resumed_step=4)
    client = client_for(bob)
    said = "uperseded: attempt 2 went on from step 4"
    assert said in words(page_of(client, trained, f"groups/{gone.pk}/"))
    assert said not in words(page_of(client, trained, f"groups/{stands.pk}/"))
    table = words(page_of(client, trained, "evaluations/").split("Superseded results")[-1])
    assert f"held-out after 1 2 of 4 s{said}" in table
    assert "before" not in table, "what was measured before training stands"


def test_an_attempt_that_was_lost_before_it_went_on_supersedes_nothing(
    client_for: ClientFor, bob: User, maker: Maker, trained: Run
) -> None:
    first = trained.attempts.get()
    gone = add_group(first, [1.0, 0.0], step=5)
    ended(first, "lost", valid_through=4)
    ended(maker.attempt(trained), "lost")
    third = maker.attempt(trained)
    Attempt.objects.filter(pk=third.pk).update(resumed_step=4)
    assert "uperseded: attempt 3 went on from step 4" in words(page_of(client_for(bob), trained, f"groups/{gone.pk}/"))


def test_a_beginning_anew_supersedes_all(client_for: ClientFor, bob: User, maker: Maker, trained: Run) -> None:
    first = trained.attempts.get()
    gone = add_group(first, [1.0, 0.0], step=1)
    add_evaluation(first, "before", [1, 0])
    ended(first, "failed", valid_through=-1)
    maker.attempt(trained)
    client = client_for(bob)
    assert "uperseded: attempt 2 began at the first step" in words(page_of(client, trained, f"groups/{gone.pk}/"))
    assert "held-out before 1 1 of 2" in words(page_of(client, trained, "evaluations/").split("Superseded results")[-1])


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


# ---------------------------------------------------------------- queue and limits


def test_an_empty_queue_says_what_comes_here(client_for: ClientFor, ours: Project, oscar: User, bob: User) -> None:
    assert "Nothing waits. A run that is launched stands here" in words(
        client_for(oscar).get("/p/ours/queue/").content.decode()
    )
    text = words(client_for(bob).get("/p/ours/queue/").content.decode())
    assert "Nothing waits." in text
    assert "No worker has a run now." in text
    assert "0 running, no limit · 0.0 GPU-hours in 30 days, no limit" in text.replace("limit 0.0", "limit · 0.0")


def test_the_queue_says_who_waits_for_what(client_for: ClientFor, oscar: User, maker: Maker) -> None:
    busy = maker.run("busy", state="training")
    maker.attempt(busy)
    Node.objects.update(last_seen_at=timezone.now())
    maker.run("plain", state="queued")
    labelled = maker.run("labelled", state="queued")
    Run.objects.filter(pk=labelled.pk).update(node_label="a100", priority=10)
    client = client_for(oscar)
    page = client.get("/p/ours/queue/").content.decode()
    rows = [words(row) for row in re.findall(r"<tr>(.*?)</tr>", page, re.DOTALL)]
    assert re.match(r"1 labelled \w+.* a node with the label a100 no node that is here has the label a100", rows[1])
    assert re.match(r"2 plain .* any node node-a, the only node that could take it, is busy", rows[2])
    assert re.match(r"busy attempt 1 ● Training 0 of \d+ node-a", rows[4])
    assert 'id="count-waiting">2<' in page
    assert client.get(f"/p/ours/runs/{busy.pk}/priority/").status_code == 405
    plain = Run.objects.get(name="plain")
    text = do(client, plain, "priority", priority="-10")
    assert plain.priority == -10
    assert "plain has low priority among the runs of this project." in text
    assert "a priority is one of" in do(client, plain, "priority", priority="77")


def test_the_queue_polls_and_is_quiet_while_nothing_changes(client_for: ClientFor, bob: User, maker: Maker) -> None:
    run = maker.run(state="queued")
    client = client_for(bob)
    address = poll_of(client.get("/p/ours/queue/").content.decode())
    assert client.get(address).status_code == 204
    Run.objects.filter(pk=run.pk).update(priority=10)
    changed = client.get(address)
    assert changed.status_code == 200
    assert "<html" not in changed.content.decode()


def test_runs_of_another_project_have_no_name_here(
    client_for: ClientFor, charlie: User, oscar: User, maker: Maker
) -> None:
    waits, runs = maker.run("secret one", state="queued"), maker.run("secret two", state="training")
    Run.objects.filter(pk=waits.pk).update(node_label="a100")
    maker.attempt(runs)
    page = client_for(charlie).get("/p/theirs/queue/").content.decode()
    assert "secret" not in page
    assert "Our project" not in page
    assert page.count("a run of another project") == 2
    assert "a node with the label a100" in page
    assert "/priority/" not in page
    assert client_for(charlie).post(f"/p/theirs/runs/{waits.pk}/priority/", {"priority": "10"}).status_code == 404


def test_limits_are_set_by_an_admin_and_seen_by_all(
    client_for: ClientFor, alice: User, oscar: User, bob: User, ours: Project
) -> None:
    address = "/p/ours/limits/"
    data = {"max_running": "3", "gpu_hours_limit": "100"}
    assert client_for(oscar).post(address, data).status_code == 403
    assert client_for(alice).post(address, data).url == "/p/ours/queue/"
    ours.refresh_from_db()
    assert (ours.max_running, ours.gpu_hours_limit) == (3, 100)
    text = words(client_for(bob).get("/p/ours/queue/").content.decode())
    assert "0 of 3 running" in text
    assert "0.0 of 100 GPU-hours in 30 days" in text
    assert "Set limits" not in client_for(bob).get(address).content.decode()
    refused = client_for(alice).post(address, {"max_running": "0", "gpu_hours_limit": "x"})
    assert refused.status_code == 422
    assert "greater than or equal to 1" in refused.content.decode()
    client_for(alice).post(address, {"max_running": "", "gpu_hours_limit": ""})
    ours.refresh_from_db()
    assert (ours.max_running, ours.gpu_hours_limit) == (None, None)


def test_a_full_project_waits_and_says_so(client_for: ClientFor, bob: User, maker: Maker, ours: Project) -> None:
    Project.objects.filter(pk=ours.pk).update(max_running=1)
    maker.attempt(maker.run("busy", state="training"))
    run = maker.run("next", state="queued")
    said = "the project's limit of running runs is reached (1 of 1 run)".replace("'", "&#x27;")
    assert said in page_of(client_for(bob), run)
    assert said in client_for(bob).get("/p/ours/queue/").content.decode()


# ---------------------------------------------------------------- the form


def test_the_form_offers_labels_that_are_here_and_warns_of_others(
    client_for: ClientFor, oscar: User, chosen: dict[str, str]
) -> None:
    info = {"hostname": "n", "devices": [{"kind": "cuda"}], "cpus": 4, "memory_bytes": 1, "labels": ["a100", "fast"]}
    Node.objects.create(name="node-a", token_digest="1" * 64, last_seen_at=timezone.now(), info=info)
    client = client_for(oscar)
    page = client.get("/p/ours/runs/new/").content.decode()
    assert '<option value="a100"></option><option value="fast"></option>' in page
    assert "Here now: a100, fast." in page

    def checked(**data: str) -> str:
        answer = client.post("/p/ours/runs/new/", chosen | data | {"action": "check"}, headers={"HX-Request": "true"})
        return words(answer.content.decode())

    assert "a worker is there: node-a" in checked(node_label="fast")
    assert "no worker that is here has the label slow: the run will wait for one" in checked(node_label="slow")
    two = {"engine.device": "cuda", "engine.devices": "2", "node_label": "fast"}
    assert "no worker that is here has the label fast and 2 GPUs" in checked(**two)
    for wrong in ("a b", "A100", "gpu2", "train", "platform", "-a", "a" * 41):
        assert "Node label takes lower-case letters, digits, - and _" in checked(node_label=wrong)
    assert "Priority must be one of" in checked(priority="5")


def test_a_paused_run_is_cancelled(client_for: ClientFor, oscar: User, maker: Maker) -> None:
    run = maker.run(state="queued")
    run_pause(run=run, actor=oscar)
    text = do(client_for(oscar), run, "cancel")
    assert run.state == "cancelled"
    assert "adder is cancelled. It had not started." in text
