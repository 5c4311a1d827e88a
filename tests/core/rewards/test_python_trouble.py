"""A person's own verifier when the machine is in trouble or its box is not to be believed: tried again, then masked."""

import math
from contextlib import suppress
from typing import Any

import psutil
import pytest

from grpo_core.data import Problem
from grpo_core.errors import SandboxError
from grpo_core.rewards import session
from grpo_core.rewards.session import shared_sandbox
from grpo_core.rewards.session_slot import Slot
from tests.core.rewards.examples import PAGES, Example, examples, run
from tests.core.rewards.own_verifier import Make, one_bad, samples, told
from tests.processes import below


def test_without_a_sandbox_nothing_is_scored(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    def none() -> None:
        raise SandboxError("no sandbox works here: install bubblewrap")

    monkeypatch.setattr(session, "shared_sandbox", none)
    with pytest.raises(SandboxError, match="install bubblewrap"):
        make("def verify(sample):\n    return 1")


class Failing:
    """The real sandbox, whose next boxes cannot be had."""

    def __init__(self, times: int) -> None:
        self._real, self.times = shared_sandbox(), times
        self.report = self._real.report

    def open(self, *words: Any, **more: Any) -> Any:
        if self.times > 0:
            self.times -= 1
            raise SandboxError("a box could not be started: Resource temporarily unavailable")
        return self._real.open(*words, **more)


@pytest.mark.parametrize(("fails", "tries", "error"), [(1, 2, None), (2, 3, None), (99, 3, "infra")])
@pytest.mark.parametrize("on_error", ["mask", "zero"])
def test_trouble_of_the_sandbox_is_tried_again_then_masked_and_never_paid_0(
    make: Make, monkeypatch: pytest.MonkeyPatch, fails: int, tries: int, error: str | None, on_error: str
) -> None:
    failing = Failing(0)
    monkeypatch.setattr(session, "shared_sandbox", lambda: failing)
    monkeypatch.setattr("grpo_core.rewards.retries.FIRST_PAUSE", 0.01)
    source = "def verify(sample):\n    if sample.completion == 'end':\n        __import__('os')._exit(0)\n    return 1"
    runner = make(source, limits={"workers": 1}, on_error=on_error)
    assert told(runner, "end")[0].error_class == "verifier"  # its box is gone
    failing.times = fails
    scored = runner.one(Problem("p", "q", "7"), "a")
    assert (scored.reward, scored.components["mine"].error_class) == (1.0 if error is None else None, error)
    assert scored.components["mine"].tries == tries


def test_a_run_whose_every_box_fails_ends_with_the_reason(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    failing = Failing(99)
    monkeypatch.setattr(session, "shared_sandbox", lambda: failing)
    with pytest.raises(SandboxError, match="Resource temporarily unavailable"):
        make("def verify(sample):\n    return 1")


def test_no_reply_of_the_box_is_believed(make: Make) -> None:
    """Source of a person can reach the channel of its own box: what comes is checked like anything from outside."""
    runner = make("def verify(sample):\n    return 1")
    score = runner._scorers["mine"]._score  # type: ignore[attr-defined]
    (sample,) = samples("abc")
    for reply in (
        {"value": math.inf},
        {"value": "x"},
        {},
        {"value": 1.0, "steps": [{"end": 9, "value": 1.0}]},
        {"value": 1.0, "steps": [{"end": 0, "value": 1.0}]},
        {"value": 1.0, "passed": [1]},
    ):
        assert score(reply, sample).error_class == "value", reply


def test_a_forged_frame_ends_the_box_and_is_no_score(make: Make) -> None:
    bad = """
import os
frame = bytes(32) + (13).to_bytes(4, "big") + b'{"value": 1}x'
for descriptor in range(3, 64):
    try:
        os.write(descriptor, frame)
    except OSError:
        pass
"""
    assert one_bad(make, f"exec({bad!r})").error_class == "output"


PAGE = PAGES / "python.md"


@pytest.mark.parametrize("example", examples(PAGE), ids=lambda example: example.where)
def test_what_the_page_shows_is_so(example: Example) -> None:
    run(example)


def leaves() -> list[psutil.Process]:
    """What runs in the boxes of this process."""
    found, parents = below(), set()
    for one in found:
        with suppress(psutil.NoSuchProcess):
            parents.add(one.ppid())
    return [one for one in found if one.pid not in parents]


@pytest.mark.parametrize("whom", ["the program in a box", "all that holds boxes"])
def test_what_is_killed_from_outside_is_tried_again_and_no_sample_suffers(
    make: Make, monkeypatch: pytest.MonkeyPatch, whom: str
) -> None:
    monkeypatch.setattr("grpo_core.rewards.retries.FIRST_PAUSE", 0.01)
    runner = make("import time\ndef verify(sample):\n    time.sleep(0.2)\n    return 1", limits={"workers": 1})
    killed: list[int] = []
    asked: list[None] = []
    heard = Slot._heard

    def third_killed(*words: Any) -> bytes:
        """What waits for the box's answer, which is at its third sample then."""
        asked.append(None)
        if len(asked) == 3:
            for one in leaves() if whom == "the program in a box" else below(deep=False):
                killed.append(one.pid)
                with suppress(psutil.NoSuchProcess):  # one that went with the one before
                    one.kill()
        return heard(*words)

    monkeypatch.setattr(Slot, "_heard", third_killed)
    scored = [one.components["mine"] for one in runner.score(samples(*"abcdefgh"))]
    assert killed
    assert [one.value for one in scored] == [1.0] * 8
    assert [one.error for one in scored] == [None] * 8
    assert max(one.tries for one in scored) == 2


def test_a_child_that_answers_too_is_not_heard(make: Make) -> None:
    """Both go on to the end of `verify`; the child has no channel to tell its value over."""
    source = "os = __import__('os')\ndef verify(sample):\n    return 1 if os.fork() else 5"
    found = told(make(source, limits={"workers": 1}), *"abcdef")
    assert [(one.value, one.error) for one in found] == [(1.0, None)] * 6
