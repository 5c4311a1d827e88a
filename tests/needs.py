"""Things a test may need and a machine may lack. Absent, the test skips with one line that says what to install;
COHORT_REQUIRE=name,name turns each such skip into a failure, so that a check cannot vanish unseen.

A database or broker that is given by COHORT_TEST_… and does not answer fails the tests in any case.
"""

import os
import shutil
import subprocess
from collections.abc import Callable
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import pytest

TEST_DATA = Path(os.environ.get("COHORT_TEST_DATA", "/nonexistent")).resolve()
GSM8K = TEST_DATA / "gsm8k" / "train.jsonl"
DEEPSPEED_PYTHON = Path(__file__).parents[1] / ".venv-deepspeed" / "bin" / "python"
SMOLLM2 = Path(__file__).parents[1] / "build" / "smollm2" / "SmolLM2-135M-Instruct"
INSPECT_PYTHON = Path(__file__).parents[1] / ".venv-inspect" / "bin" / "python"
VLLM_PYTHON = Path(__file__).parents[1] / ".venv-vllm" / "bin" / "python"
"""Of the environment that has vLLM."""


def _no_gpu() -> bool:
    import torch

    return not torch.cuda.is_available()


def memory_cgroup() -> Path | None:
    """Folder of this process's control group if groups with a memory limit can be made in it."""
    from grpo_core.runtime.cgroups import own_group

    for controller, limit in (("", "memory.max"), ("memory", "memory.limit_in_bytes")):
        group = own_group(controller)
        if group is None or not os.access(group, os.W_OK):
            continue
        trial = group / f"cohort-trial-{os.getpid()}"
        try:
            trial.mkdir()
        except OSError:
            continue
        limited = (trial / limit).exists()
        trial.rmdir()
        if limited:
            return group
    return None


def _cgroup() -> bool:
    from grpo_core.runtime.cgroups import Cgroup

    made = Cgroup.make(f"cohort-trial-{os.getpid()}")
    if made is not None:
        made.remove()
    return made is not None


def _namespaces() -> bool:
    from tests.chaos.hosts import allowed

    return allowed()


def _program(name: str, package: str, *, title: str = "") -> tuple[Callable[[], bool], str]:
    return lambda: shutil.which(name) is not None, f"{title or package} (Debian: apt-get install {package})"


def _folders(*names: str) -> bool:
    return all((TEST_DATA / name).is_dir() for name in names)


def _broker(start: str) -> Callable[[], bool]:
    return lambda: os.environ.get("COHORT_TEST_BROKER_URL", "filesystem://").startswith(start)


def _administers_rabbitmq() -> bool:
    return shutil.which("rabbitmqctl") is not None and subprocess.run(["rabbitmqctl", "-q", "ping"]).returncode == 0


# fmt: off
_KNOWN = {
    "chromium": _program("chromium", "chromium"),
    "bwrap": _program("bwrap", "bubblewrap"),
    "node": _program("node", "nodejs", title="Node.js 20 or newer"),
    "nginx": _program("nginx", "nginx"),
    "make": _program("make", "make"),
    "curl": _program("curl", "curl"),
    "cc": _program("cc", "gcc", title="a C compiler"),
    "c++": _program("g++", "g++", title="a C++ compiler"),
    "gsm8k": (GSM8K.is_file, "GSM8K's train.jsonl under gsm8k/ in the folder that COHORT_TEST_DATA names"),
    "public-sets": (
        lambda: _folders("gsm8k", "mgsm", "xstest"), "gsm8k/, mgsm/ and xstest/ in the folder of COHORT_TEST_DATA"
    ),
    "file-broker": (_broker("filesystem"), "messages in files: unset COHORT_TEST_BROKER_URL"),
    "redis": (_broker("redis"), "messages on Redis: COHORT_TEST_BROKER_URL=redis://…"),
    "rabbitmq": (
        lambda: _broker("amqp")() and _administers_rabbitmq(),
        "messages on this machine's RabbitMQ, and root: COHORT_TEST_BROKER_URL=amqp://…",
    ),
    "cgroup": (_cgroup, "a control group that this user may make others in (root, or a delegated one)"),
    "memory-cgroup": (lambda: memory_cgroup() is not None, "a control group that others with a memory limit fit in"),
    "root": (lambda: os.geteuid() == 0, "root, to mount a small disk"),
    "namespaces": (_namespaces, "root, iproute2 and a kernel that lets it make network namespaces and join them"),
    "reasoning-gym": (
        lambda: find_spec("reasoning_gym") is not None, "reasoning-gym: pip install 'cohort-grpo[tasks]'"
    ),
    "vllm": (VLLM_PYTHON.with_name("grpo").is_file, "vLLM in an environment of its own: make vllm-env"),
    "inspect": (INSPECT_PYTHON.with_name("inspect").is_file, "Inspect in an environment of its own: make inspect-env"),
    "deepspeed": (DEEPSPEED_PYTHON.with_name("deepspeed").is_file, "DeepSpeed in one of its own: make deepspeed-env"),
    "smollm2": ((SMOLLM2 / "config.json").is_file, "SmolLM2-135M-Instruct as a model folder: make smollm2"),
    "no-gpu": (_no_gpu, "a machine without a GPU"),
}
# fmt: on


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
