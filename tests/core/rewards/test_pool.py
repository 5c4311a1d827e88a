"""Rules that a text can make slow run in processes that are killed at their deadline; order and count are kept."""

import itertools
import json
import os
import signal
import subprocess
import sys
from contextlib import closing, suppress
from dataclasses import replace

import psutil
import pytest

from grpo_core.data import Problem
from grpo_core.rewards import KINDS, ScoreRequest
from grpo_core.rewards.rubric import RubricPart
from grpo_core.rewards.subprocess_pool import Pool
from tests.processes import wait_for

from .scoring import PROGRAMS, Stop, patient_with_rules, rubric_of

# The program of the pool, with a rule in the place of `exact` that does what the completion says.
PROGRAM = PROGRAMS["pool"]
EXACT = replace(KINDS["exact"], mode="subprocess", module="as_the_completion_says")


def part(**params):
    (rule,) = rubric_of({"kind": "exact", "params": params}).parts
    return RubricPart(rule.component, EXACT, rule.params)


def samples(*completions):
    return [ScoreRequest(Problem(f"p{n}", "q", "yes"), text, n) for n, text in enumerate(completions)]


def score(pool, *completions, check=lambda: None, **params):
    return pool.score(part(**params), samples(*completions), check)


@pytest.fixture
def pool():
    made: list[Pool] = []

    def make(workers=2, deadline=300.0, program=PROGRAM):
        made.append(Pool(["exact"], workers=workers, deadline=deadline, program=("-P", "-c", program)))
        return made[-1]

    yield make
    for pool in made:
        pids = pool.processes()
        pool.close()
        assert not any(psutil.pid_exists(pid) for pid in pids)


def test_order_text_and_parameters_go_through_whole(pool):
    texts = [f"sleep {0.2 if n % 5 == 0 else 0}" for n in range(20)]
    scores = score(pool(workers=3), *texts)
    assert [result.detail for result in scores] == texts
    assert scores[0].seconds >= 0.2
    assert {result.error for result in scores} == {None}
    text = "yes \x00 \u2028 é 🦊" + "x" * 300_000
    scores = score(pool(), "yes", text, ignore_case=True)
    assert [result.passed for result in scores] == [True, False]
    assert scores[1].detail == text


@pytest.mark.parametrize("what", ["sleep 1000", "loop", "spin"])
def test_at_the_deadline_a_process_is_killed_and_the_others_go_on(pool, monkeypatch, what):
    """`spin` is a regular expression in C, which neither a signal handler nor a thread could end."""
    patient_with_rules(monkeypatch, lambda completion: completion == what)
    mine = pool(workers=2, deadline=1.0)
    scores = score(mine, "pid", what, "pid", what, "pid")
    assert [result.error_class for result in scores] == [None, "timeout", None, "timeout", None]
    assert scores[1].seconds >= 1.0
    assert [(result.value, result.passed, result.error) for result in scores[1::2]] == [(0, False, None)] * 2
    alive = {result.value for result in scores[::2]}
    gone = {pid for pid in alive if not psutil.pid_exists(int(pid))}
    assert len(mine.processes()) + len(gone) >= len(alive)
    assert score(mine, "yes")[0].passed is True


def test_processes_are_kept_are_no_more_than_samples_and_have_no_keys(pool, monkeypatch):
    monkeypatch.setenv("GRPO_JUDGE_KEY", "secret")
    mine = pool(workers=1)
    assert len({result.value for result in score(mine, "pid", "pid") + score(mine, "pid")}) == 1
    mine = pool(workers=8)
    score(mine, "yes")
    (pid,) = mine.processes()
    assert "GRPO_JUDGE_KEY" not in psutil.Process(pid).environ()


ENDS = {
    "raise": ("verifier", "ZeroDivisionError: by \ufffd"),
    "sample": ("sample", "the reference is no number"),
    "kill SIGKILL": ("infra", "was killed"),
}
PAID_0 = {
    "memory": ("memory", "scored 0: took more memory"),
    "kill SIGSEGV": ("verifier", "SIGSEGV"),
    "exit 3": ("verifier", "status 3"),
}


def test_a_completion_that_ends_its_scoring_is_paid_0_which_is_counted(pool):
    for result, (kind, detail) in zip(score(pool(workers=1), *PAID_0), PAID_0.values(), strict=True):
        assert (result.value, result.passed, result.error, result.error_class) == (0, False, None, kind)
        assert detail in result.detail


def test_what_ends_badly_is_an_error_of_that_sample_alone(pool):
    completions = [text for what in ENDS for text in ("yes", what)]
    scores = score(pool(workers=1), *completions, "yes")
    assert [result.passed for result in scores[::2]] == [True] * 4
    for result, (what, (kind, error)) in zip(scores[1::2], ENDS.items(), strict=True):
        assert (result.value, result.error_class, error in result.error) == (None, kind, True), (what, result)
        json.dumps(result.model_dump(mode="json")).encode()


def test_signals_of_the_group_end_nothing_and_prints_stand_in_no_reply(pool):
    scores = score(pool(workers=1), "kill SIGTERM", "kill SIGINT", "print", "yes")
    assert [result.error for result in scores] == [None] * 4


def test_a_rule_that_cannot_be_loaded_is_trouble_of_the_machine(pool):
    scores = score(pool(program="import sys; sys.exit(7)"), "yes", "yes")
    assert [result.error_class for result in scores] == ["infra"] * 2
    assert "status 7 before it was ready" in scores[0].error


def test_a_stop_ends_the_work_under_way(pool):
    mine, looks = pool(workers=2), itertools.count()

    def check():
        if next(looks) > 30 and len(mine.processes()) == 2:
            raise Stop

    with pytest.raises(Stop):
        score(mine, "loop", "loop", "yes", check=check)
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


def test_every_kind_that_runs_aside_can_be_asked_in_a_process(capfd):
    """The real program: no kind needs anything that only this process has."""
    kinds = [name for name, kind in KINDS.items() if kind.mode == "subprocess"]
    with closing(Pool(kinds, workers=1, deadline=300.0)) as mine:
        for name in kinds:
            (rule,) = rubric_of({"kind": name, "params": {"regex": {"pattern": "1"}}.get(name, {})}).parts
            (result,) = mine.score(rule, samples("1"), lambda: None)
            assert result.error_class not in ("infra", "timeout"), (name, result)
    assert capfd.readouterr() == ("", "")
