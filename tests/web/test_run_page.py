"""The pages of a run: what they say in each state, that the numbers are those of the rows, and what is polled."""

import re
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from cohort.accounts.models import User
from cohort.governance.services import record_seal
from cohort.runs.models import Attempt, Node, Run, RunEvent
from cohort.runs.services import run_submit
from tests.web.control import poll_of
from tests.web.run_page import freeze, page_of, words
from tests.web.run_rows import HOSTILE, HOSTILE_SHOWN, Maker, add_evaluation, add_group, add_steps, put_in

ClientFor = Callable[[User], Client]
TABS = ("", "groups/", "evaluations/", "attempts/", "logs/", "config/", "events/")


def tile(page: str, label: str) -> str:
    found = re.search(rf'<div class="label">{label}</div>\s*<div class="value">(.*?)</div>', page, re.DOTALL)
    assert found is not None, label
    return words(re.sub(r'<span class="sr-only">.*?</span>', "", found[1]))


# ---------------------------------------------------------------- what it says


def test_a_run_in_training(client_for: ClientFor, bob: User, maker: Maker) -> None:
    run = maker.run(
        state="training", preset="dapo", optim={"steps": 120}, sampling={"group_size": 8, "prompts_per_step": 16}
    )
    Run.objects.filter(pk=run.pk).update(phase="training", seconds_per_step=2.0)
    run.refresh_from_db()
    attempt = maker.attempt(run)
    first = {"reward": 0.55, "frac_reward_zero_std": 0.03, "entropy": 0.38, "completions/mean_length": 41.0}
    last = {"reward": 0.86, "frac_reward_zero_std": 0.46, "entropy": 0.18, "completions/mean_length": 41.2}
    add_steps(attempt, [first, *[first] * 82, last])
    with freeze(attempt.heartbeat_at + timedelta(seconds=3)):
        page = page_of(client_for(bob), run)
    text = words(page)
    assert "adder ● Training" in text
    assert "step 84 of 120 72 s left".replace("72 s", "1 min 12 s") in text
    assert "attempt 1 on node-a, heard from 3 s ago" in text
    assert "G 8 β 0 ε 0.2 / 0.28 z-score in the group, population std DAPO, 2 differences" in text.replace(" · ", " ")
    assert tile(page, "Reward") == "0.860 +0.310"
    assert tile(page, "Groups with signal") == "54 % −43 points"
    assert tile(page, "KL to reference") == "n/a, β 0", "a metric without meaning is not 0"
    assert tile(page, "Entropy") == "0.180 −0.200"
    assert tile(page, "Length, tokens") == "41.2 +0.2"
    assert tile(page, "Samples per second") == "64.0", "8 × 16 completions in 2 s"
    assert tile(page, "Clipped tokens") == "–", "16 mini-batches, and no step has told it yet"


@pytest.mark.parametrize(
    ("algorithm", "said"),
    [
        (
            {"loss": "gspo", "aggregation": "sequence_mean", "clip_low": 3e-4, "clip_high": 4e-4},
            "gspo ε 0.0003 / 0.0004",
        ),
        ({"loss": "cispo", "clip_high": 5}, "cispo, weight at most 5"),
        ({"loss": "sapo"}, "β 0 sapo z-score"),
        ({"advantage": "rloo", "scale": "none"}, "leave one out (RLOO)"),
        ({"advantage": "pass_at_k", "pass_k": 4}, "best of 4 (Pass@k)"),
        ({"scale": "batch_std", "std_ddof": 1}, "group mean, batch std, sample std (Lite-PPO)"),
    ],
)
def test_the_header_says_what_holds_the_ratio_and_what_is_compared(
    client_for: ClientFor, bob: User, maker: Maker, algorithm: dict[str, Any], said: str
) -> None:
    run = maker.run(state="training", algorithm=algorithm)
    assert said in words(page_of(client_for(bob), run)).replace(" · ", " ")


def test_kl_to_the_old_policy_is_called_so(client_for: ClientFor, bob: User, maker: Maker) -> None:
    run = maker.run(state="training", algorithm={"kl": {"coef": 0.1, "target": "old"}, "mini_batches": 2})
    add_steps(maker.attempt(run), [{"reward": 0.5, "kl": 0.25}])
    assert tile(page_of(client_for(bob), run), "KL to old policy") == "0.250"


def test_kl_is_shown_where_there_is_a_reference(client_for: ClientFor, bob: User, maker: Maker) -> None:
    run = maker.run(state="training", algorithm={"kl": {"coef": 1e-5}})
    add_steps(maker.attempt(run), [{"reward": 0.5, "kl": 0.0}, {"reward": 0.5, "kl": 0.0123}])
    page = page_of(client_for(bob), run)
    assert tile(page, "KL to reference") == "0.0123 +0.0123"
    assert tile(page, "Reward") == "0.500", "no change is not shown as one"
    assert "β 1e−5" in page


def test_a_waiting_run_says_why(client_for: ClientFor, bob: User, maker: Maker) -> None:
    run = maker.run(state="queued")
    Run.objects.filter(pk=run.pk).update(queued_at=timezone.now() - timedelta(seconds=75))
    client = client_for(bob)
    Node.objects.create(name="node-c", token_digest="2" * 64, last_seen_at=timezone.now() - timedelta(seconds=125))
    assert "Place 1 in the queue : no node is here. Needs any node." in words(page_of(client, run))
    Node.objects.create(name="node-b", token_digest="1" * 64, last_seen_at=timezone.now() - timedelta(seconds=5))
    text = words(page_of(client, run))
    assert "Place 1 in the queue : a node takes it within seconds. Needs any node." in text
    assert re.search(r"queued for 1 min (1[5-9]|[2-5]\d) s", text)


@pytest.mark.parametrize(
    ("state", "phase", "said"),
    [
        ("starting", "loading", "loading model and data"),
        ("evaluating", "evaluating_before", "evaluating before training"),
        ("evaluating", "evaluating_after", "evaluating after training"),
        ("training", "training", "training"),
        ("sealing", "saving", "the record is being made"),
    ],
)
def test_what_it_is_doing(client_for: ClientFor, bob: User, maker: Maker, state: str, phase: str, said: str) -> None:
    run = maker.run(state=state)
    Run.objects.filter(pk=run.pk).update(phase=phase)
    maker.attempt(run)
    assert said in words(page_of(client_for(bob), run))


def test_a_silent_worker_is_said(client_for: ClientFor, bob: User, maker: Maker) -> None:
    run = maker.run(state="training")
    attempt = maker.attempt(run)
    client = client_for(bob)
    heard = attempt.heartbeat_at
    with freeze(heard + timedelta(seconds=3)):
        address = poll_of(page_of(client, run))
        assert client.get(address).status_code == 204
    with freeze(heard + timedelta(seconds=45)):
        page = client.get(address)
    assert page.status_code == 200, "no row has changed, and yet there is something to say"
    assert (
        "node-a has not been heard from for 45 s . If it stays silent until its lease runs out, the attempt counts as "
        "lost and the run goes back to the queue, to go on from its newest checkpoint. What it had sent is kept."
    ) in words(page.content.decode())


def test_a_failed_run_shows_reason_and_log_on_top(client_for: ClientFor, oscar: User, maker: Maker) -> None:
    run = maker.run(state="failed")
    log = "\n".join(f"line {number}" for number in range(40)) + f"\nMemoryError {HOSTILE}"
    Run.objects.filter(pk=run.pk).update(
        reason="The trainer died at step 3.", error_code="trainer_died", log_tail=log, ended_at=timezone.now()
    )
    maker.attempt(run, state="failed")
    page = page_of(client_for(oscar), run)
    assert page.index("This run failed") < page.index("Newest groups")
    assert "The trainer died at step 3." in page
    assert "trainer_died" in page
    assert f"MemoryError {HOSTILE_SHOWN}" in page
    assert "line 39" in page
    assert "line 20" not in page, "only the last lines; the rest is under Logs"
    assert f"?clone={run.pk}" in page
    assert "line 0" in page_of(client_for(oscar), run, "logs/")


def test_a_draft_and_a_run_without_steps_show_no_empty_charts(
    client_for: ClientFor, oscar: User, bob: User, maker: Maker
) -> None:
    draft = maker.run()
    page = page_of(client_for(oscar), draft)
    assert "This is a draft. Launch it as it is, or clone it" in page
    assert "An operator or admin of Our project can launch it" in page_of(client_for(bob), draft)
    ended = maker.run(state="cancelled")
    assert "It ended before its first step" in page_of(client_for(bob), ended)
    assert "data-chart" not in page + page_of(client_for(bob), ended)


def test_logs_of_a_live_run_say_where_they_lie(client_for: ClientFor, bob: User, maker: Maker) -> None:
    run = maker.run(state="training")
    maker.attempt(run)
    assert "The log lies on node-a" in words(page_of(client_for(bob), run, "logs/"))


def test_events_are_newest_first_with_who(client_for: ClientFor, bob: User, maker: Maker) -> None:
    run = maker.run()
    RunEvent.objects.create(
        run=run, at=timezone.now(), actor="node:node-a", kind="claimed", message=HOSTILE, data={"fence": 1}
    )
    page = page_of(client_for(bob), run, "events/")
    assert page.index("node:node-a") < page.index("user:alice")
    assert HOSTILE_SHOWN in page
    assert "fence: 1" in page
    assert "showing 2 of 2" in words(page)


def test_a_long_story_is_cut_and_says_so(client_for: ClientFor, bob: User, maker: Maker) -> None:
    run = maker.run()
    now = timezone.now()
    RunEvent.objects.bulk_create(
        RunEvent(run=run, at=now, actor="trainer", kind="warning", message=f"event {n}") for n in range(250)
    )
    client = client_for(bob)
    assert "showing 200 of 251" in words(page_of(client, run, "events/"))
    assert "showing 251 of 251" in words(page_of(client, run, "events/", all="1"))


def test_config_names_each_difference_from_the_preset(client_for: ClientFor, bob: User, maker: Maker) -> None:
    run = maker.run(preset="dapo", sampling={"group_size": 8})
    page = page_of(client_for(bob), run, "config/")
    assert "sampling.group_size 16 8" in words(page)
    assert "optim.lr" not in words(page).split("Config sha256")[0]
    assert "group_size: 8" in page


# ---------------------------------------------------------------- live


def test_an_idle_poll_is_empty_and_a_change_brings_all_parts(client_for: ClientFor, bob: User, maker: Maker) -> None:
    run = maker.run(state="training")
    attempt = maker.attempt(run)
    add_steps(attempt, [{"reward": 0.25}])
    client = client_for(bob)
    address = poll_of(page_of(client, run))
    idle = client.get(address)
    assert (idle.status_code, idle.content) == (204, b"")
    add_steps(attempt, [{"reward": 0.75}], first=2)
    add_group(attempt, [1.0, 0.0], step=2)
    changed = client.get(address)
    page = changed.content.decode()
    assert changed.status_code == 200
    assert 'data-step="2"' in page
    for part in ("live-top", "live-tiles", "live-groups", "live-evals"):
        assert re.search(rf'id="{part}"[^>]* hx-swap-oob="true"', page), part
    assert tile(page, "Reward") == "0.750 +0.500"
    assert "what is 49 + 78?" in page
    assert client.get(poll_of(page)).status_code == 204


def test_beats_are_told_once_in_ten_seconds(client_for: ClientFor, bob: User, maker: Maker) -> None:
    """A worker beats every 2.5 s; were each beat news, no poll would be idle."""
    run = maker.run(state="training")
    attempt = maker.attempt(run)
    tens = timezone.now().replace(microsecond=0)
    tens -= timedelta(seconds=tens.second % 10)
    client = client_for(bob)

    def heard(seconds: float) -> None:
        Attempt.objects.filter(pk=attempt.pk).update(heartbeat_at=tens + timedelta(seconds=seconds))

    with freeze(tens + timedelta(seconds=12)):
        heard(0)
        address = poll_of(page_of(client, run))
        for seconds in (2.5, 5, 7.5, 9.9):
            heard(seconds)
            assert client.get(address).status_code == 204
        heard(10)
        told = client.get(address)
        assert told.status_code == 200
        assert "heard from 2 s ago" in words(told.content.decode())


def test_an_evaluation_is_told_once(client_for: ClientFor, bob: User, maker: Maker) -> None:
    """Its problems are compared again when another one stands, not at each step."""
    run = maker.run(state="training")
    attempt = maker.attempt(run)
    add_evaluation(attempt, "before", [1, 0])
    client = client_for(bob)
    address = poll_of(page_of(client, run))
    add_steps(attempt, [{"reward": 0.5}])
    with CaptureQueriesContext(connection) as asked:
        page = client.get(address).content.decode()
    assert 'data-step="1"' in page
    assert "live-evals" not in page, "what the page shows stays"
    assert not [query for query in asked if "runs_evalitem" in query["sql"]]
    add_steps(attempt, [{"reward": 0.5}], first=2)
    assert "live-evals" not in client.get(poll_of(page)).content.decode(), "nor after another step"
    add_evaluation(attempt, "after", [1, 1])
    page = client.get(poll_of(page)).content.decode()
    assert 'id="live-evals"' in page
    assert "100.0 %" in words(page)


@pytest.mark.parametrize("state", ["succeeded", "failed", "cancelled"])
def test_polling_stops_at_the_end(client_for: ClientFor, bob: User, maker: Maker, state: str) -> None:
    run = maker.run(state="training")
    client = client_for(bob)
    address = poll_of(page_of(client, run))
    put_in(run, state, ended_at=timezone.now())
    last = client.get(address)
    assert last.status_code == 286
    assert "data-poll" not in last.content.decode()


def test_an_ended_run_polls_until_its_record_is_there(client_for: ClientFor, bob: User, maker: Maker) -> None:
    run = maker.run()
    run_submit(run=run, actor=maker.actor)
    maker.attempt(run, state="failed")
    client = client_for(bob)
    ended = timezone.now()
    address = poll_of(page_of(client, run))
    Run.objects.filter(pk=run.pk).update(state="failed", ended_at=ended, ends=1)
    page = client.get(address)
    assert page.status_code == 200, "its record comes within seconds"
    assert "card-link" not in page.content.decode()
    address = poll_of(page.content.decode())
    assert client.get(address).status_code == 204
    with freeze(ended + timedelta(minutes=11)):
        assert client.get(address).status_code == 286, "but it is not waited for without end"
    record_seal(run=Run.objects.get(pk=run.pk))
    last = client.get(address)
    assert last.status_code == 286
    assert 'id="card-link"' in last.content.decode()
    assert "data-poll" not in last.content.decode()


def test_other_tabs_poll_only_their_header(client_for: ClientFor, bob: User, maker: Maker) -> None:
    run = maker.run(state="training")
    client = client_for(bob)
    address = poll_of(page_of(client, run, "groups/")).split("&v=")[0]
    page = client.get(address).content.decode()
    assert 'id="live-header"' in page
    assert "live-tiles" not in page


def test_an_idle_poll_is_cheap_and_pages_cost_the_same_when_full(
    client_for: ClientFor, bob: User, maker: Maker
) -> None:
    run = maker.run(state="training")
    attempt = maker.attempt(run)
    add_steps(attempt, [{"reward": 0.5}])
    add_group(attempt, [1.0, 0.0])
    client = client_for(bob)
    with CaptureQueriesContext(connection) as few:
        address = poll_of(page_of(client, run))
    with CaptureQueriesContext(connection) as idle:
        assert client.get(address).status_code == 204
    assert len(idle) <= 6
    for index in range(1, 12):
        add_group(attempt, [1.0, 0.0, 1.0], index=index)
    add_steps(attempt, [{"reward": 0.5}] * 20, first=2)
    with CaptureQueriesContext(connection) as many:
        page_of(client, run)
    assert len(many) == len(few) <= 20


# ---------------------------------------------------------------- who


@pytest.mark.parametrize("tab", [*TABS, "live/", "series.json"])
def test_who_and_how(client_for: ClientFor, bob: User, charlie: User, maker: Maker, tab: str) -> None:
    run = maker.run(state="queued")
    address = f"/p/ours/runs/{run.pk}/{tab}"
    assert client_for(bob).get(address).status_code == 200
    assert client_for(bob).post(address).status_code == 405
    assert client_for(charlie).get(address).status_code == 404
    assert client_for(charlie).get(address.replace("ours", "theirs")).status_code == 404
    assert client_for(bob).get(f"/p/ours/runs/999999/{tab}").status_code == 404


@pytest.mark.parametrize("tab", TABS)
def test_hostile_names_and_reports_are_shown_and_do_not_run(
    client_for: ClientFor, alice: User, maker: Maker, tab: str
) -> None:
    run = maker.run(HOSTILE, state="training")
    attempt = maker.attempt(run)
    add_steps(attempt, [{"reward": 0.5}])
    add_group(attempt, [1.0, 0.0], prompt=HOSTILE, answer=HOSTILE, completion=HOSTILE)
    add_evaluation(attempt, "before", [0, 1], suite=HOSTILE, completion=HOSTILE)
    add_evaluation(attempt, "after", [1, 1], suite=HOSTILE, completion=HOSTILE)
    Run.objects.filter(pk=run.pk).update(reason=HOSTILE, log_tail=HOSTILE)
    page = page_of(client_for(alice), run, tab)
    assert HOSTILE_SHOWN in page
    assert "<script>alert" not in page
    assert "<b hx-get" not in page
    assert "\u202e" not in page
    assert "\x07" not in page
