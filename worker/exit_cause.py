"""What an attempt's end means: from the trainer's outcome, its exit status and why the worker stopped it, if it did.

The codes decide whether the platform tries the run again by itself; docs/operations.md lists them.
"""

import signal
import socket
from pathlib import Path
from typing import Literal

from pydantic import ValidationError

from grpo_core.errors import DiskFullError, ExchangeError
from grpo_core.files.run_folder import RunDir
from grpo_core.protocol.messages import AttemptEnd, Finish
from grpo_core.records import types as records
from worker.folders.run_folder import log_tail
from worker.node.disk import free_bytes, size_in_words

StopCause = Literal["cancel", "pause", "drain", "shutdown", "silence", "disk"]
"""Why the worker stops a trainer. drain: the platform wants the run at another node."""

ENDS: dict[StopCause, tuple[AttemptEnd, str]] = {
    "cancel": ("cancelled", "cancelled"),
    "pause": ("paused", "paused"),
    "drain": ("preempted", "drained"),
    "shutdown": ("preempted", "worker_shutdown"),
    "silence": ("failed", "platform_unreachable"),
    "disk": ("paused", DiskFullError.code),
}
_ASKED_TO_END = {signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP}
_ASKED_POLITELY = {signal.SIGTERM, signal.SIGINT}
_CRASHED = {signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGILL}


def outcome(folder: Path) -> records.Outcome | None:
    """How the trainer says it ended; None when it said nothing, or nothing that can be read."""
    try:
        return records.Outcome.model_validate_json(RunDir(folder).outcome_file.read_bytes())
    except (FileNotFoundError, ValidationError):
        return None


def ended_as_asked(folder: Path, status: int) -> bool:
    """Whether the trainer ended because somebody asked it to: it says so, or was still too young to say anything."""
    told = outcome(folder)
    return -status in _ASKED_POLITELY if told is None else told.status == "stopped"


def verdict(
    *,
    folder: Path,
    status: int | None,
    stopped_for: StopCause | None,
    last_seq: int,
    fence: int,
    out_of_memory: bool = False,
) -> Finish:
    """The attempt's last word. `status` is the trainer's (−signal if killed), None when it was never started;
    `out_of_memory` says that the kernel has killed for want of memory meanwhile."""
    told = outcome(folder)
    end: AttemptEnd
    if told is not None and told.status == "finished":
        end, code, message = "finished", told.code, told.message
    elif stopped_for != "cancel" and _disk_is_full(told, status, stopped_for):
        end, code = ENDS["disk"]
        message = _full(folder, told)
    elif told is not None and told.status == "failed":
        end, code, message = "failed", told.code, told.message
        if out_of_memory and code == ExchangeError.code:  # one of the run's processes was killed; another says this
            code, message = "out_of_memory", f"The system killed a process of the run because memory ran out. {message}"
    elif stopped_for is not None:
        end, code = ENDS[stopped_for]
        message = _stopped(stopped_for, told, status)
    elif told is not None:
        end, code = "failed", "trainer_killed"
        message = f"Something outside the platform stopped the trainer: {told.message}"
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
        log_tail=log_tail(folder),
        last_seq=last_seq,
    )


def death(status: int, *, out_of_memory: bool = False) -> str:
    """An exit status in words, for a trainer that left no outcome."""
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
    if -status in _ASKED_TO_END:
        return "trainer_killed"
    if -status in _CRASHED:
        return "trainer_crashed"
    return "trainer_died"


def _disk_is_full(told: records.Outcome | None, status: int | None, stopped_for: StopCause | None) -> bool:
    if told is None:
        return stopped_for == "disk" or status == DiskFullError.exit_status
    # Whatever broke in a trainer that was being stopped for want of room broke for want of room.
    return stopped_for == "disk" or told.code == DiskFullError.code


def _full(folder: Path, told: records.Outcome | None) -> str:
    left = size_in_words(free_bytes(folder))
    what = "Free some space there, then resume the run"
    if told is not None and told.code == DiskFullError.code:  # its words end with the same advice
        what = told.message[:1].upper() + told.message[1:]
    return f"The disk of {folder} on {socket.gethostname()} is nearly full: {left} are left. {what}."


def _stopped(cause: StopCause, told: records.Outcome | None, status: int | None) -> str:
    match cause:
        case "cancel":
            killed = "The trainer did not stop in time and was killed"
            return told.message if told else killed if status == -signal.SIGKILL else "Stopped before training began"
        case "pause":
            if told is not None:
                return told.message
            if status == -signal.SIGKILL:
                return "The trainer did not stop in time and was killed; its last checkpoint is what there is"
            return "Paused before training began"
        case "drain":
            return "The node is drained, and the run moves to another"
        case "shutdown":
            return "The worker was shut down"
        case "silence":
            return "The worker could not reach the platform for too long and stopped the trainer"
        case "disk":
            raise AssertionError("a full disk has words of its own")
