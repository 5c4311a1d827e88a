"""For tests only: dies by SIGKILL at a named point, so that a test can end a trainer exactly there.

The variable GRPO_FAULT names the point, such as `checkpoint:renamed`, or with `@3` its third passing. Nothing sets it
outside the tests. Each point stands in the code as `fault("…")`.
"""

import os
import signal

_wanted, _, _nth = os.environ.get("GRPO_FAULT", "").partition("@")
_left = int(_nth or 1)


def fault(point: str) -> None:
    """Die here if this is the point asked for."""
    global _left
    if point != _wanted:
        return
    _left -= 1
    if _left == 0:
        os.kill(os.getpid(), signal.SIGKILL)


def asked(point: str) -> bool:
    """Whether this is the point asked for, at the passing asked for; nothing dies here: the code continues wrongly."""
    global _left
    if point != _wanted:
        return False
    _left -= 1
    return _left == 0


def arm(spec: str) -> None:
    """Ask for another point; for a test's forked children, which share what the variable said at the import."""
    global _wanted, _left
    _wanted, _, nth = spec.partition("@")
    _left = int(nth or 1)
