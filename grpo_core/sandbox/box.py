"""A started box seen from outside: what it prints is drained and capped, its time limit is kept here, and its frames
count only with the nonce. Nothing here knows how the box is held; nothing in the box is trusted but its frames."""

import hmac
import marshal
import math
import os
import select
import socket
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Self

from grpo_core.errors import SandboxError
from grpo_core.runtime.cgroups import Cgroup
from grpo_core.sandbox.limits import MOST_FRAME, OUTPUT_FACTOR, BoxEnded, BoxTimeout, End, Limits, Ran

NONCE = 32
_SIGXCPU, _SIGKILL = 24, 9
_GRACE = 10.0
"""Seconds between the end of a box's channel and the end of the box, when it ends by itself: on a busy machine."""
_UNREAD = 30.0
_CLEANING = marshal.dumps(None)


@dataclass(slots=True)
class Launched:
    """A box whose program is about to start: its state on the outside."""

    channel: socket.socket
    life: socket.socket
    stdout: int
    stderr: int
    group: Cgroup | None
    limits: Limits
    held: bool
    """Its first process is bubblewrap's, which passes on the program's status as a shell does: 128 and the signal."""

    def kill(self) -> None:
        with suppress(OSError):
            self.life.shutdown(socket.SHUT_WR)


@dataclass(slots=True)
class Kept:
    """The beginning of what a stream brought, and how long all of it was."""

    most: int
    data: bytearray = field(default_factory=bytearray)
    length: int = 0

    def add(self, part: bytes) -> None:
        self.length += len(part)
        if len(self.data) < self.most:
            self.data += part[: self.most - len(self.data)]

    @property
    def cut(self) -> bool:
        return self.length > self.most


class Watch:
    """Drains a box until it is gone. `run` is called once, in the thread that waits for the box."""

    def __init__(self, launched: Launched, begun: float) -> None:
        self.launched = launched
        self.out, self.err = (Kept(launched.limits.output_bytes) for _ in range(2))
        self.stopped: End | None = None
        """Why we killed it, if we did."""
        self.trouble = ""
        """The reaper's message when it could start nothing."""
        self._begun = begun

    def run(self) -> Ran:
        """Raises SandboxError if what held the box ended before the box."""
        box, limits = self.launched, self.launched.limits
        streams = {box.stdout: self.out, box.stderr: self.err}
        poll = select.poll()
        for descriptor in (*streams, box.life.fileno()):
            poll.register(descriptor, select.POLLIN)
        deadline = self._begun + limits.wall_seconds
        report: bytes | None = None
        over = 0.0
        try:
            while report is None or streams:
                left = None
                if self.stopped is None and not math.isinf(deadline):
                    left = max(0.0, deadline - time.monotonic())
                    if left == 0:
                        self.stop("wall")
                        left = None
                for descriptor, _ in poll.poll(None if left is None else math.ceil(left * 1000)):
                    if descriptor == box.life.fileno():
                        report = box.life.recv(4096)
                        over = over or time.monotonic()
                        if report == _CLEANING:
                            report, deadline = None, math.inf
                        else:
                            poll.unregister(descriptor)
                        continue
                    part = os.read(descriptor, 1 << 16)
                    kept = streams[descriptor]
                    kept.add(part)
                    if too_much := kept.length > OUTPUT_FACTOR * max(1, limits.output_bytes):
                        self.stop("output")
                    # After too much output nothing more is read: its next write blocks it until the kill.
                    if not part or too_much:
                        poll.unregister(descriptor)
                        del streams[descriptor]
            return self._ran(report, over - self._begun)
        finally:
            box.kill()
            box.life.close()
            os.close(box.stdout)
            os.close(box.stderr)
            if box.group is not None:
                box.group.remove()

    def stop(self, why: End) -> None:
        if self.stopped is None:
            self.stopped = why
            self.launched.kill()

    def _ran(self, report: bytes, seconds: float) -> Ran:
        if not report:
            raise SandboxError("the sandbox's reaper ended while a box was running")
        status, cpu = marshal.loads(report)
        if isinstance(status, str):
            self.trouble = status
            raise SandboxError(f"a box could not be started: {status}")
        end, status = self._end(status, cpu)
        return Ran(end, status, bytes(self.out.data), bytes(self.err.data), self.out.cut, self.err.cut, seconds)

    def _end(self, status: int, cpu: float) -> tuple[End, int | None]:
        if self.stopped == "signal":
            return "signal", -_SIGKILL
        if self.stopped is not None:
            return self.stopped, None
        if status < 0 and self.launched.held:
            raise SandboxError(f"the process that holds a box was ended by signal {-status}")
        group = self.launched.group
        if status != 0 and group is not None and group.memory_kills():
            return "memory", None
        number = status - 128 if self.launched.held else -status
        if number == _SIGXCPU or (number == _SIGKILL and cpu >= self.launched.limits.cpu_seconds):
            return "cpu", None
        if status != 0 and group is not None and group.refused_processes():
            return "processes", None
        return ("signal", -number) if 0 < number < 65 else ("exited", status)


class Box:
    """A program that is held open. Its frames come by `receive`, what it prints by `printed`."""

    def __init__(self, launched: Launched, nonce: bytes, begun: float) -> None:
        self._channel = launched.channel
        self._nonce = nonce
        self._buffer = bytearray()
        self._watch = Watch(launched, begun)
        self._ran: Ran | None = None
        self._trouble: SandboxError | None = None
        self._thread = threading.Thread(target=self._keep, name="box", daemon=True)
        self._channel.setblocking(False)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def send(self, message: bytes) -> None:
        """Raises BoxEnded when the box is gone before it took all. One that reads nothing for 30 s is killed (wall)."""
        if self._channel.fileno() < 0:
            raise self._ended()
        left = memoryview(len(message).to_bytes(4, "big") + message)
        while left:
            try:
                left = left[self._channel.send(left) :]
            except BlockingIOError:
                if not self._wait(select.POLLOUT, time.monotonic() + _UNREAD):
                    self._watch.stop("wall")
            except (BrokenPipeError, ConnectionResetError):
                raise self._ended() from None

    def receive(self, seconds: float) -> bytes:
        """The next frame. Raises BoxTimeout when it is not there in time, BoxEnded when the box is gone."""
        deadline = time.monotonic() + seconds
        while (frame := self._frame()) is None:
            if self._channel.fileno() < 0:
                raise self._ended()
            try:
                part = self._channel.recv(1 << 20)
            except BlockingIOError:
                if not self._wait(select.POLLIN, deadline):
                    raise BoxTimeout(f"no answer from the box within {seconds:g} s") from None
            except ConnectionResetError:
                raise self._ended() from None
            else:
                if not part:
                    raise self._ended()
                self._buffer += part
        if self._watch.stopped is not None:  # the kill may take a while to come; what it sends until then is too late
            raise self._ended()
        return frame

    def printed(self) -> tuple[bytes, bytes]:
        """(stdout, stderr) so far, each cut at `output_bytes`."""
        return bytes(self._watch.out.data), bytes(self._watch.err.data)

    def kill(self) -> Ran:
        """Ends all of it and waits until it is gone. How it ended, if it had ended before."""
        self._watch.stop("signal")
        self._thread.join()
        self._channel.close()
        if self._trouble is not None:
            raise self._trouble
        assert self._ran is not None
        return self._ran

    def close(self) -> None:
        with suppress(SandboxError):  # the box is gone in that case too, and the caller does not need to know how
            self.kill()

    def _keep(self) -> None:
        try:
            self._ran = self._watch.run()
        except SandboxError as error:
            self._trouble = error

    def _frame(self) -> bytes | None:
        """The first whole frame of the buffer. What is not ours ends the box."""
        known = min(len(self._buffer), NONCE)
        genuine = hmac.compare_digest(bytes(self._buffer[:known]), self._nonce[:known])
        if genuine and len(self._buffer) < NONCE + 4:
            return None
        length = int.from_bytes(self._buffer[NONCE : NONCE + 4], "big")
        if not genuine or length > MOST_FRAME:
            self._buffer.clear()
            self._watch.stop("output")
            raise self._ended()
        if len(self._buffer) < NONCE + 4 + length:
            return None
        frame = bytes(self._buffer[NONCE + 4 : NONCE + 4 + length])
        del self._buffer[: NONCE + 4 + length]
        return frame

    def _wait(self, event: int, deadline: float) -> bool:
        poll = select.poll()
        poll.register(self._channel, event)
        return bool(poll.poll(max(0, math.ceil((deadline - time.monotonic()) * 1000))))

    def _ended(self) -> Exception:
        """A box that closed its channel may live on without it; it is of no use then."""
        self._thread.join(_GRACE)
        try:
            return BoxEnded(self.kill())
        except SandboxError as error:
            return error
