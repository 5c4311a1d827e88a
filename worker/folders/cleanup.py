"""Removes the checkpoints of a run's earlier attempts that, as the platform says, nobody needs any more.

Each attempt keeps its own checkpoints, and each set of them may be as large as the model and its optimiser: without
this a run that moved or failed a few times would hold several.
"""

import logging
import re
import shutil
from collections.abc import Sequence
from pathlib import Path

from grpo_core.files.checkpoint import remove_folder
from grpo_core.protocol.messages import OldCheckpoint

_A_CHECKPOINT = re.compile(r"checkpoints/step-\d+")

log = logging.getLogger(__name__)


class Cleanup:
    """Of one run, by its present attempt. One checkpoint is removed at a time, so that no beat waits long."""

    def __init__(self, run_folder: Path) -> None:
        """`run_folder` holds the folders of the run's attempts on this machine."""
        self._run = run_folder
        self.removed: list[OldCheckpoint] = []
        """To be reported with the next beat; emptied once they were."""

    def remove(self, needless: Sequence[OldCheckpoint]) -> None:
        """Remove the first of them that is here. A folder that this machine does not have is not reported: it may be on
        another disk of the same node."""
        for old in needless:
            if _A_CHECKPOINT.fullmatch(old.path) is None or old in self.removed:
                continue
            attempt = self._run / f"attempt-{old.fence}"
            if not attempt.is_dir():
                continue
            try:
                if (attempt / old.path).is_dir():
                    remove_folder(attempt / old.path)
                for fetched in attempt.glob("inputs/checkpoint-*"):
                    shutil.rmtree(fetched)
            except OSError as error:  # no reason to end a run: the platform names it again
                log.warning("%s: cannot remove a checkpoint that is not needed any more: %s", attempt, error)
                continue
            self.removed.append(old)
            return
