"""Why an attempt ended: from the trainer's outcome, its exit status, why the worker stopped it, or what failed here.

The codes decide whether the platform tries the run again by itself; docs/operations.md lists them.
"""

import signal
import socket
from pathlib import Path
from typing import Literal

from pydantic import ValidationError

from grpo_core.errors import CheckpointMissing, DiskFullError, ExchangeError, GrpoError, RunDirError
from grpo_core.files.disk import is_full
from grpo_core.files.run_folder import RunDir
from grpo_core.protocol.messages import AttemptEnd, Finish
from grpo_core.records import types as records
from grpo_core.text import format_bytes
from worker.folders.resume import NoCheckpoint
from worker.folders.run_folder import NotPrepared, log_tail
from worker.node.facts import free_bytes
from worker.platform_client.client import BadFile, Refused
from worker.platform_client.uploads import RecordsLost
from worker.processes.child import GroupSurvives, NotStarted

StopCause = Literal["cancel", "pause", "drain", "shutdown", "deadline", "disk", "silence"]
"""Why the worker stops a trainer or a job. drain: the platform wants the run on another node. deadline: jobs alone."""

ENDS: dict[StopCause, tuple[AttemptEnd, str, str]] = {
    "cancel": ("cancelled", "cancelled", "Stopped before training began"),
    "pause": ("paused", "paused", "Paused before training began"),
    "drain": ("preempted", "drained", "The node is drained, and the run moves to another"),
    "shutdown": ("preempted", "worker_shutdown", "The worker was shut down"),
    "silence": (
        "failed",
        "platform_unreachable",
        "The worker could not reach the platform for too long and stopped the trainer",
    ),
    "disk": ("paused", DiskFullError.code, "Free some space there, then resume the run"),
}
"""End, code and message of an attempt that was stopped. No run is stopped by a deadline."""
_STOP_SIGNALS = {signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP}
_POLITE_SIGNALS = {signal.SIGTERM, signal.SIGINT}
_CRASHED = {signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGILL}


def read_outcome(folder: Path) -> records.Outcome | None:
    """How the trainer ended by its own outcome; None when it left none, or none that can be read."""
    try:
        return records.Outcome.model_validate_json(RunDir(folder).outcome_file.read_bytes())
    except (FileNotFoundError, ValidationError):
        return None


def ended_as_asked(folder: Path, status: int) -> bool:
    """Whether the trainer ended by a request to stop: it recorded that, or had not begun to record."""
    outcome = read_outcome(folder)
    return -status in _POLITE_SIGNALS if outcome is None else outcome.status == "stopped"


def attempt_finish(
    *,
    folder: Path,
    status: int | None,
    stopped_for: StopCause | None,
    last_seq: int,
    fence: int,
    out_of_memory: bool = False,
) -> Finish:
    """The report of an attempt's end. `status` is the trainer's (−signal if killed), None when it was never started;
    `out_of_memory` says that the kernel has killed for want of memory meanwhile."""
    outcome = read_outcome(folder)
    end: AttemptEnd
    if outcome is not None and outcome.status == "finished":
        end, code, message = "finished", outcome.code, outcome.message
    elif stopped_for != "cancel" and _disk_is_full(outcome, status, stopped_for):
        end, code, message = ENDS["disk"]
        says_so = outcome is not None and outcome.code == DiskFullError.code
        message = disk_message(folder, outcome.message if outcome is not None and says_so else message)
    elif outcome is not None and outcome.status == "failed":
        end, code, message = "failed", outcome.code, outcome.message
        if out_of_memory and code == ExchangeError.code:  # one of the run's processes was killed; another says this
            code, message = "out_of_memory", f"The system killed a process of the run because memory ran out. {message}"
    elif stopped_for is not None:
        end, code, message = ENDS[stopped_for]
        if stopped_for in ("cancel", "pause") and outcome is not None:
            message = outcome.message
        elif stopped_for in ("cancel", "pause") and status == -signal.SIGKILL:
            rest = "; its last checkpoint is what there is" if stopped_for == "pause" else ""
            message = f"The trainer did not stop in time and was killed{rest}"
    elif outcome is not None:
        end, code = "failed", "trainer_killed"
        message = f"Something outside the platform stopped the trainer: {outcome.message}"
    else:
        assert status is not None
        end, code = "failed", _death_code(status, out_of_memory)
        message = death(status, out_of_memory=out_of_memory)
    return Finish(
        fence=fence,
        end=end,
        code=code,
        message=message,
        exit_status=status if status is not None and status >= 0 else None,
        signal=-status if status is not None and status < 0 else None,
        log_tail=log_tail(RunDir(folder).log_file),
        last_seq=last_seq,
    )


def failure(error: Exception, child: str, runs: Path) -> tuple[str, str, bool]:
    """Code and message of what kept an attempt or job from its end, and whether it is no defect of the worker. `child`
    is `trainer` or `job`."""
    match error:
        case Refused(code="bad_record"):
            return error.code, f"The platform takes no more of the run's records: {error}", True
        case Refused():
            return "platform_refused", f"The platform refused what the worker sent: {error}", True
        case NoCheckpoint():
            return CheckpointMissing.code, str(error), True
        case NotPrepared() | BadFile():
            return "not_prepared", str(error), True
        case RunDirError():
            return error.code, f"The trainer's records cannot be shipped: {error}", True
        case DiskFullError():
            return error.code, disk_message(runs, str(error)), True
        case GrpoError():
            return error.code, str(error), True
        case RecordsLost():
            return "records_lost", str(error), True
        case NotStarted():
            return "worker_error", f"The {child} could not be started: {error}", True
        case GroupSurvives():
            return "worker_error", f"The {child} ended, but not all of it: {error}", True
        case _ if is_full(error):
            return DiskFullError.code, disk_message(runs, f"{error}. {ENDS['disk'][2]}"), True
    return "worker_error", f"The worker failed: {type(error).__name__}: {error}", False


def death(status: int, *, out_of_memory: bool = False) -> str:
    """An exit status as a message, for a trainer that left no outcome."""
    if status >= 0:
        return f"The trainer ended with status {status} and left no outcome. Its last lines are below."
    try:
        name = signal.Signals(-status).name
    except ValueError:
        name = f"signal {-status}"
    hint = ""
    if -status == signal.SIGKILL:
        hint = " The system did that because memory ran out." if out_of_memory else " That came from outside it."
    return f"The trainer was killed by {name}.{hint} Its last lines are below."


def _death_code(status: int, out_of_memory: bool) -> str:
    if -status == signal.SIGKILL and out_of_memory:
        return "out_of_memory"
    if -status in _STOP_SIGNALS:
        return "trainer_killed"
    if -status in _CRASHED:
        return "trainer_crashed"
    return "trainer_died"


def _disk_is_full(outcome: records.Outcome | None, status: int | None, stopped_for: StopCause | None) -> bool:
    if outcome is None:
        return stopped_for == "disk" or status == DiskFullError.exit_status
    # A trainer that is stopped because the disk is full may fail in any way for the same reason.
    return stopped_for == "disk" or outcome.code == DiskFullError.code


def disk_message(folder: Path, detail: str) -> str:
    """`detail` says what to do, as the message of a DiskFullError does."""
    left = format_bytes(free_bytes(folder))
    where = f"The disk of {folder} on {socket.gethostname()} is nearly full: {left} are left."
    return f"{where} {detail[:1].upper()}{detail[1:]}."
