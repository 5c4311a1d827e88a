"""What a box may use, how a program in it ended, and the two ways in which waiting for one can fail. No behaviour."""

from dataclasses import dataclass
from typing import Literal

End = Literal["exited", "signal", "wall", "cpu", "memory", "output", "processes"]
"""How a boxed program ended, by what was done to it or seen from outside:
exited     it left by itself; `Ran.status` is its exit status
signal     a signal ended it, or `Box.kill`; `Ran.status` is minus the signal's number
wall       killed: `wall_seconds` were over
cpu        killed by the kernel: one of its processes had used `cpu_seconds`
memory     killed by the kernel: its control group had used `memory_bytes` (never where no control group is writable:
           there a program at its limit gets MemoryError and ends as it likes)
output     killed: it printed more than 64 times `output_bytes`, or sent a frame that is too long or not its own
processes  it failed and had been refused a process by its control group (never without one)
"""

OUTPUT_FACTOR = 64
"""A program that prints this many times what is kept is stopped: it only burns the machine."""
MOST_FRAME = 16 * 2**20
"""Bytes of the longest frame that a box may send."""


@dataclass(frozen=True, slots=True)
class Limits:
    """All but the wall clock are set inside the box before the program starts, and it cannot raise them."""

    wall_seconds: float = 10.0
    """From the program's start to the kill of the whole box; `inf` for a box that lives long."""
    cpu_seconds: int = 10
    """Of each process."""
    memory_bytes: int = 512 * 2**20
    """Address space of each process; where a control group is writable, also the memory of all together."""
    processes: int = 16
    """Processes and threads at once, besides the two that hold the box."""
    file_bytes: int = 16 * 2**20
    """Length of each file it writes."""
    tmp_bytes: int = 64 * 2**20
    """Size of /tmp, the only place that it can write to."""
    open_files: int = 64
    output_bytes: int = 64 * 1024
    """Kept of stdout and of stderr each. What comes after is read and dropped."""

    def __post_init__(self) -> None:
        for name in ("cpu_seconds", "memory_bytes", "processes", "file_bytes", "tmp_bytes", "open_files"):
            if getattr(self, name) < 1:
                raise ValueError(f"Limits.{name} is {getattr(self, name)}; it must be at least 1")
        if not self.wall_seconds > 0:
            raise ValueError(f"Limits.wall_seconds is {self.wall_seconds}; it must be more than 0")
        if self.output_bytes < 0:
            raise ValueError(f"Limits.output_bytes is {self.output_bytes}; it must not be negative")


@dataclass(frozen=True, slots=True)
class Ran:
    """What a program in a box did, from its start to its end. Our own failures are never reported as one of these."""

    end: End
    status: int | None
    """The exit status for `exited`; minus the signal's number for `signal`; None when it was stopped for a limit."""
    stdout: bytes
    stderr: bytes
    stdout_cut: bool
    stderr_cut: bool
    seconds: float
    """From the program's start, without the launch of the box."""


class BoxTimeout(Exception):
    """No frame came within the requested time. The box lives on: kill it or receive again."""


class BoxEnded(Exception):
    """The box is gone, and so is everything that ran in it."""

    def __init__(self, ran: Ran) -> None:
        super().__init__(f"the program in the box has ended ({ran.end}, status {ran.status})")
        self.ran = ran
