"""Rules that a text can make slow run in processes that are killed at their deadline; order and count are kept."""

import json
import os
import signal
import subprocess
import sys
from contextlib import suppress
from typing import Any

import psutil
import pytest

from grpo_core.config_reward import RewardConfig
from grpo_core.data import Problem
from grpo_core.rewards import KINDS, Rubric, Unscored
from grpo_core.rewards.exact import ExactParams
from grpo_core.rewards.kinds import Kind
from grpo_core.rewards.pool import Pool
from grpo_core.rewards.rubric import RubricPart
from tests.core.rewards import patience
from tests.core.rewards.programs import PROGRAMS
from tests.processes import wait_for

# The program of the pool, with a rule in the place of `exact` that does what the completion says.
PROGRAM = PROGRAMS["pool"]
EXACT = Kind(ExactParams, "aside", "told", "does what it is told")


def part(**params):
    config = RewardConfig.model_validate({"components": [{"name": "a", "kind": "exact", "params": params}]})
    (found,) = Rubric(config).parts
    return RubricPart(found.component, EXACT, found.params)


def samples(*completions):
    return [Unscored(Problem(f"p{n}", "q", "yes"), one, n) for n, one in enumerate(completions)]


def nothing():
    pass


@pytest.fixture
def pool():
    made: list[Pool] = []

    def make(workers=2, deadline=300.0, program=PROGRAM):
        made.append(Pool(["exact"], workers=workers, deadline=deadline, program=("-P", "-c", program)))
        return made[-1]

    yield make
    for one in made:
        pids = one.processes()
        one.close()
        assert not any(psutil.pid_exists(pid) for pid in pids)


def test_order_is_kept_whatever_takes_longer(pool):
    asked = [f"sleep {0.2 if n % 5 == 0 else 0}" for n in range(20)]
    told = pool(workers=3).score(part(), samples(*asked), nothing)
    assert [one.detail for one in told] == asked
    assert told[0].seconds >= 0.2
    assert {one.error for one in told} == {None}


def test_verdicts_parameters_and_text_go_through_whole(pool):
    text = "yes \x00 \u2028 é 🦊" + "x" * 300_000
    told = pool().score(part(ignore_case=True), samples("yes", text), nothing)
    assert [one.passed for one in told] == [True, False]
    assert told[1].detail == text


@pytest.mark.parametrize("what", ["sleep 1000", "loop", "spin"])
def test_at_the_deadline_a_process_is_killed_and_the_others_go_on(pool, monkeypatch, what):
    """`spin` is a regular expression in C, which neither a signal handler nor a thread could end."""
    patience.aside(monkeypatch, lambda completion: completion == what)
    mine = pool(workers=2, deadline=1.0)
    told = mine.score(part(), samples("pid", what, "pid", what, "pid"), nothing)
    assert [one.error_class for one in told] == [None, "timeout", None, "timeout", None]
    assert told[1].seconds >= 1.0
    alive = {one.value for one in told if one.value is not None}
    gone = {pid for pid in alive if not psutil.pid_exists(int(pid))}
    assert len(mine.processes()) + len(gone) >= len(alive)
    assert mine.score(part(), samples("yes"), nothing)[0].passed is True


def test_a_process_is_kept_from_sample_to_sample(pool):
    mine = pool(workers=1)
    told = mine.score(part(), samples("pid", "pid"), nothing) + mine.score(part(), samples("pid"), nothing)
    assert len({one.value for one in told}) == 1


def test_no_more_processes_than_samples(pool):
    mine = pool(workers=8)
    mine.score(part(), samples("yes"), nothing)
    assert len(mine.processes()) == 1


ENDS = {
    "raise": ("verifier", "ZeroDivisionError: by \ufffd"),
    "sample": ("sample", "the reference is no number"),
    "memory": ("memory", "MemoryError"),
    "kill SIGSEGV": ("verifier", "SIGSEGV"),
    "exit 3": ("verifier", "status 3"),
    "kill SIGKILL": ("infra", "was killed"),
}


def test_what_ends_badly_is_an_error_of_that_sample_alone(pool):
    completions = [text for what in ENDS for text in ("yes", what)]
    scores = pool(workers=1).score(part(), samples(*completions, "yes"), nothing)
    assert [score.passed for score in scores[::2]] == [True] * 7
    for score, (what, (kind, error)) in zip(scores[1::2], ENDS.items(), strict=True):
        assert (score.value, score.error_class, error in (score.error or "")) == (None, kind, True), (what, score)
        json.dumps(score.model_dump(mode="json")).encode()


def test_signals_of_the_group_end_nothing_and_prints_stand_in_no_reply(pool):
    told = pool(workers=1).score(part(), samples("kill SIGTERM", "kill SIGINT", "print", "yes"), nothing)
    assert [one.error for one in told] == [None] * 4


def test_a_rule_that_cannot_be_loaded_is_trouble_of_the_machine(pool):
    told = pool(program="import sys; sys.exit(7)").score(part(), samples("yes", "yes"), nothing)
    assert [one.error_class for one in told] == ["infra"] * 2
    assert told[0].error is not None
    assert "status 7 before it was ready" in told[0].error


def test_a_wish_to_stop_ends_the_work_under_way(pool):
    mine = pool(workers=2)
    asked: list[None] = []

    def check():
        asked.append(None)
        if len(asked) > 30 and len(mine.processes()) == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        mine.score(part(), samples("loop", "loop", "yes"), check)
    assert mine.processes() == []


def test_when_its_parent_is_killed_a_process_that_loops_ends_by_itself():
    code = f"""
import sys, time
sys.path.insert(0, {os.getcwd()!r})
from tests.core.rewards import test_pool
mine = test_pool.Pool(["exact"], workers=2, deadline=1e-3, program=("-P", "-c", test_pool.PROGRAM))
test_pool.Pool._end = lambda self, child: None  # killed by nobody
def check():
    if len(mine.processes()) == 2 and all(one.ready for one in mine._children):
        print(*mine.processes(), flush=True)
        time.sleep(1000)
mine.score(test_pool.part(), test_pool.samples("loop", "sleep 500"), check)
"""
    parent = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    pids = [int(word) for word in parent.stdout.readline().split()]
    parent.kill()
    parent.wait()
    assert len(pids) == 2
    try:
        wait_for(lambda: not any(psutil.pid_exists(pid) for pid in pids), f"{pids} to end")
    finally:
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def test_processes_are_not_told_keys(pool, monkeypatch):
    monkeypatch.setenv("GRPO_JUDGE_KEY", "secret")
    mine = pool(workers=1)
    mine.score(part(), samples("yes"), nothing)
    assert "GRPO_JUDGE_KEY" not in psutil.Process(mine.processes()[0]).environ()


def test_every_kind_that_runs_aside_can_be_asked_in_a_process(capfd):
    """The real program: no kind needs anything that only this process has."""
    kinds = [name for name, kind in KINDS.items() if kind.place == "aside"]
    mine = Pool(kinds, workers=1, deadline=300.0)
    try:
        for name in kinds:
            config = {"components": [{"name": "a", "kind": name, "params": MINIMAL.get(name, {})}]}
            (found,) = Rubric(RewardConfig.model_validate(config)).parts
            (told,) = mine.score(found, samples("1"), nothing)
            assert told.error_class not in ("infra", "timeout"), (name, told)
    finally:
        mine.close()
    assert capfd.readouterr() == ("", "")


MINIMAL: dict[str, dict[str, Any]] = {"regex": {"pattern": "1"}}
