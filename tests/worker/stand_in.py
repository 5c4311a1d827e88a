"""The program that stands in for the trainer (child.py), as a supervisor starts it, in a process of its own or here."""

import os
import sys
from pathlib import Path

from worker.folders.run_folder import Command

ROOT = Path(__file__).parents[2]
SHIM = {"PYTHONPATH": os.pathsep.join(str(ROOT / folder) for folder in ("tests/worker/shim", "", "platform"))}
# The checkout is not on the child's path when the tests run from an installed package.
_RUN = f"import sys; sys.path.insert(0, {str(ROOT)!r}); from tests.worker import child; child.main(*sys.argv[1:])"


def child(mode: str) -> Command:
    """The stand-in trainer; its process id lies in the folder while it runs."""

    def command(folder: Path, resume_from: list[Path]) -> list[str]:
        words = [sys.executable, "-c", _RUN, mode, str(folder), *map(str, resume_from)]
        return ["sh", "-c", 'echo $$ > pid; exec "$@"', "sh", *words]

    return command


def stand_in(mode: str) -> dict[str, str]:
    """Variables of a worker whose trainers are of this mode."""
    return {**SHIM, "PYTHONCHAOS_TRAINER": mode}
