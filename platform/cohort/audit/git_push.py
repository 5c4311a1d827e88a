"""The newest checkpoint, as a commit in a git repository that others can watch. Nothing there is ever overwritten: a
push that does not follow from what the repository holds is refused.
"""

import json
import os
import signal
import subprocess
import time
from contextlib import suppress
from functools import partial
from pathlib import Path

from cohort.audit.keys import keys_file, public_keys
from cohort.audit.models import LogCheckpoint
from cohort.audit.tree import LogFault, roots
from cohort.base.scratch import scratch_folder
from cohort.evidence.checkpoint import CheckpointError, open_checkpoint
from cohort.evidence.keys import parse_vkey
from cohort.evidence.note import NoteError

SECONDS = 120
"""For a whole push, all its git commands together."""
BRANCH = "main"


class GitFault(Exception):
    """The repository did not accept the checkpoint. The message holds git's output."""


def git_push(repository: str, newest: LogCheckpoint) -> str:
    """Commit `checkpoint` and `keys.json` on top of the repository's branch `main` and push. Returns what was done.

    Raises GitFault when git fails or all of it takes longer than SECONDS, and LogFault when the checkpoint that lies
    there is not of this log's own past.
    """
    with scratch_folder("log-git") as folder:
        git = partial(_git, folder, time.monotonic() + SECONDS)
        git("init", "--quiet", f"--initial-branch={BRANCH}")
        git("remote", "add", "origin", "--", repository)
        if git("ls-remote", "--heads", "origin", BRANCH).strip():
            git("fetch", "--quiet", "--depth=1", "origin", BRANCH)
            git("checkout", "--quiet", "-B", BRANCH, "FETCH_HEAD")
        file = folder / "checkpoint"
        if file.is_file() and not file.is_symlink():
            before = file.read_bytes().decode("utf-8", errors="replace")  # bytes that are no text do not follow
            if before == newest.note:
                return f"the checkpoint of {newest.size:,} entries lies there"
            _require_follows(before, newest)
        _put(file, newest.note)
        _put(folder / "keys.json", json.dumps(keys_file(), indent=2) + "\n")
        git("add", "--", "checkpoint", "keys.json")
        git("commit", "--quiet", "--message", f"Checkpoint of {newest.size:,} entries")
        git("push", "--quiet", "origin", f"{BRANCH}:{BRANCH}")
    return f"pushed the checkpoint of {newest.size:,} entries"


def _put(file: Path, text: str) -> None:
    """Write the file, replacing a file or link of that name. Raises GitFault where a folder has it."""
    if file.is_dir() and not file.is_symlink():
        raise GitFault(f"the repository has a folder named {file.name}, where the log's file belongs")
    file.unlink(missing_ok=True)
    file.write_text(text, encoding="utf-8")


def _require_follows(before: str, newest: LogCheckpoint) -> None:
    """Raises LogFault."""
    try:
        head = open_checkpoint(before, [parse_vkey(vkey) for vkey in public_keys()[0]])
    except (NoteError, CheckpointError) as error:
        raise LogFault(f"the checkpoint in the repository is not of this log: {error}") from None
    if head.size > newest.size or roots([head.size])[head.size] != head.root:
        raise LogFault(
            f"the checkpoint of {head.size:,} entries in the repository is of another history: this log was cut or "
            "rewritten, or the repository is another log's"
        )


def _git(folder: Path, deadline: float, *words: str) -> str:
    """The output of git with these arguments; `deadline` as `time.monotonic` counts. Raises GitFault."""
    # Independent of this machine's git settings: no hooks, no signing, no helper that prompts for a password.
    settings = {
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_TERMINAL_PROMPT": "0",
        "GIT_SSH_COMMAND": os.environ.get("GIT_SSH_COMMAND", "ssh -o BatchMode=yes"),
        "GIT_AUTHOR_NAME": "Cohort",
        "GIT_AUTHOR_EMAIL": "cohort@localhost",
        "GIT_COMMITTER_NAME": "Cohort",
        "GIT_COMMITTER_EMAIL": "cohort@localhost",
    }
    command = ["git", "-c", "commit.gpgSign=false", "-c", "core.hooksPath=/dev/null", *words]
    try:
        running = subprocess.Popen(
            command,
            cwd=folder,
            env=os.environ | settings,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
    except FileNotFoundError:
        raise GitFault("there is no program git on this machine") from None
    with running:
        try:
            out, stderr = running.communicate(timeout=deadline - time.monotonic())
        except BaseException as error:  # kill its children too: an ssh that hangs would outlive it
            with suppress(ProcessLookupError):
                os.killpg(running.pid, signal.SIGKILL)
            if isinstance(error, subprocess.TimeoutExpired):
                raise GitFault(f"the push took longer than {SECONDS} s, and was ended at git {words[0]}") from None
            raise
    if running.returncode:
        message = " ".join(stderr.decode("utf-8", errors="replace").split())[:500]
        raise GitFault(f"git {words[0]} ended with status {running.returncode}: {message}")
    return out.decode("utf-8", errors="replace")
