"""What a worker that died left behind: written down while an attempt lives, ended by that record afterwards.

An attempt's folder holds `process.json`, and its supervisor a lock on `process.lock` next to it. A record whose lock is
free has no supervisor any more: what lives of it is killed and reported to the platform, which resumes the run at once.
What SIGKILL does not end hangs in the kernel, usually on a device: its record stays, and the worker takes no run until
it is gone (`survivors`).
Only what the record itself proves is touched: this host, this boot, this pid namespace, the trainer's start time, its
control group, or the random mark in its environment. Never a name, never process 1. Another worker's runs folder is
never looked into. Where workers share one, each ends what lives of any dead attempt on its machine, but only the node
whose attempt it was reports it, removes the record, and takes no run because of it. It knows its own by its token:
what died before the token was replaced is not reported, and its lease expires.

A failure with one folder is logged, and the others are handled; OSError is raised when the runs folder itself
cannot be listed.
"""

import fcntl
import logging
import os
import secrets
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from grpo_core.errors import DiskFullError
from grpo_core.files.run_folder import RunDir
from grpo_core.protocol.messages import ClaimReply, LostAttempt
from grpo_core.runtime.cgroups import Cgroup
from worker import devices
from worker.platform_client.client import Platform
from worker.processes import reaper
from worker.processes.child import Child, GroupSurvives
from worker.processes.reaper import Process, process, processes

RECORD = "process.json"
LOCK = "process.lock"
MARK = "GRPO_MARK"
"""Variable in the trainer's environment, which all that it starts inherit."""
_KILL_SECONDS = 20.0
_KILL_AGAIN_SECONDS = 1.0
"""For those that have outlived SIGKILL before: shorter, because the rest of the worker waits."""
_SWEEPING = threading.Lock()
"""A sweep waits for another thread's sweep, or it would pass over what that one is ending."""

log = logging.getLogger(__name__)

_logged: set[tuple[Path, str]] = set()
"""What was logged of folders that cannot be read: the sweeps come back to them every few seconds."""


class ProcessRecord(BaseModel):
    """process.json."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    run_id: int
    attempt_id: int
    fence: int
    node: str
    """Whose attempt it is, as `client.node_of` says."""
    host: str
    boot_id: str
    pid_namespace: str
    worker_pid: int
    """Celery's main process, whose task this is."""
    worker_ticks: int
    supervisor_pid: int
    mark: str
    pid: int | None = None
    """The trainer; none before it was started."""
    start_ticks: int | None = None
    session: int | None = None
    cgroup: str | None = None
    survives: bool = False
    """SIGKILL has not ended all of it."""
    left: tuple[tuple[int, int], ...] = ()
    """What it had not ended when the supervisor left: process ids and start times."""
    holders: tuple[int, ...] = ()
    """Processes that have ended, and that a GPU counts as its users even so, or may: nvidia-smi gave no answer."""
    reported: bool = False
    """The platform knows that the attempt is lost."""


class HeldRecord:
    """The record of an attempt that this process supervises."""

    def __init__(self, folder: Path, claimed: ClaimReply, node: str) -> None:
        self._folder = folder
        self._lock = try_lock(folder / LOCK)
        if self._lock is None:
            raise RuntimeError(f"{folder / LOCK} is held by another supervisor")
        worker = process(os.getppid())
        self.record = ProcessRecord(
            run_id=claimed.run_id,
            attempt_id=claimed.attempt_id,
            fence=claimed.fence,
            node=node,
            host=socket.gethostname(),
            boot_id=_boot_id(),
            pid_namespace=_pid_namespace(),
            worker_pid=worker.pid if worker else 0,
            worker_ticks=worker.ticks if worker else 0,
            supervisor_pid=os.getpid(),
            mark=secrets.token_hex(16),
        )
        self._write()

    def started(self, child: Child) -> None:
        cgroup = str(child.group.folders[0]) if child.group is not None else None
        trainer = {"pid": child.pid, "start_ticks": child.ticks, "session": child.pid, "cgroup": cgroup}
        self.record = self.record.model_copy(update=trainer)
        self._write()

    @property
    def holds(self) -> bool:
        return self._lock is not None

    def ended(self) -> None:
        """Nothing of the attempt is left, and the platform knows its end or would not accept it."""
        (self._folder / RECORD).unlink(missing_ok=True)
        self.release()

    def survived(self, left: GroupSurvives) -> None:
        """Not all of the attempt could be ended: the next sweep tries again."""
        known = tuple((row.pid, row.ticks) for row in left.left)
        self.record = self.record.model_copy(update={"survives": True, "left": known, "holders": left.holders})
        _rewrite(self._folder, self.record)
        self.release()

    def release(self) -> None:
        """Leave the record to the next sweep."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def _write(self) -> None:
        RunDir.write_json(self._folder / RECORD, self.record.model_dump(mode="json"))


def sweep(runs: Path) -> dict[Path, ProcessRecord]:
    """End what lives of attempts that nobody supervises any more; those attempts, by folder. `survives` in a record
    means that not all of it is gone."""
    swept = {}
    with _SWEEPING:
        for folder, record in _records(runs):
            if record.host != socket.gethostname():
                continue
            with _logging_failure(folder), _unsupervised(folder) as free:
                if free:
                    swept[folder] = _end(folder, record)
                    if swept[folder].survives and swept[folder] != record:
                        _rewrite(folder, swept[folder])
    return swept


def settle(runs: Path, platform: Platform) -> None:
    """Sweep, and report this node's attempts to the platform. Raises PlatformError when that fails; the records then
    stay for next time."""
    swept = {folder: record for folder, record in sweep(runs).items() if record.node == platform.node}
    lost = [record for record in swept.values() if not record.reported]
    if lost:
        platform.lost([LostAttempt(attempt_id=record.attempt_id, fence=record.fence) for record in lost])
    for folder, record in swept.items():
        if not record.survives:
            with _logging_failure(folder):
                (folder / RECORD).unlink(missing_ok=True)
        elif not record.reported:
            _rewrite(folder, record.model_copy(update={"reported": True}))
        if not record.reported:
            log.info("run %s: reported that attempt %s is lost", record.run_id, record.fence)


def survivors(runs: Path, node: str) -> str:
    """What has outlived SIGKILL of this node's attempts and still does, in words; empty when nothing does."""
    listed = []
    for folder, record in _records(runs):
        if not record.survives or record.host != socket.gethostname() or record.node != node:
            continue
        with _logging_failure(folder):
            if left := _listed(*_left(record)):
                listed.append(f"{left} of run {record.run_id} (attempt {record.fence}, {folder})")
    return "; ".join(listed)


def still_leaving(runs: Path, node: str) -> list[int]:
    """This node's runs whose supervisor still lives though the worker that it belonged to is gone: they free their
    devices soon."""
    leaving = []
    for folder, record in _records(runs):
        if record.node != node or not _here(record):
            continue
        worker = process(record.worker_pid)
        if worker is not None and worker.lives and worker.ticks == record.worker_ticks:
            continue
        with _logging_failure(folder), _unsupervised(folder) as free:
            if not free:
                leaving.append(record.run_id)
    return leaving


def _records(runs: Path) -> Iterator[tuple[Path, ProcessRecord]]:
    """Those that can be read."""
    for folder in _attempts(runs):
        record = None
        with _logging_failure(folder):
            record = ProcessRecord.model_validate_json((folder / RECORD).read_bytes())
        if record is not None:
            yield folder, record


def _attempts(runs: Path) -> list[Path]:
    try:
        folders = [folder for folder in runs.iterdir() if folder.name.startswith("run-")]
    except FileNotFoundError:
        return []  # nothing was ever trained here
    attempts = []
    for folder in sorted(folders):
        with _logging_failure(folder):
            attempts += sorted(attempt for attempt in folder.iterdir() if attempt.name.startswith("attempt-"))
    return attempts


@contextmanager
def _logging_failure(folder: Path) -> Iterator[None]:
    """A failure with the folder is logged, once, and does not keep the caller from the others."""
    try:
        yield
    except (FileNotFoundError, NotADirectoryError):
        return  # no attempt, or its supervisor came to its end, or another process has just removed it
    except (OSError, ValidationError) as error:
        if (folder, str(error)) not in _logged:
            log.error("what an attempt left in %s cannot be looked at and is left alone: %s", folder, error)
        _logged.add((folder, str(error)))


def _rewrite(folder: Path, record: ProcessRecord) -> None:
    """Replace the record. Where that fails the old one stays, and the next sweep comes to the same."""
    try:
        RunDir.write_json(folder / RECORD, record.model_dump(mode="json"))
    except (DiskFullError, OSError) as error:
        log.error("%s cannot be rewritten: %s", folder / RECORD, error)


def _end(folder: Path, record: ProcessRecord) -> ProcessRecord:
    """Kill all that the record proves to be the attempt's. The record as it is then; `survives` when some is left."""
    deadline = time.monotonic() + (_KILL_AGAIN_SECONDS if record.survives else _KILL_SECONDS)
    while any(left := _left(record)):
        living, _ = left
        # One that is ending has no environment any more, so no mark, and may take long: it frees a GPU's memory.
        known = tuple(sorted({*record.left, *((row.pid, row.ticks) for row in living)}))
        record = record.model_copy(update={"left": known})
        if time.monotonic() > deadline:
            log.error("%s: still there after SIGKILL: %s", folder, _listed(*left))
            return record.model_copy(update={"survives": True})
        if living:
            log.warning("%s: killing what its dead supervisor left: %s", folder, [row.pid for row in living])
        group = _group(record)
        if group is not None:
            group.kill()
        for row in living:
            reaper.kill(row)
        time.sleep(0.1)
    group = _group(record)
    if group is not None and _here(record):
        group.remove()
    return record.model_copy(update={"survives": False})


def _here(record: ProcessRecord) -> bool:
    """Whether anything of it can live, and be seen from here: in this boot and this pid namespace."""
    return record.boot_id == _boot_id() and record.pid_namespace == _pid_namespace()


def _group(record: ProcessRecord) -> Cgroup | None:
    return Cgroup((Path(record.cgroup),)) if record.cgroup else None


def _left(record: ProcessRecord) -> tuple[list[Process], list[str]]:
    """What lives of the attempt, and lines on its ended processes that a GPU still counts as its users."""
    if not _here(record):
        return [], []
    living = _living(record, _group(record))
    held = {pid for pid in record.holders if process(pid) is None}  # one that lives again is another process's
    if not held:
        return living, []
    users = devices.gpu_users()
    if users is None:
        state = "which has ended, though nvidia-smi does not answer whether a GPU still counts it as its user"
    else:
        held &= users
        state = "which has ended but which a GPU counts as its user"
    return living, [f"process {pid}, {state}" for pid in sorted(held)]


def _listed(living: list[Process], held: list[str]) -> str:
    return ", ".join([f"process {row.pid} (state {row.state})" for row in living] + held)


def _living(record: ProcessRecord, group: Cgroup | None) -> list[Process]:
    table = processes()
    grouped = set(group.pids()) if group is not None else set()
    leader = process(record.pid) if record.pid is not None else None
    # The session's number proves something only while its leader holds it; after that the mark and the group do.
    session = record.session if leader is not None and leader.ticks == record.start_ticks else None
    return [
        row
        for row in table
        if row.lives
        and row.pid not in (1, os.getpid())
        and (
            row.pid in grouped
            or (session is not None and row.session == session)
            or (row.pid, row.ticks) in record.left
            or _marked(row.pid, record.mark)
        )
    ]


def _marked(pid: int, mark: str) -> bool:
    try:
        environment = Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return False  # ended while we looked, or another user's
    return f"{MARK}={mark}".encode() in environment.split(b"\0")


@contextmanager
def _unsupervised(folder: Path) -> Iterator[bool]:
    """Whether nobody supervises the attempt; while entered, nobody else sweeps it."""
    lock = try_lock(folder / LOCK)
    try:
        yield lock is not None
    finally:
        if lock is not None:
            os.close(lock)


def try_lock(file: Path) -> int | None:
    """Handle of the locked file, which is made if need be; None when another process holds the lock."""
    handle = os.open(file, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(handle)
        return None
    return handle


def _boot_id() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()


def _pid_namespace() -> str:
    return os.readlink("/proc/self/ns/pid")
