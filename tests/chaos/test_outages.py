"""Parts of the platform go away and come back while runs train: the runs continue, or pause with the reason; nothing is
lost, the weights are those of a run that nothing happened to, and what was stopped continues within a minute.
"""

import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import datetime, timedelta
from itertools import product
from pathlib import Path
from typing import Any

import psycopg
import pytest

from cohort.cli.embedded.postgres import Postgres
from tests.chaos.brokers import Broker, RabbitBroker, RedisBroker
from tests.chaos.chances import FULL, cases_of, most
from tests.chaos.ledger import Ledger
from tests.chaos.stand import Stand, standing
from tests.chaos.test_kills import settings
from tests.disks import small_disk
from tests.needs import needs
from tests.processes import wait_for
from tests.worker.stand_in import SHIM

STEPS = 40 if FULL else 20
RECOVERY = most(60.0)
"""Seconds from the end of an outage to the first sign that the run continues."""

Say = Callable[[str], None]


class Watched:
    """A stand with one worker, and a run on it that nothing happened to."""

    def __init__(self, stand: Stand) -> None:
        self.stand, self.ledger = stand, Ledger(stand)
        self.worker = stand.add_worker()
        self.reference = self.launch()
        stand.wait_trained(self.reference)

    def launch(self) -> int:
        return self.stand.launch(settings(STEPS))

    def launch_until_training(self) -> int:
        run = self.launch()
        self.stand.wait(run, lambda row: row["step"] >= 2, "it trains")
        return run

    def recovered(self, run: int) -> float:
        """Seconds until the run has moved on from what it was when the outage ended."""
        began = time.monotonic()
        before = self.stand.attempts(run)[-1]

        def moved() -> bool:
            newest = self.stand.attempts(run)[-1]
            return newest["fence"] > before["fence"] or newest["acked_seq"] > before["acked_seq"]

        wait_for(lambda: moved() or self.stand.run(run)["ended_at"], lambda: f"it continues\n{self.stand.story(run)}")
        return time.monotonic() - began

    def check(self, run: int, say: Say, what: str, seconds: float) -> None:
        self.stand.wait_trained(run)
        say(f"{what}: recovered after {seconds:.1f} s, {self.ledger.check([run], self.reference)}")
        assert seconds < RECOVERY


@pytest.fixture(scope="module")
def watched(tiny_model: Path) -> Iterator[Watched]:
    """On Redis where this machine has its program, else on files."""
    broker = RedisBroker if shutil.which("redis-server") else Broker
    with standing(model=tiny_model, broker=broker, database=("--max_connections=40",)) as stand:
        yield Watched(stand)


# ---------------------------------------------------------------------- the broker


BROKERS = {"files": Broker, "redis": RedisBroker, "rabbitmq": RabbitBroker}


@pytest.fixture(params=cases_of("broker", list(BROKERS)))
def broker(request: pytest.FixtureRequest) -> Callable[[Path], Broker]:
    program = {"redis": "redis-server", "rabbitmq": "rabbitmq-server"}.get(request.param)
    if program is not None and shutil.which(program) is None:
        pytest.skip(f"needs {program} (Debian: apt-get install {program})")
    return BROKERS[request.param]


@pytest.mark.chaos
def test_messages_are_lost_with_the_broker(broker: Callable[[Path], Broker], tiny_model: Path, say: Say) -> None:
    """One run trains while two wait, of whose messages the worker has taken one; the broker loses the other, then
    stops and starts."""
    with standing(model=tiny_model, broker=broker) as stand:
        watched = Watched(stand)
        first, second, third = watched.launch_until_training(), watched.launch(), watched.launch()
        stand.broker.empty()
        stand.broker.stop()
        time.sleep(5)
        stand.broker.start()
        name = type(stand.broker).__name__
        watched.check(first, say, f"{name}, the run that trained", 0.0)
        for before, run in ((first, second), (second, third)):
            stand.wait(before, lambda row: row["ended_at"], "the one before it ends")
            began = time.monotonic()
            stand.wait(run, lambda row: row["state"] != "queued", "it is claimed")
            watched.check(run, say, f"{name}, a run that waited", time.monotonic() - began)


# ---------------------------------------------------------------------- the database


@pytest.mark.chaos
@pytest.mark.parametrize("how", cases_of("database", ["in order", "killed"]))
def test_the_database_is_restarted(watched: Watched, how: str, say: Say) -> None:
    run = watched.launch_until_training()
    postgres = watched.stand.postgres
    if how == "killed":
        assert postgres.process is not None
        os.kill(postgres.process.pid, signal.SIGKILL)
        postgres.process.wait()
        postgres.process = None
    else:
        postgres.stop()
    postgres.start()
    watched.check(run, say, f"database restarted {how}", watched.recovered(run))


@pytest.mark.chaos
def test_database_and_broker_are_down(watched: Watched, say: Say) -> None:
    """For five minutes in the full form, in which the trainer ends and its worker keeps what it wrote."""
    down = 300.0 if FULL else 20.0
    run = watched.launch_until_training()
    watched.stand.postgres.stop()
    watched.stand.broker.stop()
    time.sleep(down)
    watched.stand.broker.start()
    watched.stand.postgres.start()
    watched.check(run, say, f"database and broker down for {down:.0f} s", watched.recovered(run))


@pytest.mark.chaos
def test_nobody_gets_a_connection(watched: Watched, say: Say) -> None:
    """Every connection that the server gives is taken, and those of the platform that it drops are not replaced."""
    run = watched.launch_until_training()
    taken: list[psycopg.Connection[Any]] = []
    refused = 0
    until = time.monotonic() + 20
    while time.monotonic() < until:
        try:
            taken.append(psycopg.connect(watched.stand.postgres.url, autocommit=True))
        except psycopg.OperationalError:
            refused += 1
            time.sleep(0.2)
            continue
        taken[-1].execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            "WHERE backend_type = 'client backend' AND pid <> ALL(%s)",
            [[link.info.backend_pid for link in taken]],
        )
    for link in taken:
        link.close()
    assert refused > 0
    watched.check(run, say, f"{len(taken)} connections taken, {refused} refused", watched.recovered(run))


# ---------------------------------------------------------------------- the disk


def fill(folder: Path, leave: int) -> Path:
    """A file that leaves so many bytes free, or fewer where others write at the same time."""
    filler = folder / "filler"
    with filler.open("wb", buffering=0) as handle, suppress(OSError):
        while (left := shutil.disk_usage(folder).free - leave) > 0:
            handle.write(b"\0" * min(left, 2**20))
    return filler


@pytest.mark.chaos
@pytest.mark.parametrize(("how", "leave"), cases_of("disk", [("nearly", 4 * 2**20), ("to the last byte", 0)]))
def test_the_disk_is_full(watched: Watched, how: str, leave: int, say: Say, tmp_path: Path) -> None:
    """The run pauses and says why; with room again and a person's word it continues."""
    with small_disk(tmp_path / "disk", 96 * 2**20) as disk:
        stand = watched.stand
        watched.worker.stop()
        worker = stand.add_worker({"COHORT_RUNS_DIR": str(disk), "COHORT_MIN_FREE_BYTES": str(16 * 2**20)})
        try:
            run = watched.launch_until_training()
            filler = fill(disk, leave)
            row = stand.wait(run, lambda row: row["state"] == "paused", "it pauses")
            assert stand.attempts(run)[-1]["end_code"] == "disk_full", stand.story(run)
            assert str(disk) in row["reason"], row["reason"]
            assert stand.training_processes(worker.name) == []
            filler.unlink()
            stand.hand.do("press", run=run, service="resume")
            seconds = watched.recovered(run)
            stand.wait_trained(run)
            say(f"disk full {how}: paused with {row['reason']!r}")
            # The folders lie elsewhere than those of other workers.
            stand.runs(worker.name).symlink_to(disk)
            watched.check(run, say, f"disk full {how}", seconds)
        finally:
            worker.stop()
            watched.worker.start()


# ---------------------------------------------------------------------- clocks


class Clock:
    """A wall clock that can be moved for some processes of a machine, in the middle of their work. Give `settings` to a
    process; whatever it starts that passes on Python's variables follows, the trainer too."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / "shift"
        self._library = folder / "clock.so"
        self.move(0)
        source = str(Path(__file__).with_name("clock.c"))
        subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", str(self._library), source], check=True)

    @property
    def settings(self) -> dict[str, str]:
        return {**SHIM, "PYTHONCHAOS_PRELOAD": str(self._library), "PYTHONCHAOS_CLOCK": str(self._file)}

    def move(self, seconds: int) -> None:
        """From now on the clock is so far ahead of the machine's (negative: behind)."""
        with self._file.open("r+b" if self._file.exists() else "wb") as handle:
            handle.write(seconds.to_bytes(8, "little", signed=True))


@pytest.mark.chaos
@pytest.mark.parametrize(("whose", "hours"), cases_of("clock", [*product(["worker", "platform"], [1, -1])]))
def test_a_clock_is_moved(tiny_model: Path, tmp_path: Path, whose: str, hours: int, say: Say) -> None:
    """In the middle of a run, for every process of one side, the trainer too; the database's clock is what counts."""
    needs("cc")
    clock = Clock(tmp_path)
    own = clock.settings if whose == "platform" else {}
    with standing(model=tiny_model, lease=20, settings=own) as stand:
        if whose == "worker":
            stand.worker_settings.update(clock.settings)
        watched = Watched(stand)
        run = watched.launch_until_training()
        clock.move(hours * 3600)
        seconds = watched.recovered(run)
        waiting = watched.launch()
        stand.wait(waiting, lambda row: row["step"] > 1, "another begins under the moved clock")
        clock.move(0)
        watched.check(run, say, f"clock of the {whose} moved by {hours:+} h", seconds)
        watched.check(waiting, say, f"clock of the {whose} moved back under the next run", 0.0)
        assert [len(stand.attempts(each)) for each in (run, waiting)] == [1, 1], stand.story(run)
        if whose == "worker":
            span = stand.one("SELECT max(at) - min(at) FROM runs_stepmetric WHERE run_id = %s", run)
        else:
            times = re.findall(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d", stand.platform.log.read_text(encoding="utf-8"))
            span = datetime.fromisoformat(max(times)) - datetime.fromisoformat(min(times))
        assert span > timedelta(minutes=50), "the clock was not moved"


# ---------------------------------------------------------------------- all of it


@pytest.mark.slow
def test_the_trainer_goes_on_when_the_platform_is_gone(tiny_model: Path, say: Say) -> None:
    """Web server and platform worker are gone before the first step; the trainer ends, and what it wrote arrives."""
    with standing(model=tiny_model, lease=30) as stand:  # longer than they take to start again
        worker = stand.add_worker()
        gone_while_training(stand, say, 4)
        worker.stop()


@pytest.mark.chaos
def test_the_trainer_goes_on_when_everything_is_gone(watched: Watched, say: Say) -> None:
    stand = watched.stand
    run = gone_while_training(stand, say, STEPS, stand.broker, stand.postgres)
    watched.check(run, say, "everything gone from the start", 0.0)


def gone_while_training(stand: Stand, say: Say, steps: int, *more: Broker | Postgres) -> int:
    run = stand.launch(settings(steps))
    live = wait_for(lambda: stand.live_attempt(run), "it is claimed")
    ledger = Ledger(stand)
    folder = ledger.folder(live)
    wait_for(lambda: (folder / "config.yaml").is_file(), lambda: f"its inputs are fetched\n{stand.told()}")
    stand.web.kill()
    stand.platform.kill()
    for part in more:
        part.stop()
    wait_for(lambda: (folder / "outcome.json").is_file(), lambda: f"the trainer ends by itself\n{stand.told()}")
    for part in more:
        part.start()
    assert stand.attempts(run)[-1]["acked_seq"] < steps
    stand.web.start()
    stand.platform.start()
    stand.wait_trained(run)
    assert (ledger.lost(run)[1], ledger.duplicates(run)) == (0, 0)
    assert len(stand.attempts(run)) == 1, stand.story(run)
    say(f"platform gone from the start: steps {steps}, attempts 1, lost 0, duplicates 0")
    return run
