"""Chooses the checkpoint to resume from, before anything heavy is loaded, and says what differs from when it was
written. A run directory stays as it is until `rewind_run_folder`. Loads no torch.

The newest whole one is taken; those passed over are named with the reason. It never starts from
nothing: without a whole checkpoint it raises an error that says what to do.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pydantic_core import to_jsonable_python
from torch import Tensor

from grpo_core.config.kinds import AnyConfig
from grpo_core.config.presets.preset import leaves
from grpo_core.config.sample import SampleConfig
from grpo_core.errors import CheckpointError, CheckpointMissing, ConfigError, FieldProblem, RunDirError
from grpo_core.files.checkpoint import step_folders, sweep, verify_checkpoint
from grpo_core.files.rewind import kept_bytes, rewind
from grpo_core.files.run_folder import RunDir
from grpo_core.records.types import CheckpointManifest, CheckpointRemoved, Manifest, Resumed, SkippedCheckpoint
from grpo_core.runtime.progress import Progress
from grpo_core.trainer.checkpoints.state import RunState, existing_best, read_state
from grpo_core.trainer.checkpoints.write import load_parts
from grpo_core.trainer.manifest import inputs_of
from grpo_core.trainer.recorder import RunRecorder

FREE = ("name", "optim.steps", "engine.", "checkpoints.", "traces.")
"""Fields that may differ when a run continues: none changes what was trained so far. `eval.margin` must not be moved
once results may have been seen."""

ROUNDING = (
    *("rollout", "rollout_batch", "rollout_tokens", "one_step_off"),
    *("training", "micro_batch_tokens", "layout", "skip_zero_advantage", "torch_compile", "autocast"),
)
"""Fields of engine that decide what computes, in which format, and what is added up together: how numbers are rounded.
Of gradient_checkpointing nothing is rounded otherwise."""

_CODE = {
    "version": "Cohort's version",
    "git_commit": "Cohort's commit",
    "dirty_sha256": "Cohort's uncommitted changes (SHA-256)",
}
"""Labels for the fields of a manifest's code."""


@dataclass(frozen=True)
class Chosen:
    """The checkpoint that a run resumes from."""

    folder: Path
    manifest: CheckpointManifest
    state: RunState
    skipped: tuple[SkippedCheckpoint, ...]
    own: bool
    """Whether it lies in the run directory that is written on."""
    removed: tuple[CheckpointRemoved, ...] = ()
    """Of the run directory's own: removed after what it is rewound to, and so to be reported again."""

    def record(self) -> Resumed:
        best = existing_best(self.state, self.folder.parent) if self.own else self.state.best
        return Resumed(
            step=self.manifest.step,
            checkpoint=self.manifest.path,
            best=best.step if best is not None else None,
            skipped=self.skipped,
        )


def choose_in(run_dir: RunDir, config: AnyConfig) -> Chosen:
    """The newest whole checkpoint of the run directory. Raises CheckpointMissing, ConfigError, RunDirError when the run
    is finished or its records cannot be rewound to the checkpoint."""
    folders = list(step_folders(run_dir.checkpoints).values())[::-1]
    if not folders:
        raise CheckpointMissing(_none_yet(run_dir))
    chosen = choose_from(folders, config, own=True)
    steps = chosen.state.steps_planned if isinstance(config, SampleConfig) else config.steps
    ended, patience = steps == chosen.manifest.step, config.eval.patience
    if patience is not None and chosen.state.evaluated.since >= patience:
        ended = ended or steps == chosen.state.steps_planned
    if run_dir.finished() and ended:
        raise RunDirError(
            f"{run_dir.path} holds a run that finished after {chosen.manifest.step} steps; to extend it, give a larger "
            "optim.steps"
        )
    kept_bytes(run_dir.path, chosen.state.seq)
    return chosen


def _none_yet(run_dir: RunDir) -> str:
    reason = f"{run_dir.path} has no checkpoint to resume from: the run ended before its first one"
    for event in run_dir.events():
        if isinstance(event, Resumed):
            return (
                f"{reason} here. It had resumed from {event.checkpoint} of another run directory, after step "
                f"{event.step}. Continue from that one again: leave --resume out, and give another --out and "
                "--resume-from with its path"
            )
    return f"{reason}. Start it anew: leave --resume out and give another --out"


def _removed(run_dir: RunDir) -> tuple[CheckpointRemoved, ...]:
    """Checkpoints that the events name and that are not there any more."""
    named: dict[str, int] = {}
    for event in run_dir.events():
        if isinstance(event, CheckpointManifest):
            named[event.path] = event.step
        elif isinstance(event, CheckpointRemoved):
            named.pop(event.path, None)
    return tuple(
        CheckpointRemoved(step=step, path=path) for path, step in named.items() if not (run_dir.path / path).is_dir()
    )


def choose_from(folders: Sequence[Path], config: AnyConfig, *, own: bool = False) -> Chosen:
    """The first whole checkpoint among `folders`, which come newest first; `own`: those of the run directory itself.
    Raises CheckpointMissing when none is, ConfigError when the config is not the one that it was written under."""
    skipped: list[SkippedCheckpoint] = []
    for folder in folders:
        shown = "/".join(folder.parts[-2:] if own else folder.parts[-3:])
        try:
            manifest = verify_checkpoint(folder)
            if manifest.final:
                raise CheckpointError(
                    f"{folder} holds plain weights, which a run cannot resume from; give a step-… folder next to it"
                )
            state = read_state(folder)
        except CheckpointError as error:
            skipped.append(SkippedCheckpoint(path=shown, reason=str(error)))
            continue
        check_config(config, state, shown)
        return Chosen(folder, manifest, state, tuple(skipped), own)
    reasons = "; ".join(checkpoint.reason for checkpoint in skipped)
    raise CheckpointMissing(
        f"there is no checkpoint to resume from: {reasons}. Give another one, or start the run anew"
    )


def not_bit_by_bit(manifest: Manifest, config: AnyConfig, state: RunState) -> list[str]:
    """What decides the last bits of numbers and is not as it was when the checkpoint was written: one sentence each."""
    code: Mapping[str, Any] = manifest.code
    engine_then, engine = state.config["engine"], config.to_dict()["engine"]
    pairs: list[tuple[str, Any, Any]] = [
        ("ranks", len(state.random), manifest.platform["ranks"]),
        ("CPU threads", state.threads, manifest.platform["threads"]),
        ("device", state.device, manifest.platform["device"]),
        *((f"engine.{name}", engine_then.get(name), engine[name]) for name in ROUNDING),
        ("engine.deepspeed.zero_stage", *_stages(engine_then, engine)),
        *((name, version, manifest.packages.get(name)) for name, version in state.packages.items()),
        *((label, state.code[name], code[name]) for name, label in _CODE.items()),
    ]
    differences = [
        f"the checkpoint was written with {what} {before}; it continues with {now}: not bit by bit"
        for what, before, now in pairs
        if before != now
    ]
    if config.engine.torch_compile:
        differences.append(
            "with engine.torch_compile, what is compiled may hang on the sizes that come first: not bit by bit"
        )
    return differences


def _stages(then: dict[str, Any], now: dict[str, Any]) -> tuple[object, object]:
    """Which part of DeepSpeed's ranks holds what, before and now; the same where either was trained without it."""
    if not then.get("training") == now["training"] == "deepspeed":
        return None, None
    return then["deepspeed"]["zero_stage"], now["deepspeed"]["zero_stage"]


def check_config(config: AnyConfig, state: RunState, shown: str) -> None:
    """Raise ConfigError listing every field that must be as it was and is not."""
    before, now = dict(leaves(state.config)), dict(leaves(config.to_dict()))  # lists are compared whole
    before |= _added_since(config, before, now)
    problems = [
        FieldProblem(path, f"was {_shown(before, path)} and is {_shown(now, path)}", "changed")
        for path in sorted(before.keys() | now.keys())
        if before.get(path) != now.get(path) and not path.startswith(FREE)
    ]
    if not isinstance(config, SampleConfig) and config.steps < state.step:
        message = f"is {config.steps}; the checkpoint has {state.step}"
        problems.append(FieldProblem("optim.steps", message, "fewer_steps_than_checkpoint"))
    if problems:
        listed = "\n".join(f"  {problem}" for problem in problems)
        raise ConfigError(
            f"the run cannot resume from {shown} with this config, because these fields were others:\n{listed}\n"
            "Set them back, or start a new run",
            tuple(problems),
        )


def _added_since(config: AnyConfig, before: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, Any]:
    """Fields that no config had when `before` was written, with their defaults, which keep the meaning of a config
    without them. A field below one that was empty is not such a field."""
    empty = tuple(f"{path}." for path, value in before.items() if value is None)
    added = (path for path in now.keys() - before.keys() if not path.startswith(empty))
    return {path: to_jsonable_python(config.default_at(path)) for path in added}


def _shown(fields: dict[str, Any], path: str) -> str:
    return repr(fields[path]) if path in fields else "not there"


def read_checkpoint(folder: Path, manifest: Manifest) -> tuple[RunState, dict[str, dict[str, Tensor]]]:
    """State and tensors. Raises CheckpointError when model or problems are not those that they were made with."""
    state = read_state(folder)
    for what, digest in inputs_of(manifest).items():
        if state.inputs[what] != digest:
            raise CheckpointError(
                f"{what} changed since {folder} was written, so the run cannot resume from it. Put the file back as it "
                "was, or start a new run"
            )
    return state, load_parts(folder)


def rewind_run_folder(chosen: Chosen | None, run_dir: RunDir | None, progress: Progress) -> Chosen | None:
    """Rewind the run directory to `chosen` where it lies in it: what was recorded after it moves to superseded/. Only
    the first rank has both. To be called once every other check has passed. Raises DiskFullError, RunDirError."""
    if chosen is None or run_dir is None or not chosen.own:
        return chosen
    sweep(run_dir.checkpoints)
    rewind(run_dir.path, seq=chosen.state.seq, step=chosen.manifest.step)
    run_dir.continue_after(chosen.state.seq)
    progress.keep_in(run_dir.progress_file)
    return replace(chosen, removed=_removed(run_dir))


def record_resume(chosen: Chosen, manifest: Manifest, recorder: RunRecorder, progress: Progress) -> None:
    """Writes the records of a resumed run, and shows what was done."""
    recorder.write(manifest)
    recorder.write(chosen.record())
    if chosen.own:
        recorder.write(chosen.manifest)  # its first record came after the seq that it holds
    for removed in chosen.removed:
        recorder.write(removed)
    for skipped in chosen.skipped:
        progress.line(f"passed over {skipped.path}: {skipped.reason}")
    progress.line(f"resumes from {chosen.manifest.path}, after step {chosen.state.step}")
