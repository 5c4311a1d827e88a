"""What the self-test tries for real in a box: each trial is an attempt that must fail, with its proof seen from outside
where there is one."""

import os
import socket
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from grpo_core.errors import SandboxError
from grpo_core.sandbox.limits import Limits, Ran
from grpo_core.sandbox.report import Check, Level
from grpo_core.sandbox.sandbox import Sandbox

_LIMITS = Limits(
    wall_seconds=20, cpu_seconds=10, memory_bytes=256 * 2**20, processes=8, tmp_bytes=4 * 2**20, file_bytes=2 * 2**20
)


@dataclass(frozen=True, slots=True)
class SelfTestCase:
    name: str
    program: str
    held: str
    """The report's text when the box held."""
    kept: Callable[[Ran], bool] = lambda ran: _prints(ran, b"refused")
    """Whether the box held."""
    limits: Limits = _LIMITS
    only: Level | None = None


def _prints(ran: Ran, word: bytes) -> bool:
    return ran.end == "exited" and ran.status == 0 and ran.stdout.strip() == word


SELF_TEST_CASES = (
    SelfTestCase("program", "print(6 * 7)", "a program ran", lambda ran: _prints(ran, b"42")),
    SelfTestCase(
        "network",
        """
import sys
try:
    import socket
    socket.create_connection(("127.0.0.1", int(sys.argv[1])), 2)
except OSError:
    print("refused")
""",
        "a server on this machine could not be reached",
    ),
    SelfTestCase(
        "files of the machine",
        """
import os, sys
for path in (sys.argv[2], "/etc/passwd", f"/proc/{sys.argv[3]}/environ"):
    try:
        open(path).read()
    except OSError:
        continue
    print("read", path)
try:
    open(os.path.join(os.path.dirname(os.__file__), "cohort-was-here"), "w")
    print("wrote")
except OSError:
    print("refused")
""",
        "a file that everybody may read could not be read, and nothing written beside /tmp",
    ),
    SelfTestCase(
        "other processes",
        """
import os, sys
try:
    os.kill(int(sys.argv[3]), 0)
    print("reached", sys.argv[3])
except OSError:
    print("refused")
""",
        "the process that asked could not be signalled",
    ),
    SelfTestCase(
        "fork bomb",
        """
import os, time
born = 0
try:
    while born < 4000:
        if os.fork() == 0:
            time.sleep(60)
            os._exit(0)
        born += 1
except OSError:
    print("refused")
""",
        "the kernel refused more processes",
    ),
    SelfTestCase(
        "memory",
        "try:\n    bytearray(2**30)\nexcept MemoryError:\n    print('refused')",
        "more memory than allowed was refused",
    ),
    SelfTestCase(
        "disk",
        """
import os
try:
    for number in range(8):
        with open(f"/tmp/{number}", "wb") as file:
            file.write(bytes(2**20))
except OSError:
    print("refused")
""",
        "/tmp took no more than its size",
        only="bubblewrap",
    ),
    SelfTestCase(
        "length of files",
        """
import os
try:
    with open(os.path.join(os.environ["TMPDIR"], "long"), "wb") as file:
        file.write(bytes(3 * 2**20))
except OSError:
    print("refused")
""",
        "a file was kept to its length",
    ),
    SelfTestCase(
        "new namespaces and system calls",
        """
import ctypes, errno
libc = ctypes.CDLL(None, use_errno=True)
assert libc.prctl(21) == 2, "no filter"  # PR_GET_SECCOMP
assert libc.unshare(0x10000000) == -1 and ctypes.get_errno() == errno.EPERM, "a user namespace"
assert libc.ptrace(0, 0, 0, 0) == -1 and ctypes.get_errno() == errno.EPERM, "ptrace"
assert libc.syscall(425, 8, None) == -1 and ctypes.get_errno() == errno.EPERM, "io_uring"
print("refused")
""",
        "user namespaces, ptrace and io_uring are closed",
    ),
    SelfTestCase(
        "wall clock",
        "import time\ntime.sleep(600)",
        "a program that waits was killed",
        lambda ran: ran.end == "wall",
        limits=Limits(wall_seconds=0.1),
    ),
    SelfTestCase(
        "output",
        "while True:\n    print('x' * 10000)",
        "a flood was cut and stopped",
        lambda ran: ran.end == "output" and len(ran.stdout) == 1024,
        limits=Limits(output_bytes=1024),
    ),
)


def tried(sandbox: Sandbox) -> tuple[Check, ...]:
    """Every trial that applies to the sandbox's level. Raises SandboxError when a box cannot be made."""
    checks: list[Check] = []
    with _server() as (port, reached), tempfile.TemporaryDirectory(prefix="cohort-canary-") as folder:
        Path(folder).chmod(0o755)
        canary = Path(folder) / "canary"
        canary.write_text("seen", encoding="utf-8")
        canary.chmod(0o644)
        for trial in SELF_TEST_CASES:
            if trial.only in (None, sandbox.report.level):
                arguments = [str(port), str(canary), str(os.getpid())]
                ran = sandbox.run(trial.program, arguments=arguments, limits=trial.limits)
                kept = trial.kept(ran) and not reached()
                checks.append(Check(trial.name, kept, trial.held if kept else _described(ran)))
    return tuple(checks)


def failed(checks: tuple[Check, ...]) -> None:
    """Raises SandboxError when a trial found the box open."""
    if failures := [f"{check.name}: {check.detail}" for check in checks if not check.passed]:
        raise SandboxError(f"the self-test found the box open ({'; '.join(failures)})")


def _described(ran: Ran) -> str:
    output = (ran.stdout + ran.stderr).decode("utf-8", "replace").strip()
    return f"ended {ran.end}, status {ran.status}, and said {output[-300:]!r}"


@contextmanager
def _server() -> Iterator[tuple[int, Callable[[], bool]]]:
    """A port on which this machine listens, and whether anything connected."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.setblocking(False)

        def reached() -> bool:
            try:
                listening.accept()[0].close()
            except BlockingIOError:
                return False
            return True

        yield listening.getsockname()[1], reached
