"""Finds the checkpoint that an attempt is resumed from: on this machine, or on the platform.

The platform's offers are tried newest first. One is taken only when every byte of it is what was recorded when
it was written. Nothing here starts a run from nothing: with offers, one is usable or the attempt fails.
"""

import logging
import shutil
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path, PurePosixPath

from grpo_core.errors import CheckpointError
from grpo_core.files.checkpoint import read_manifest, step_folder, verify_checkpoint, write_manifest
from grpo_core.files.disk import need_room
from grpo_core.protocol.messages import CheckpointOffer, ClaimReply, InputFile
from grpo_core.records.types import CheckpointManifest
from worker.folders.run_folder import NotPrepared
from worker.platform_client.client import AttemptLink, BadFile, Meanwhile, Refused

_POLL_SECONDS = 0.2
_GONE = ("file_missing", "unknown_file")

log = logging.getLogger(__name__)


class NoCheckpoint(NotPrepared):
    """None of the offered checkpoints is available here; the message names each with the reason."""


def choose(
    claimed: ClaimReply, folder: Path, link: AttemptLink, *, meanwhile: Meanwhile, patience: float
) -> list[Path]:
    """Folders for `--resume-from` of the attempt in `folder`, newest first; empty when nothing was offered.

    The last is whole; those before it are not, and are given so that the trainer can record that they were passed
    over. `meanwhile` is called often, and what it raises ends the work. Raises NoCheckpoint, PlatformError, and
    DiskFullError when one that has to be fetched finds no room. What earlier attempts fetched is removed first; what
    this one fetches is for it alone, and the caller removes it by `clear_fetched`.
    """
    _clear_earlier(folder.parent, claimed.fence)
    faults: list[str] = []
    passed_over: list[Path] = []
    for offer in claimed.resume:
        here = _inside(folder.with_name(f"attempt-{offer.fence}"), offer.path)
        fault = _fault(here, offer, meanwhile)
        if fault is None:
            return [*passed_over, here]
        if offer.stored:
            fetched = folder / "inputs" / f"checkpoint-{step_folder(offer.step)}"
            try:
                _fetch(offer, fetched, link, meanwhile=meanwhile, patience=patience)
            except (BadFile, Refused) as error:
                if isinstance(error, Refused) and error.code not in _GONE:
                    raise
                _remove(fetched)
                fault = f"{fault}; the platform's copy cannot be had: {error}"
            else:
                return [*passed_over, fetched]
        log.warning("run %s: checkpoint of step %s not usable: %s", claimed.run_id, offer.step, fault)
        faults.append(f"step {offer.step}: {fault}")
        if not _is_another(here, offer):
            passed_over.append(here)
    if claimed.resume:
        raise NoCheckpoint(
            f"None of the {len(faults)} checkpoints of this run can be had on this node: {'; '.join(faults)}. Let the "
            "run resume on a node that has one, retry it from an older checkpoint, or from the first step."
        )
    return []


def clear_fetched(attempt: Path) -> None:
    """Remove the checkpoints that an attempt fetched: to begin from, and as its base model. No later attempt looks for
    one there."""
    for fetched in attempt.glob("inputs/checkpoint-*"):
        _remove(fetched)


def _remove(fetched: Path) -> None:
    try:
        shutil.rmtree(fetched)
    except OSError as error:  # no reason to end a run: the run's next attempt here tries again
        log.warning("%s: cannot remove a fetched checkpoint: %s", fetched, error)


def _clear_earlier(run_folder: Path, fence: int) -> None:
    """The same for attempts before this fence: one whose worker was killed could not do it."""
    for attempt in run_folder.glob("attempt-*"):
        number = attempt.name.removeprefix("attempt-")
        if number.isdigit() and int(number) < fence:
            clear_fetched(attempt)


def _fault(here: Path, offer: CheckpointOffer, meanwhile: Meanwhile) -> str | None:
    """Why the checkpoint at `here` cannot be used; None when it is the one that is offered, and whole."""
    if not here.is_dir():
        return "it was written on another node and is not stored on the platform" if not offer.stored else "not here"
    if _is_another(here, offer):
        return f"{here} holds another checkpoint, of another database"
    try:
        _verify(here, meanwhile)
    except CheckpointError as error:
        return str(error)
    return None


def _is_another(here: Path, offer: CheckpointOffer) -> bool:
    """Whether a readable manifest lies there that is not the offered one's."""
    try:
        return read_manifest(here).files != offer.files
    except CheckpointError:
        return False


def _fetch(offer: CheckpointOffer, target: Path, link: AttemptLink, *, meanwhile: Meanwhile, patience: float) -> None:
    size = sum(entry.size for entry in offer.files.values())
    target.mkdir(parents=True, exist_ok=True)
    need_room(target, size, f"fetching the checkpoint of step {offer.step}")
    for name, entry in offer.files.items():
        file = InputFile(path=name, sha256=entry.sha256, size=entry.size)
        link.fetch(file, _inside(target, name), meanwhile=meanwhile, patience=patience)
    write_manifest(target, CheckpointManifest(step=offer.step, path=offer.path, files=offer.files))
    try:
        _verify(target, meanwhile)
    except CheckpointError as error:
        raise BadFile(str(error)) from None


def _inside(root: Path, relative: str) -> Path:
    """Raises BadFile for a path that would lead out of `root`."""
    path = PurePosixPath(relative)
    if path.is_absolute() or ".." in path.parts or not path.parts:
        raise BadFile(f"the platform offers a checkpoint with a file at {relative!r}, outside its folder")
    return root / path


def _verify(folder: Path, meanwhile: Meanwhile) -> None:
    """In a thread, because reading all of a large checkpoint takes longer than a lease. Raises CheckpointError."""
    pool = ThreadPoolExecutor(1, "verify")
    verified = pool.submit(verify_checkpoint, folder)
    pool.shutdown(wait=False)
    meanwhile()
    while wait([verified], _POLL_SECONDS).not_done:
        meanwhile()
    verified.result()
