"""First program in a box of the kind `code`: takes orders over the channel and runs each in a child process of its own,
which has neither the channel nor its nonce. It executes nothing of the solution's and knows no expected value.

Part of the text of a program inside the sandbox (`program` puts it together): standard library only, few imports.
An answer is one byte, `P` and what the child said, or `D` and how it ended: one letter (e exited, s signal, w wall
clock, c processor time, o output, f no child could be made), its status in 4 bytes, the length of what it gave in 4,
what it gave, and the end of what it wrote to stderr.
"""

from __future__ import annotations

import marshal
import os
import select
import sys
import time

from grpo_core.rewards.code.inside_solution import run_call, run_program, serve
from grpo_core.rewards.code.inside_talk import Talk
from grpo_core.rewards.code.inside_values import LARGEST, by_the_clock

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, NoReturn

REPORT = 9
"""Descriptor on which a child says what it found."""
SPARE = 40
"""Descriptors from here on hold the pipes while 0 to 2 are set up."""
ERROR_TAIL = 2000


class Child:
    """A running child, its pipes and its deadline."""

    def __init__(self, order: dict[str, Any], boxed: Any) -> None:
        self.ended: bytes = b""
        self._seconds = max(1, -int(-order["seconds"] // 1))
        self._deadline = time.monotonic() + by_the_clock(order["seconds"])
        out, self._out = os.pipe()[::-1]
        err, self._err = os.pipe()[::-1]
        given, self._in = os.pipe()
        self._talk, theirs = -1, -1
        if order["do"] in ("serve", "tests"):
            import socket

            ours, other = socket.socketpair()
            self._talk, theirs = ours.detach(), other.detach()
        try:
            self.pid = boxed.fork_without_channel()
        except OSError:
            self.pid = -1
        if self.pid == 0:
            try:
                _become(order, given, out, err, theirs)
            except BaseException as error:  # noqa: BLE001 - reported, then the child exits in any case
                message = f"the child inside: {type(error).__name__}: {error}".encode("utf-8", "replace")
                os.write(err if _is_open(err) else 2, message)
            finally:
                os._exit(70)
        for number in (out, err, given, theirs):
            if number >= 0:
                os.close(number)
        os.set_blocking(self._in, False)

    def run(self, stdin: bytes, keep: int) -> bytes:
        """Feeds it, drains it, waits for it; the answer with how it ended."""
        if self.pid < 0:
            return self._answer(b"f", 0, b"", b"")
        out, err = bytearray(), bytearray()
        poll = select.poll()
        poll.register(self._out, select.POLLIN)
        poll.register(self._err, select.POLLIN)
        if stdin:
            poll.register(self._in, select.POLLOUT)
        else:
            self._close_in()
        is_open, end = 2, b""
        while is_open:
            left = self._deadline - time.monotonic()
            if left <= 0:
                end = b"w"
                break
            # A process that it left behind may hold the pipes open: then only the child itself says when it has ended.
            for number, _ in poll.poll(min(left * 1000, 50)) or ((-1, 0),):
                if number == -1:
                    if self._is_over():
                        is_open = 0
                elif number == self._in:
                    try:
                        stdin = stdin[os.write(self._in, stdin[:65536]) :]
                    except OSError:
                        stdin = b""
                    if not stdin:
                        poll.unregister(self._in)
                        self._close_in()
                else:
                    part = os.read(number, 65536)
                    if not part:
                        poll.unregister(number)
                        is_open -= 1
                    elif number == self._out:
                        out += part
                    else:
                        err = (err + part)[-ERROR_TAIL:]
            if len(out) > keep:
                end = b"o"
                break
        return self.finish(end, bytes(out[:keep]), bytes(err))

    def _is_over(self) -> bool:
        return os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None

    def finish(self, end: bytes, out: bytes = b"", err: bytes = b"") -> bytes:
        """Ends it and its group if they have not ended, and says how it went."""
        while not end and not self._is_over():
            if time.monotonic() > self._deadline:
                end = b"w"
            time.sleep(0.0005)
        killed = not end
        for target in (-self.pid, self.pid):
            try:
                os.kill(target, 9)
                killed = True
            except OSError:
                pass  # it is not there any more, is no group of its own, or may not be killed from here
        if killed:
            _, status, used = os.wait4(self.pid, 0)
            code = os.waitstatus_to_exitcode(status)
            if not end:
                end = b"e" if code >= 0 else b"s"
                if code == -24 or (code == -9 and used.ru_utime + used.ru_stime > 0.9 * self._seconds):
                    end = b"c"
        else:
            code = 0  # Landlock: it ends when it is asked nothing more, at its processor time, or with the box
        self._close_in()
        for number in (self._out, self._err, self._talk):
            if number >= 0:
                os.close(number)
        self.ended = self._answer(end, code, out, err)
        return self.ended

    def _answer(self, end: bytes, code: int, out: bytes, err: bytes) -> bytes:
        return b"D" + end + code.to_bytes(4, "big", signed=True) + len(out).to_bytes(4, "big") + out + err

    def _close_in(self) -> None:
        if self._in >= 0:
            os.close(self._in)
            self._in = -1

    def pass_on(self, message: bytes | None) -> bytes:
        """Hands the message to the child, and gives what it says next; or how it ended."""
        if self.ended:
            return self.ended
        left = memoryview(b"" if message is None else len(message).to_bytes(4, "big") + message)
        received = bytearray()
        poll = select.poll()
        poll.register(self._talk, select.POLLIN | (select.POLLOUT if left else 0))
        poll.register(self._out, select.POLLIN)
        poll.register(self._err, select.POLLIN)
        os.set_blocking(self._talk, False)
        err = bytearray()
        while True:
            wait = self._deadline - time.monotonic()
            if wait <= 0:
                return self.finish(b"w", b"", bytes(err))
            for number, event in poll.poll(wait * 1000):
                if number != self._talk:
                    part = os.read(number, 65536)
                    if not part:
                        poll.unregister(number)
                    elif number == self._err:
                        err = (err + part)[-ERROR_TAIL:]
                    continue
                try:
                    if left and event & select.POLLOUT:
                        left = left[os.write(self._talk, left[:65536]) :]
                        if not left:
                            poll.modify(self._talk, select.POLLIN)
                    if event & (select.POLLIN | select.POLLHUP):
                        part = os.read(self._talk, 1 << 20)
                        if not part:
                            return self.finish(b"", b"", bytes(err))
                        received += part
                except BlockingIOError:
                    continue
                except OSError:
                    return self.finish(b"", b"", bytes(err))
            if len(received) > 4:
                length = int.from_bytes(received[:4], "big")
                if length > LARGEST + 65536:
                    return self.finish(b"o", b"", bytes(err))
                if len(received) >= length + 4:
                    return b"P" + bytes(received[4 : length + 4])


def _become(order: dict[str, Any], given: int, out: int, err: int, talk: int) -> NoReturn:
    """In the child: what the order says, with nothing open but what it needs."""
    import resource

    try:  # noqa: SIM105 - contextlib would have to be imported
        os.setpgid(0, 0)
    except PermissionError:
        pass  # the box itself is held as one group: what the child leaves behind ends with the box
    most = resource.getrlimit(resource.RLIMIT_CPU)[1]
    seconds = max(1, -int(-order["seconds"] // 1))
    if most == resource.RLIM_INFINITY or seconds < most:
        resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 1))
    do = order["do"]
    null = os.open("/dev/null", os.O_RDWR)
    spare = [os.dup2(number, to + SPARE) for to, number in enumerate((given, out, err, null, max(talk, 0)))]
    is_program = do == "input"
    os.dup2(spare[0] if is_program else spare[3], 0)
    os.dup2(spare[1] if is_program else spare[3], 1)
    os.dup2(spare[2], 2)
    os.dup2(spare[4] if talk >= 0 else spare[1], REPORT, inheritable=False)
    os.closerange(3, REPORT)
    os.closerange(REPORT + 1, 64)
    _fresh_streams()
    sys.modules.pop("boxed", None)
    if do == "input":
        os.close(REPORT)
        run_program(order["source"])
    elif do == "call":
        run_call(order["source"], order["name"], order["args"], order["kwargs"], REPORT)
    elif do == "serve":
        serve(order["source"], Talk(REPORT, b""))
    else:
        from grpo_core.rewards.code.inside_tests_run import run_tests

        run_tests(order, Talk(REPORT, b"C"))


def _is_open(number: int) -> bool:
    try:
        os.fstat(number)
    except OSError:
        return False
    return True


def _fresh_streams() -> None:
    import io

    for name, number in (("stdin", 0), ("stdout", 1), ("stderr", 2)):
        raw = open(number, "rb" if number == 0 else "wb", closefd=False)  # noqa: SIM115 - open as long as the process
        text = io.TextIOWrapper(
            raw, "utf-8", "backslashreplace" if number == 2 else "strict", line_buffering=number == 2
        )
        setattr(sys, name, text)
        setattr(sys, f"__{name}__", text)


def _prepare(order: dict[str, Any]) -> None:
    """Imports once what the children would import each; of the standard library and the packages only."""
    os.environ["OPENBLAS_NUM_THREADS"] = os.environ["OMP_NUM_THREADS"] = "1"
    for name in order["modules"]:
        try:  # noqa: SIM105 - contextlib would have to be imported
            __import__(name)
        except ImportError:
            pass  # not there in this Python: the solution will say so


def main() -> NoReturn:
    import boxed  # type: ignore[import-not-found]

    child: Child | None = None
    while True:
        frame = boxed.receive()
        if frame[:1] == b"P":
            assert child is not None
            boxed.send(child.pass_on(frame[1:]))
            continue
        order = marshal.loads(frame)
        if child is not None and not child.ended:
            child.finish(b"w")
        child = None
        if order["do"] == "prepare":
            _prepare(order)
            boxed.send(b"R")
            continue
        child = Child(order, boxed)
        if order["do"] in ("input", "call"):
            boxed.send(child.run(order.get("stdin", b""), order.get("keep", LARGEST + 65536)))
            child = None
        elif child.pid < 0:
            boxed.send(b"Df" + bytes(8))
            child = None
        else:
            boxed.send(child.pass_on(None))
