"""Retry and extend from the pages: which checkpoints are offered, what is refused, and what is said."""

import re
from collections.abc import Callable
from datetime import timedelta

import pytest
from django.test import Client
from django.utils import timezone

from cohort.accounts.models import User
from cohort.runs.models import Node, Run, RunEvent
from tests.web.control import do, ended, waited_for_its_record
from tests.web.run_page import page_of, words
from tests.web.run_rows import Maker, add_checkpoint, put_in

ClientFor = Callable[[User], Client]


# ---------------------------------------------------------------- retry


def test_a_retry_offers_checkpoints_newest_first_and_the_first_step_last(
    client_for: ClientFor, oscar: User, trained: Run
) -> None:
    ended(trained.attempts.get(), "failed")
    put_in(trained, "failed")
    page = page_of(client_for(oscar), trained, "retry/")
    labels = [words(label) for label in re.findall(r'<label class="option">(.*?)</label>', page, re.DOTALL)]
    offered = ["step 6", "step 4 best", "before step 1"]
    assert [re.split(r" (?:now|\d+ s ago)", label)[0] for label in labels[:3]] == offered, (
        "what was removed is not offered"
    )
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


def test_a_run_is_extended_from_where_it_was_to_go_on(client_for: ClientFor, oscar: User, trained: Run) -> None:
    ended(trained.attempts.get(), "paused")
    put_in(trained, "paused", resume_from=trained.checkpoints.get(step=4))
    client = client_for(oscar)
    assert "back to the queue and on from the checkpoint at step 4," in words(page_of(client, trained, "extend/"))
    do(client, trained, "extend", steps="8")
    assert RunEvent.objects.get(run=trained, kind="extended").message.endswith("goes on from step 4")


@pytest.mark.parametrize(("state", "remedy"), [("paused", "Cancel it and retry it"), ("cancelled", "Retry it")])
def test_a_run_that_begins_anew_is_not_extended_and_says_why(
    client_for: ClientFor, oscar: User, trained: Run, state: str, remedy: str
) -> None:
    ended(trained.attempts.get(), "paused")
    put_in(trained, state, from_start=True)
    client = client_for(oscar)
    page = page_of(client, trained, "extend/")
    assert "It begins at its first step, as was chosen when it was retried" in words(page)
    assert f"{remedy} from a checkpoint, or clone it with more steps" in words(page)
    assert 'id="extend-steps"' not in page
    assert "it begins at the first step, as was chosen" in do(client, trained, "extend", steps="5")
