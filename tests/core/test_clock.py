"""Wall time of a step by its phases: closed cases on a clock that the test moves, then a real run."""

import threading
from pathlib import Path

import pytest

from grpo_core import clock as module
from grpo_core.clock import Clock, timed

from .runs import make_home, rows, setting


@pytest.fixture
def pass_time(monkeypatch):
    """Moves the clock; nothing else does."""
    now = [100.0]
    monkeypatch.setattr(module.time, "perf_counter", lambda: now[0])

    def passes(seconds: float) -> None:
        now[0] += seconds

    return passes


def test_a_phase_inside_another_takes_its_time_away_from_it(pass_time) -> None:
    clock = Clock()
    with clock.running():
        pass_time(1)
        with timed("update"):
            pass_time(2)
            with timed("logprobs"):
                pass_time(4)
            pass_time(8)
        with timed("update"):
            pass_time(16)
    assert clock.take() == {"other": 1, "update": 26, "logprobs": 4, "total": 31}


def test_taking_begins_anew_and_loses_nothing(pass_time) -> None:
    clock = Clock()
    with clock.running(), timed("checkpoint"):
        pass_time(3)
        assert clock.take() == {"other": 0, "checkpoint": 3, "total": 3}
        pass_time(5)
    pass_time(7)
    assert clock.take() == {"checkpoint": 5, "other": 7, "total": 12}


def test_a_clock_inside_another_gives_it_what_it_measured(pass_time) -> None:
    outer, inner = Clock(), Clock()
    with outer.running():
        pass_time(1)
        with timed("update"), inner.running():
            pass_time(2)
            with timed("sample"):
                pass_time(4)
        with inner.running(), timed("sample"):
            pass_time(8)
        assert inner.take() == {"other": 2, "sample": 12, "total": 14}
    assert outer.take() == {"other": 1, "update": 2, "sample": 12, "total": 15}


def test_a_phase_ends_also_where_something_is_raised(pass_time) -> None:
    clock = Clock()
    with clock.running():
        with pytest.raises(ZeroDivisionError), timed("reward"):
            pass_time(2 / (1 - 1))
        pass_time(1)
    assert clock.take() == {"other": 1, "reward": 0, "total": 1}


def test_another_thread_has_a_clock_of_its_own(pass_time) -> None:
    clock = Clock()

    def beside() -> None:
        with timed("sample"):  # none runs here
            pass_time(2)

    with clock.running(), timed("waiting"):
        thread = threading.Thread(target=beside)
        thread.start()
        thread.join()
    assert clock.take() == {"other": 0, "waiting": 2, "total": 2}


def test_the_device_is_waited_for_where_a_phase_begins_and_ends(pass_time) -> None:
    clock = Clock(settle=lambda: pass_time(10))  # work that was still under way
    with clock.running(), timed("update"):
        pass_time(1)
    assert clock.take()["update"] == 11


def test_the_phases_of_a_run_add_up(tmp_path: Path) -> None:
    run = setting(make_home(tmp_path), "adaptive")
    assert run.train(tmp_path / "out") == 0
    for row in rows(tmp_path / "out" / "metrics.jsonl"):
        seconds = row["seconds"]
        total = seconds.pop("total")
        assert set(seconds) == {"sample", "reward", "update", "logprobs", "checkpoint", "other"}
        assert sum(seconds.values()) == pytest.approx(total)
        assert min(seconds.values()) > 0
