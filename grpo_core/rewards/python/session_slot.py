"""One slot of a session: a box, the program in it, and what each of its ends means for the sample that it had."""

import json
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib import resources
from typing import Any, cast, get_args

from grpo_core.errors import SandboxError
from grpo_core.records.types import ComponentScore, ErrorClass
from grpo_core.rewards.scoring import at_fault, failed
from grpo_core.sandbox import Box, BoxEnded, BoxTimeout, Limits, Ran, Sandbox
from grpo_core.text import UNSTORABLE

LOAD_SECONDS = 60.0
"""Longest that a program may take to load what it needs; a call that is allowed longer lengthens it."""
OUTPUT_BYTES = 64 * 1024
MOST_KEPT = 4096
TICK = 0.1
INSIDE = resources.files(__package__).joinpath("session_inside.py").read_text(encoding="utf-8")
_AT_FAULT: frozenset[ErrorClass] = frozenset({"timeout", "memory", "output"})
"""What a sample did that other samples did not, in a box that was loaded: the verifier is the same for all of them."""
_OWN = frozenset(get_args(ErrorClass)) - {"timeout", "budget", "infra"}
"""Error classes that a program in a box may report. Infrastructure errors are never its to report."""


@dataclass(frozen=True)
class Terms:
    """What all boxes of a session have in common."""

    sandbox: Sandbox
    limits: Limits
    packages: tuple[str, ...]
    first: bytes
    """The first message: the program and its arguments."""
    call_seconds: float
    stop: threading.Event
    """Set when no caller waits for an answer any more."""


@dataclass(frozen=True, slots=True)
class Answer:
    """The result of one request."""

    reply: dict[str, Any] | None
    """JSON values that the program gave; None on error. Not trusted: a person's code made it."""
    error: str = ""
    error_class: ErrorClass | None = None
    traceback: str = ""
    printed: str = ""
    seconds: float = 0.0
    tries: int = 1
    loading: bool = False
    """It failed before it was given the sample."""

    def score(self, convert: Callable[[dict[str, Any]], ComponentScore]) -> ComponentScore:
        """With the error, what was printed and how long it took."""
        if self.error_class in _AT_FAULT and not self.loading:
            score = at_fault(self.error_class, self.error)
        elif self.reply is None:
            score = failed(self.error_class or "verifier", self.error, trace=self.traceback)
        else:
            score = convert(self.reply)
        return score.model_copy(update={"printed": self.printed, "seconds": self.seconds, "tries": self.tries})


class Slot:
    """Holds one box after the other. Used by one thread at a time."""

    def __init__(self, terms: Terms) -> None:
        self._terms = terms
        self._box: Box | None = None
        self._calls = 0

    def submit(self, message: bytes) -> Answer:
        answer = self._answer(message)
        # What earlier calls left in the box may have filled it: that is not this sample's doing.
        if answer.error_class in ("memory", "output") and self._calls > 1:
            self.close()
            answer = replace(self._answer(message), tries=2)
        if answer.error_class in ("memory", "output", "timeout"):
            self.close()
        return answer

    def loaded(self) -> Answer | None:
        """None when there is a box whose program is loaded; else why there is none."""
        terms = self._terms
        if self._box is not None:
            return None
        try:
            self._box = terms.sandbox.open(INSIDE, limits=terms.limits, packages=terms.packages)
        except SandboxError as error:
            return Answer(None, str(error), "infra")
        self._calls = 0
        answer = self._exchange(terms.first, max(LOAD_SECONDS, terms.call_seconds), "loading")
        return None if answer.reply is not None else replace(answer, loading=True)

    def close(self) -> None:
        if self._box is not None:
            self._box.close()
            self._box = None

    def _answer(self, message: bytes) -> Answer:
        if (trouble := self.loaded()) is not None:
            self.close()
            return trouble
        self._calls += 1
        return self._exchange(message, self._terms.call_seconds, "one sample")

    def _exchange(self, message: bytes, seconds: float, what: str) -> Answer:
        """Send it to the box and wait for the answer; a box that gave none is gone afterwards."""
        assert self._box is not None
        box, began = self._box, time.monotonic()
        try:
            box.send(message)
            frame = self._receive(box, began + seconds)
        except BoxTimeout:
            answer = self._late(box, seconds, what)
        except BoxEnded as ended:
            kind, reason = _ended(ended.ran)
            answer = Answer(None, reason, kind, printed=_text(ended.ran.stdout + ended.ran.stderr))
            self._box = None
        except SandboxError as error:
            answer = Answer(None, str(error), "infra")
            self.close()
        else:
            answer, left = _read(frame)
            if left or any(len(part) >= OUTPUT_BYTES for part in box.printed()):
                self.close()
        return replace(answer, seconds=time.monotonic() - began)

    def _receive(self, box: Box, until: float) -> bytes:
        while True:
            left = until - time.monotonic()
            try:
                return box.receive(max(0.0, min(left, TICK)))
            except BoxTimeout:
                if left <= 0 or self._terms.stop.is_set():
                    raise

    def _late(self, box: Box, seconds: float, what: str) -> Answer:
        stdout, stderr = box.printed()
        self.close()
        message = f"{what} took over {seconds:g} s and was killed"
        return Answer(None, message, "timeout", printed=_text(stdout + stderr))


def _read(frame: bytes) -> tuple[Answer, bool]:
    """The answer in a frame, and whether the program left processes or threads running."""
    try:
        reply = json.loads(frame)
        printed, left = UNSTORABLE.sub("\ufffd", str(reply["printed"])[:MOST_KEPT]), bool(reply["left"])
        if "reply" in reply:
            if not isinstance(reply["reply"], dict):
                raise TypeError("its reply is no object")
            return Answer(reply["reply"], printed=printed), left
        kind = cast("ErrorClass", reply["class"] if reply["class"] in _OWN else "verifier")
        return Answer(None, str(reply["error"]), kind, str(reply["trace"])[-MOST_KEPT:], printed), left
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        return Answer(None, f"the program in the box gave no answer that can be read: {error}", "verifier"), True


def _ended(ran: Ran) -> tuple[ErrorClass, str]:
    """Class and message for a box that ended when it should have answered."""
    match ran.end:
        case "memory":
            return "memory", "took more memory than it may take, and was killed"
        case "output":
            return "output", "printed without end, and was killed"
        case "cpu" | "wall":
            return "timeout", "did nothing but run, and was killed"
        case "processes":
            return "verifier", "was refused a process: it may not start so many"
        case "signal" if ran.status == -9:
            return "infra", "the box was killed from outside, perhaps for want of memory on this machine"
        case "signal":
            return "verifier", f"ended its own process by signal {-(ran.status or 0)}{below(_last(ran.stderr))}"
        case "exited":
            return "verifier", f"ended its own process with status {ran.status}{below(_last(ran.stderr))}"


def _last(stderr: bytes) -> str:
    lines = _text(stderr).strip().splitlines()
    return lines[-1] if lines else ""


def below(text: str) -> str:
    return f"\n{text}" if text else ""


def _text(printed: bytes) -> str:
    return UNSTORABLE.sub("\ufffd", printed[:MOST_KEPT].decode("utf-8", errors="replace"))
