"""How a held-open program talks with the outside. This text runs inside the box as the module `boxed`, with `_make`
called for it by the launcher; it uses nothing but `os`, and keeps the nonce in a closure, never in a module."""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    Helpers = tuple[Callable[[], bytes], Callable[[bytes], None], Callable[[], None], Callable[[], int]]


def _make(channel: int, nonce: bytearray) -> Helpers:
    """(receive, send, close_in_children, fork_without_channel)"""
    state: list[int] = [channel]

    def exactly(count: int) -> bytes:
        parts = []
        while count:
            part = os.read(state[0], min(count, 1 << 20))
            if not part:
                raise SystemExit(0)  # nobody is out there any more
            parts.append(part)
            count -= len(part)
        return b"".join(parts)

    def receive() -> bytes:
        """The next frame from outside."""
        return exactly(int.from_bytes(exactly(4), "big"))

    def send(message: bytes) -> None:
        """One frame to the outside, 16 MiB at most."""
        # The nonce goes out by writev from where it lies: it is never copied, so wiping it leaves none behind.
        parts = [memoryview(nonce), memoryview(len(message).to_bytes(4, "big")), memoryview(bytes(message))]
        while parts:
            written = os.writev(state[0], parts)
            while parts and written >= len(parts[0]):
                written -= len(parts.pop(0))
            if parts:
                parts[0] = parts[0][written:]

    def forget() -> None:
        if state[0] >= 0:
            os.close(state[0])
            state[0] = -1
            nonce[:] = bytes(len(nonce))

    def close_in_children() -> None:
        """From now on every os.fork gives a child without the channel and without the nonce."""
        os.register_at_fork(after_in_child=forget)

    def fork_without_channel() -> int:
        """os.fork, but the child has neither the channel nor the nonce."""
        pid = os.fork()
        if pid == 0:
            forget()
        return pid

    return receive, send, close_in_children, fork_without_channel
