"""Two hosts on one machine: network namespaces that reach each other, and this one, over a bridge, and nothing else.

They share the disk, as hosts of one run must. Root alone can make them. Names and addresses hold this process's id, so
that two test sessions on one machine do not meet.
"""

import os
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache

from tests.processes import clean_environment

INTERFACE = "eth0"
"""In every host."""
_OURS = f"co{os.getpid()}"
_NET = f"10.213.{1 + os.getpid() % 250}"
HERE = f"{_NET}.1"
"""This machine's address on the bridge."""
_BRIDGE = f"{_OURS}br"


JOINED = {"GLOO_SOCKET_IFNAME": INTERFACE, "OMP_NUM_THREADS": "1"}
"""Both hosts have one name, so gloo is told which interface leads to the other."""


@dataclass(frozen=True)
class Host:
    """A network namespace; as a machine it is known by its name to `ip netns exec` and by its address to others."""

    name: str
    address: str

    def words(self, words: Sequence[str]) -> list[str]:
        """The command, run there; `ip` becomes it, so the pid is its own."""
        return ["ip", "netns", "exec", self.name, *words]


@contextmanager
def hosts(count: int) -> Iterator[list[Host]]:
    """Made, joined, and taken away again. Raises CalledProcessError where this is not allowed."""
    made = [Host(f"{_OURS}-{number}", f"{_NET}.{10 + number}") for number in range(1, count + 1)]
    try:
        _ip("link", "add", _BRIDGE, "type", "bridge")
        _ip("addr", "add", f"{HERE}/24", "dev", _BRIDGE)
        _ip("link", "set", _BRIDGE, "up")
        for number, host in enumerate(made, start=1):
            outer = f"{_OURS}v{number}"
            _ip("netns", "add", host.name)
            _ip("link", "add", outer, "type", "veth", "peer", "name", INTERFACE, "netns", host.name)
            _ip("link", "set", outer, "master", _BRIDGE, "up")
            _ip("-n", host.name, "addr", "add", f"{host.address}/24", "dev", INTERFACE)
            _ip("-n", host.name, "link", "set", INTERFACE, "up")
            _ip("-n", host.name, "link", "set", "lo", "up")
        yield made
    finally:
        _remove(made)


def over_both(pair: Sequence[Host]) -> dict[str, str]:
    """The environment of a run over two hosts, begun on the first."""
    names = {"GRPO_HOSTS": f"{pair[0].address},{pair[1].name}", "GRPO_REMOTE_SHELL": "ip netns exec"}
    return {**clean_environment("GRPO_"), **names, **JOINED}


@cache
def allowed() -> bool:
    """Whether namespaces can be made and joined here: root, `ip`, and a kernel that lets us."""
    try:
        with hosts(1):
            return True
    except (OSError, subprocess.CalledProcessError):
        return False


def _remove(made: Sequence[Host]) -> None:
    """What of them is there; a namespace takes its end of the wire along."""
    for host in made:
        subprocess.run(["ip", "netns", "del", host.name], capture_output=True, check=False)
    subprocess.run(["ip", "link", "del", _BRIDGE], capture_output=True, check=False)


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)
