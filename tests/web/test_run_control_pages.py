"""Steering a run from its pages: what each state offers, launch, pause, resume, cancel, retry and extend; and that the
header and the list of runs say why a run stands still.
"""

import re
from datetime import timedelta

import pytest
from django.db.models.functions import Now
from django.test import Client
from django.utils import timezone

from cohort.nodes.models import Node
from cohort.records.services import seal_failed
from cohort.runs.models import Attempt, Run, RunEvent
from cohort.web.runs.header import Header
from tests.factories.runs import HOSTILE, HOSTILE_SHOWN, UNPROBED, Maker, add_checkpoint, put_in
from tests.tables import cases
from tests.web.control import do, ended, fresh
from tests.web.pages import html
from tests.web.run_page import freeze, page_of, words

BUTTONS = ("submit", "pause", "resume", "retry", "extend", "clone", "cancel", "give-up")
REFUSED = "Nothing was done"


def offered(page: str) -> set[str]:
    return {name for name in BUTTONS if f'id="{name}-run"' in page}


def header_of(run: Run) -> Header:
    return Header(Run.objects.get(pk=run.pk))


@pytest.fixture
def failed(trained: Run) -> Run:
    """`trained`, failed at step 6."""
    ended(trained.attempts.get(), "failed")
    put_in(trained, "failed")
    return trained


# ---------------------------------------------------------------- what is offered


@pytest.mark.parametrize(("state", "buttons"), cases("runs/buttons", "state", "buttons"))
def test_a_state_offers_this(operator: Client, reviewer: Client, maker: Maker, state: str, buttons: list[str]) -> None:
    run = maker.run(state=state)
    if state not in ("draft", "queued"):
        maker.attempt(run, state="running" if state in ("starting", "evaluating", "training") else "finished")
    assert offered(page_of(operator, run)) == set(buttons)
    assert offered(page_of(reviewer, run)) == set(), "a reviewer steers nothing"


# ---------------------------------------------------------------- launch, pause, resume, cancel


def test_a_waiting_run_is_paused_at_once_resumed_cancelled_and_retried(operator: Client, maker: Maker) -> None:
    run = maker.run()
    do(operator, run, "submit", probe_override=UNPROBED)
    do(operator, run, "pause", reason=HOSTILE)
    assert run.state == "paused"
    page = page_of(operator, run)
    assert HOSTILE_SHOWN in page
    assert re.search(r"Paused by oscar .* · (now|\d+ s ago)", words(page)), "who, and since when"
    do(operator, run, "resume")
    assert run.state == "queued"
    do(operator, run, "pause")
    address = f"/p/ours/runs/{run.pk}/"
    response = operator.post(f"{address}cancel/", {"reason": "wrong\0dataset"}, headers={"HX-Request": "true"})
    assert response.headers["HX-Redirect"] == address
    assert fresh(run).state == "cancelled"
    assert "wrong\ufffddataset" in run.reason, "U+0000 cannot be stored"
    assert RunEvent.objects.get(run=run, data__to="cancelled").actor == "user:oscar"
    assert offered(page_of(operator, run)) == {"retry", "clone"}, "nothing of it was trained that could be extended"
    do(operator, run, "retry", **{"from": "start"})
    assert run.state == "queued"


def test_a_live_run_is_asked_to_pause_then_to_stop(operator: Client, trained: Run) -> None:
    assert "needs the node" in do(operator, trained, "pause", reason="needs the node")
    assert (trained.state, trained.desired) == ("training", "pause")
    assert offered(page_of(operator, trained)) == {"resume", "clone", "cancel"}
    do(operator, trained, "resume")
    assert trained.desired == "run"
    assert "cancel requested" in do(operator, trained, "cancel")
    assert "cancel" not in offered(page_of(operator, trained))
    assert REFUSED in do(operator, trained, "pause")
    assert (trained.state, trained.desired) == ("training", "cancel")


@pytest.mark.parametrize("known", [True, False])
def test_a_run_whose_record_cannot_be_made_is_ended_without_one(operator: Client, maker: Maker, known: bool) -> None:
    """Where the reason is known, at once; where it is not, as when what makes it was killed, after ten minutes."""
    run = maker.run(state="sealing")
    attempts = Attempt.objects.filter(pk=maker.attempt(run, state="finished").pk)
    attempts.update(ended_at=Now() - timedelta(minutes=9))
    assert "give-up" not in offered(page_of(operator, run))
    assert REFUSED in do(operator, run, "cancel")
    if known:
        seal_failed(run=run, reason="The card is too large")
    else:
        attempts.update(ended_at=Now() - timedelta(minutes=11))
    assert "give-up" in offered(page_of(operator, run))
    do(operator, run, "cancel", reason="enough")
    assert (run.state, run.error_code) == ("failed", "not_sealed")
    assert "by oscar: enough." in run.reason
    assert ("The card is too large" in run.reason) == known


# ---------------------------------------------------------------- retry


def test_a_retry_offers_checkpoints_newest_first_and_the_first_step_last(operator: Client, failed: Run) -> None:
    """The first choice is the newest that an attempt could have now: not one of a node that is gone."""
    steps = {step: str(failed.checkpoints.get(step=step).pk) for step in (6, 4, 0)}
    for seen_ago, reachable, chosen in ((timedelta(), (6, 4, 0), 6), (timedelta(hours=1), (4,), 4)):
        Node.objects.update(last_seen_at=timezone.now() - seen_ago)
        failed.checkpoints.filter(step=4).update(stored_at=timezone.now())
        response = operator.get(f"/p/ours/runs/{failed.pk}/retry/")
        page = html(response)
        values = re.findall(r'name="from" value="(\w+)"', page)
        assert values == [*steps.values(), "start"], "what was removed is not offered"
        assert re.findall(r'value="(\w+)" checked', page) == [steps[chosen]]
        assert tuple(row.checkpoint.step for row in response.context["rows"] if row.reachable) == reachable


@pytest.mark.parametrize("sent", ["", "x", "999999", "9" * 30, "-1", "removed", "foreign"])
def test_a_checkpoint_that_is_not_there_is_refused(operator: Client, maker: Maker, failed: Run, sent: str) -> None:
    foreign = add_checkpoint(maker.attempt(maker.run("other", state="training")), 6)
    sent = {"removed": str(failed.checkpoints.get(step=2).pk), "foreign": str(foreign.pk)}.get(sent, sent)
    response = operator.post(f"/p/ours/runs/{failed.pk}/retry/", {"from": sent})
    assert response.status_code == 422
    assert response.context["fault"]
    assert fresh(failed).state == "failed"


@pytest.mark.parametrize("action", ["retry", "extend"])
def test_the_dialog_is_the_form_alone(operator: Client, failed: Run, action: str) -> None:
    address = f"/p/ours/runs/{failed.pk}/{action}/"
    dialog = html(operator.get(address, headers={"HX-Request": "true"}))
    whole = html(operator.get(address))
    assert ("<html" in dialog, 'formmethod="dialog"' in dialog) == (False, True)
    assert ("<html" in whole, "formmethod" in whole) == (True, False)


# ---------------------------------------------------------------- extend


def test_a_run_is_extended_by_a_number_of_steps(operator: Client, maker: Maker) -> None:
    run = maker.run(state="succeeded", optim={"steps": 12})
    add_checkpoint(maker.attempt(run, state="finished"), 12)
    for steps in ("", "many", "0", "9" * 18):
        response = operator.post(f"/p/ours/runs/{run.pk}/extend/", {"steps": steps})
        assert (response.status_code, bool(response.context["fault"])) == (422, True), steps
    assert (fresh(run).state, run.steps_total) == ("succeeded", 12)
    do(operator, run, "extend", steps="8")
    assert (run.state, run.steps_total, run.config["optim"]["steps"]) == ("queued", 20, 20)


# ---------------------------------------------------------------- what the header says


@pytest.mark.parametrize(("chosen", "goes_on"), [("", "from step 6"), ("4", "from step 4"), ("start", "at its first")])
def test_a_paused_run_goes_on_where_it_was_to(trained: Run, chosen: str, goes_on: str) -> None:
    ended(trained.attempts.get(), "paused")
    checkpoint = trained.checkpoints.get(step=4) if chosen == "4" else None
    put_in(trained, "paused", resume_from=checkpoint, from_start=chosen == "start")
    header = header_of(trained)
    assert header.resumes_at.startswith(goes_on)
    assert header.polls, "somebody else may resume it"


def test_queued_again_says_why_when_and_from_where(viewer: Client, trained: Run) -> None:
    ended(trained.attempts.get(), "lost", end_code="worker_lost")
    due = timezone.now() + timedelta(seconds=25)
    put_in(trained, "queued", reason="node-a was lost", retries=2, not_before=due)
    with freeze(due - timedelta(seconds=24)):
        header = header_of(trained)
        page = page_of(viewer, trained)
    assert (header.again, header.resumes_at, header.until_due) == (True, "from step 6", timedelta(seconds=24))
    assert f'datetime="{due.isoformat()[:19]}' in page
    text = words(page)
    for part in ("Queued try 2 of 5", "node-a was lost", "24 s", "from step 6"):
        assert part in text


def test_the_header_shows_from_where_moves_and_stalls(viewer: Client, maker: Maker, trained: Run) -> None:
    ended(trained.attempts.get(), "preempted", valid_through=4)
    now = timezone.now()
    put_in(trained, "training", step=4, phase="training", seconds_per_step=2.0)
    second = maker.attempt(trained)
    beats = {"progress_at": now - timedelta(minutes=14), "heartbeat_at": now}
    Attempt.objects.filter(pk=second.pk).update(resumed_step=4, **beats)
    Node.objects.update(draining="move")
    header, text = header_of(trained), words(page_of(viewer, trained))
    assert (header.resumed, header.moving_on, header.stalled) == ("from step 4", True, False)
    assert header.seconds_left == 2.0 * (120 - 4)
    for part in ("attempt 2 on node-a, from step 4", "node-a is being emptied"):
        assert part in text
    Run.objects.filter(pk=trained.pk).update(stalled_at=now)
    with freeze(now):
        header, text = header_of(trained), words(page_of(viewer, trained))
    assert (header.stalled, header.silent, header.stillness) == (True, False, timedelta(minutes=14))
    assert header.seconds_left is None, "no promise of an end"
    assert "Nothing has moved for 14 min" in text


def test_each_change_of_the_run_is_news(trained: Run) -> None:
    Run.objects.filter(pk=trained.pk).update(phase="evaluating_before")
    before = header_of(trained).version
    assert header_of(trained).version == before
    then = timezone.now()
    changes = [{"desired": "pause"}, {"stalled_at": then}, {"reason": "x"}, {"step": 3}, {"steps_total": 99}]
    for change in [*changes, {"priority": 10}, {"retries": 1}, {"not_before": then}]:
        Run.objects.filter(pk=trained.pk).update(**change)
        assert header_of(trained).version != before, change
        before = header_of(trained).version
    Attempt.objects.update(progress={"phase": "evaluating_before", "done": 1130, "total": 5012})
    assert header_of(trained).version != before
    assert "1,130 of 5,012" in header_of(trained).doing


# ---------------------------------------------------------------- the list


def test_the_list_shows_and_finds_what_stands_still(viewer: Client, maker: Maker) -> None:
    stalled, again, pausing = maker.run("stalled one", state="training"), maker.run("again"), maker.run("pausing")
    maker.attempt(stalled)
    Run.objects.filter(pk=stalled.pk).update(stalled_at=timezone.now())
    maker.attempt(again, state="lost")
    put_in(again, "queued", retries=3)
    put_in(pausing, "training", desired="pause")
    maker.run("held", state="paused")
    text = words(html(viewer.get("/p/ours/runs/")))
    for part in ("stalled", "Queued try 3", "pause requested"):
        assert part in text
    for state, name in (("stalled", "stalled one"), ("again", "again"), ("paused", "held")):
        page = html(viewer.get("/p/ours/runs/", {"q": f"state={state}"}))
        assert re.findall(r'<a id="run-\d+" href="[^"]+">([^<]*)</a>', page) == [name]
