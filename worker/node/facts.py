"""What this worker reports of itself with every claim and heartbeat: machine, disk, sandbox, runs folder, why it
takes no run.

The machine is examined once, because that starts programs; the rest each time.
"""

import fcntl
import json
import logging
import os
import platform
import re
import secrets
import shutil
import socket
import threading
import time
from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from grpo_core.protocol.messages import NodeInfo
from grpo_core.sandbox import Report, self_test
from grpo_core.text import format_bytes
from worker import devices
from worker.environment import Environment
from worker.processes import orphans

# The sandbox of this machine: tested once in a worker's life, and again every ten minutes while none works, so that a
# machine that was repaired needs no restart.
#
# The supervisors are separate processes; they get the report and test nothing again.

REPORT_VARIABLE = "COHORT_WORKER_SANDBOX_REPORT"
"""Variable that gives a supervisor the report. No setting: only the worker that starts it writes it."""
_RETRY_SECONDS = 600.0
"""Between two tests while none works."""
_WAIT_SECONDS = 20.0
"""How long a run or job waits for the first test."""


_lock = threading.Lock()
_report: Report | None = None
_tested_at = 0.0


def report(*, wait: float = _WAIT_SECONDS) -> Report | None:
    """The self-test's report; the first caller has it made, and others wait for it. None when that takes longer
    than `wait`."""
    global _report, _tested_at
    if not _lock.acquire(timeout=wait):
        return None
    try:
        stale = _report is not None and not _report.works and time.monotonic() - _tested_at > _RETRY_SECONDS
        if _report is None or stale:
            before, _report = _report, self_test()
            _tested_at = time.monotonic()
            if before is None or before.works != _report.works:
                _log(_report)
        return _report
    finally:
        _lock.release()


def _log(tested: Report) -> None:
    if tested.works:
        log.info("sandbox: %s", tested.words)
    else:
        log.warning("sandbox: none works, so no run or job whose reward runs code is taken here. %s", tested.fix)


def with_sandbox(info: NodeInfo, tested: Report | None) -> NodeInfo:
    """The same node, with what is known of its sandbox."""
    if tested is None:
        return info
    return info.model_copy(update={"sandbox": tested.words, "sandbox_report": tested.to_json()})


def supervisor_environment(tested: Report | None) -> dict[str, str]:
    """The environment of a supervisor."""
    outer = {name: value for name, value in os.environ.items() if name != REPORT_VARIABLE}
    return outer if tested is None else {**outer, REPORT_VARIABLE: json.dumps(tested.to_json())}


def received_report(environment: Mapping[str, str]) -> Report | None:
    """In a supervisor: the report that it was given. Raises ValueError when that is no report."""
    content = environment.get(REPORT_VARIABLE)
    return None if content is None else Report.from_json(json.loads(content))


_ENOUGH = 2 * 1024**3


def free_bytes(folder: Path) -> int:
    """Left for this user on the disk that holds the folder, which need not exist yet."""
    return shutil.disk_usage(_existing(folder)).free


def least_free(folder: Path, given: int | None) -> int:
    """Below so many bytes nothing trains: as given, or 2 GiB, or 5 % of the disk where that is less."""
    return given if given is not None else min(_ENOUGH, shutil.disk_usage(_existing(folder)).total // 20)


def is_short(folder: Path, given: int | None) -> bool:
    return free_bytes(folder) < least_free(folder, given)


def _existing(folder: Path) -> Path:
    while not folder.exists():
        folder = folder.parent
    return folder


RUNS_ID = ".runs-id"
_PACKAGES = ("cohort-grpo", "torch", "transformers", "vllm", "deepspeed")

log = logging.getLogger(__name__)


def node_info(settings: Environment, node: str) -> NodeInfo:
    info = machine(settings.label_list, settings.vllm_python)
    return at_present(info, settings.runs_folder, settings.min_free_bytes, node)


def machine(labels: Sequence[str] = (), vllm_python: Path | None = None) -> NodeInfo:
    """Runs programs, which takes a moment."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    cpus = len(os.sched_getaffinity(0))
    cpu = {"kind": "cpu", "name": _cpu_name(), "memory_bytes": memory}
    own = {package: installed for package in _PACKAGES if (installed := _version(package))}
    return NodeInfo(
        hostname=socket.gethostname(),
        devices=[*devices.gpus(), cpu],
        cpus=cpus,
        memory_bytes=memory,
        versions={"python": platform.python_version(), **own, **_vllm_server(vllm_python, own.get("vllm"))},
        labels=list(labels),
    )


def _cpu_name() -> str:
    info = Path("/proc/cpuinfo")
    if info.is_file():
        for line in info.read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _vllm_server(vllm_python: Path | None, own: str | None) -> dict[str, str]:
    """Version of vLLM in the environment that servers of it are started from: `vllm_python`'s, from that
    interpreter, and none when it has none or does not answer; without such an interpreter this one, which has `own`."""
    if vllm_python is None:
        return {} if own is None else {"vllm-server": own}
    code = "from importlib.metadata import version; print(version('vllm'))"
    output = devices.program_output([str(vllm_python), "-P", "-c", code])
    if output is None:
        log.warning(
            "COHORT_VLLM_PYTHON: %s has no vLLM, or does not answer; runs with its server are not taken", vllm_python
        )
        return {}
    return {"vllm-server": output.strip()}


def at_present(info: NodeInfo, runs: Path, min_free_bytes: int | None, node: str) -> NodeInfo:
    """The same machine, with what may have changed since."""
    return info.model_copy(update={"runs_id": runs_id(runs), "refuses": refusal(runs, min_free_bytes, node)})


def refusal(runs: Path, min_free_bytes: int | None, node: str) -> str:
    """Why this worker takes no run now; empty when it takes them. `node` as `client.node_of` says."""
    try:
        free, least = free_bytes(runs), least_free(runs, min_free_bytes)
        left = "" if free < least else orphans.survivors(runs, node)
    except OSError as error:
        return f"{runs} cannot be looked at: {error}. Runs wait until it can; look at the disk that it lies on"
    if free < least:
        return (
            f"the disk of {runs} has {format_bytes(free)} left, and at least {format_bytes(least)} must be "
            "free (COHORT_MIN_FREE_BYTES). Runs wait until there is room"
        )
    if left:
        return (
            f"SIGKILL has not ended {left}. What hangs in the kernel so may hold a GPU or memory, and runs wait until "
            "it is gone. Look at the device and the disks it uses; often only starting the machine anew helps"
        )
    return ""


def runs_id(runs: Path) -> str:
    """Names the folder: made at random by the first that asks, and the same for all who share it, on any machine. Empty
    when it cannot be written down now, as on a full disk: then no node counts as sharing it.
    """
    try:
        if known := _read_id(runs):
            return known
        runs.mkdir(parents=True, exist_ok=True)
        handle = os.open(runs / RUNS_ID, os.O_WRONLY | os.O_CREAT, 0o644)
        try:
            # A lock, not a link or a rename: locks are used next to every attempt too, and so the disk has it.
            fcntl.flock(handle, fcntl.LOCK_EX)
            if known := _read_id(runs):  # another process was quicker
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
        content = (runs / RUNS_ID).read_text(encoding="ascii", errors="replace")
    except FileNotFoundError:
        return ""
    return content if re.fullmatch(r"[0-9a-f]{32}", content) else ""
