"""An attempt's folder: laid out before the trainer starts, small files read and written while it runs, and which
folders are kept."""

import json
import logging
import os
import re
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path, PurePosixPath

from pydantic import ValidationError

from grpo_core.config.kinds import config_from_dict
from grpo_core.files.checkpoint import PINNED, pruning, remove_folder, step_folder
from grpo_core.files.disk import is_full, need_room
from grpo_core.files.run_folder import RunDir
from grpo_core.protocol.messages import ClaimReply, InputFile, OldCheckpoint, Progress
from worker.platform_client.client import AttemptLink, BadFile, JobLink, Meanwhile, Refused

# Writes for the trainer which checkpoints must stay: those that a person pinned, and one that the platform knows of.
#
# The trainer must not remove the newest one that the platform knows of: those after it are lost with this worker while
# their records wait to be sent, and then no attempt could be resumed.


class PruningNow(Exception):
    """The trainer removes checkpoints at this moment, so which stay is not known."""


class Pins:
    """Of one attempt: the pins that its trainer can read, and those to be written."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._steps: list[int] = []
        self._known: int | None = None
        """Step of the newest checkpoint that the platform knows of."""
        self._kept: int | None = None
        """Step of the newest of those pinned for the trainer, so that the run can be resumed."""
        self._written: tuple[list[int], int | None] = ([], None)

    def pin(self, steps: list[int]) -> None:
        """What people want kept by now. What could not be written is tried again by the next call."""
        self._steps = steps
        self._write()

    def known(self, step: int) -> None:
        """The platform holds the record of the checkpoint of this step."""
        self._known = step
        self._write()

    def _write(self) -> None:
        pins = (self._steps, self._known)
        if pins == self._written:
            return
        known = [step for step in (self._known, self._kept) if step is not None]
        try:
            self._kept = write_pinned(self._folder, self._steps, known)
        except PruningNow:
            return
        except OSError as error:  # no reason to end a run
            log.warning("%s: cannot write down which checkpoints stay: %s", self._folder, error)
        else:
            self._written = pins


def write_pinned(folder: Path, steps: list[int], known: Sequence[int] = ()) -> int | None:
    """Pin the checkpoints that must stay: those of `steps`, and the first of `known` that is still there.

    Returns that one's step. Raises PruningNow when the trainer is just removing some.
    """
    checkpoints = folder / "checkpoints"
    checkpoints.mkdir(exist_ok=True)
    with pruning(checkpoints) as may:
        if not may:
            raise PruningNow
        kept = next((step for step in known if (checkpoints / step_folder(step)).is_dir()), None)
        temporary = checkpoints / f".{PINNED}.part"
        temporary.write_text(json.dumps(sorted({*steps, *([] if kept is None else [kept])})) + "\n", encoding="utf-8")
        temporary.replace(checkpoints / PINNED)
    return kept


# Removes the checkpoints of a run's earlier attempts that the platform reports as no longer needed.
#
# Each attempt keeps its own checkpoints, and each set of them may be as large as the model and its optimiser: without
# this a run that moved or failed a few times would hold several.

_A_CHECKPOINT = re.compile(r"checkpoints/step-\d+")

log = logging.getLogger(__name__)


class Cleanup:
    """Of one run, by its present attempt. One checkpoint is removed at a time, so that no beat waits long."""

    def __init__(self, run_folder: Path) -> None:
        """`run_folder` holds the folders of the run's attempts on this machine."""
        self._run = run_folder
        self.removed: list[OldCheckpoint] = []
        """To be reported with the next beat; emptied once they were."""

    def remove(self, needless: Sequence[OldCheckpoint]) -> None:
        """Remove the first of them that is here. A folder that this machine does not have is not reported: it may be on
        another disk of the same node."""
        for old in needless:
            if _A_CHECKPOINT.fullmatch(old.path) is None or old in self.removed:
                continue
            attempt = self._run / f"attempt-{old.fence}"
            if not attempt.is_dir():
                continue
            try:
                if (attempt / old.path).is_dir():
                    remove_folder(attempt / old.path)
                for fetched in attempt.glob("inputs/checkpoint-*"):
                    shutil.rmtree(fetched)
            except OSError as error:  # no reason to end a run: the platform names it again
                log.warning("%s: cannot remove a checkpoint that is not needed any more: %s", attempt, error)
                continue
            self.removed.append(old)
            return


Command = Callable[[Path, list[Path]], list[str]]
"""From an attempt's folder, and the checkpoints it may resume from, to the program that trains in it."""

LOG_TAIL_LINES = 60
_LOG_TAIL_BYTES = 32 * 1024

# What a trainer may see of the worker's environment. Everything else, and with it every token, stays out: the trainer
# runs reward code that other people wrote. The keys of judges go to it, because it asks them. The proxy's address is
# passed, for models of the Hub cannot be fetched without it; a password in it is passed too (docs/operations.md says
# so).
_PASSED = re.compile(
    "PATH|HOME|USER|LOGNAME|SHELL|LANG|LANGUAGE|TZ|TMPDIR|VIRTUAL_ENV|LD_LIBRARY_PATH|REQUESTS_CA_BUNDLE"
    "|XDG_CACHE_HOME|HF_HOME|(LC|CUDA|NVIDIA|NCCL|GLOO|OMP|MKL|KMP|OPENBLAS|TRITON|VLLM|DS|SSL_CERT)_.*"
    "|(PYTHON|TORCH|PYTORCH_|HF_HUB_|TRANSFORMERS_|TOKENIZERS_).*"
    "|GRPO_(JUDGE_ALLOW|SANDBOX|JUDGE_KEY(_[A-Z0-9_]+)?)"
    "|HTTPS?_PROXY|NO_PROXY|https?_proxy|no_proxy"
)
_NEVER = ("_TOKEN", "SECRET", "PASSWORD", "CREDENTIAL")


class NotPrepared(Exception):
    """The attempt cannot start here; the message says why."""


def trainer_command(spool_cap: int) -> Command:
    """`grpo train`, by the interpreter that runs the worker; -P keeps the folder itself from shadowing packages."""

    def command(folder: Path, resume_from: list[Path]) -> list[str]:
        words = ["train", str(RunDir(folder).config_file), "--out", str(folder), "--spool"]
        words += ["--spool-cap", str(spool_cap)]
        for checkpoint in resume_from:
            words += ["--resume-from", str(checkpoint)]
        return [sys.executable, "-P", "-m", "grpo_core.cli.main", *words]

    return command


def trainer_environment(
    outer: Mapping[str, str],
    models: Path,
    *,
    hosts: str = "",
    remote_shell: str = "",
    vllm_python: Path | None = None,
) -> dict[str, str]:
    kept = {
        name: value
        for name, value in outer.items()
        if _PASSED.fullmatch(name) and not any(word in name for word in _NEVER)
    }
    server = "" if vllm_python is None else str(vllm_python)
    settings = {"GRPO_HOSTS": hosts, "GRPO_REMOTE_SHELL": remote_shell, "GRPO_VLLM_PYTHON": server}
    given = {name: value for name, value in settings.items() if value}
    return {**kept, **given, "GRPO_MODELS": str(models), "PYTHONUNBUFFERED": "1"}


def make(folder: Path) -> None:
    """Make an attempt's folder. Raises NotPrepared, and OSError when the disk is full."""
    try:
        folder.mkdir(parents=True)
    except FileExistsError:
        raise NotPrepared(
            f"{folder} exists already, from a run of another database. Move it away, or give COHORT_RUNS_DIR another "
            "folder."
        ) from None
    except OSError as error:
        if is_full(error):
            raise
        raise NotPrepared(f"cannot make {folder}: {error.strerror}") from None


def fill(folder: Path, claimed: ClaimReply, link: AttemptLink, *, meanwhile: Meanwhile, patience: float) -> None:
    """Fetch the inputs, write the config. Raises what `fetch_inputs` raises, and ConfigError for a config that this
    worker does not understand."""
    fetch_inputs(folder, claimed.files, link, meanwhile=meanwhile, patience=patience)
    config = config_from_dict(claimed.config, source=f"the config of run {claimed.run_id}")
    RunDir(folder).config_file.write_text(config.to_yaml(), encoding="utf-8")


def fetch_inputs(
    folder: Path, files: Sequence[InputFile], link: AttemptLink | JobLink, *, meanwhile: Meanwhile, patience: float
) -> None:
    """Fetch a run's or job's files to `inputs/`. `meanwhile` is called often, and what it raises ends the work.

    Raises NotPrepared, BadFile, PlatformError, and DiskFullError where they find no room.
    """
    need_room(folder, sum(file.size for file in files), "fetching the files that are read")
    for file in files:
        path = PurePosixPath(file.path)
        if path.parts[:1] != ("inputs",) or ".." in path.parts:
            raise BadFile(f"the platform wants a file at {file.path!r}, outside inputs/")
        try:
            link.fetch(file, folder / path, meanwhile=meanwhile, patience=patience)
        except Refused as refused:
            if refused.code != "file_missing":
                raise
            raise NotPrepared(str(refused)) from None


def progress(folder: Path) -> Progress | None:
    """What the trainer or job in this folder reports of its phase; None while it reports nothing."""
    try:
        return Progress.model_validate_json((folder / "progress.json").read_bytes())
    except (FileNotFoundError, ValidationError):
        return None


def log_tail(log: Path) -> str:
    """The last lines of a trainer's or job's log; empty without one."""
    try:
        with log.open("rb") as handle:
            handle.seek(max(0, os.fstat(handle.fileno()).st_size - _LOG_TAIL_BYTES))
            text = handle.read().decode(errors="replace")
    except FileNotFoundError:
        return ""
    return "\n".join(text.splitlines()[-LOG_TAIL_LINES:])
