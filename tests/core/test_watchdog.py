"""The watchdog names what is waited for: closed cases, then real runs that hang for a while."""

import os
import re
import signal
import subprocess
import sys
import threading
import time
from itertools import pairwise
from pathlib import Path

import pytest

from grpo_core import watchdog
from grpo_core.watchdog import Watchdog, at, doing, rest, waiting
from tests.processes import wait_for

from .rewards.judge_asked import opened, values
from .rewards.judge_server import Seen, Server, says
from .runs import make_home, rows, setting


class Said:
    """What a watchdog said."""

    def __init__(self) -> None:
        self.warnings: list[tuple[str, dict[str, object]]] = []
        self.logs: list[str] = []

    def dog(self, seconds: float, **more: object) -> Watchdog:
        return Watchdog(
            seconds, warn=lambda text, data: self.warnings.append((text, data)), log=self.logs.append, **more
        )

    def over(self) -> list[bool]:
        return [bool(data["over"]) for _, data in self.warnings]

    def wait(self, *words: str, over: bool = False, end: bool = False) -> tuple[str, dict[str, object]]:
        """The first warning with all these words, or with them at its end. A busy machine may have made it say others
        before."""

        def found() -> list[tuple[str, dict[str, object]]]:
            return [
                one
                for one in self.warnings
                if one[1]["over"] is over and all(one[0].endswith(each) if end else each in one[0] for each in words)
            ]

        return wait_for(found, lambda: f"no {words!r} in {self.warnings}")[0]


def test_it_names_place_and_detail_shows_the_stack_and_says_when_it_went_on() -> None:
    said = Said()
    with said.dog(0.3):
        at("step 12", "sampling")
        doing("sampling", "37 of 64 completions ended")
        first = said.wait("37 of 64")
        doing("sampling", "38 of 64 completions ended")
        last = said.wait("37 of 64", over=True)
    assert re.fullmatch(r"nothing has moved for \d+ s: sampling, step 12: 37 of 64 completions ended", first[0])
    assert first[1]["doing"] == "sampling, step 12: 37 of 64 completions ended"
    assert first[1]["seconds"] >= 0.3
    assert last[0].endswith("sampling, step 12: 37 of 64 completions ended")
    assert last[0].startswith("goes on after ")
    assert "test_it_names_place_and_detail" in said.logs[0]


def test_it_repeats_at_doubling_intervals() -> None:
    said = Said()
    with said.dog(0.2):
        wait_for(lambda: len(said.warnings) >= 4, "four warnings")
    seconds = [data["seconds"] for _, data in said.warnings[:4]]
    for number, told in enumerate(seconds):
        assert told >= 0.2 * 2**number - 0.05
    assert said.over()[:4] == [False] * 4


def test_what_moves_is_left_alone_and_the_same_words_are_no_movement() -> None:
    moving, still = Said(), Said()
    told = [time.monotonic()]
    with moving.dog(0.5):
        for number in range(30):
            doing("sampling", count=number)
            told.append(time.monotonic())
            time.sleep(0.05)
    stood = any(later - before >= 0.5 for before, later in pairwise([*told, time.monotonic()]))
    assert moving.warnings == [] or stood, "a busy machine may have held this thread up: then it may say so"

    def again() -> list[bool]:
        doing("sampling")
        return still.over()

    with still.dog(0.5):
        wait_for(again, "a warning")
    assert still.over()[0] is False


def test_zero_switches_it_off() -> None:
    said, before = Said(), threading.active_count()
    with said.dog(0):
        doing("sampling")
        assert threading.active_count() == before
        assert watchdog._on is None
    assert said.warnings == []


def test_two_threads_are_both_named_and_one_that_rests_is_not() -> None:
    said, go = Said(), threading.Event()

    def beside() -> None:
        at("step 13", "sampling")
        go.wait()
        rest()

    with said.dog(0.3):
        at("step 12", "update")
        with waiting("waiting for the next step's groups"):
            thread = threading.Thread(target=beside)
            thread.start()
            said.wait("waiting for the next step's groups, step 12; beside it sampling, step 13")
        go.set()
        thread.join()
        said.wait(" s: update, step 12", end=True)


def test_other_ranks_are_told_with_what_they_do_or_that_they_are_silent() -> None:
    class Board:
        beat = 0

        def tell(self, words: dict[str, object]) -> None:
            self.told = words

        def heard(self) -> dict[str, dict[str, object] | None]:
            self.beat += 1
            said = {"doing": "reward answer, step 3: sample 2 of 8", "quiet": 40.0}
            return {"rank 1 of 4": {**said, "beat": self.beat}, "rank 2 of 4": {**said, "beat": 1}, "rank 3 of 4": None}

    said = Said()
    board = Board()
    with said.dog(0.4, board=board):
        doing("waiting for the other ranks")
        said.wait(
            "rank 1 of 4, still for 40 s: reward answer, step 3: sample 2 of 8",
            "rank 2 of 4 has not been heard of for ",
            "rank 3 of 4 has not been heard of yet",
        )
    assert board.told["doing"] == "waiting for the other ranks"


def test_a_rank_tells_the_others_of_itself_before_it_begins() -> None:
    """Else one that is stopped in its first moments could not be named: it told nothing."""

    class Board:
        told: dict[str, object] | None = None

        def tell(self, words: dict[str, object]) -> None:
            self.told = words

        def heard(self) -> dict[str, dict[str, object] | None]:
            return {}

    board = Board()
    with Said().dog(1800, board=board):
        assert board.told is not None
        assert board.told["doing"] == "starting"


def test_a_judge_that_is_waited_for_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the address, and how many answers are there."""
    said = Said()

    def answer(seen: Seen) -> bytes:
        if seen.completion == "2":
            said.wait("1 of 2 answers")
        return says("Score: 10")

    with Server(answer) as server, said.dog(0.3):
        at("step 3", "reward judge")
        place, judge = server.place, opened(server, monkeypatch)
        assert values(judge, "1", "2") == [1.0, 1.0]
        judge.close()
    assert said.wait("1 of 2 answers")[0].endswith(
        f" s: waiting for the judge at {place}, step 3: 1 of 2 answers are there"
    )


def test_a_run_whose_reward_sleeps_records_what_it_waits_for(tmp_path: Path) -> None:
    """A real trainer in a process of its own; two rewards of its first step wait for what the watchdog says."""
    home = make_home(tmp_path)
    script = home / "slow.py"
    script.write_text(
        "import pathlib, sys, time\n"
        "from grpo_core.rewards import runner\n"
        "from grpo_core.cli import main\n"
        "before, calls = runner.ruled, []\n"
        "log = pathlib.Path(sys.argv[-1], 'log.txt')\n"
        "def slow(*words):\n"
        "    calls.append(1)\n"
        "    wanted, until = {30: 'in slow', 40: 'goes on after'}.get(len(calls)), time.monotonic() + 100\n"
        "    while wanted and wanted not in log.read_text() and time.monotonic() < until:\n"
        "        time.sleep(0.1)\n"
        "    return before(*words)\n"
        "runner.ruled = slow\n"
        "sys.exit(main(sys.argv[1:]))\n",
        encoding="utf-8",
    )
    run = setting(home, "plain")
    config = run.write(engine={"threads": 1, "watchdog_seconds": 0.8}, eval={"before": False, "after": False})
    out = tmp_path / "out"
    done = subprocess.run(
        [sys.executable, str(script), "train", str(config), "--out", str(out)],
        cwd=Path(__file__).resolve().parents[2],
        env={**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[2])},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    events = _waiting(out)
    stuck = [
        one
        for one in events
        if "reward answer, step 1: sample" in one["data"]["doing"] or "reward near" in one["message"]
    ]
    assert stuck, events
    assert any(one["data"]["over"] for one in events)
    log = (out / "log.txt").read_text()
    assert "in slow" in log
    assert "where it stands" in log


@pytest.mark.slow
def test_a_rank_that_is_stopped_is_named(tmp_path: Path) -> None:
    home = make_home(tmp_path)
    run = setting(home, "plain")
    config = run.write(
        engine={"threads": 1, "devices": 2, "watchdog_seconds": 1.5},
        eval={"before": False, "after": False},
        optim={"steps": 400, "lr": 0.0005},
        checkpoints={"every": 1000},
    )
    out = tmp_path / "out"
    words = ["-m", "grpo_core.cli", "train", str(config), "--out", str(out)]
    root = Path(__file__).resolve().parents[2]
    process = subprocess.Popen(
        [sys.executable, *words],
        cwd=root,
        env={**os.environ, "PYTHONPATH": str(root)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        metrics = out / "metrics.jsonl"
        wait_for(lambda: metrics.exists() and len(metrics.read_text().splitlines()) > 3, "steps")
        (second,) = [pid for pid, rank in _ranks(out) if rank == "1"]
        os.kill(second, signal.SIGSTOP)
        found = wait_for(lambda: _silent(out), "the warning")
        os.kill(second, signal.SIGCONT)
        wait_for(lambda: any(one["data"]["over"] for one in _waiting(out)), "that it went on")
    finally:
        for pid, _ in _ranks(out):
            os.kill(pid, signal.SIGCONT)
        process.terminate()
        process.wait()
    assert "waiting for the other ranks" in found[0]
    assert "rank 1 of 2 has not been heard of for " in found[0]


def _waiting(out: Path) -> list[dict[str, dict[str, object]]]:
    return [row for row in rows(out / "events.jsonl") if row.get("type") == "waiting"]


def _silent(out: Path) -> list[str]:
    return [str(one["message"]) for one in _waiting(out) if "not been heard" in str(one["message"])]


def _ranks(out: Path) -> list[tuple[int, str]]:
    """Pid and rank of the processes that train in `out`."""
    found = []
    for folder in Path("/proc").iterdir():
        try:
            if not folder.name.isdecimal() or str(out) not in (folder / "cmdline").read_text():
                continue
            parts = (folder / "environ").read_text().split("\0")
        except OSError:  # it has just ended
            continue
        told = dict(part.split("=", 1) for part in parts if "=" in part)
        if "RANK" in told:
            found.append((int(folder.name), told["RANK"]))
    return found
