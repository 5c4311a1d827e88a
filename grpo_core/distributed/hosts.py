"""One run over several machines: the first one starts a part on each of the others through a remote shell, sends it
its plan over standard input, and keeps that pipe open to forward stop requests (part.py).

When one machine's part ends badly, all others are ended. Loads no torch.
"""

import json
import os
import shlex
import signal
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Any

from grpo_core.config.kinds import AnyConfig
from grpo_core.distributed.environment import PARENT, environment, torchrun
from grpo_core.distributed.part import GRACE, PAUSE
from grpo_core.errors import ConfigError, Interrupted

HOSTS = "GRPO_HOSTS"
"""The machines of a run, separated by commas. The first is this one, by the name or address that the others reach."""
REMOTE_SHELL = "GRPO_REMOTE_SHELL"
"""Called as `<these words> HOST <command>`."""

_PASSED = ("DS_", "GLOO_", "GRPO_", "HF_", "NCCL_", "OMP_", "PYTHON", "PYTORCH_", "TORCH", "TOKENIZERS_", "VLLM_")
"""Beginnings of the variables that the parts on other machines get from the first."""
_OWN = (HOSTS, REMOTE_SHELL, PARENT, "VLLM_HOST_IP")
"""Of the first machine alone; the last is its address."""


def over_hosts(config: AnyConfig, words: Sequence[str], *, inputs: Sequence[Path]) -> int:
    """Run `grpo <words>` once for each device of each machine; the status of the first part that failed, −n where
    signal n killed it, or 0. `inputs`: what every machine must find. Raises ConfigError."""
    engine = config.engine
    hosts = _hosts(engine.nodes)
    meeting = ["--master-addr", hosts[0], "--master-port", str(_free_port()), "--rdzv-id", uuid.uuid4().hex]
    parts: list[_Part] = []
    plan = {
        "folder": os.getcwd(),
        "environment": passed_on(os.environ) | environment(engine),
        # Absolute path, size in bytes; null for a folder.
        "inputs": [[str(path.resolve()), None if path.is_dir() else path.stat().st_size] for path in inputs],
    }
    shell = shlex.split(os.environ.get(REMOTE_SHELL, "ssh -o BatchMode=yes"))
    try:
        # The others first: one that cannot be started is reported before the first machine has begun the run directory.
        for number, host in enumerate(hosts[1:], start=1):
            there = torchrun(engine, ["--node-rank", str(number), *meeting], words)
            command = [*shell, host, sys.executable, "-m", "grpo_core.distributed.part"]
            parts.append(_Part(host, command, os.environ, plan={**plan, "host": host, "command": there}))
        here = torchrun(engine, ["--node-rank", "0", *meeting], words)
        parts.insert(0, _Part(hosts[0], here, {**os.environ, **environment(engine), PARENT: str(os.getpid())}))
        return _watch(parts)
    finally:
        for part in parts:
            part.kill()


def passed_on(variables: Mapping[str, str]) -> dict[str, str]:
    """Of the first machine's variables, those that the parts on other machines get."""
    return {name: value for name, value in variables.items() if name.startswith(_PASSED) and name not in _OWN}


def _hosts(count: int) -> list[str]:
    named = [name.strip() for name in os.environ.get(HOSTS, "").split(",") if name.strip()]
    if len(named) < count:
        problem = f"{HOSTS} names {len(named)} ({', '.join(named)})" if named else f"{HOSTS} is not set"
        raise ConfigError(
            f"engine.nodes is {count}, and {problem}. Name {count} machines, this one first, as the others reach it: "
            f"{HOSTS}=gpu-1,gpu-2 (for a worker: COHORT_HOSTS); or set engine.nodes: 1"
        )
    return named[:count]


def _free_port() -> int:
    with socket.create_server(("", 0)) as probe:
        return int(probe.getsockname()[1])


class _Part:
    """What runs on one machine: torchrun itself on the first, a remote shell for each of the others."""

    def __init__(
        self, host: str, command: list[str], variables: Mapping[str, str], *, plan: Mapping[str, Any] | None = None
    ) -> None:
        """Start it. Raises ConfigError when the command is not there."""
        self.host = host
        self._remote = plan is not None
        try:
            # Its own group: a terminal's Ctrl-C comes to us alone, and we pass it on once.
            self._process = subprocess.Popen(
                command,
                env=dict(variables),
                stdin=subprocess.PIPE if self._remote else subprocess.DEVNULL,
                bufsize=0,
                process_group=0,
            )
        except OSError as error:
            raise ConfigError(
                f"cannot start {command[0]} for {host}: {error.strerror}. {REMOTE_SHELL} (for a worker: "
                "COHORT_REMOTE_SHELL) names the command that reaches another machine"
            ) from None
        if plan is not None:
            self._say(json.dumps(plan))

    def status(self) -> int | None:
        """As Popen.returncode has it; a remote shell's 128 + n means signal n too."""
        code = self._process.poll()
        return 128 - code if self._remote and code is not None and 128 < code < 160 else code

    def stop(self) -> None:
        if self._remote:
            self._say("stop")
        elif self.status() is None:
            self._process.terminate()

    def kill(self) -> None:
        """End it at once and wait until that is so, for another machine's part at most GRACE seconds."""
        process = self._process
        if process.poll() is not None:
            return
        if self._remote:
            self._say("kill")
            assert process.stdin is not None
            process.stdin.close()
            with suppress(subprocess.TimeoutExpired):
                process.wait(GRACE)
        process.kill()
        process.wait()

    def _say(self, line: str) -> None:
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):  # it has ended; its status shows how
            self._process.stdin.write(line.encode() + b"\n")


def _watch(parts: Sequence[_Part]) -> int:
    """Wait for all parts and pass signals on; the status of the first that failed, or 0."""
    received: list[int] = []
    first: int | None = None
    ends_at: float | None = None

    def forward(number: int, frame: FrameType | None) -> None:
        received.append(number)

    before = {number: signal.signal(number, forward) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)}
    handled = 0
    try:
        while any(part.status() is None for part in parts):
            if len(received) > handled:
                handled = len(received)
                for part in parts:
                    if handled == 1:
                        part.stop()
                    else:
                        part.kill()
            # Where all are asked to stop, a part that does so is no failure: another may still write its checkpoint.
            good = (None, 0, Interrupted.exit_status) if received else (None, 0)
            failed = next((part for part in parts if part.status() not in good), None)
            if first is None and failed is not None:
                first = failed.status()
                assert first is not None
                print(f"grpo: the part on {failed.host} ended {_how(first)}; all others are ended", file=sys.stderr)
                ends_at = time.monotonic() + GRACE
                for part in parts:
                    part.stop()
            if ends_at is not None and time.monotonic() > ends_at:
                for part in parts:
                    part.kill()
            time.sleep(PAUSE)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    return first or next((status for part in parts if (status := part.status())), 0)


def _how(status: int) -> str:
    if status < 0:
        return f"by signal {signal.Signals(-status).name}"
    return f"with status {status}" + (" (the remote shell's own: could it not connect?)" if status == 255 else "")
