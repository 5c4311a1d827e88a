"""The program that stands in for the trainer (child.py), as a supervisor starts it. Knows no Django."""

import os
import sys
from pathlib import Path

from worker.run_folder import Command

ROOT = Path(__file__).parents[2]

# The checkout is not on the child's path when the tests run from an installed package.
_RUN = (
    "import sys, runpy; root = sys.argv.pop(1); sys.path.insert(0, root); "
    "runpy.run_path(root + '/tests/worker/child.py', run_name='__main__')"
)


def child(mode: str) -> Command:
    """The stand-in trainer; its process id lies in the folder while it runs."""

    def command(folder: Path, resume_from: list[Path]) -> list[str]:
        words = [sys.executable, "-c", _RUN, str(ROOT), mode, str(folder), *map(str, resume_from)]
        return ["sh", "-c", 'echo $$ > pid; exec "$@"', "sh", *words]

    return command


def child_by_environment(spool_cap: int) -> Command:
    """Takes the place of `worker.run_folder.trainer_command` in a supervisor that is a process of its own."""
    return child(os.environ["TEST_MODE"])
