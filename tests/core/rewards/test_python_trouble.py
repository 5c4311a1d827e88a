"""A person's own verifier when the machine is in trouble or its box is not to be believed: tried again, then masked."""

import math
from contextlib import suppress

import psutil
import pytest

from grpo_core.data import Problem
from grpo_core.errors import SandboxError
from grpo_core.rewards import session
from grpo_core.rewards.session import shared_sandbox
from grpo_core.rewards.session_slot import Slot
from tests.core.rewards.examples import PAGES, examples, run
from tests.core.rewards.own_verifier import ONE, SINGLE, samples, score_of_bad, scores
from tests.core.rewards.programs import PROGRAMS
from tests.processes import below


class Failing:
    """The real sandbox, whose next boxes cannot be had."""

    def __init__(self, times):
        self._real, self.times = shared_sandbox(), times
        self.report = self._real.report

    def open(self, *words, **more):
        if self.times > 0:
            self.times -= 1
            raise SandboxError("no box today")
        return self._real.open(*words, **more)


@pytest.fixture
def failing(monkeypatch):
    failing = Failing(0)
    monkeypatch.setattr(session, "shared_sandbox", lambda: failing)
    monkeypatch.setattr("grpo_core.rewards.retries.FIRST_PAUSE", 0.01)
    return failing


def test_without_a_box_no_runner_opens(make, failing, monkeypatch):
    def none():
        raise SandboxError("no sandbox")

    failing.times = 99
    with pytest.raises(SandboxError, match="no box today"):
        make(ONE)
    monkeypatch.setattr(session, "shared_sandbox", none)
    with pytest.raises(SandboxError, match="no sandbox"):
        make(ONE)


@pytest.mark.parametrize(("fails", "tries", "error"), [(1, 2, None), (2, 3, None), (99, 3, "infra")])
@pytest.mark.parametrize("on_error", ["mask", "zero"])
def test_trouble_of_the_sandbox_is_tried_again_and_never_paid_0(make, failing, fails, tries, error, on_error):
    source = "def verify(sample):\n    if sample.completion == 'end':\n        __import__('os')._exit(0)\n    return 1"
    runner = make(source, limits=SINGLE, on_error=on_error)
    assert scores(runner, "end")[0].error_class == "verifier"  # its box is gone
    failing.times = fails
    scored = runner.one(Problem("p", "q", "7"), "a")
    assert (scored.reward, scored.components["mine"].error_class) == (1.0 if error is None else None, error)
    assert scored.components["mine"].tries == tries


@pytest.mark.parametrize(
    "reply",
    [
        {"value": math.inf},
        {"value": "x"},
        {},
        {"value": 1.0, "steps": [{"end": 9, "value": 1.0}]},
        {"value": 1.0, "steps": [{"end": 0, "value": 1.0}]},
        {"value": 1.0, "passed": [1]},
    ],
    ids=repr,
)
def test_no_reply_of_the_box_is_believed(make, reply):
    """Source of a person can reach the channel of its own box: what comes is checked like anything from outside."""
    score = make(ONE)._scorers["mine"]._score  # type: ignore[attr-defined]
    assert score(reply, samples("abc")[0]).error_class == "value"


def test_a_forged_frame_ends_the_box_and_is_no_score(make):
    bad = PROGRAMS["forged frame"]
    assert score_of_bad(make, f"exec({bad!r})").error_class == "output"


@pytest.mark.parametrize("whom", ["the program in a box", "all that holds boxes"])
def test_what_is_killed_from_outside_is_tried_again_and_no_sample_suffers(make, monkeypatch, whom):
    monkeypatch.setattr("grpo_core.rewards.retries.FIRST_PAUSE", 0.01)
    runner = make("import time\ndef verify(sample):\n    time.sleep(0.2)\n    return 1", limits=SINGLE)
    asked, heard = iter(range(1, 1000)), Slot._heard

    def in_boxes():
        """What runs in the boxes of this process: what has no children."""
        processes = below()
        parents = set()
        for process in processes:
            with suppress(psutil.NoSuchProcess):
                parents.add(process.ppid())
        return [process for process in processes if process.pid not in parents]

    def third_killed(*words):
        """What waits for the box's answer, which is at its third sample then."""
        if next(asked) == 3:
            victims = in_boxes() if whom == "the program in a box" else below(deep=False)
            assert victims
            for process in victims:
                with suppress(psutil.NoSuchProcess):  # one that went with the one before
                    process.kill()
        return heard(*words)

    monkeypatch.setattr(Slot, "_heard", third_killed)
    found = scores(runner, *"abcdef")
    assert [(score.value, score.error) for score in found] == [(1.0, None)] * 6
    assert max(score.tries for score in found) == 2


def test_a_child_that_answers_too_is_not_heard(make):
    """Both go on to the end of `verify`; the child has no channel to tell its value over."""
    source = "os = __import__('os')\ndef verify(sample):\n    return 1 if os.fork() else 5"
    found = scores(make(source, limits=SINGLE), *"abcdef")
    assert [(score.value, score.error) for score in found] == [(1.0, None)] * 6


@pytest.mark.parametrize("example", examples(PAGES / "python.md"), ids=lambda example: example.where)
def test_what_the_page_shows_is_so(example):
    run(example)
