"""What this worker tells of itself with every claim and sign of life: machine, runs folder, why it takes no run.

The machine is asked once, because that starts programs; the rest is looked at anew each time.
"""

import fcntl
import logging
import os
import re
import secrets
from collections.abc import Sequence
from pathlib import Path

from grpo_core.protocol.messages import NodeInfo
from worker import devices
from worker.node import disk
from worker.processes import orphans

RUNS_ID = ".runs-id"

log = logging.getLogger(__name__)


def node_info(
    labels: Sequence[str], runs: Path, min_free_bytes: int | None, node: str, vllm_python: Path | None = None
) -> NodeInfo:
    return at_present(devices.node_info(labels, vllm_python), runs, min_free_bytes, node)


def at_present(info: NodeInfo, runs: Path, min_free_bytes: int | None, node: str) -> NodeInfo:
    """The same machine, with what may have changed since."""
    return info.model_copy(update={"runs_id": runs_id(runs), "refuses": refusal(runs, min_free_bytes, node)})


def refusal(runs: Path, min_free_bytes: int | None, node: str) -> str:
    """Why this worker takes no run now; empty when it takes them. `node` as `client.node_of` says."""
    try:
        return _refusal(runs, min_free_bytes, node)
    except OSError as error:
        return f"{runs} cannot be looked at: {error}. Runs wait until it can; look at the disk that it lies on"


def _refusal(runs: Path, min_free_bytes: int | None, node: str) -> str:
    free, least = disk.free_bytes(runs), disk.least_free(runs, min_free_bytes)
    if free < least:
        return (
            f"the disk of {runs} has {disk.size_in_words(free)} left, and at least {disk.size_in_words(least)} must be "
            "free (COHORT_MIN_FREE_BYTES). Runs wait until there is room"
        )
    if left := orphans.survivors(runs, node):
        return (
            f"SIGKILL has not ended {left}. What hangs in the kernel so may hold a GPU or memory, and runs wait until "
            "it is gone. Look at the device and the disks it uses; often only starting the machine anew helps"
        )
    return ""


def runs_id(runs: Path) -> str:
    """Names the folder: made at random by the first that asks, and the same for all who share it, on any machine. Empty
    when it cannot be written down now, as on a full disk: then nobody is taken to share it.
    """
    try:
        if known := _read_id(runs):
            return known
        runs.mkdir(parents=True, exist_ok=True)
        handle = os.open(runs / RUNS_ID, os.O_WRONLY | os.O_CREAT, 0o644)
        try:
            # A lock, not a link or a rename: it is in use beside every attempt too, and so the disk has it.
            fcntl.flock(handle, fcntl.LOCK_EX)
            if known := _read_id(runs):  # another one was quicker
                return known
            made = secrets.token_hex(16)
            os.truncate(handle, 0)  # what a machine that died in the middle wrote
            os.write(handle, made.encode())
            os.fsync(handle)
        finally:
            os.close(handle)
        return _read_id(runs)
    except OSError as error:
        log.warning("%s cannot be given an id: %s", runs, error)
        return ""


def _read_id(runs: Path) -> str:
    """Empty when there is none, or not the whole of it."""
    try:
        told = (runs / RUNS_ID).read_text(encoding="ascii", errors="replace")
    except FileNotFoundError:
        return ""
    return told if re.fullmatch(r"[0-9a-f]{32}", told) else ""
