"""Things a test may need and a machine may lack. Absent, the test skips with one line that says what to install;
COHORT_REQUIRE=name,name turns each such skip into a failure, so that a check cannot vanish unseen.

A database or broker that is given by COHORT_TEST_… and does not answer fails the tests in any case.
"""

import importlib.util
import os
import shutil
from functools import cache
from pathlib import Path

import pytest

TEST_DATA = Path(os.environ.get("COHORT_TEST_DATA", "/nonexistent")).resolve()
GSM8K = TEST_DATA / "gsm8k" / "train.jsonl"
DEEPSPEED_PYTHON = Path(__file__).parents[1] / ".venv-deepspeed" / "bin" / "python"
VLLM_PYTHON = Path(__file__).parents[1] / ".venv-vllm" / "bin" / "python"
"""Of the environment that has vLLM."""


def _no_gpu() -> bool:
    import torch

    return not torch.cuda.is_available()


def memory_cgroup() -> Path | None:
    """Folder of this process's control group if groups with a memory limit can be made in it."""
    from worker.cgroup import own_group

    for controller, limit in (("", "memory.max"), ("memory", "memory.limit_in_bytes")):
        place = own_group(controller)
        if place is None or not os.access(place, os.W_OK):
            continue
        trial = place / f"cohort-trial-{os.getpid()}"
        try:
            trial.mkdir()
        except OSError:
            continue
        limited = (trial / limit).exists()
        trial.rmdir()
        if limited:
            return place
    return None


def _cgroup() -> bool:
    from worker.cgroup import Cgroup

    made = Cgroup.make(f"cohort-trial-{os.getpid()}")
    if made is not None:
        made.remove()
    return made is not None


def _namespaces() -> bool:
    from tests.chaos.hosts import allowed

    return allowed()


_KNOWN = {
    "chromium": (lambda: shutil.which("chromium") is not None, "Chromium (Debian: apt-get install chromium)"),
    "bwrap": (lambda: shutil.which("bwrap") is not None, "bubblewrap (Debian: apt-get install bubblewrap)"),
    "node": (lambda: shutil.which("node") is not None, "Node.js 20 or newer (Debian: apt-get install nodejs)"),
    "make": (lambda: shutil.which("make") is not None, "make (Debian: apt-get install make)"),
    "gsm8k": (GSM8K.is_file, "GSM8K's train.jsonl under gsm8k/ in the folder that COHORT_TEST_DATA names"),
    "public-sets": (
        lambda: all((TEST_DATA / name).is_dir() for name in ("gsm8k", "mgsm", "xstest")),
        "gsm8k/, mgsm/ and xstest/ in the folder that COHORT_TEST_DATA names",
    ),
    "file-broker": (
        lambda: "COHORT_TEST_BROKER_URL" not in os.environ,
        "messages in files: unset COHORT_TEST_BROKER_URL",
    ),
    "redis": (
        lambda: os.environ.get("COHORT_TEST_BROKER_URL", "").startswith("redis"),
        "messages on Redis: COHORT_TEST_BROKER_URL=redis://…",
    ),
    "cgroup": (_cgroup, "a control group that this user may make others in (root, or a delegated one)"),
    "memory-cgroup": (lambda: memory_cgroup() is not None, "a control group that others with a memory limit fit in"),
    "root": (lambda: os.geteuid() == 0, "root, to mount a small disk"),
    "namespaces": (_namespaces, "root, iproute2 and a kernel that lets it make network namespaces and join them"),
    "c++": (
        lambda: shutil.which("g++") is not None,
        "a C++ compiler (Debian: apt-get install g++)",
    ),
    "cc": (
        lambda: shutil.which("cc") is not None,
        "a C compiler (Debian: apt-get install gcc)",
    ),
    "reasoning-gym": (
        lambda: importlib.util.find_spec("reasoning_gym") is not None,
        "reasoning-gym: pip install 'cohort-grpo[tasks]' where a C compiler is",
    ),
    "vllm": (VLLM_PYTHON.with_name("grpo").is_file, "vLLM in an environment of its own: make vllm-env"),
    "deepspeed": (
        DEEPSPEED_PYTHON.with_name("deepspeed").is_file,
        "DeepSpeed in an environment of its own: make deepspeed-env",
    ),
    "no-gpu": (_no_gpu, "a machine without a GPU"),
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
