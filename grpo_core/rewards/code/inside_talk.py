"""Questions and answers between a solution's process and the tests' process. Either may ask while it is being asked,
as when a function of the tests is handed to the solution. Part of the text of programs inside the sandbox.
"""

from __future__ import annotations

import os

from grpo_core.rewards.code.inside_values import as_text, from_text

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any


class Talk:
    """Frames over one descriptor of a socket: length in 4 bytes, then a mark and JSON."""

    def __init__(self, descriptor: int, mark: bytes) -> None:
        self._descriptor = descriptor
        self._mark = mark

    def send(self, message: list[Any], mark: bytes | None = None) -> None:
        text = (self._mark if mark is None else mark) + as_text(message)
        text = len(text).to_bytes(4, "big") + text
        while text:
            text = text[os.write(self._descriptor, text) :]

    def receive(self) -> list[Any]:
        """Ends the process when nobody is there any more. Raises ValueError for what is no message."""
        length = int.from_bytes(self._exactly(4), "big")
        message = from_text(self._exactly(length))
        if type(message) is not list or not message:
            raise ValueError("no message")
        return message

    def request(self, message: list[Any], answer: Callable[[list[Any]], list[Any]]) -> list[Any]:
        """The other side's answer; what it asks meanwhile goes to `answer`."""
        self.send(message)
        while True:
            reply = self.receive()
            if reply[0] in ("v", "x"):
                return reply
            self.send(answer(reply))

    def _exactly(self, count: int) -> bytes:
        parts = []
        while count:
            part = os.read(self._descriptor, min(count, 1 << 20))
            if not part:
                os._exit(0)
            parts.append(part)
            count -= len(part)
        return b"".join(parts)
