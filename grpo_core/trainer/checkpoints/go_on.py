"""What a trainer does once with the checkpoint that it goes on from: read it, take its folder back, tell of it."""

from pathlib import Path

from torch import Tensor

from grpo_core.files.run_folder import RunDir
from grpo_core.records.types import Manifest
from grpo_core.runtime.progress import Progress
from grpo_core.trainer.checkpoints.resume import Chosen, check_inputs, take_back
from grpo_core.trainer.checkpoints.state import RunState, read_state
from grpo_core.trainer.checkpoints.write import load_parts
from grpo_core.trainer.manifest import inputs_of
from grpo_core.trainer.recorder import Journal


def read_checkpoint(folder: Path, manifest: Manifest) -> tuple[RunState, dict[str, dict[str, Tensor]]]:
    """State and tensors. Raises CheckpointError when they were made with other inputs than the manifest's."""
    state = read_state(folder)
    check_inputs(inputs_of(manifest), state, folder)
    return state, load_parts(folder)


def taken_back(chosen: Chosen | None, run_dir: RunDir | None, progress: Progress) -> Chosen | None:
    """Take the run directory back to `chosen` where it lies in it; only the first rank has both. Raises DiskFullError,
    RunDirError."""
    if chosen is None or run_dir is None or not chosen.own:
        return chosen
    chosen = take_back(run_dir, chosen)
    progress.keep_in(run_dir.progress_file)
    return chosen


def tell_resumed(chosen: Chosen, manifest: Manifest, journal: Journal, progress: Progress) -> None:
    """The records with which a run goes on, and what a person is told."""
    journal.write(manifest)
    journal.write(chosen.record())
    if chosen.own:
        journal.write(chosen.manifest)  # its first record came after the seq that it holds
    for removed in chosen.gone:
        journal.write(removed)
    for skipped in chosen.skipped:
        progress.line(f"passed over {skipped.path}: {skipped.reason}")
    progress.line(f"goes on from {chosen.manifest.path}, after step {chosen.state.step}")
