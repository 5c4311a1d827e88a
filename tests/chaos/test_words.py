"""What the page says is true soon: a killed worker shows as lost, a cancelled run is confirmed by its worker."""

import random
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from tests.chaos.chances import LEASE, most, rounds
from tests.chaos.stand import STUB, Stand, standing
from tests.chaos.test_fences import ENDLESS
from tests.factories.stock import PASSWORD
from tests.processes import kill_at_once, wait_for

Say = Callable[[str], None]


@contextmanager
def browser(stand: Stand) -> Iterator[httpx.Client]:
    """Logged in as a person is, through the form."""
    with httpx.Client(base_url=stand.url, trust_env=False, follow_redirects=True, timeout=30) as client:
        page = client.get("/")
        token = re.search(r'name="csrfmiddlewaretoken" value="([^"]+)"', page.text)
        assert token is not None, page.text
        filled = {"csrfmiddlewaretoken": token[1], "username": "alice", "password": PASSWORD}
        answer = client.post(page.url.path, data=filled, headers={"Referer": str(page.url)})
        assert answer.status_code == 200, answer.text
        yield client


def lost_shows(stand: Stand) -> float:
    """Seconds from the death of a whole worker to the run's page saying so."""
    worker = stand.add_worker(STUB)
    run = stand.launch(ENDLESS)
    stand.wait(run, lambda row: row["step"] > 0, "it trains")
    with browser(stand) as client:
        page = f"/p/ours/runs/{run}/"
        assert "sent its last heartbeat" not in client.get(page).raise_for_status().text
        kill_at_once([worker.pid, *(process.pid for process in stand.training_processes(worker.name))])
        worker.stop()
        died = time.monotonic()
        line = f"{worker.name} sent its last heartbeat"
        wait_for(lambda: line in client.get(page).raise_for_status().text, lambda: f"lost\n{stand.story(run)}")
        took = time.monotonic() - died
    assert stand.attempts(run)[-1]["end_code"] == "worker_lost", stand.story(run)
    stand.hand.do("press", run=run, service="cancel")
    assert stand.training_processes(worker.name) == []
    return took


@pytest.mark.slow
def test_a_killed_worker_shows_as_lost(stand: Stand, say: Say) -> None:
    say(f"shown as lost after {lost_shows(stand):.1f} s with a lease of {LEASE:.0f} s")


@pytest.mark.chaos
def test_a_killed_worker_shows_as_lost_with_the_real_lease(tiny_model: Path, say: Say) -> None:
    with standing(model=tiny_model, lease=0) as stand:
        took = lost_shows(stand)
        say(f"shown as lost after {took:.1f} s with the lease that operators have")
        assert took <= most(90)


def cancelled_after(stand: Stand, dice: random.Random, worker: str) -> float:
    """Seconds from a person's word to the worker's, at a random moment."""
    run = stand.launch(ENDLESS)
    stand.wait(run, lambda row: row["step"] > 1, "it trains, and takes a signal")
    time.sleep(dice.uniform(0, 3))
    began = time.monotonic()
    stand.cancel(run)
    took = time.monotonic() - began
    attempt = stand.attempts(run)[-1]
    assert attempt["state"] == "cancelled", stand.story(run)
    assert attempt["outcome"], "a trainer that does not hear of it is killed after a minute, and leaves no word"
    # The supervisor itself ends a moment after its last word; what it watched over is gone before that.
    assert [process for kind in ("trainer", "reaper") for process in stand.processes(kind, worker)] == []
    wait_for(lambda: not stand.training_processes(worker), "the supervisor ends")
    return took


def cancel_rounds(stand: Stand, dice: random.Random, say: Say, count: int) -> float:
    """Seconds that the slowest took."""
    worker = stand.add_worker(STUB)
    took = [cancelled_after(stand, dice, worker.name) for _ in range(count)]
    worker.stop()
    say(f"cancels {count}, confirmed after {max(took):.1f} s at most, processes left 0")
    return max(took)


@pytest.mark.slow
def test_a_cancel_is_confirmed(stand: Stand, dice: random.Random, say: Say) -> None:
    cancel_rounds(stand, dice, say, 1)


@pytest.mark.chaos
def test_cancels_are_confirmed_with_the_real_heartbeat(tiny_model: Path, dice: random.Random, say: Say) -> None:
    with standing(model=tiny_model, lease=0) as stand:
        assert cancel_rounds(stand, dice, say, rounds(20)) <= most(5)
