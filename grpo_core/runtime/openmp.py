"""How PyTorch's OpenMP threads wait for each other. Read when torch is loaded, so it is set before. Loads no torch."""

import os
from collections.abc import MutableMapping

POLICY = {"OMP_WAIT_POLICY": "PASSIVE", "GOMP_SPINCOUNT": "2000"}
"""Sleep after spinning for about 20 µs, as long as waking takes. OpenMP's default spins for milliseconds: alone on a
machine that is a little faster, beside other work it doubles a small model's time (docs/performance.md)."""


def wait_asleep(environment: MutableMapping[str, str]) -> None:
    """Have threads wait so, unless the environment says something of it already."""
    if not POLICY.keys() & environment.keys():
        environment.update(POLICY)


def asleep() -> dict[str, str]:
    """The environment of this process, for one that is no `grpo` but shall wait as it does."""
    environment = dict(os.environ)
    wait_asleep(environment)
    return environment
