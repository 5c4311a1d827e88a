"""Rewinds a run directory to a checkpoint: what was recorded after it moves to superseded/<n>/, so that the readable
files are those of one run without a break. Nothing is deleted. Loads no torch.

May be killed anywhere and begun again: a file's end is copied and made durable before it is cut off.
"""

import json
import shutil
from pathlib import Path

from grpo_core.files.checkpoint import step_folders
from grpo_core.files.disk import fsync, raise_when_full
from grpo_core.files.run_folder import unreadable


def rewind(folder: Path, *, seq: int, step: int) -> Path | None:
    """Keep records up to `seq` and checkpoints up to `step`. Returns the folder that the rest went to; None when there
    was no rest. Raises DiskFullError; RunDirError as `kept_bytes` does, and then nothing was moved."""
    kept = kept_bytes(folder, seq)
    superseded = folder / "superseded" / str(_next(folder / "superseded"))
    with raise_when_full(folder, "what a resume puts aside"):
        for name in ("outcome.json", "progress.json"):
            _move(folder, folder / name, superseded)
        for name in ("manifest.json", "config.yaml"):
            _copy(folder, folder / name, superseded)  # the next one replaces it whole
        for path in sorted([*(folder / "samples").glob("step-*.jsonl"), *(folder / "tokens").glob("step-*.parquet")]):
            if int(path.stem.removeprefix("step-")) > step:
                _move(folder, path, superseded)
        for path, size in kept.items():
            _cut(folder, path, size, superseded)
        for number, path in step_folders(folder / "checkpoints").items():
            if number > step:
                _move(folder, path, superseded)
        _move(folder, folder / "checkpoints" / "final", superseded)
        _move(folder, folder / "dataset", superseded)
    return superseded if superseded.exists() else None


def kept_bytes(folder: Path, seq: int) -> dict[Path, int]:
    """How many bytes of each file of records are those up to `seq`. Unreadable lines after them are what a kill or a
    power loss left, and belong to the rest. Raises RunDirError for an unreadable line before one of them."""
    named = [folder / f"{name}.jsonl" for name in ("events", "metrics", "commitments", "tokens")]
    paths = (*named, *sorted((folder / "evals").glob("*.jsonl")))
    return {path: _kept(path, seq) for path in paths if path.exists()}


def _kept(path: Path, seq: int) -> int:
    kept = end = 0
    unread: int | None = None
    with path.open("rb") as handle:
        for number, line in enumerate(handle, start=1):
            end += len(line)
            record_seq = _seq(line)
            if record_seq is None:
                unread = unread or number
            elif record_seq > seq:
                break
            elif unread is not None:
                raise unreadable(path, unread)
            else:
                kept = end
    return kept


def _seq(line: bytes) -> int | None:
    """Of a record's line; None where it is half a line, or not a record."""
    if not line.endswith(b"\n"):
        return None
    try:
        return int(json.loads(line)["seq"])
    except (ValueError, TypeError, KeyError, RecursionError):
        return None


def _cut(folder: Path, path: Path, kept: int, superseded: Path) -> None:
    """Move what is behind the first `kept` bytes away."""
    with path.open("rb") as handle:
        handle.seek(kept)
        rest = handle.read()
    if not rest:
        return
    if kept == 0:
        _move(folder, path, superseded)
        return
    target = _place(folder, path, superseded)
    target.write_bytes(rest)
    fsync(target)
    fsync(target.parent)
    with path.open("r+b") as handle:
        handle.truncate(kept)
    fsync(path)


def _move(folder: Path, path: Path, superseded: Path) -> None:
    if path.exists():
        target = _place(folder, path, superseded)
        path.rename(target)
        fsync(target.parent)
        fsync(path.parent)


def _copy(folder: Path, path: Path, superseded: Path) -> None:
    if path.exists():
        target = _place(folder, path, superseded)
        shutil.copyfile(path, target)
        fsync(target)
        fsync(target.parent)


def _place(folder: Path, path: Path, superseded: Path) -> Path:
    """Where a file of the run's `folder` goes, with the folders on the way there made durable up to the run's own."""
    target = superseded / path.relative_to(folder)
    target.parent.mkdir(parents=True, exist_ok=True)
    for made in target.parents:
        if made == folder:
            break
        fsync(made.parent)
    return target


def _next(superseded: Path) -> int:
    known = [int(path.name) for path in superseded.glob("*") if path.name.isdigit()] if superseded.is_dir() else []
    return max(known, default=0) + 1
