"""Becomes the program given after the parent's process id, bound to die with that parent.

Run by file path in a bare interpreter (`python -I -S launch.py PARENT ARGV…`), between fork and the trainer: code
that must run in the child is safer here than in a fork of a process with threads.
"""

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def main() -> None:
    parent, argv = int(sys.argv[1]), sys.argv[2:]
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        sys.exit(f"cannot bind the trainer to its worker: {os.strerror(ctypes.get_errno())}")
    if os.getppid() != parent:
        sys.exit("the worker died before the trainer began")
    os.execvp(argv[0], argv)


if __name__ == "__main__":
    main()
