"""Judges one solution: runs its cases in one box, compares outside it. Expected values never go into the solution's
box; a test program runs in a second box, with what it calls passed between the two as plain data.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from typing import Any

from grpo_core.errors import RewardError, SandboxError
from grpo_core.rewards.base import shown
from grpo_core.rewards.code.box import CodeBox, Ended
from grpo_core.rewards.code.cases import CallCase, Case, Cases, InputCase, ProgramCase
from grpo_core.rewards.code.compare import same_text, same_value, short_repr
from grpo_core.rewards.code.inside_values import LARGEST, by_the_clock, encode, from_text
from grpo_core.rewards.code.params import CodeParams

_ROOM = 64 * 1024
_TESTS_SECONDS = 2.0
"""Test code may take so many times what the solution may, in addition to the solution's own time."""

Open = Callable[[str], AbstractContextManager[CodeBox]]
"""Returns a new box for code that imports what the text imports."""


@dataclass(frozen=True, slots=True)
class Verdict:
    passed: int
    total: int
    failure: str
    """The first case that failed, and how; "" when all passed."""


class SolutionJudge:
    """One solution, its box, and a second box once a case needs one."""

    def __init__(self, open_box: Open, params: CodeParams, cases: Cases, source: str, prelude: str) -> None:
        self._open_box, self._params, self._cases = open_box, params, cases
        self._prelude = prelude
        self._source = f"{prelude}\n{source}" if prelude else source
        self._box_error = ""
        """Why the solution's box is gone, if it is."""

    def judge(self) -> Verdict:
        """Raises SandboxError for our own failures, RewardError where the tests themselves cannot be run."""
        total, passed, first = len(self._cases.cases), 0, ""
        with ExitStack() as boxes:
            box = boxes.enter_context(self._open_box(self._source))
            tests: CodeBox | None = None
            for number, case in enumerate(self._cases.cases, start=1):
                if isinstance(case, ProgramCase) and tests is None:
                    tests = boxes.enter_context(self._open_box(case.text + "\n" + self._prelude))
                failure = self._box_error or self._failure(case, box, tests, is_first=number == 1)
                passed += not failure
                if failure and not first:
                    first = f"case {number} of {total}: {failure}" if total > 1 else failure
                if failure and self._params.pay == "all":
                    break
        return Verdict(passed, total, first)

    def _failure(self, case: Case, box: CodeBox, tests: CodeBox | None, *, is_first: bool) -> str:
        if isinstance(case, InputCase):
            return self._input(case, box, is_first=is_first)
        if isinstance(case, CallCase):
            return self._call(case, box, is_first=is_first)
        assert tests is not None
        return self._program(case, box, tests, is_first=is_first)

    def _input(self, case: InputCase, box: CodeBox, *, is_first: bool) -> str:
        try:
            stdin = case.stdin.encode()
        except UnicodeEncodeError:
            raise RewardError("the input of a case cannot be encoded as UTF-8") from None
        keep = 4 * len(case.output) + _ROOM
        reply = box.order(do="input", source=self._source, seconds=self._params.case_seconds, stdin=stdin, keep=keep)
        about = f"input {shown(case.stdin.strip())!r}"
        if ended := self._ended(reply, is_first):
            return f"{about}: {ended}"
        assert isinstance(reply, Ended)
        try:
            text = reply.out.decode()
        except UnicodeDecodeError:
            return f"{about}: printed what is no UTF-8"
        if same_text(text, case.output, compare=self._params.compare, tolerance=self._params.tolerance):
            return ""
        return f"{about}: printed {shown(text.strip())!r}" + self._expected(repr(shown(case.output.strip())))

    def _call(self, case: CallCase, box: CodeBox, *, is_first: bool) -> str:
        reply = box.order(
            do="call",
            source=self._source,
            seconds=self._params.case_seconds,
            name=case.name,
            args=case.args,
            kwargs=dict(case.kwargs),
        )
        about = _call_text(case)
        if ended := self._ended(reply, is_first):
            return f"{about}: {ended}"
        assert isinstance(reply, Ended)
        if not reply.out:
            return f"{about}: the process ended before it returned (status {reply.status})"
        try:
            what, value = from_text(reply.out)
        except (ValueError, TypeError):
            return f"{about}: gave something that is no value"
        if what == "raised":
            return f"{about}: {shown(str(value))}"
        if what != "ok":
            return f"{about}: gave {shown(str(value))}, which is no plain value"
        if same_value(value, case.returns, literal=case.literal, tolerance=self._params.tolerance):
            return ""
        return f"{about}: gave {short_repr(value)}" + self._expected(shown(repr(case.returns)))

    def _program(self, case: ProgramCase, box: CodeBox, tests: CodeBox, *, is_first: bool) -> str:
        seconds = self._params.case_seconds
        loaded = box.order(do="serve", source=self._source, seconds=seconds)
        if isinstance(loaded, Ended):
            return self._ended(loaded, is_first) or f"the process ended while it was loaded (status {loaded.status})"
        message = _message(loaded)
        if message[:1] != ["loaded"]:
            return (
                shown(str(message[1])) if message[:1] == ["broken"] and len(message) == 2 else "it could not be loaded"
            )
        entry = self._cases.entry
        reply = tests.order(
            do="tests",
            text=case.text,
            prelude=self._prelude,
            entry=entry,
            alone=self._cases.named and not entry[:1].isupper(),
            seconds=_TESTS_SECONDS * seconds,
        )
        called = False
        while not isinstance(reply, Ended) and reply[:1] == b"C":
            called = True
            answer = box.pass_on(reply[1:])
            if isinstance(answer, Ended):
                return self._ended(answer, False) or f"it ended the process (status {answer.status}) during the tests"
            reply = tests.pass_on(answer)
        if isinstance(reply, Ended):
            if reply.how == "refused":
                raise SandboxError("a box for tests could start no process")
            if not called:
                raise RewardError(f"the tests did not get to ask anything of the solution: {_how(reply, 2 * seconds)}")
            return f"the tests did not come to an end: {_how(reply, _TESTS_SECONDS * seconds)}"
        return self._verdict(from_text(reply[1:]), case)

    def _verdict(self, verdict: list[Any], case: ProgramCase) -> str:
        match verdict:
            case ["passed", int(calls)] if calls > 0:
                return ""
            case ["passed", _]:
                raise RewardError("the tests never call the solution, so a program that does nothing would pass them")
            case ["fault", str(why)]:
                raise RewardError(why)
            case ["failed", str(why), int(line), str(last), int()]:
                where = f"{why} in line {line} of the tests" if line else why
                source_line = case.text.split("\n")[line - 1].strip() if 0 < line <= case.text.count("\n") + 1 else ""
                last_call = f"; last call: {last}" if last else ""
                shown_line = f"; the line is {shown(source_line)}" if source_line and not self._params.hidden else ""
                return where + last_call + shown_line
        raise SandboxError("the tests' box gave no verdict")

    def _ended(self, reply: bytes | Ended, is_first: bool) -> str:
        """Why the child gave nothing that counts; "" when it left by itself with status 0."""
        if not isinstance(reply, Ended):
            return "it gave something that is no value"
        if reply.how == "refused" and is_first:
            raise SandboxError("a box for code could start no process")
        if reply.how == "box":
            self._box_error = f"the solution's box had ended ({reply.error})"
        if reply.how == "exited" and reply.status == 0:
            return ""
        return _how(reply, self._params.case_seconds)

    def _expected(self, text: str) -> str:
        return "" if self._params.hidden else f"; expected {text}"


def _how(ended: Ended, seconds: float) -> str:
    last = ended.error.splitlines()[-1] if ended.error else ""
    match ended.how:
        case "exited":
            return f"ended with status {ended.status}" + (f": {shown(last)}" if last else "")
        case "signal":
            return f"was ended by signal {-ended.status}"
        case "cpu":
            return f"took more than {seconds:g} s of processor time"
        case "wall":
            return f"took more than {by_the_clock(seconds):g} s by the clock"
        case "output":
            return f"gave more than it may, up to {LARGEST:,} bytes"
        case "refused":
            return "no process could be started any more: it left too many behind"
    return {"wall": "time for all cases was over"}.get(ended.error, f"its box was ended ({ended.error})")


def _call_text(case: CallCase) -> str:
    named = [f"{name}={short_repr(encode(value))}" for name, value in case.kwargs.items()]
    return f"{case.name}({', '.join([short_repr(encode(value)) for value in case.args] + named)})"


def _message(text: bytes) -> list[Any]:
    try:
        message = from_text(text)
    except ValueError:
        return []
    return message if isinstance(message, list) else []
