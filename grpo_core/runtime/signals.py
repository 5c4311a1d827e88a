"""Turns signals into a stop request that is handled between two pieces of work. Loads nothing heavy."""

import signal
from types import FrameType
from typing import Any, Self

from grpo_core.errors import Interrupted


class Stop:
    """While entered, turns SIGTERM or the first SIGINT into a stop request, seen at the trainer's next check; a second
    SIGINT kills. SIGTERM may come twice: from a service manager that signals everyone, and from the worker."""

    def __init__(self) -> None:
        self._requested_by: str | None = None
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Self:
        for number in (signal.SIGTERM, signal.SIGINT):
            self._before[number] = signal.signal(number, self._on_signal)
        return self

    def __exit__(self, *exception: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self._requested_by = signal.Signals(number).name
        if number == signal.SIGINT:
            signal.signal(number, signal.SIG_DFL)

    def raise_if_requested(self) -> None:
        """Raises Interrupted once a signal came."""
        if self._requested_by is not None:
            raise Interrupted(f"asked to stop by {self._requested_by}")
