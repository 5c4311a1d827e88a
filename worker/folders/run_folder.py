"""Lays out an attempt's folder before the trainer starts, and reads and writes small things in it while it runs."""

import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path, PurePosixPath

from pydantic import ValidationError

from grpo_core.config.run import RunConfig
from grpo_core.files.disk import is_full
from grpo_core.files.run_folder import RunDir
from grpo_core.protocol.messages import ClaimReply, InputFile, Progress
from worker.platform_client.client import AttemptLink, BadFile, JobLink, Meanwhile, Refused

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
    config = RunConfig.from_dict(claimed.config, source=f"the config of run {claimed.run_id}")
    RunDir(folder).config_file.write_text(config.to_yaml(), encoding="utf-8")


def fetch_inputs(
    folder: Path, files: Sequence[InputFile], link: AttemptLink | JobLink, *, meanwhile: Meanwhile, patience: float
) -> None:
    """Fetch a run's or job's files to `inputs/`. `meanwhile` is called often, and what it raises ends the work.

    Raises NotPrepared, BadFile and PlatformError.
    """
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
