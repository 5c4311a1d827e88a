"""One owner at a time: a supervisor that was asleep while another took its run writes nothing any more, and a message
that comes ten times to three workers starts one trainer.
"""

import os
import random
import signal
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from tests.chaos.chances import LEASE, short_and_full
from tests.chaos.ledger import TABLES
from tests.chaos.stand import STUB, Part, Stand, kind_of
from tests.processes import wait_for

ENDLESS = {"engine": {"device": "cpu"}, "eval": {"holdout": 4}, "optim": {"steps": 1_000_000}}
SHORT = {**ENDLESS, "optim": {"steps": 3}}


def asleep(stand: Stand, workers: list[Part], dice: random.Random) -> int:
    """One round, and the stale writes in it. A random moment of a run, two leases asleep, another takes it."""
    run = stand.launch(ENDLESS)
    first = recording(stand, run)
    time.sleep(dice.uniform(0, 1))
    (owner,) = [worker for worker in workers if stand.processes("supervisor", worker.name)]
    before = stand.training_processes(owner.name)
    sleepers = [process for process in before if kind_of(process) == "supervisor"]
    for process in sleepers:
        os.kill(process.pid, signal.SIGSTOP)
    began = time.monotonic()
    second = recording(stand, run, after=first["fence"])
    assert second["node_id"] != first["node_id"]
    time.sleep(max(0.0, 2 * LEASE - (time.monotonic() - began)))
    held = everything_of(stand, first["id"])
    for process in sleepers:
        os.kill(process.pid, signal.SIGCONT)
    wait_for(
        lambda: all(kind_of(process) == "gone" for process in before),
        lambda: f"the first owner ends\n{stand.story(run)}",
    )
    stale = sum((everything_of(stand, first["id"]) - held).values())
    assert stand.run(run)["fence"] == second["fence"], stand.story(run)
    assert stand.live_attempt(run), stand.story(run)
    stand.cancel(run)
    # A supervisor of a message that came late may look in for a moment; what is left behind never ends.
    wait_for(lambda: not stand.training_processes(), lambda: f"nothing is left of either\n{stand.story(run)}")
    return stale


def recording(stand: Stand, run: int, *, after: int = 0) -> dict[str, Any]:
    """The run's live attempt, later than that of fence `after`, once it has recorded something."""

    def recorded() -> dict[str, Any] | None:
        live = stand.live_attempt(run)
        return live if live and live["fence"] > after and live["acked_seq"] > 0 else None

    return wait_for(recorded, lambda: f"a worker takes it and records\n{stand.story(run)}")


def everything_of(stand: Stand, attempt: int) -> Counter[str]:
    """Every row of the attempt, and what its own row says."""
    count = "SELECT count(*) FROM {} WHERE attempt_id = %s"
    counts = Counter({table: stand.one(count.format(table), attempt) for table in set(TABLES.values())})
    row: dict[str, Any] = stand.rows("SELECT * FROM runs_attempt WHERE id = %s", attempt)[0]
    row.pop("valid_through")  # its successor's to say
    return counts + Counter({f"{name}={value}": 1 for name, value in row.items()})


@pytest.mark.parametrize("count", short_and_full(1, 50))
def test_a_supervisor_that_slept_writes_nothing(
    stand: Stand, dice: random.Random, say: Callable[[str], None], count: int
) -> None:
    workers = [stand.add_worker(STUB), stand.add_worker(STUB)]
    stale = sum(asleep(stand, workers, dice) for _ in range(count))
    say(f"rounds {count}, stale writes {stale}, processes left 0")
    for worker in workers:
        worker.stop()
    assert stale == 0


@pytest.mark.parametrize("count", short_and_full(2, 200))
def test_a_message_that_comes_ten_times_starts_one_trainer(
    stand: Stand, say: Callable[[str], None], count: int
) -> None:
    workers = [stand.add_worker(STUB) for _ in range(3)]
    runs = []
    for _ in range(count):
        runs.append(run := stand.launch(SHORT))
        stand.hand.do("publish", run=run, times=9)
        stand.wait(run, lambda row: row["ended_at"] is not None or row["state"] == "sealing", "it ends")
    for worker in workers:
        worker.stop()
    rows = stand.rows("SELECT run_id, end_code FROM runs_attempt WHERE run_id = ANY(%s)", runs)
    attempts = Counter(row["run_id"] for row in rows)
    # A machine busy enough can miss so short a lease: the run then rightly continues in another attempt.
    lost = Counter(row["run_id"] for row in rows if row["end_code"] == "worker_lost")
    trainers = Counter(
        int(folder.parent.name.removeprefix("run-"))
        for worker in workers
        for folder in stand.runs(worker.name).glob("run-*/attempt-*")
    )
    took = Counter(row["node_id"] for run in runs for row in stand.attempts(run))
    say(
        f"rounds {count}, messages {10 * count}, attempts {attempts.total()}, trainers {trainers.total()}, "
        f"by worker {sorted(took.values())}, leases missed {lost.total()}, orphans {len(stand.training_processes())}"
    )
    assert attempts == trainers == Counter(dict.fromkeys(runs, 1)) + lost
    assert stand.training_processes() == []
