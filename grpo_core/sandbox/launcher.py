"""First Python in a box: it sets the limits where the program cannot raise them, tells the outside that the box
stands, and runs the program as `__main__`. Before the program starts, whatever goes wrong here is our trouble and is
reported as such over the channel, on which this text comes compiled (see `texts.BOOT`).

Talk on the channel after that: "R" ready → length and marshalled setup (then 32 bytes of nonce, if held open) → "S"
started, or "E" and why not.
"""

from __future__ import annotations

import marshal
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:  # importing it would cost at every launch
    import types
    from typing import Any

CHANNEL = 3


def exactly(count: int) -> bytes:
    parts = []
    while count:
        part = os.read(CHANNEL, count)
        if not part:
            os._exit(0)  # nobody is out there: nothing may run
        parts.append(part)
        count -= len(part)
    return b"".join(parts)


def prepare() -> tuple[bytes, types.ModuleType]:
    os.closerange(4, 1024)
    os.set_inheritable(CHANNEL, False)
    os.write(CHANNEL, b"R")
    setup = marshal.loads(exactly(int.from_bytes(exactly(4), "big")))
    # Where the box has no root of its own, the reaper gives it a folder.
    folder = os.environ.pop("BOX", "") + "/box"
    if setup["landlock_child"]:
        child: dict[str, Any] = {}
        exec(setup["landlock_child"], child)
        child["confine_self"](setup, folder)
    import resource

    for name, soft, hard in setup["limits"]:
        kind = getattr(resource, name)
        most = resource.getrlimit(kind)[1]
        if most != resource.RLIM_INFINITY:
            soft, hard = min(soft, most), min(hard, most)
        resource.setrlimit(kind, (soft, hard))
    if setup["helper"]:
        import ctypes

        nonce = bytearray(32)
        view = memoryview(nonce)
        while view:
            view = view[os.readv(CHANNEL, [view]) :]
        if ctypes.CDLL(None, use_errno=True).prctl(4, 0, 0, 0, 0):  # PR_SET_DUMPABLE
            raise OSError(ctypes.get_errno(), "PR_SET_DUMPABLE")
        channel = type(sys)("boxed")
        exec(setup["helper"], channel.__dict__)
        names = ("receive", "send", "close_in_children", "fork_without_channel")
        channel.__dict__.update(zip(names, channel.__dict__.pop("_make")(CHANNEL, nonce), strict=True))
        sys.modules["boxed"] = channel
    sys.argv[:] = [f"{folder}/program.py", *setup["argv"]]
    sys.path[:] = [folder, *sys.path, *setup["path"]]
    sys.dont_write_bytecode = True
    with open(sys.argv[0], "rb") as file:
        source = file.read()
    main = type(sys)("__main__")
    main.__file__ = sys.argv[0]
    sys.modules["__main__"] = main
    os.write(CHANNEL, b"S")
    if not setup["helper"]:
        os.close(CHANNEL)
    return source, main


def print_error(kind: type[BaseException], error: BaseException, trace: types.TracebackType | None) -> None:
    """Print it as Python does, without the frames of this file."""
    while trace is not None and trace.tb_frame.f_code.co_filename in ("<string>", "<launcher>"):
        trace = trace.tb_next
    sys.__excepthook__(kind, error.with_traceback(trace), trace)


try:
    source, main = prepare()
except (OSError, ValueError, KeyError) as error:
    os.write(CHANNEL, f"E{type(error).__name__}: {error}".encode())
    os._exit(1)
sys.excepthook = print_error
exec(compile(source, sys.argv[0], "exec", dont_inherit=True), main.__dict__)
