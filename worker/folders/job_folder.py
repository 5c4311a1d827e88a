"""The folder of one job of the reward lab while a worker does it. Nothing of it stays: not after its end, and not of a
worker that was killed, for the next job's worker removes what no process holds.
"""

import json
import logging
import os
import secrets
import shutil
import sys
from pathlib import Path
from typing import Any, Self

from grpo_core.lab import rescore
from grpo_core.lab.chat import FOLDER, Exchange
from grpo_core.lab.rescore import PageExchange
from grpo_core.lab.result import MAX_RESULT_BYTES
from grpo_core.protocol.messages import JobGiven
from worker.folders.run_folder import fetch_inputs
from worker.platform_client.client import JobLink, Meanwhile
from worker.processes.orphans import try_lock

_LOCK = "lock"

log = logging.getLogger(__name__)


class TooLarge(Exception):
    """The result has more bytes than the platform takes."""


class JobFolder:
    """`<runs>/lab/job-<id>-<fence>-…`, held by a lock that goes with this process."""

    def __init__(self, runs: Path, given: JobGiven) -> None:
        """Raises OSError, as when the disk is full."""
        name = f"{given.job_id}-{given.fence}-{secrets.token_hex(4)}"
        temporary = runs / "lab" / f"new-{name}"  # it gets its name, which sweeps look for, once it is held
        temporary.mkdir(parents=True)
        lock = try_lock(temporary / _LOCK)
        assert lock is not None  # no other process knows this name
        self._lock = lock
        self.path = temporary.rename(runs / "lab" / f"job-{name}")
        self.log, self.out = self.path / "log.txt", self.path / "out"
        self.exchange = Exchange(self.out / FOLDER)
        """Of a chat."""
        self.pages = PageExchange(self.out / rescore.FOLDER)
        """Of a re-score."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        shutil.rmtree(self.path, ignore_errors=True)  # what stays is removed before the next job
        os.close(self._lock)

    def command(self) -> list[str]:
        words = ["lab", str(self.path / "job.json"), "--out", str(self.out)]
        return [sys.executable, "-P", "-m", "grpo_core.cli.main", *words]

    def fill(self, given: JobGiven, link: JobLink, *, device: str, meanwhile: Meanwhile, patience: float) -> None:
        """Fetch the dataset, write the job. Raises what `fetch_inputs` raises."""
        fetch_inputs(self.path, given.files, link, meanwhile=meanwhile, patience=patience)
        # An estimate is of the device that the run itself would take.
        job = given.job if given.job.get("kind") == "estimate" else {**given.job, "device": device}
        (self.path / "job.json").write_text(json.dumps(job), encoding="utf-8")

    def result(self) -> dict[str, Any] | None:
        """None when the job left none. Raises TooLarge, and ValueError when it is no JSON object."""
        file = self.out / "result.json"
        try:
            size = file.stat().st_size
            if size > MAX_RESULT_BYTES + 1024 * 1024:  # as it lies there; the platform counts it without spaces
                raise TooLarge(f"the result has {size:,} bytes, and at most {MAX_RESULT_BYTES:,} are taken")
            result = json.loads(file.read_bytes())
        except FileNotFoundError:
            return None
        if not isinstance(result, dict):
            raise ValueError("the result is no JSON object")
        return result

    def error(self) -> tuple[str, str] | None:
        """Code and message of the error that the job reports."""
        try:
            error = json.loads((self.out / "error.json").read_bytes())
        except (FileNotFoundError, ValueError):
            return None
        match error:
            case {"code": str(code), "message": str(message)}:
                return code, message
        return None


def sweep(runs: Path) -> None:
    """Remove the folders of jobs that no process holds."""
    for folder in sorted((runs / "lab").glob("job-*")):
        try:
            lock = try_lock(folder / _LOCK)
        except OSError as error:
            log.warning("%s cannot be removed: %s", folder, error)
            continue
        if lock is not None:  # its supervisor is dead
            shutil.rmtree(folder, ignore_errors=True)
            os.close(lock)
