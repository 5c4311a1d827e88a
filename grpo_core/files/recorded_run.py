"""What a run recorded, read back from its folder or from the unpacked files of its card: config, manifest, steps, kept
groups, commitments, digests of checkpoints. Nothing is written; loads no torch.

A card comes from anywhere: a line that is no record is an error that names file and line.
"""

import hashlib
import json
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from pydantic import TypeAdapter, ValidationError

from grpo_core.config.run import RunConfig
from grpo_core.errors import RecordsError
from grpo_core.records.commitments import unpack
from grpo_core.records.types import FileEntry, Group

_FILES: TypeAdapter[dict[str, FileEntry]] = TypeAdapter(dict[str, FileEntry])
_METRICS: TypeAdapter[dict[str, float]] = TypeAdapter(dict[str, float])
CHECKPOINTS = "checkpoints.jsonl"
"""Of a card: the digests of every file of every checkpoint that current steps were cut into."""


@dataclass(frozen=True)
class RecordedGroup:
    """A kept group."""

    group: Group
    """Without the samples whose text was deleted; what is left keeps its index."""
    redacted: int


@dataclass(frozen=True)
class Checkpoint:
    """After `step` steps."""

    step: int
    files: Mapping[str, FileEntry]
    attempt: int | None = None
    """That cut it, of a run that a platform started; None where the records are of one attempt."""

    @property
    def tensors(self) -> dict[str, str]:
        """SHA-256 of each file of tensors, by the name of the part of the training that it holds: `policy`,
        `policy-optimizer` …"""
        end = ".safetensors"
        return {name.removesuffix(end): entry.sha256 for name, entry in self.files.items() if name.endswith(end)}


@dataclass(eq=False)
class RecordedRun:
    """The records below `folder`."""

    folder: Path
    kind: Literal["run", "card"]
    config: RunConfig
    name: str
    """Digest that stands for these records: a card's seal, else the SHA-256 of the run's manifest.json."""
    facts: Mapping[str, Any]
    """The manifest, or what of it the card's audience sees; parts may be missing."""
    steps: Mapping[int, Mapping[str, float]]
    """Metrics of every current step; empty where the card's audience does not see them."""
    checkpoints: Mapping[int, Checkpoint]
    leaves: Mapping[int, list[bytes]]
    """Commitments of every current step."""
    withheld: tuple[str, ...] = field(default=())
    """What this card does not show, and who sees it."""

    @cached_property
    def kept(self) -> bool:
        """Whether any completion's text is here."""
        return any(self._group_files())

    def groups(self, steps: Collection[int] | None = None) -> Iterator[RecordedGroup]:
        """Kept groups of these steps, or of all, in the order of their files. Raises RecordsError."""
        for path in self._group_files():
            if steps is not None and not any(step in steps for step in _range(path)):
                continue
            for number, value in _lines(path):
                given = value.get("record", value) if self.kind == "run" else value
                if steps is not None and given.get("step") not in steps:
                    continue
                recorded = _group(given, path, number)
                if recorded is not None:
                    yield recorded

    def _group_files(self) -> list[Path]:
        pattern = "samples/step-*.jsonl" if self.kind == "run" else "traces/steps-*.jsonl"
        return sorted(self.folder.glob(pattern))


def read_records(folder: Path) -> RecordedRun:
    """The records of a run's folder, or of a card that was unpacked to `folder`. Raises RecordsError, ConfigError."""
    if not folder.is_dir():
        raise RecordsError(f"{folder} is no folder. Give a run's folder, or the folder that a card was unpacked to")
    if (folder / "record.json").is_file():
        return _read_card(folder)
    if (folder / "config.yaml").is_file() and (folder / "manifest.json").is_file():
        return _read_run(folder)
    raise RecordsError(f"{folder} holds neither a run (config.yaml, manifest.json) nor a card (record.json)")


def _read_run(folder: Path) -> RecordedRun:
    manifest = folder / "manifest.json"
    checkpoints: dict[int, Checkpoint] = {}
    for _, record in _records(folder / "events.jsonl"):
        if record.get("kind") == "checkpoint" and not record["final"]:
            checkpoints[record["step"]] = Checkpoint(record["step"], _FILES.validate_python(record["files"]))
    return RecordedRun(
        folder,
        "run",
        RunConfig.from_file(folder / "config.yaml"),
        hashlib.sha256(manifest.read_bytes()).hexdigest(),
        _json(manifest),
        {
            record["step"]: _METRICS.validate_python(record["metrics"])
            for _, record in _records(folder / "metrics.jsonl")
        },
        checkpoints,
        {record["step"]: unpack(record["leaves"]) for _, record in _records(folder / "commitments.jsonl")},
    )


def _read_card(folder: Path) -> RecordedRun:
    document = _json(folder / "record.json")
    try:
        sealed = {entry["path"]: str(entry["audience"]) for entry in document["files"]}
        if "config.yaml" in sealed and not (folder / "config.yaml").is_file():
            raise RecordsError(
                f"this card is for {document['audience']}, and the run's config is in the card for "
                f"{sealed['config.yaml']}. Ask for that card"
            )
        missing = [path for path in _READ if path in sealed and not (folder / path).is_file()]
        withheld = [f"{path} (in the card for {sealed[path]})" for path in missing]
        seal, sections = str(document["seal"]), document["sections"]
    except (KeyError, TypeError):
        raise RecordsError(f"{folder / 'record.json'} is no record. Check the card with `cohort verify`") from None
    if not any(folder.glob("traces/*.jsonl")):
        withheld.append("traces/ (in the card for authority)")
    manifest = folder / "manifest.json"
    try:
        return RecordedRun(
            folder,
            "card",
            RunConfig.from_file(folder / "config.yaml"),
            seal,
            _json(manifest) if manifest.is_file() else _facts(sections),
            {line["step"]: _METRICS.validate_python(line["metrics"]) for _, line in _lines(folder / "metrics.jsonl")},
            {
                line["step"]: Checkpoint(line["step"], _FILES.validate_python(line["files"]), line["attempt"])
                for _, line in _lines(folder / CHECKPOINTS)
            },
            {
                line["step"]: unpack(line["leaves"])
                for _, line in _lines(folder / "commitments.jsonl")
                if not line["superseded"]
            },
            tuple(withheld),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise RecordsError(f"{folder}: the card's files cannot be read: {error}") from None


_READ = ("manifest.json", "metrics.jsonl", CHECKPOINTS)
_FIELDS = {
    "model": ("subject", "base_model"),
    "code": ("environment", "code"),
    "packages": ("environment", "packages"),
    "platform": ("environment", "machine"),
}
"""Part of the manifest → the field of the record that holds the same."""


def _facts(sections: Mapping[str, Any]) -> dict[str, Any]:
    """What of the manifest the fields of a record show to this audience."""
    values = {part: sections[section][name].get("value") for part, (section, name) in _FIELDS.items()}
    prompts = sections["data"]["prompts"].get("value")
    facts = {part: value for part, value in values.items() if isinstance(value, dict)}
    return facts | ({"data": {"train": prompts}} if isinstance(prompts, dict) else {})


def _group(given: Mapping[str, Any], path: Path, number: int) -> RecordedGroup | None:
    """None where every sample's text was deleted."""
    try:
        samples = given["samples"]
        shown = [sample for sample in samples if sample.get("redacted") is not True]
        rest = {name: value for name, value in given.items() if name not in ("attempt", "samples")}
        if not shown:
            return None
        return RecordedGroup(Group.model_validate({**rest, "samples": shown}), len(samples) - len(shown))
    except (KeyError, TypeError, AttributeError, ValidationError) as error:
        fault = error.errors()[0] if isinstance(error, ValidationError) else None
        words = f"{'.'.join(map(str, fault['loc']))}: {fault['msg']}" if fault else "a part is missing"
        raise RecordsError(f"{path}, line {number} is no group of samples: {words}") from None


def _records(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Of a run's file, each in its envelope."""
    for number, value in _lines(path):
        record = value.get("record")
        if not isinstance(record, dict):
            raise RecordsError(f"{path}, line {number} is no record")
        yield number, record


def _lines(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """JSON objects, none without the file."""
    if not path.is_file():
        return
    with path.open(encoding="utf-8") as handle:
        for number, line in enumerate(handle, start=1):
            try:
                value = json.loads(line)
            except (ValueError, RecursionError):
                value = None
            if not isinstance(value, dict):
                raise RecordsError(f"{path}, line {number} is no record")
            yield number, value


def _json(path: Path) -> Any:
    try:
        return json.loads(path.read_bytes())
    except (ValueError, RecursionError):
        raise RecordsError(f"{path} is not JSON") from None


def _range(path: Path) -> range:
    """Steps whose groups may be in the file, by its name: step-000007 or steps-000001-000100-2."""
    numbers = [int(part) for part in path.stem.split("-")[1:] if part.isdigit()]
    first = numbers[0] if numbers else 0
    last = numbers[1] if path.stem.startswith("steps-") and len(numbers) > 1 else first
    return range(first, last + 1)
