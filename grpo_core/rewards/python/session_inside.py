"""The program of a session's box: loads a kind's own program once, then answers one request after the other.

This text runs in the sandbox (grpo_core/rewards/python/session.py sends it there), so it uses the standard library and
`boxed` alone. What is printed while a request is answered is kept with it, cut; what is raised is reported by class.
"""

import io
import json
import os
import sys
import threading
import traceback
from collections.abc import Callable
from typing import Any

KEPT = 4096
MOST_PRINTED = 16 * 2**20
MAX_MESSAGE_CHARS = 2000
for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[_name] = "1"


class Trouble(BaseException):
    """What a kind's own program raises to tell the class of an error itself; code that it calls should not catch it."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


class Printed(io.TextIOBase):
    """Stands for stdout and stderr: keeps the beginning, and stops who prints without end."""

    def __init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        self.text, self.length = "", 0

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return "utf-8"

    def writable(self) -> bool:
        return True

    def write(self, text: str) -> int:
        if not isinstance(text, str):
            raise TypeError(f"write() takes a str, not {type(text).__name__}")
        self.length += len(text)
        if len(self.text) < KEPT:
            self.text += text[: KEPT - len(self.text)]
        if self.length > MOST_PRINTED:
            raise too_much()
        return len(text)


def too_much() -> Trouble:
    return Trouble("output", f"printed more than {MOST_PRINTED // 2**20} MiB for one sample")


def error_text(error: BaseException) -> str:
    try:
        words = str(error)
    except Exception:  # noqa: BLE001 - an exception's own __str__ may raise anything
        words = "(an exception that cannot be written)"
    if isinstance(error, BlockingIOError) or "can't start new thread" in words:
        words += " (the sandbox lets a verifier have 16 processes and threads)"
    return f"{type(error).__name__}: {words}"[:MAX_MESSAGE_CHARS]


def trace(error: BaseException, files: set[str]) -> str:
    """The places in `files` that the error went through, and the error."""
    frames = traceback.extract_tb(error.__traceback__)
    own = traceback.StackSummary.from_list([frame for frame in frames if frame.filename in files])
    text = "".join(own.format())
    return f"{text}{error_text(error)}" if text else ""


def attempt(work: Callable[[], dict[str, Any]], printed: Printed, files: set[str]) -> dict[str, Any]:
    """What `work` gave, or the error in its place; and what was printed meanwhile."""
    printed.begin()
    try:
        reply: dict[str, Any] = {"reply": work()}
    except Trouble as error:
        reply = {"class": error.kind, "error": str(error), "trace": ""}
    except MemoryError as error:
        error.__traceback__ = None
        reply = {"class": "memory", "error": "MemoryError: took more memory than it may take", "trace": ""}
    except BaseException as error:  # noqa: BLE001 - SystemExit too: whatever a verifier raises is an error of the sample
        reply = {"class": "verifier", "error": error_text(error), "trace": trace(error, files)}
    if printed.length > MOST_PRINTED and reply.get("class") != "output":  # it was caught
        reply = {"class": "output", "error": str(too_much()), "trace": ""}
    return {**reply, "printed": printed.text, "left": left_behind()}


def left_behind() -> str:
    """What continues after the answer was given: children that were not waited for, threads."""
    if threading.active_count() > 1:
        return "threads"
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return ""
    return "processes"


def main() -> None:
    import boxed  # type: ignore[import-not-found]

    boxed.close_in_children()
    sys.argv = [""]
    printed = Printed()
    sys.stdout = sys.stderr = printed
    first = json.loads(boxed.receive())
    names: dict[str, Any] = {"__name__": "kind", "Trouble": Trouble}
    files: set[str] = set(first["files"])

    def load() -> dict[str, Any]:
        exec(compile(first["program"], "<kind>", "exec"), names)
        names["load"](first["hello"])
        return {}

    boxed.send(json.dumps(attempt(load, printed, files)).encode())
    while True:
        request = json.loads(boxed.receive())
        reply = attempt(lambda request=request: names["answer"](request), printed, files)  # type: ignore[misc]
        boxed.send(json.dumps(reply).encode())


if __name__ == "__main__":
    main()
