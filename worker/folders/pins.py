"""Writes for the trainer which checkpoints must stay: those that a person pinned, and one that the platform knows of.

The trainer must not remove the newest one that the platform knows of: those after it are lost with this worker while
their records wait to be sent, and then no attempt could be resumed.
"""

import json
import logging
from collections.abc import Sequence
from pathlib import Path

from grpo_core.files.checkpoint import PINNED, pruning, step_folder

log = logging.getLogger(__name__)


class PruningNow(Exception):
    """The trainer removes checkpoints at this moment, so which stay is not known."""


class Pins:
    """Of one attempt: the pins that its trainer can read, and those to be written."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._steps: list[int] = []
        self._known: int | None = None
        """Step of the newest checkpoint that the platform knows of."""
        self._kept: int | None = None
        """Step of the newest of those pinned for the trainer, so that the run can be resumed."""
        self._written: tuple[list[int], int | None] = ([], None)

    def pin(self, steps: list[int]) -> None:
        """What people want kept by now. What could not be written is tried again by the next call."""
        self._steps = steps
        self._write()

    def known(self, step: int) -> None:
        """The platform holds the record of the checkpoint of this step."""
        self._known = step
        self._write()

    def _write(self) -> None:
        pins = (self._steps, self._known)
        if pins == self._written:
            return
        known = [step for step in (self._known, self._kept) if step is not None]
        try:
            self._kept = write_pinned(self._folder, self._steps, known)
        except PruningNow:
            return
        except OSError as error:  # no reason to end a run
            log.warning("%s: cannot write down which checkpoints stay: %s", self._folder, error)
        else:
            self._written = pins


def write_pinned(folder: Path, steps: list[int], known: Sequence[int] = ()) -> int | None:
    """Pin the checkpoints that must stay: those of `steps`, and the first of `known` that is still there.

    Returns that one's step. Raises PruningNow when the trainer is just removing some.
    """
    checkpoints = folder / "checkpoints"
    checkpoints.mkdir(exist_ok=True)
    with pruning(checkpoints) as may:
        if not may:
            raise PruningNow
        kept = next((step for step in known if (checkpoints / step_folder(step)).is_dir()), None)
        temporary = checkpoints / f".{PINNED}.part"
        temporary.write_text(json.dumps(sorted({*steps, *([] if kept is None else [kept])})) + "\n", encoding="utf-8")
        temporary.replace(checkpoints / PINNED)
    return kept
