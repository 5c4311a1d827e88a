"""For tests only: dies by SIGKILL at a named point, so that a test can end a trainer exactly there.

The variable GRPO_FAULT names the point, such as `checkpoint:renamed`, or with `@3` its third passing. Nothing sets it
outside the tests. Each point is marked in the code as `fault("…")`.
"""

import os
import signal

_point, _, _nth = os.environ.get("GRPO_FAULT", "").partition("@")
_left = int(_nth or 1)


def fault(point: str) -> None:
    """Die here if this is the named point."""
    global _left
    if point != _point:
        return
    _left -= 1
    if _left == 0:
        os.kill(os.getpid(), signal.SIGKILL)


def triggered(point: str) -> bool:
    """Whether this is the named point at its named passing; nothing dies here: the code continues wrongly."""
    global _left
    if point != _point:
        return False
    _left -= 1
    return _left == 0


def arm(spec: str) -> None:
    """Name another point; for a test's forked children, which share the variable's value at the import."""
    global _point, _left
    _point, _, nth = spec.partition("@")
    _left = int(nth or 1)
