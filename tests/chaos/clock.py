"""A wall clock that can be moved for some processes of a machine, in the middle of their work."""

import subprocess
from pathlib import Path

from tests.worker.stand_in import SHIM

SOURCE = Path(__file__).with_name("clock.c")


class Clock:
    """Give `settings` to a process; whatever it starts that passes on Python's variables follows, the trainer too."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / "shift"
        self._library = folder / "clock.so"
        self.move(0)
        subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", str(self._library), str(SOURCE)], check=True)

    @property
    def settings(self) -> dict[str, str]:
        return {**SHIM, "PYTHONCHAOS_PRELOAD": str(self._library), "PYTHONCHAOS_CLOCK": str(self._file)}

    def move(self, seconds: int) -> None:
        """From now on the clock is so far ahead of the machine's (negative: behind)."""
        with self._file.open("r+b" if self._file.exists() else "wb") as handle:
            handle.write(seconds.to_bytes(8, "little", signed=True))
