"""The kind `code` and its boxes: none to be had, several side by side, what a stop leaves of them, and
what needs none."""

import threading

import pytest

from grpo_core.config_reward import RewardLimits
from grpo_core.errors import SandboxError
from grpo_core.rewards import code
from grpo_core.rewards.base import Context, Unscored
from grpo_core.rewards.code import CodeScorer, open_scorer
from grpo_core.rewards.code_box import Ended
from grpo_core.rewards.code_params import CodeParams
from grpo_core.rewards.session import shared_sandbox
from tests.core.rewards.code_samples import CALLS, problem, sample
from tests.processes import DEADLINE, wait_for


class Broken:
    """A sandbox whose boxes do not start, the first so many times."""

    def __init__(self, failures):
        self.left = failures
        self.lock = threading.Lock()
        self.report = shared_sandbox().report

    def open(self, *args, **kwargs):
        with self.lock:
            self.left -= 1
            if self.left >= 0:
                raise SandboxError("no box today")
        return shared_sandbox().open(*args, **kwargs)


def test_trouble_of_the_sandbox_is_never_a_zero():
    scorer = CodeScorer(CodeParams(), Context(RewardLimits(workers=1)), Broken(2))  # type: ignore[arg-type]
    scores = scorer.score([sample(CALLS, "def f(n):\n    return n + 1")] * 3, lambda: None)
    assert [(score.value, score.error_class) for score in scores] == [(None, "infra"), (None, "infra"), (1.0, None)]
    assert scorer.facts()["infra_errors"] == 2
    assert scorer.facts()["solutions"] == 3
    assert scorer.facts()["sandbox"]["level"] in ("bubblewrap", "landlock")
    scorer.close()


class Stop(Exception):
    pass


def test_samples_run_side_by_side_and_keep_their_order(monkeypatch):
    scorer = open_scorer(CodeParams(), Context(RewardLimits(workers=2)))
    together, score_one, threads = threading.Barrier(2, timeout=DEADLINE), scorer._one, set[int]()

    def both(given):
        threads.add(threading.get_ident())
        together.wait()  # passed only while another runs too
        return score_one(given)

    monkeypatch.setattr(scorer, "_one", both)
    codes = [f"def f(n):\n    return n + {1 + n % 2}" for n in range(6)]
    scores = scorer.score([sample(CALLS, code) for code in codes], lambda: None)
    assert [score.value for score in scores] == [1.0, 0.0] * 3
    assert len(threads) == 2
    scorer.close()


def test_stopping_ends_what_runs_and_leaves_the_scorer_usable():
    looks = iter(range(3))

    def check():
        if next(looks, None) is None:
            raise Stop

    scorer = open_scorer(CodeParams(), Context(RewardLimits(workers=2)))
    endless = sample(CALLS, "import time\ntime.sleep(1000)")
    with pytest.raises(Stop):
        scorer.score([endless] * 4, check)
    assert not scorer._open
    assert scorer.score([sample(CALLS, "def f(n):\n    return n + 1")], lambda: None)[0].value == 1.0
    scorer.close()


def test_nothing_runs_in_a_box_that_opens_while_scoring_is_stopped(monkeypatch):
    scorer = open_scorer(CodeParams(), Context(RewardLimits(workers=1, deadline_seconds=5)))
    opening, opened, ran = threading.Event(), code._Counted.__init__, list[str]()

    def late(box, *words):
        opening.set()
        wait_for(lambda: scorer._stopping, "the stop")
        opened(box, *words)

    def order(box, **words):
        ran.append(words["source"])
        return Ended("box")

    def check():
        if opening.is_set():
            raise Stop

    monkeypatch.setattr(code._Counted, "__init__", late)
    monkeypatch.setattr(code._Counted, "order", order)
    with pytest.raises(Stop):
        scorer.score([sample(CALLS, "import time\ntime.sleep(1000)")], check)
    scorer.close()
    assert ran == []


def test_completions_without_a_program_earn_nothing_and_start_nothing():
    scorer = CodeScorer(CodeParams(), Context(), Broken(99))  # type: ignore[arg-type]
    texts = ["f = 1", "```python\nx = '\ud800'\n```", "```python\n" + "x = 1\n" * 60_000 + "```"]
    scores = scorer.score([Unscored(problem(CALLS), text) for text in texts], lambda: None)
    assert [(score.value, score.error) for score in scores] == [(0.0, None)] * 3
    assert all(score.detail for score in scores)
    scorer.close()
