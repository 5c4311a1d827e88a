"""What a stage's run left in its folder: weights, a reward model or a dataset, by path and digest. Loads no torch."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import rfc8785
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from grpo_core.errors import RecordsError
from grpo_core.files import dataset
from grpo_core.files.run_folder import RunDir
from grpo_core.pipeline.references import OUTPUT_WORDS, Output
from grpo_core.records.types import CheckpointManifest, FileEntry, Outcome

DATASET, ROWS = f"{dataset.FOLDER}/{dataset.FACTS}", f"{dataset.FOLDER}/{dataset.ROWS}"


class DatasetFacts(BaseModel):
    """What `dataset.json` says that a pipeline needs; it says more."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    rows: Annotated[int, Field(ge=0)]
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


@dataclass(frozen=True, slots=True)
class StageOutput:
    path: str
    """Relative to the run folder; of a dataset its rows."""
    digest: str
    """SHA-256, as hex: of a dataset its rows, else of the names and digests of the final checkpoint's files."""
    files: Mapping[str, int]
    """Size of every file that it consists of, by path relative to the run folder."""
    words: str
    """For the table: its digest's beginning, or the rows of a dataset."""

    def missing(self, run: Path) -> str | None:
        """The first of its files that is gone, or has another size; None when all are there."""
        for name, size in self.files.items():
            path = run / name
            if not path.is_file() or path.stat().st_size != size:
                return name
        return None


def weights_digest(files: Mapping[str, FileEntry]) -> str:
    """Of a checkpoint, by its manifest: SHA-256 over the canonical JSON of {file: SHA-256}."""
    return hashlib.sha256(rfc8785.dumps({name: entry.sha256 for name, entry in files.items()})).hexdigest()


def outcome_of(run: Path) -> Outcome | None:
    """How the run ended; None for one that did not. Raises RecordsError for an outcome that cannot be read."""
    path = run / "outcome.json"
    if not path.is_file():
        return None
    try:
        return Outcome.model_validate_json(path.read_bytes())
    except ValidationError:
        raise RecordsError(f"{path} is not an outcome; remove {run} to run the stage again") from None


def output_of(gives: Output, run: Path) -> StageOutput:
    """Of a run that finished. Raises RecordsError when what it was to give is not there."""
    return _dataset(run) if gives == "dataset" else _weights(gives, run)


def _weights(gives: Output, run: Path) -> StageOutput:
    finals = [record for record in RunDir(run).events() if isinstance(record, CheckpointManifest) and record.final]
    if not finals:
        raise RecordsError(f"{run} kept no final weights, so there is {OUTPUT_WORDS[gives]} to give to no stage")
    final = finals[-1]
    digest = weights_digest(final.files)
    sizes = {f"{final.path}/{name}": entry.size for name, entry in final.files.items()}
    return StageOutput(final.path, digest, sizes, f"{OUTPUT_WORDS[gives].removeprefix('a ')} {digest[:12]}")


def _dataset(run: Path) -> StageOutput:
    described = run / DATASET
    try:
        content: Any = json.loads(described.read_bytes())
        facts = DatasetFacts.model_validate(content)
        sizes = {ROWS: (run / ROWS).stat().st_size, DATASET: described.stat().st_size}
    except FileNotFoundError as error:
        raise RecordsError(f"{error.filename} is not there, so {run} gives no dataset") from None
    except (OSError, ValueError) as error:
        raise RecordsError(f"{described} cannot be read: {error}") from None
    return StageOutput(ROWS, facts.sha256, sizes, f"{facts.rows:,} rows")
