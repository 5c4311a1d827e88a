"""Things a test may need and a machine may lack. Absent, the test skips with one line that says what to install;
COHORT_REQUIRE=name,name turns each such skip into a failure, so that a check cannot vanish unseen.
"""

import os
import shutil
import socket
from functools import cache
from importlib.util import find_spec

import pytest


def _port(number: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(0.5)
        return probe.connect_ex(("127.0.0.1", number)) == 0


_KNOWN = {
    "chromium": (lambda: shutil.which("chromium") is not None, "Chromium (Debian: apt-get install chromium)"),
    "bwrap": (lambda: shutil.which("bwrap") is not None, "bubblewrap (Debian: apt-get install bubblewrap)"),
    "rabbitmq": (lambda: _port(5672), "RabbitMQ on 127.0.0.1:5672"),
    "redis": (lambda: _port(6379), "Redis on 127.0.0.1:6379"),
    "postgres": (lambda: _port(5432), "PostgreSQL on 127.0.0.1:5432"),
    "vllm": (lambda: find_spec("vllm") is not None, "the extra [vllm]"),
    "deepspeed": (lambda: find_spec("deepspeed") is not None, "the extra [deepspeed]"),
}


@cache
def present(name: str) -> bool:
    return _KNOWN[name][0]()


def required() -> set[str]:
    """Names in COHORT_REQUIRE. Fails the test on one that nobody knows, because it would require nothing."""
    names = {name for name in os.environ.get("COHORT_REQUIRE", "").split(",") if name}
    for name in sorted(names - set(_KNOWN)):
        pytest.fail(f"COHORT_REQUIRE: {name} is not one of {', '.join(_KNOWN)}")
    return names


def needs(name: str) -> None:
    """Skip the calling test when `name` is absent, or fail it when COHORT_REQUIRE lists the name."""
    must = name in required()
    if present(name):
        return
    line = f"needs {_KNOWN[name][1]}"
    if must:
        pytest.fail(f"{line}; COHORT_REQUIRE says it must be here")
    pytest.skip(line)
