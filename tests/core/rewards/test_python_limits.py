"""A person's own verifier that takes too much time, memory, output or processes: it is ended and told by class, and
nothing that it does reaches another sample's score or the machine."""

import pytest

from tests.core.rewards import patience
from tests.core.rewards.own_verifier import LOOPS, SINGLE, score_of_bad, scores
from tests.core.rewards.programs import PROGRAMS
from tests.processes import below
from tests.tables import cases


def test_an_endless_loop_is_killed_at_its_deadline_and_the_next_sample_is_scored(make, monkeypatch):
    patience.boxed(monkeypatch, lambda completion: completion == "loop")
    found = scores(make(LOOPS, limits={"workers": 2, "deadline_seconds": 1}), "a", "loop", "b", "loop", "c")
    assert [score.error_class for score in found] == [None, "timeout", None, "timeout", None]
    assert [score.value for score in found] == [1, None, 1, None, 1]
    assert found[1].seconds >= 1


@pytest.mark.parametrize(("call", "deadline"), [(0.5, 300), (300, 0.5)])
def test_the_shorter_of_both_deadlines_counts(make, call, deadline):
    (score,) = scores(make(LOOPS, call_seconds=call, limits={"deadline_seconds": deadline}), "loop")
    assert (score.error_class, "over 0.5 s" in (score.error or "")) == ("timeout", True)


@pytest.mark.parametrize(("bad", "kind", "error"), cases("python/limits", "bad", "kind", "error"))
def test_what_takes_too_much_is_an_error_of_its_class(make, bad, kind, error):
    score = score_of_bad(make, bad)
    assert (score.error_class, (error or "") in (score.error or "")) == (kind, True), score


@pytest.mark.parametrize(
    "bad",
    [
        "while True: __import__('os').fork()",
        "exec('import os\\nwhile True:\\n  try: os.fork()\\n  except OSError: pass')",
        "while True: __import__('threading').Thread(target=__import__('time').sleep, args=(100,)).start()",
    ],
)
def test_a_fork_bomb_is_harmless_and_told(make, monkeypatch, bad):
    patience.boxed(monkeypatch, lambda completion: completion == "bad")
    before = len(below())
    score = score_of_bad(make, bad, call_seconds=2)
    if score.error_class != "timeout":  # one that hides what it is refused loops until its time is over
        assert (score.error_class, "16 processes" in (score.error or "")) == ("verifier", True)
    assert len(below()) < before + 40


def test_what_goes_on_after_an_answer_is_ended_with_its_box(make):
    source = PROGRAMS["leaves threads and children"]
    found = scores(make(source, limits=SINGLE), "plain", "thread", "plain", "child", "plain")
    boxes = [score.detail for score in found]
    assert boxes[0] == boxes[1] != boxes[2]
    assert boxes[2] == boxes[3] != boxes[4]


def test_memory_that_earlier_samples_took_is_not_held_against_a_later_one(make):
    """Each sample keeps 100 MiB, the box may have 512: every so often a fresh one is needed, and no sample suffers."""
    source = "kept = []\ndef verify(sample):\n    kept.append(bytearray(100 * 2**20))\n    return 1"
    found = scores(make(source, limits=SINGLE), *"abcdefghijkl")
    assert [score.error for score in found] == [None] * 12
    assert sum(score.tries > 1 for score in found) >= 2


def test_a_chatty_verifier_is_not_ended_for_what_it_wrote_over_many_samples(make):
    source = "os = __import__('os')\ndef verify(sample):\n    os.write(1, b'x' * 200_000)\n    return 1"
    found = scores(make(source, limits=SINGLE), *["a"] * 30)  # 6 MB, and a box is killed after 4
    assert [score.error for score in found] == [None] * 30
