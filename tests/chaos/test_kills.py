"""SIGKILL at random points on every part of a worker: no acknowledged record is lost, none stands twice, no process is
left, and the weights are those of a run that nothing happened to.
"""

import random
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Literal

import psutil
import pytest

from tests.chaos.chances import rounds
from tests.chaos.ledger import Ledger
from tests.chaos.stand import ENDED, Part, Stand, kind_of
from tests.processes import kill_at_once, wait_for

Target = Literal["trainer", "supervisor", "main", "group"]
TARGETS: tuple[Target, ...] = ("trainer", "supervisor", "main", "group")

KILLED = ("trainer_killed", "worker_lost")
"""Causes that a kill may have; whatever else ends a run here is a defect."""


def settings(steps: int) -> dict[str, Any]:
    """A run of steps of about 0.2 s, with a checkpoint after each."""
    return {
        "sampling": {"group_size": 8, "prompts_per_step": 4, "max_completion_tokens": 48},
        "optim": {"steps": steps, "lr": 1e-3},
        "engine": {"device": "cpu", "threads": 1},
        "eval": {"holdout": 4, "every": 10},
        "checkpoints": {"every": 1},
    }


@dataclass
class Killing:
    """One worker's runs while its parts are killed."""

    stand: Stand
    worker: Part
    dice: random.Random
    steps: int
    span: float
    """Kills fall at most so many seconds after an attempt was seen to live."""
    ledger: Ledger = field(init=False)
    runs: list[int] = field(default_factory=list)
    kills: Counter[str] = field(default_factory=Counter)
    retried: int = 0
    orphans: int = 0

    def __post_init__(self) -> None:
        self.ledger = Ledger(self.stand)

    def launch(self) -> int:
        self.runs.append(self.stand.launch(settings(self.steps)))
        return self.runs[-1]

    def kill_each(self, plan: list[Target]) -> None:
        run = self.launch()
        for target in plan:
            while not self._kill_once(run, target):
                if self.stand.run(run)["state"] in ("sealing", "succeeded"):
                    run = self.launch()
        self._finish(run)

    def _kill_once(self, run: int, target: Target) -> bool:
        """Kill the target at a random moment of the newest attempt; False when the run or the target ended before."""
        self._until_it_lives(run)
        moment = time.monotonic() + self.dice.uniform(0, self.span)
        while time.monotonic() < moment:
            if self.stand.live_attempt(run) is None:
                return False
            time.sleep(0.02)
        before = self.stand.training_processes(self.worker.name)
        aims = self._aims(target, before)
        if not aims or self.stand.run(run)["state"] in (*ENDED, "sealing"):
            return False
        self.ledger.note(run)
        kill_at_once([process.pid for process in aims])
        self.kills[target] += 1
        if target in ("main", "group"):
            time.sleep(self.dice.uniform(0, 2))
            self.stand.start_again(self.worker)
        self._until_gone(before)
        return True

    def _aims(self, target: Target, before: list[psutil.Process]) -> list[psutil.Process]:
        main = [psutil.Process(self.worker.pid)]
        groups = {"main": main, "group": [*main, *before] if before else []}
        return groups.get(target) or [process for process in before if kind_of(process) == target]

    def _until_it_lives(self, run: int) -> None:
        """Until a worker has the run or it has succeeded. What a person, or time, would do is done on the way."""

        def so() -> bool:
            row = self.stand.run(run)
            sealed = 'SELECT 1 FROM records_record WHERE run_id = %s AND "end" = %s'
            if row["state"] == "failed" and self.stand.rows(sealed, run, row["ends"]):
                assert row["error_code"] in KILLED, self.stand.story(run)
                self.stand.hand.do("press", run=run, service="retry")
                self.retried += 1
            if row["state"] == "queued" and row["not_before"] is not None:
                # The pause before another try, up to two minutes, is not waited for.
                self.stand.rows("UPDATE runs_run SET not_before = now() WHERE id = %s RETURNING id", run)
            return row["state"] in ("sealing", "succeeded") or self.stand.live_attempt(run) is not None

        wait_for(so, lambda: f"the run continues\n{self.stand.story(run)}")

    def _until_gone(self, processes: list[psutil.Process]) -> None:
        """Count those that never end as orphans."""
        left = lambda: sum(kind_of(process) != "gone" for process in processes)  # noqa: E731
        with suppress(AssertionError):
            wait_for(lambda: not left(), "they end")
        self.orphans += left()

    def _finish(self, run: int) -> None:
        while self.stand.run(run)["state"] not in ("sealing", "succeeded"):
            self._until_it_lives(run)
            time.sleep(0.2)
        for each in self.runs:
            self.stand.wait_trained(each)


def check(killing: Killing, reference: int, say: Callable[[str], None]) -> None:
    stand, ledger = killing.stand, killing.ledger
    killing.worker.stop()
    killing.orphans += len(stand.training_processes(killing.worker.name))
    numbers = ledger.check(killing.runs, reference)
    say(
        f"kills {killing.kills.total()} {dict(killing.kills)}, runs {len(killing.runs)}, {numbers}, "
        f"retried by hand {killing.retried}, orphans {killing.orphans}"
    )
    assert killing.orphans == 0
    assert any(len(stand.attempts(run)) > 1 for run in killing.runs), "kills did end some"


def killing_on(stand: Stand, dice: random.Random, *, steps: int, span: float) -> tuple[Killing, int]:
    """A new worker, and the run that nothing happens to."""
    worker = stand.add_worker()
    reference = stand.launch(settings(steps))
    stand.wait_trained(reference)
    return Killing(stand, worker, dice, steps=steps, span=span), reference


@pytest.mark.slow
def test_a_whole_worker_is_killed(stand: Stand, dice: random.Random, say: Callable[[str], None]) -> None:
    killing, reference = killing_on(stand, dice, steps=5, span=4.0)
    killing.kill_each(["group"])
    check(killing, reference, say)


@pytest.mark.chaos
def test_hundred_kills(stand: Stand, dice: random.Random, say: Callable[[str], None]) -> None:
    plan = [target for target in TARGETS for _ in range(rounds(25))]
    dice.shuffle(plan)
    killing, reference = killing_on(stand, dice, steps=40, span=12.0)
    killing.kill_each(plan)
    check(killing, reference, say)
