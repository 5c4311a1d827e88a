"""What this machine is, for the platform's list of nodes. Asks the system and nvidia-smi; loads no torch. What its
sandbox can do is `sandbox`'s to say."""

import logging
import os
import platform
import re
import shutil
import socket
import subprocess
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from grpo_core.protocol.messages import NodeInfo

_PACKAGES = ("cohort-grpo", "torch", "transformers", "vllm", "deepspeed")
_SECONDS = 20.0
_KILLED_SECONDS = 1.0
_hanging: dict[str, "subprocess.Popen[str]"] = {}
"""Programs that SIGKILL did not end at once: they hang in a driver."""
_shown = False

log = logging.getLogger(__name__)


def node_info(labels: Sequence[str] = (), vllm_python: Path | None = None) -> NodeInfo:
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    cpus = len(os.sched_getaffinity(0))
    cpu = {"kind": "cpu", "name": _cpu_name(), "memory_bytes": memory}
    own = _versions()
    return NodeInfo(
        hostname=socket.gethostname(),
        devices=[*gpus(), cpu],
        cpus=cpus,
        memory_bytes=memory,
        versions={"python": platform.python_version(), **own, **_served(vllm_python, own.get("vllm"))},
        labels=list(labels),
    )


def _cpu_name() -> str:
    info = Path("/proc/cpuinfo")
    if info.is_file():
        for line in info.read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def gpus() -> list[dict[str, Any]]:
    """NVIDIA devices that a trainer started here would see; none when nvidia-smi is absent or does not answer.

    nvidia-smi shows every device of the machine, whatever CUDA_VISIBLE_DEVICES says, so that is read here, as CUDA
    reads it. A slice of a device (MIG) that is named in it counts as one device, and CUDA takes no second one.
    """
    global _shown
    found = _gpus()
    _shown = _shown or bool(found)
    return found


def has_shown_gpus() -> bool:
    """Whether `gpus` has found any in this process. Then an nvidia-smi that answers no more says that they are in
    trouble, and not that this machine has none."""
    return _shown


def _gpus() -> list[dict[str, Any]]:
    program = shutil.which("nvidia-smi")
    if program is None:
        return []
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    if named is not None and named.strip().startswith("MIG-"):
        return _slices(_answer([program, "-L"]) or "", named)[:1]
    answer = _answer([program, "--query-gpu=index,uuid,name,memory.total", "--format=csv,noheader,nounits"]) or ""
    rows = [row for line in answer.splitlines() if (row := _row(line)) is not None]
    return [gpu for _, _, gpu in (rows if named is None else _visible(rows, named))]


def gpu_users(seconds: float = 10.0) -> set[int] | None:
    """Process ids that compute on NVIDIA devices, as far as nvidia-smi shows them here. None when it fails, or does not
    answer in time: then nobody knows, and least of all that there are none."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return set()
    answer = _answer([program, "--query-compute-apps=pid", "--format=csv,noheader"], seconds)
    if answer is None:
        return None
    return {int(line) for line in answer.splitlines() if line.strip().isdecimal()}


def _answer(words: list[str], seconds: float = _SECONDS) -> str | None:
    """What a program prints; None when it fails or does not answer in time.

    One that hangs in a driver is not waited for, as even SIGKILL does not end it, and while it is there no other one is
    started to hang beside it.
    """
    before = _hanging.get(words[0])
    if before is not None and before.poll() is None:
        return None
    try:
        asked = subprocess.Popen(
            words,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            errors="replace",
        )
    except OSError:
        return None
    try:
        told, _ = asked.communicate(timeout=seconds)
        return told if asked.returncode == 0 else None
    except subprocess.TimeoutExpired:
        asked.kill()
        try:
            asked.wait(_KILLED_SECONDS)
        except subprocess.TimeoutExpired:
            _hanging[words[0]] = asked
        return None
    finally:
        assert asked.stdout is not None
        asked.stdout.close()


_Row = tuple[int, str, dict[str, Any]]
"""Index, UUID, device."""


def _row(line: str) -> _Row | None:
    """One line of nvidia-smi: `0, GPU-5c89852c-…, NVIDIA H100, 81559`, the memory in MiB."""
    told = re.fullmatch(r"\s*(\d+)\s*,\s*(GPU-[^,\s]+)\s*,(.*),\s*(\d+)\s*", line)
    if told is None:
        return None
    gpu = {"kind": "cuda", "name": told[3].strip(), "memory_bytes": int(told[4]) * 1024 * 1024}
    return int(told[1]), told[2], gpu


def _visible(rows: Sequence[_Row], named: str) -> list[_Row]:
    """Those that CUDA_VISIBLE_DEVICES names, in its order. The first entry that names no device, or that is not of the
    first one's kind (index, or how a UUID begins), ends the list; a device named twice makes it empty."""
    found: list[_Row] = []
    words = [word.strip() for word in named.split(",")]
    by_uuid = words[0].startswith("GPU-")
    for word in words:
        if by_uuid:
            meant = [row for row in rows if word.startswith("GPU-") and row[1].startswith(word)]
        else:
            meant = [row for row in rows if word.isdecimal() and row[0] == int(word)]
        if len(meant) != 1:
            break
        if meant[0] in found:
            return []
        found += meant
    return found


def _slices(listed: str, named: str) -> list[dict[str, Any]]:
    """From lines of `nvidia-smi -L` such as `  MIG 1g.10gb  Device  0: (UUID: MIG-c7384736-…)`."""
    first = named.split(",")[0].strip()
    told = re.findall(r"MIG (\S*?(\d+)gb\S*)\s+Device\s+\d+: \(UUID: (MIG-[^)]+)\)", listed)
    return [
        {"kind": "cuda", "name": f"MIG {profile}", "memory_bytes": int(gigabytes) * 10**9}
        for profile, gigabytes, uuid in told
        if uuid.startswith(first)
    ]


def _versions() -> dict[str, str]:
    found = {}
    for package in _PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def _served(vllm_python: Path | None, own: str | None) -> dict[str, str]:
    """Version of vLLM in the environment that servers of it are started from: `vllm_python`'s, asked of that
    interpreter, and none when it has none or does not answer; without such an interpreter this one, which has `own`."""
    if vllm_python is None:
        return {} if own is None else {"vllm-server": own}
    told = _answer([str(vllm_python), "-P", "-c", "from importlib.metadata import version; print(version('vllm'))"])
    if told is None:
        log.warning(
            "COHORT_VLLM_PYTHON: %s has no vLLM, or does not answer; runs with its server are not taken", vllm_python
        )
        return {}
    return {"vllm-server": told.strip()}
