"""What the launcher does first at the Landlock level: it lays out the box's files, then gives up, for itself and all
its children, every file but those named, the network, signals to others, and the calls of the filter. This text runs
inside the box, before the limits; whatever fails here is our trouble. Standard library only.

Source: landlock(7), linux/landlock.h, seccomp(2).
"""

from __future__ import annotations

import ctypes
import os
import struct

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

CREATE_RULESET, ADD_RULE, RESTRICT_SELF = 444, 445, 446
READ_DIR, WRITE_FILE = 1 << 3, 1 << 1
READ = 1 << 0 | 1 << 2 | READ_DIR  # with running it
DEVICES_AND_SOCKETS = 1 << 6 | 1 << 9 | 1 << 11  # making them
FILE_RIGHTS = 1 << 0 | 1 << 1 | 1 << 2 | 1 << 14 | 1 << 15


def confine_self(setup: dict[str, Any], folder: str) -> None:
    scratch = os.path.join(os.path.dirname(folder), "tmp")
    os.mkdir(scratch, 0o700)
    os.mkdir(folder, 0o700)
    for path, content in setup["files"].items():
        target = os.path.join(folder, path)
        os.makedirs(os.path.dirname(target), exist_ok=True)
        with open(target, "wb") as file:
            file.write(content)
    packages = os.path.join(os.path.dirname(folder), "packages")
    os.mkdir(packages, 0o700)
    for name, target in setup["packages"].items():
        link = os.path.join(packages, name)
        os.makedirs(os.path.dirname(link), exist_ok=True)
        os.symlink(target, link)
    setup["path"] = [packages]
    os.chdir(folder)
    os.environ.update(HOME=scratch, TMPDIR=scratch)
    with open("/proc/loadavg", "rb") as load:
        tasks = int(load.read().split()[3].partition(b"/")[2])
    # The kernel counts processes of a user over all boxes, so this one cannot be exact; see the level's weak points.
    setup["limits"] = [
        (name, soft + tasks, hard + tasks) if name == "RLIMIT_NPROC" else (name, soft, hard)
        for name, soft, hard in setup["limits"]
    ]
    libc = ctypes.CDLL(None, use_errno=True)

    def checked(result: int, what: str) -> int:
        if result < 0:
            raise OSError(ctypes.get_errno(), f"{what}: {os.strerror(ctypes.get_errno())}")
        return result

    abi = setup["abi"]
    rights = (1 << 13) - 1 | (abi >= 2) << 13 | (abi >= 3) << 14 | (abi >= 5) << 15
    attributes = struct.pack("=QQQ", rights, 3 if abi >= 4 else 0, 3 if abi >= 6 else 0)
    size = 24 if abi >= 6 else 16 if abi >= 4 else 8
    rules = checked(libc.syscall(CREATE_RULESET, attributes, size, 0), "Landlock's rules")

    def allow(path: str, access: int) -> None:
        descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
        if not os.path.isdir(path):
            access &= FILE_RIGHTS
        rule = struct.pack("=Qi", access & rights, descriptor)
        checked(libc.syscall(ADD_RULE, rules, 1, rule, 0), f"a rule for {path}")
        os.close(descriptor)

    for path in [*setup["readable"], *setup["packages"].values(), packages, folder]:
        allow(path, READ)
    for path in setup["listed"]:
        allow(path, READ_DIR)
    for path in ("/dev/null", "/dev/zero", "/dev/urandom", "/dev/random"):
        allow(path, READ | WRITE_FILE)
    allow(scratch, rights & ~DEVICES_AND_SOCKETS)
    checked(libc.prctl(1, 9, 0, 0, 0), "PR_SET_PDEATHSIG")
    checked(libc.prctl(38, 1, 0, 0, 0), "PR_SET_NO_NEW_PRIVS")
    checked(libc.syscall(RESTRICT_SELF, rules, 0), "Landlock")
    os.close(rules)
    text = setup["filter"].replace(setup["own_pid"].to_bytes(4, "little"), os.getpid().to_bytes(4, "little"))
    code = ctypes.create_string_buffer(text, len(text))

    class Program(ctypes.Structure):
        _fields_ = [("length", ctypes.c_ushort), ("code", ctypes.c_void_p)]

    program = Program(len(text) // 8, ctypes.cast(code, ctypes.c_void_p))
    checked(libc.prctl(22, 2, ctypes.byref(program), 0, 0), "PR_SET_SECCOMP")
