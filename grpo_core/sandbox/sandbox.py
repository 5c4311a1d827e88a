"""Runs untrusted programs, each in a separate box. A Ran is always the program's own doing; whatever
goes wrong on our side is a SandboxError, so that a sample is never scored for it."""

import fcntl
import marshal
import os
import secrets
import select
import socket
import struct
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress

from grpo_core.errors import SandboxError
from grpo_core.runtime.cgroups import Cgroup
from grpo_core.sandbox.box import NONCE, Box, Launched, Watch
from grpo_core.sandbox.limits import Limits, Ran
from grpo_core.sandbox.reaper_client import ReaperClient
from grpo_core.sandbox.report import Report
from grpo_core.sandbox.spec import LAUNCHER, Backend, BoxSpec, Recipe

LAUNCH_SECONDS = 60.0
"""A box that is not up by then is our own failure."""
_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE
_CREDENTIALS = socket.CMSG_SPACE(struct.calcsize("iii"))
_PLAIN = Limits()


class Sandbox:
    """Thread-safe. What it starts ends with this process."""

    def __init__(self, report: Report, backend: Backend) -> None:
        self.report = report
        self._backend = backend
        self._reaper = ReaperClient(backend.dropped)

    def run(
        self,
        program: str,
        *,
        arguments: Sequence[str] = (),
        files: Mapping[str, bytes] = {},
        stdin: bytes = b"",
        limits: Limits = _PLAIN,
        packages: Sequence[str] = (),
    ) -> Ran:
        """One Python program (source text), to its end.

        `files`: relative paths below the box's working folder /box, which the program can only read. `packages`:
        installed distributions that it may import, with what they need. Raises SandboxError when there is no box.
        """
        launched = self._launch(BoxSpec(program, tuple(arguments), files, stdin, limits, tuple(packages), False), b"")
        launched.channel.close()
        return Watch(launched, time.monotonic()).run()

    def open(
        self,
        program: str,
        *,
        arguments: Sequence[str] = (),
        files: Mapping[str, bytes] = {},
        limits: Limits = _PLAIN,
        packages: Sequence[str] = (),
    ) -> Box:
        """The same, held open, with a private channel: the program imports `boxed`, and `sys.argv[1]` is the number of
        the channel's descriptor."""
        nonce = secrets.token_bytes(NONCE)
        spec = BoxSpec(program, tuple(arguments), files, b"", limits, tuple(packages), True)
        return Box(self._launch(spec, nonce), nonce, time.monotonic())

    def close(self) -> None:
        """Ends every box. A later call starts anew."""
        self._reaper.close()

    def _launch(self, spec: BoxSpec, nonce: bytes) -> Launched:
        """A box whose limits are set and whose program starts now. Raises SandboxError."""
        recipe = self._backend.recipe(spec.checked())
        try:
            launched = self._start(spec, recipe)
        except OSError as error:
            raise SandboxError(f"a box could not be started: {error.strerror or error}") from error
        launched.group = Cgroup.make_limited(spec.limits.memory_bytes, spec.limits.processes)
        deadline = time.monotonic() + LAUNCH_SECONDS
        try:
            launched.channel.sendall(len(LAUNCHER).to_bytes(4, "big") + LAUNCHER)
            process = _expect(launched.channel, b"R", deadline)
            if launched.group is not None:
                launched.group.take(process)
            setup = marshal.dumps(recipe.setup)
            launched.channel.sendall(len(setup).to_bytes(4, "big") + setup + nonce)
            _expect(launched.channel, b"S", deadline)
        except (OSError, _Unexpected) as error:
            raise SandboxError(_what_went_wrong(launched, error)) from None
        return launched

    def _start(self, spec: BoxSpec, recipe: Recipe) -> Launched:
        with ExitStack() as theirs, ExitStack() as ours:

            def given(descriptor: int) -> int:
                theirs.callback(os.close, descriptor)
                return descriptor

            def kept(descriptor: int) -> int:
                ours.callback(os.close, descriptor)
                return descriptor

            stdin = given(_memory(spec.stdin) if spec.stdin else os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC))
            out, out_theirs = os.pipe2(os.O_CLOEXEC)
            streams = [kept(out), given(out_theirs)]
            err, err_theirs = os.pipe2(os.O_CLOEXEC)
            streams += [kept(err), given(err_theirs)]
            channel, channel_theirs = socket.socketpair()
            ours.enter_context(channel)
            theirs.enter_context(channel_theirs)
            channel.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
            data = [given(_memory(content)) for content in recipe.data]
            descriptors = [stdin, out_theirs, err_theirs, channel_theirs.fileno(), *data]
            message = {
                "words": list(recipe.words),
                "environment": recipe.environment,
                "info_at": recipe.info_at,
                "folder": recipe.folder,
            }
            life = self._reaper.start(message, descriptors)
            ours.pop_all()
        return Launched(channel, life, out, err, None, spec.limits, held=recipe.info_at is not None)


class _Unexpected(Exception):
    pass


def _expect(channel: socket.socket, word: bytes, deadline: float) -> int:
    """The pid of the process that sent the message. Raises _Unexpected for anything else."""
    poll = select.poll()
    poll.register(channel, select.POLLIN)
    if not poll.poll(max(0.0, deadline - time.monotonic()) * 1000):
        raise _Unexpected(f"it was not up within {LAUNCH_SECONDS:g} s")
    received, extra, _, _ = channel.recvmsg(1, _CREDENTIALS)  # what follows may be a frame already
    if received != word:
        raise _Unexpected(channel.recv(4096).decode("utf-8", "replace") if received else "")
    return next((struct.unpack("iii", data[:12])[0] for _, kind, data in extra if kind == socket.SCM_CREDENTIALS), 0)


def _what_went_wrong(launched: Launched, error: Exception) -> str:
    launched.kill()
    launched.channel.close()
    watch = Watch(launched, time.monotonic())
    with suppress(SandboxError):
        watch.run()
    stderr = bytes(watch.err.data).decode("utf-8", "replace").strip()
    reasons = [line for line in (str(error), watch.trouble, stderr) if line]
    return f"a box could not be made: {'; '.join(reasons) or 'it ended at once'}"


def _memory(content: bytes) -> int:
    """A descriptor from which the content is read, and which nobody can write to."""
    descriptor = os.memfd_create("box", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    left = memoryview(content)
    while left:
        left = left[os.write(descriptor, left) :]
    os.lseek(descriptor, 0, os.SEEK_SET)
    fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, _SEALS)
    return descriptor
