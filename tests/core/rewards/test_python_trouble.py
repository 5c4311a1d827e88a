"""A person's own verifier that takes too much time, memory, output or processes is ended and told by class, and nothing
that it does reaches another sample's score or the machine. When the machine is in trouble or a box is not to be
believed, a sample is tried again, then masked."""

import math
from contextlib import suppress

import psutil
import pytest

from grpo_core.data import Problem
from grpo_core.errors import SandboxError
from grpo_core.rewards.python import session
from grpo_core.rewards.python.session_slot import Slot
from tests.processes import below
from tests.tables import cases

from .scoring import LOOPS, ONE, PROGRAMS, SINGLE, FailingSandbox, patient_with_boxes, samples, score_of_bad, scores


def test_an_endless_loop_is_killed_at_its_deadline_and_the_next_sample_is_scored(make, monkeypatch):
    patient_with_boxes(monkeypatch, lambda completion: completion == "loop")
    results = scores(make(LOOPS, limits={"workers": 2, "deadline_seconds": 1}), "a", "loop", "b", "loop", "c")
    assert [score.error_class for score in results] == [None, "timeout", None, "timeout", None]
    assert [score.value for score in results] == [1, 0, 1, 0, 1]
    assert results[1].seconds >= 1


@pytest.mark.parametrize(("call", "deadline"), [(0.5, 300), (300, 0.5)])
def test_the_shorter_of_both_deadlines_counts(make, call, deadline):
    (score,) = scores(make(LOOPS, call_seconds=call, limits={"deadline_seconds": deadline}), "loop")
    assert (score.error_class, "over 0.5 s" in score.detail) == ("timeout", True)


@pytest.mark.parametrize(("bad", "kind", "error"), cases("python/limits", "bad", "kind", "error"))
def test_what_takes_too_much_is_an_error_of_its_class(make, bad, kind, error):
    score = score_of_bad(make, bad)
    assert (score.error_class, (error or "") in (score.error or score.detail)) == (kind, True), score


@pytest.mark.parametrize(
    "bad",
    [
        "while True: __import__('os').fork()",
        "exec('import os\\nwhile True:\\n  try: os.fork()\\n  except OSError: pass')",
        "while True: __import__('threading').Thread(target=__import__('time').sleep, args=(100,)).start()",
    ],
)
def test_a_fork_bomb_is_harmless_and_told(make, monkeypatch, bad):
    patient_with_boxes(monkeypatch, lambda completion: completion == "bad")
    before = len(below())
    score = score_of_bad(make, bad, call_seconds=2)
    if score.error_class != "timeout":  # one that hides what it is refused loops until its time is over
        assert (score.error_class, "16 processes" in (score.error or "")) == ("verifier", True)
    assert len(below()) < before + 40


def test_what_goes_on_after_an_answer_is_ended_with_its_box(make):
    runner = make(PROGRAMS["leaves threads and children"], limits=SINGLE)
    boxes = [score.detail for score in scores(runner, "plain", "thread", "plain", "child", "plain")]
    assert boxes[0] == boxes[1] != boxes[2]
    assert boxes[2] == boxes[3] != boxes[4]


def test_memory_that_earlier_samples_took_is_not_held_against_a_later_one(make):
    """Each sample keeps 100 MiB, the box may have 512: every so often a fresh one is needed, and no sample suffers."""
    source = "kept = []\ndef verify(sample):\n    kept.append(bytearray(100 * 2**20))\n    return 1"
    results = scores(make(source, limits=SINGLE), *"abcdefghijkl")
    assert [score.error for score in results] == [None] * 12
    assert sum(score.tries > 1 for score in results) >= 2


def test_a_chatty_verifier_is_not_ended_for_what_it_wrote_over_many_samples(make):
    source = "os = __import__('os')\ndef verify(sample):\n    os.write(1, b'x' * 200_000)\n    return 1"
    results = scores(make(source, limits=SINGLE), *["a"] * 30)  # 6 MB, and a box is killed after 4
    assert [score.error for score in results] == [None] * 30


@pytest.fixture
def failing(monkeypatch):
    failing = FailingSandbox()
    monkeypatch.setattr(session, "shared_sandbox", lambda: failing)
    monkeypatch.setattr("grpo_core.rewards.runner.FIRST_PAUSE", 0.01)
    return failing


def test_without_a_box_no_runner_opens(make, failing, monkeypatch):
    def none():
        raise SandboxError("no sandbox")

    failing.failures = 99
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
    failing.failures = fails
    scored = runner.score_one(Problem("p", "q", "7"), "a")
    assert (scored.reward, scored.components["mine"].error_class) == (1.0 if error is None else None, error)
    assert scored.components["mine"].tries == tries


NO_REPLIES = [{"value": math.inf}, {"value": "x"}, {}, {"value": 1.0, "passed": [1]}]
NO_REPLIES += [{"value": 1.0, "steps": [{"end": end, "value": 1.0}]} for end in (0, 9)]


@pytest.mark.parametrize("reply", NO_REPLIES, ids=repr)
def test_no_reply_of_the_box_is_believed(make, reply):
    """Source of a person can reach the channel of its own box: what comes is checked like anything from outside."""
    assert make(ONE)._scorers["mine"]._score(reply, samples("abc")[0]).error_class == "value"


def test_a_forged_frame_ends_the_box_and_is_no_score(make):
    assert score_of_bad(make, f"exec({PROGRAMS['forged frame']!r})").error_class == "output"


@pytest.mark.parametrize("whom", ["the program in a box", "all that holds boxes"])
def test_what_is_killed_from_outside_is_tried_again_and_no_sample_suffers(make, monkeypatch, whom):
    monkeypatch.setattr("grpo_core.rewards.runner.FIRST_PAUSE", 0.01)
    runner = make("import time\ndef verify(sample):\n    time.sleep(0.2)\n    return 1", limits=SINGLE)
    requests, receive = iter(range(1, 1000)), Slot._receive

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
        if next(requests) == 3:
            victims = in_boxes() if whom == "the program in a box" else below(deep=False)
            assert victims
            for process in victims:
                with suppress(psutil.NoSuchProcess):  # one that went with the one before
                    process.kill()
        return receive(*words)

    monkeypatch.setattr(Slot, "_receive", third_killed)
    results = scores(runner, *"abcdef")
    assert [(score.value, score.error) for score in results] == [(1.0, None)] * 6
    assert max(score.tries for score in results) == 2


def test_a_child_that_answers_too_is_not_heard(make):
    """Both continue to the end of `verify`; the child has no channel to tell its value over."""
    source = "os = __import__('os')\ndef verify(sample):\n    return 1 if os.fork() else 5"
    results = scores(make(source, limits=SINGLE), *"abcdef")
    assert [(score.value, score.error) for score in results] == [(1.0, None)] * 6
