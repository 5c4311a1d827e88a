"""Lays out an attempt's folder before the trainer starts, and reads what the trainer left when it has ended."""

import os
import re
import signal
import sys
from collections.abc import Callable, Mapping
from pathlib import Path, PurePosixPath

from pydantic import ValidationError

from grpo_core import records
from grpo_core.config import RunConfig
from grpo_core.run_dir import RunDir
from grpo_core.wire import ClaimReply, Finish
from worker.client import AttemptLink, BadFile, Refused

Command = Callable[[Path], list[str]]
"""From an attempt's folder to the program that trains in it."""

LOG_TAIL_LINES = 60
_LOG_TAIL_BYTES = 32 * 1024
_FETCH_PATIENCE = 300.0

# What a trainer may see of the worker's environment. Everything else, and with it every token, stays out: the trainer
# runs reward code that other people wrote. The proxy's address is passed, for models of the Hub cannot be fetched
# without it; a password in it is passed too (docs/operations.md says so).
_PASSED = re.compile(
    "PATH|HOME|USER|LOGNAME|SHELL|LANG|LANGUAGE|TZ|TMPDIR|VIRTUAL_ENV|LD_LIBRARY_PATH|REQUESTS_CA_BUNDLE"
    "|XDG_CACHE_HOME|HF_HOME|(LC|CUDA|NVIDIA|NCCL|GLOO|OMP|MKL|KMP|OPENBLAS|TRITON|VLLM|DS|SSL_CERT)_.*"
    "|(PYTHON|TORCH|PYTORCH_|HF_HUB_|TRANSFORMERS_|TOKENIZERS_).*"
    "|HTTPS?_PROXY|NO_PROXY|https?_proxy|no_proxy"
)
_NEVER = ("_TOKEN", "SECRET", "PASSWORD", "CREDENTIAL")


class NotPrepared(Exception):
    """The attempt cannot start here; the message says why."""


def trainer_command(folder: Path) -> list[str]:
    """`grpo train`, by the interpreter that runs the worker; -P keeps the folder itself from shadowing packages."""
    arguments = ["train", str(RunDir(folder).config_file), "--out", str(folder), "--spool"]
    return [sys.executable, "-P", "-m", "grpo_core.cli", *arguments]


def trainer_environment(outer: Mapping[str, str], models: Path) -> dict[str, str]:
    kept = {
        name: value
        for name, value in outer.items()
        if _PASSED.fullmatch(name) and not any(word in name for word in _NEVER)
    }
    return {**kept, "GRPO_MODELS": str(models), "PYTHONUNBUFFERED": "1"}


def make(claimed: ClaimReply, runs: Path) -> Path:
    """Make the attempt's folder. Raises NotPrepared."""
    folder = runs / f"run-{claimed.run_id}" / f"attempt-{claimed.fence}"
    try:
        folder.mkdir(parents=True)
    except FileExistsError:
        raise NotPrepared(
            f"{folder} exists already, from a run of another database. Move it away, or give COHORT_RUNS_DIR another "
            "folder."
        ) from None
    except OSError as error:
        raise NotPrepared(f"cannot make {folder}: {error.strerror}") from None
    return folder


def fill(folder: Path, claimed: ClaimReply, link: AttemptLink, *, meanwhile: Callable[[], None]) -> None:
    """Fetch the inputs, write the config. `meanwhile` is called often, and what it raises ends the work.

    Raises NotPrepared, BadFile, ConfigError for a config this worker does not understand, and PlatformError.
    """
    for file in claimed.files:
        place = PurePosixPath(file.path)
        if place.parts[:1] != ("inputs",) or ".." in place.parts:
            raise BadFile(f"the platform wants a file at {file.path!r}, outside inputs/")
        try:
            link.fetch(file, folder / place, meanwhile=meanwhile, patience=_FETCH_PATIENCE)
        except Refused as refused:
            if refused.code != "file_missing":
                raise
            raise NotPrepared(str(refused)) from None
    config = RunConfig.from_dict(claimed.config, source=f"the config of run {claimed.run_id}")
    RunDir(folder).config_file.write_text(config.to_yaml(), encoding="utf-8")


def outcome(folder: Path) -> records.Outcome | None:
    """How the trainer says it ended; None when it said nothing, or nothing that can be read."""
    try:
        return records.Outcome.model_validate_json(RunDir(folder).outcome_file.read_bytes())
    except (FileNotFoundError, ValidationError):
        return None


def log_tail(folder: Path) -> str:
    """The last lines of the trainer's log."""
    log = RunDir(folder).log_file
    if not log.is_file():
        return ""
    with log.open("rb") as handle:
        handle.seek(max(0, os.fstat(handle.fileno()).st_size - _LOG_TAIL_BYTES))
        text = handle.read().decode(errors="replace")
    return "\n".join(text.splitlines()[-LOG_TAIL_LINES:])


def death(status: int) -> str:
    """An exit status in words, for a trainer that left no outcome."""
    if status >= 0:
        return f"The trainer ended with status {status} and left no outcome. Its last lines are below."
    try:
        name = signal.Signals(-status).name
    except ValueError:
        name = f"signal {-status}"
    hint = " The system does that when memory runs out." if -status == signal.SIGKILL else ""
    return f"The trainer was killed by {name}.{hint} Its last lines are below."


def verdict(*, folder: Path, status: int, stopped_for: str | None, last_seq: int, fence: int) -> Finish:
    """The attempt's last word, from the trainer's outcome, its exit status and why the worker stopped it, if it did.

    `stopped_for` is None, cancel, shutdown or silence.
    """
    told = outcome(folder)
    if told is not None and told.status == "finished":
        end, code, message = "finished", told.code, told.message
    elif told is not None and told.status == "failed":
        end, code, message = "failed", told.code, told.message
    elif stopped_for == "cancel":
        end, code = "cancelled", "cancelled"
        killed = "The trainer did not stop in time and was killed"
        message = told.message if told else killed if status == -signal.SIGKILL else "Stopped before training began"
    elif stopped_for == "shutdown":
        end, code, message = "preempted", "worker_shutdown", "The worker was shut down"
    elif stopped_for == "silence":
        end, code = "failed", "platform_unreachable"
        message = "The worker could not reach the platform for too long and stopped the trainer"
    elif told is not None:
        end, code, message = "failed", told.code, f"Something outside the platform stopped the trainer: {told.message}"
    else:
        end, code, message = "failed", "trainer_died", death(status)
    return Finish.model_validate(
        {
            "fence": fence,
            "end": end,
            "code": code,
            "message": message,
            "exit_status": status if status >= 0 else None,
            "signal": -status if status < 0 else None,
            "log_tail": log_tail(folder),
            "last_seq": last_seq,
        }
    )
