"""The dataset that a run of kind `sample` wrote: its rows, and next to them dataset.json, which says who answered.

Whoever learns from it can name the model that its answers are of. Loads no torch.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from grpo_core.data.fingerprint import file_sha256
from grpo_core.errors import DataError
from grpo_core.files.dataset import FACTS, ROWS


@dataclass(frozen=True)
class SampledDataset:
    """One such dataset."""

    rows: Path
    facts: dict[str, Any]
    """What dataset.json holds: content, rows, sha256, counts by filter, model, reward, sampling, run."""


def find_sampled(path: Path) -> SampledDataset | None:
    """The dataset whose folder, rows or dataset.json `path` is; None where no dataset.json is there. Raises DataError
    where the rows are not those that it describes."""
    folder = path if path.is_dir() else path.parent
    file = folder / FACTS
    rows = folder / ROWS if path.is_dir() or path.name == FACTS else path
    if not file.is_file():
        return None
    try:
        facts = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise DataError(f"cannot read {file}: {error}") from None
    if not isinstance(facts, dict) or not isinstance(facts.get("sha256"), str):
        raise DataError(f"{file} is no description of a sampled dataset: expected an object with sha256")
    if rows.name != ROWS:
        return None  # another file in the same folder
    if (digest := file_sha256(rows)) != facts["sha256"]:
        raise DataError(
            f"{rows} is not the dataset that {file.name} describes (sha256 {digest[:12]}… and not "
            f"{facts['sha256'][:12]}…); take both from the run again"
        )
    return SampledDataset(rows, facts)


def source_of(facts: dict[str, Any]) -> str:
    """The model whose answers they are, in words."""
    model = facts.get("model")
    source = model.get("source") if isinstance(model, dict) else model
    return str(source) if source else "an unnamed model"
