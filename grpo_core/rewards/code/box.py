"""A box of the kind `code`: the program inside it, and requests to it. Raises SandboxError for our own failures;
whatever a solution or test code does is a result.
"""

import marshal
import re
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

from grpo_core.errors import SandboxError
from grpo_core.sandbox import Box, BoxEnded, BoxTimeout, Limits, Sandbox

_PARTS = ("values", "talk", "solution", "tests", "tests_run")
_OURS = re.compile(r"^ *from (grpo_core\.|__future__).*$", re.MULTILINE)
_IMPORT = re.compile(r"^[ \t]*(?:from|import)[ \t]+([A-Za-z][A-Za-z0-9_]*)", re.MULTILINE)
_START = (
    'import marshal\nwith open("inside.bin", "rb") as _file:\n    _code = marshal.loads(_file.read())\nexec(_code)\n'
)
_WARM_WORDS = """abc array ast bisect cmath collections contextlib copy dataclasses datetime decimal enum fractions
functools heapq io itertools json math numbers operator queue random re statistics string textwrap threading time types
typing unicodedata"""
_WARM = frozenset(_WARM_WORDS.split())
_ENDS = {"e": "exited", "s": "signal", "w": "wall", "c": "cpu", "o": "output", "f": "refused"}


@cache
def program() -> bytes:
    """The program inside, compiled once: its parts in one text, without the imports of each other."""
    folder = resources.files(__package__)
    names = [f"inside_{part}.py" for part in _PARTS] + ["inside.py"]
    texts = [_OURS.sub("", folder.joinpath(name).read_text(encoding="utf-8")) for name in names]
    whole = "from __future__ import annotations\n" + "\n".join(texts) + "\nmain()\n"
    return marshal.dumps(compile(whole, "inside.py", "exec", optimize=0))


@dataclass(frozen=True, slots=True)
class Ended:
    """How a child inside ended: exited, signal, wall, cpu, output, or refused where no child could be made; `box` where
    the whole box is gone, with why in `error`."""

    how: str
    status: int = 0
    out: bytes = b""
    error: str = ""


class CodeBox:
    """One box, open until it is closed. Not for several threads."""

    def __init__(self, sandbox: Sandbox, limits: Limits, packages: Sequence[str], source: str) -> None:
        """`source`: what will run, so that the modules it imports are loaded once."""
        self._until = time.monotonic() + limits.wall_seconds
        self.box: Box = sandbox.open(_START, files={"inside.bin": program()}, limits=limits, packages=tuple(packages))
        named = set(_IMPORT.findall(source))
        modules = sorted(named & _WARM if not packages else named - {"solution", "antigravity", "this"})
        reply = self._exchange(marshal.dumps({"do": "prepare", "modules": modules}))
        if reply != b"R":
            self.close()
            why = reply.error if isinstance(reply, Ended) else "it sent something else than expected"
            raise SandboxError(f"a box for code ended before anything ran in it: {why}")

    def close(self) -> None:
        self.box.close()

    def order(self, **order: Any) -> bytes | Ended:
        """The child's first message, or how it ended."""
        return self._read(self._exchange(marshal.dumps(order)))

    def pass_on(self, message: bytes) -> bytes | Ended:
        """Send the message to the running child; its next message, or how it ended."""
        return self._read(self._exchange(b"P" + message))

    def _exchange(self, frame: bytes) -> bytes | Ended:
        try:
            self.box.send(frame)
            return self.box.receive(max(1.0, self._until - time.monotonic() + 5))
        except BoxTimeout:
            raise SandboxError("a box lived on past its time") from None
        except BoxEnded as ended:
            return Ended("box", ended.ran.status or 0, b"", ended.ran.end)

    def _read(self, reply: bytes | Ended) -> bytes | Ended:
        if isinstance(reply, Ended):
            return reply
        if reply[:1] == b"P":
            return reply[1:]
        how = _ENDS.get(reply[1:2].decode("ascii", "replace"))
        length = int.from_bytes(reply[6:10], "big")
        if reply[:1] != b"D" or how is None or len(reply) < 10 + length:
            self.box.kill()
            return Ended("box", error="a forged answer")
        status = int.from_bytes(reply[2:6], "big", signed=True)
        return Ended(how, status, reply[10 : 10 + length], reply[10 + length :].decode("utf-8", "replace").strip())


assert _WARM.issubset(sys.stdlib_module_names)
