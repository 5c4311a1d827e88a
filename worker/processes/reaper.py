"""The reaper of one trainer: starts it, adopts whatever it leaves behind, and ends all of it with the supervisor.

Run by file path in a bare interpreter (`python -I -S reaper.py CGROUP PROGRAM…`), in its own session; it must import
nothing of the project, so that nothing the trainer's folder or environment holds can change what it does.

stdin is a pipe whose other end the supervisor alone holds: when it ends, by intent or because the supervisor died,
everything is killed. stdout sends the supervisor `started PID TICKS` and `ended STATUS` (negative: a signal). stderr
is the trainer's log. Every descendant stays below this process, however often it forks or opens sessions, because
orphans are given to it (sub-reaper); the trainer itself dies with it (parent-death signal).
"""

import ctypes
import errno
import os
import select
import signal
import sys
import time
from contextlib import suppress
from typing import NamedTuple

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
KILL_SECONDS = 60.0
"""After that the reaper leaves what the kernel will not end, so that it does not hang for ever itself."""
_TRAINER_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)


class Process(NamedTuple):
    """What /proc says of a process. `ticks` is when it began; with the id it tells two processes apart."""

    pid: int
    state: str
    parent: int
    session: int
    ticks: int

    @property
    def lives(self) -> bool:
        return self.state not in "ZX"


def process(pid: int) -> Process | None:
    """None when there is no such process, or the system hides it (hidepid): then it is another user's."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as handle:
            stat = handle.read()
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return None
    fields = stat.rpartition(b")")[2].split()  # the name before it may hold anything
    return Process(pid, fields[0].decode(), int(fields[1]), int(fields[3]), int(fields[19]))


def processes() -> list[Process]:
    return [row for name in os.listdir("/proc") if name.isdecimal() and (row := process(int(name))) is not None]


def below(root: int, table: list[Process]) -> list[Process]:
    """Descendants of `root`, itself not among them."""
    children: dict[int, list[Process]] = {}
    for row in table:
        children.setdefault(row.parent, []).append(row)
    descendants, waiting = [], [root]
    while waiting:
        for child in children.get(waiting.pop(), ()):
            descendants.append(child)
            waiting.append(child.pid)
    return descendants


def kill(target: Process, number: int = signal.SIGKILL) -> None:
    """Signal the very process that was seen, not one that has its id by now. One that may not be signalled, because it
    is another user's, stays: the caller's next look finds it.

    A kernel or sandbox without pidfds leaves a moment between look and signal in which the id could change hands.
    """
    handle = None
    try:
        handle = os.pidfd_open(target.pid)
        if _is_same(target):
            signal.pidfd_send_signal(handle, number)
    except ProcessLookupError:
        return
    except OSError as error:
        if error.errno not in (errno.ENOSYS, errno.EPERM):  # an old kernel; not allowed
            raise
        with suppress(ProcessLookupError, PermissionError):
            if _is_same(target):
                os.kill(target.pid, number)
    finally:
        if handle is not None:
            os.close(handle)


def _is_same(target: Process) -> bool:
    now = process(target.pid)
    return now is not None and now.ticks == target.ticks


def prctl(option: int, value: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, value, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), f"prctl {option}: {os.strerror(ctypes.get_errno())}")


def main() -> None:
    cgroup, argv = sys.argv[1], sys.argv[2:]
    for number in _TRAINER_SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    prctl(PR_SET_CHILD_SUBREAPER, 1)
    wakeup, wakeup_end = os.pipe()
    os.set_blocking(wakeup, False)
    os.set_blocking(wakeup_end, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wakeup_end, warn_on_full_buffer=False)
    me = os.getpid()
    bound, at_work = os.pipe()
    trainer = os.fork()
    if trainer == 0:
        _become(argv, reaper=me, cgroup=cgroup, at_work=at_work)
    os.close(at_work)
    os.read(bound, 1)  # until it has its session and its group: from then on signals to them reach it
    began = process(trainer)
    assert began is not None  # it cannot be gone before it is collected
    _report(f"started {trainer} {began.ticks}")
    reported = False
    while True:
        if not reported and (status := _status(trainer)) is not None:
            _report(f"ended {status}")
            reported = True
        collect_adopted(me, trainer)
        ready, _, _ = select.select([0, wakeup], [], [])
        if wakeup in ready:
            os.read(wakeup, 4096)
        if 0 in ready and not os.read(0, 4096):
            break
    _end_everything(me)
    if cgroup:
        with suppress(OSError):
            os.rmdir(cgroup)


def _become(argv: list[str], *, reaper: int, cgroup: str, at_work: int) -> None:
    """In the fork: turn into the trainer, leader of its own session. Closes `at_work` when it is."""
    try:
        signal.set_wakeup_fd(-1)
        for number in (*_TRAINER_SIGNALS, signal.SIGCHLD, signal.SIGPIPE, signal.SIGXFSZ):
            signal.signal(number, signal.SIG_DFL)
        os.setsid()
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != reaper:
            os._exit(1)
        if cgroup:
            with suppress(OSError), open(f"{cgroup}/cgroup.procs", "w") as handle:
                handle.write("0")  # where that is forbidden the supervisor sees that the group stays empty
        os.close(at_work)
        nothing = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nothing, 0)
        os.dup2(2, 1)
        os.execvp(argv[0], argv)
    except OSError as error:
        os.write(2, f"cannot start {argv[0]}: {type(error).__name__}: {error}\n".encode())
    os._exit(127)


def _status(trainer: int) -> int | None:
    """How the trainer ended. It is not collected, so that its id, which is its session's too, stays taken."""
    ended = os.waitid(os.P_PID, trainer, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    if ended is None:
        return None
    return ended.si_status if ended.si_code == os.CLD_EXITED else -ended.si_status


def collect_adopted(me: int, but: int) -> None:
    """Zombies that were given to process `me`, without the child `but`, which another call collects."""
    for row in processes():
        if row.parent == me and row.pid != but and not row.lives:
            with suppress(ChildProcessError):
                os.waitpid(row.pid, os.WNOHANG)


def _end_everything(me: int) -> None:
    deadline = time.monotonic() + KILL_SECONDS
    while time.monotonic() < deadline:
        for row in below(me, processes()):
            kill(row)
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return  # nobody is left
        time.sleep(0.01)


def _report(line: str) -> None:
    with suppress(BrokenPipeError):  # then the supervisor is gone, and stdin shows it next
        os.write(1, line.encode() + b"\n")


if __name__ == "__main__":
    main()
