"""This machine's NVIDIA devices and who uses them, from nvidia-smi.

nvidia-smi is a process that can be given up when it hangs in a driver, as a library in this process could not.
"""

import os
import re
import shutil
import subprocess
from collections.abc import Sequence
from typing import Any

_SECONDS = 20.0
_KILLED_SECONDS = 1.0
_hanging: dict[str, "subprocess.Popen[str]"] = {}
"""Programs that SIGKILL did not end at once: they hang in a driver."""
_shown = False


def gpus() -> list[dict[str, Any]]:
    """NVIDIA devices that a trainer started here would see; none when nvidia-smi is absent or does not answer.

    nvidia-smi shows every device of the machine, whatever CUDA_VISIBLE_DEVICES says, so that is read here, as CUDA
    reads it. A slice of a device (MIG) that is named in it counts as one device, and CUDA takes no second one.
    """
    global _shown
    devices = _query_gpus()
    _shown = _shown or bool(devices)
    return devices


def has_shown_gpus() -> bool:
    """Whether `gpus` has found any in this process. Then an nvidia-smi that answers no more means that they have
    failed, and not that this machine has none."""
    return _shown


def _query_gpus() -> list[dict[str, Any]]:
    program = shutil.which("nvidia-smi")
    if program is None:
        return []
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    if named is not None and named.strip().startswith("MIG-"):
        return _slices(program_output([program, "-L"]) or "", named)[:1]
    query = "--query-gpu=index,uuid,name,memory.total"
    answer = program_output([program, query, "--format=csv,noheader,nounits"]) or ""
    rows = [row for line in answer.splitlines() if (row := _row(line)) is not None]
    return [gpu for _, _, gpu in (rows if named is None else _visible(rows, named))]


def gpu_users(seconds: float = 10.0) -> set[int] | None:
    """Process ids that compute on NVIDIA devices, as far as nvidia-smi shows them here. None when it fails, or does not
    answer in time: then they are unknown, which does not mean that there are none."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return set()
    answer = program_output([program, "--query-compute-apps=pid", "--format=csv,noheader"], seconds)
    if answer is None:
        return None
    return {int(line) for line in answer.splitlines() if line.strip().isdecimal()}


def program_output(command: list[str], seconds: float = _SECONDS) -> str | None:
    """What a program prints; None when it fails or does not answer in time.

    One that hangs in a driver is not waited for, as even SIGKILL does not end it, and while it is there no other one is
    started to hang next to it.
    """
    before = _hanging.get(command[0])
    if before is not None and before.poll() is None:
        return None
    try:
        program = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            errors="replace",
        )
    except OSError:
        return None
    try:
        output, _ = program.communicate(timeout=seconds)
        return output if program.returncode == 0 else None
    except subprocess.TimeoutExpired:
        program.kill()
        try:
            program.wait(_KILLED_SECONDS)
        except subprocess.TimeoutExpired:
            _hanging[command[0]] = program
        return None
    finally:
        assert program.stdout is not None
        program.stdout.close()


_Row = tuple[int, str, dict[str, Any]]
"""Index, UUID, device."""


def _row(line: str) -> _Row | None:
    """One line of nvidia-smi: `0, GPU-5c89852c-…, NVIDIA H100, 81559`, the memory in MiB."""
    match = re.fullmatch(r"\s*(\d+)\s*,\s*(GPU-[^,\s]+)\s*,(.*),\s*(\d+)\s*", line)
    if match is None:
        return None
    gpu = {"kind": "cuda", "name": match[3].strip(), "memory_bytes": int(match[4]) * 1024 * 1024}
    return int(match[1]), match[2], gpu


def _visible(rows: Sequence[_Row], named: str) -> list[_Row]:
    """Those that CUDA_VISIBLE_DEVICES names, in its order. The first entry that names no device, or that is not of the
    first one's kind (index, or how a UUID begins), ends the list; a device named twice makes it empty."""
    visible: list[_Row] = []
    entries = [entry.strip() for entry in named.split(",")]
    by_uuid = entries[0].startswith("GPU-")
    for entry in entries:
        if by_uuid:
            matching = [row for row in rows if entry.startswith("GPU-") and row[1].startswith(entry)]
        else:
            matching = [row for row in rows if entry.isdecimal() and row[0] == int(entry)]
        if len(matching) != 1:
            break
        if matching[0] in visible:
            return []
        visible += matching
    return visible


def _slices(listed: str, named: str) -> list[dict[str, Any]]:
    """From lines of `nvidia-smi -L` such as `  MIG 1g.10gb  Device  0: (UUID: MIG-c7384736-…)`."""
    first = named.split(",")[0].strip()
    slices = re.findall(r"MIG (\S*?(\d+)gb\S*)\s+Device\s+\d+: \(UUID: (MIG-[^)]+)\)", listed)
    return [
        {"kind": "cuda", "name": f"MIG {profile}", "memory_bytes": int(gigabytes) * 10**9}
        for profile, gigabytes, uuid in slices
        if uuid.startswith(first)
    ]
