"""What this machine is, for the platform's list of nodes. Asks the operating system and nvidia-smi; loads no torch."""

import os
import platform
import shutil
import socket
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from grpo_core.wire import NodeInfo

_PACKAGES = ("cohort-grpo", "torch", "transformers", "vllm", "deepspeed")


def node_info() -> NodeInfo:
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    cpus = len(os.sched_getaffinity(0))
    cpu = {"kind": "cpu", "name": _cpu_name(), "memory_bytes": memory}
    return NodeInfo(
        hostname=socket.gethostname(),
        devices=[*_gpus(), cpu],
        cpus=cpus,
        memory_bytes=memory,
        versions={"python": platform.python_version(), **_versions()},
    )


def _cpu_name() -> str:
    info = Path("/proc/cpuinfo")
    if info.is_file():
        for line in info.read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _gpus() -> list[dict[str, Any]]:
    """NVIDIA devices; none when nvidia-smi is absent or does not answer."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return []
    asked = [program, "--query-gpu=name,memory.total", "--format=csv,noheader,nounits"]
    try:
        answer = subprocess.run(asked, capture_output=True, text=True, timeout=20, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return []
    return [gpu for line in answer.splitlines() if (gpu := _gpu(line)) is not None]


def _gpu(line: str) -> dict[str, Any] | None:
    """One line of nvidia-smi: `NVIDIA H100, 81559`, the memory in MiB."""
    name, _, mebibytes = line.rpartition(",")
    if not mebibytes.strip().isdecimal():
        return None
    return {"kind": "cuda", "name": name.strip(), "memory_bytes": int(mebibytes) * 1024 * 1024}


def _versions() -> dict[str, str]:
    found = {}
    for package in _PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found
