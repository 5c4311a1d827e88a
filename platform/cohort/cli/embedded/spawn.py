"""Starts one child process that must not outlive `cohort up`, and then becomes it.

`python -m cohort.cli.embedded.spawn PARENT SIGNAL UID GID COMMAND …`: drops to the user when UID is not our own, asks
the kernel (Linux) to send SIGNAL when the parent dies, and replaces itself by COMMAND. It is a separate program because
code between fork and exec in a process with threads can hang.
"""

import ctypes
import os
import signal
import sys
from collections.abc import Sequence

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36


def command(
    argv: Sequence[str], *, death_signal: int = signal.SIGTERM, user: tuple[int, int] | None = None
) -> list[str]:
    """The command line that runs `argv` under this launcher; `user` is (uid, gid), or None for our own."""
    uid, gid = user or (os.geteuid(), os.getegid())
    launcher = [sys.executable, "-P", "-m", "cohort.cli.embedded.spawn"]
    return [*launcher, str(os.getpid()), str(int(death_signal)), str(uid), str(gid), *argv]


def adopt_orphans() -> None:
    """Make processes whose parent died children of this one, so that none of ours is ever out of sight (Linux)."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def _prctl(option: int, value: int) -> None:
    if sys.platform == "linux":
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.prctl(option, value, 0, 0, 0) != 0:
            raise OSError(ctypes.get_errno(), "prctl failed")


def main(argv: Sequence[str]) -> None:
    parent, death_signal, uid, gid = (int(word) for word in argv[:4])
    if os.geteuid() != uid:
        os.setgroups([])
        os.setgid(gid)
        os.setuid(uid)
    _prctl(_PR_SET_PDEATHSIG, death_signal)  # after setuid, which clears it
    if os.getppid() != parent:
        sys.exit("the process that started this one is gone")
    os.execvp(argv[4], list(argv[4:]))


if __name__ == "__main__":
    main(sys.argv[1:])
