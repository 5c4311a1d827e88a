"""Finds what steps are done again with, and compares every file with the digests in the records before anything runs:
problems, base model, checkpoints."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from grpo_core.config.run import RunConfig
from grpo_core.data.hub import find_data
from grpo_core.data.recorded import check_files
from grpo_core.errors import DataError, ModelError, RecordsError
from grpo_core.files.checkpoint import MANIFEST, file_entries, is_checkpoint, read_origin, step_folders
from grpo_core.files.recorded_run import Checkpoint, RecordedRun
from grpo_core.model.source import find_model, model_hashes

_ATTEMPTS = "attempt-*"


@dataclass(frozen=True)
class Given:
    """What the reader has, each of it optional."""

    runs: tuple[Path, ...] = ()
    """Folders that `grpo train` or a worker wrote, or a worker's folder of a run with one folder an attempt."""
    checkpoints: tuple[Path, ...] = ()
    """Folders of checkpoints, or with such in them."""
    data: tuple[Path, ...] = ()
    model: Path | None = None


@dataclass
class ReplayInputs:
    """Compared with the records."""

    config: RunConfig
    """The recorded one, with paths of this machine."""
    base: Path
    """Folder that its relative paths start from."""
    starts: dict[int, Path]
    """Checkpoints to begin from, by the step after which they were cut; all of them are the recorded ones."""
    cache: Path | None
    """What a judge answered in the run."""
    unchecked: list[str] = field(default_factory=list)
    """Inputs whose digests are not in the records."""


def find_inputs(run: RecordedRun, given: Given) -> ReplayInputs:
    """Raises RecordsError, DataError or ModelError that names what is missing, or which file differs."""
    folders = [attempt for path in given.runs for attempt in _attempts(path)]
    places = [*given.checkpoints, *(folder / "checkpoints" for folder in folders)]
    unchecked: list[str] = []
    starts = dict(_recorded_starts(run, places))
    bases = [*folders, *(Path(read_origin(folder).base) for folder in list(starts.values())[-1:]), Path.cwd()]
    config, base = _with_data(run, given, bases)
    config = _with_model(config, given, bases)
    _check_data(run, config, base, unchecked)
    _check_model(run, config, base, unchecked)
    cache = next((folder / "reward-cache" for folder in folders if (folder / "reward-cache").is_dir()), None)
    return ReplayInputs(config, base, starts, cache, unchecked)


def _attempts(folder: Path) -> list[Path]:
    """A worker keeps a folder for each attempt of a run."""
    if not folder.is_dir():
        raise RecordsError(f"{folder} is no folder; give the run's folder on the machine that trained it")
    return sorted(path for path in folder.glob(_ATTEMPTS) if path.is_dir()) or [folder]


# ---------------------------------------------------------------------- checkpoints


def _recorded_starts(run: RecordedRun, places: Sequence[Path]) -> Iterator[tuple[int, Path]]:
    """Checkpoints below `places` that the records name. One of another step or attempt is passed over; one that the
    records name with other bytes is refused."""
    faults: dict[int, str] = {}
    starts: dict[int, Path] = {}
    for place in places:
        if not place.is_dir():
            raise RecordsError(f"{place} is no folder with checkpoints in it")
        folders = {read_origin(place).step: place} if is_checkpoint(place) else step_folders(place)
        for step, folder in folders.items():
            recorded = run.checkpoints.get(step)
            if recorded is None or step in starts or _of_another_attempt(folder, recorded):
                continue
            there = {name: entry for name, entry in file_entries(folder).items() if name != MANIFEST}
            differing = sorted(
                name for name in {*there, *recorded.files} if there.get(name) != recorded.files.get(name)
            )
            if differing:
                faults[step] = f"{folder / differing[0]} is not the file of the run's checkpoint after step {step}"
            else:
                starts[step] = folder
    for step, fault in faults.items():
        if step not in starts:
            raise RecordsError(
                f"{fault}: its size or SHA-256 is not the recorded one, so nothing was done. Give the checkpoint as "
                "the run left it, or leave it out and begin from an earlier one"
            )
    yield from sorted(starts.items())


def _of_another_attempt(folder: Path, recorded: Checkpoint) -> bool:
    """An attempt that was given up leaves checkpoints of steps that a later one did again, at other times."""
    attempt = folder.resolve().parent.parent.name
    return recorded.attempt is not None and attempt.startswith("attempt-") and attempt != f"attempt-{recorded.attempt}"


# ---------------------------------------------------------------------- data and model


def _with_data(run: RecordedRun, given: Given, bases: Sequence[Path]) -> tuple[RunConfig, Path]:
    """The config, and the folder from which its paths are right."""
    config = run.config
    if given.data:
        first = given.data[0].resolve()
        if len(given.data) > 1:
            raise RecordsError("give one file with --data; of a set of several files, its folder or pattern as trained")
        data = config.data.model_copy(update={"path": str(first), "hub": None})
        return config.model_copy(update={"data": data}), bases[0]
    for base in bases:
        try:
            files = find_data(config.data.path, config.data.hub, base=base)
        except DataError:
            continue
        if all(path.is_file() for path in files):
            return config, base
    looked = ", ".join(dict.fromkeys(str(base / config.data.path) for base in bases))
    raise RecordsError(f"the run's problems, {config.data.path}, are not here; looked at {looked}. Give --data FILE")


def _with_model(config: RunConfig, given: Given, bases: Sequence[Path]) -> RunConfig:
    if given.model is not None:
        model = config.model.model_copy(update={"path": str(given.model.resolve()), "revision": None})
        return config.model_copy(update={"model": model})
    faults = []
    for base in bases:
        try:
            source = find_model(config.model, base=base)
        except ModelError as error:
            faults.append(str(error))
            continue
        if config.model.revision is not None:
            return config
        path = (base / config.model.path).resolve()
        model = config.model.model_copy(update={"path": str(path if path.is_dir() else source.folder)})
        return config.model_copy(update={"model": model})
    raise RecordsError(f"the run's base model is not here: {faults[0]} Give --model DIR")


def _check_data(run: RecordedRun, config: RunConfig, base: Path, unchecked: list[str]) -> None:
    if not check_files(find_data(config.data.path, config.data.hub, base=base), run.facts):
        unchecked.append("the problems: this card does not show their digest")


def _check_model(run: RecordedRun, config: RunConfig, base: Path, unchecked: list[str]) -> None:
    recorded: Mapping[str, Any] = run.facts.get("model", {})
    if "weights" not in recorded:
        unchecked.append("the base model: this card does not show its digests")
        return
    source = find_model(config.model, base=base)
    for part, now in model_hashes(source).items():
        then = recorded.get(part)
        names = sorted({*now, *then}) if isinstance(now, dict) and isinstance(then, dict) else [""]
        for name in names:
            before = then.get(name) if name and then is not None else then
            after = now.get(name) if name else now
            if before != after:
                label = name or part.removesuffix("_sha256")
                raise RecordsError(
                    f"{label} of the model in {source.folder} is not what the run began from. Its SHA-256 is "
                    f"{after or 'none: it is missing'}, recorded is {before or 'none'}. Give the run's base model by "
                    "--model DIR"
                )
