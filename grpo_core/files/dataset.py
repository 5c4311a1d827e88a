"""The dataset folder of a run of kind `sample`: its rows, and what they are and came from. Written whole, once the run
is over, and never changed. `grpo_core.data.sampled_dataset` reads it. Loads no torch.

    dataset/rows.jsonl      one row a line (grpo_core/data/sampled_rows.py)
    dataset/dataset.json    SampledFacts
"""

import hashlib
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from grpo_core.files.checkpoint import publish_folder, temporary_of
from grpo_core.files.disk import fsync, need_room, raise_when_full
from grpo_core.records.bounds import Count, Sha256
from grpo_core.records.types import SampledDataset

FOLDER, ROWS, FACTS = "dataset", "rows.jsonl", "dataset.json"
_READ_ONLY = 0o444


class SampledFacts(BaseModel):
    """dataset.json. The same run gives the same bytes: it holds no time."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, protected_namespaces=())

    format: Literal[1] = 1
    run: str
    """Name of the run."""
    config_digest: Sha256
    content: Literal["conversations", "preferences"]
    rows_are: Literal["conversations", "pairs", "scores"]
    """`rows` of the config."""
    rows: int
    sha256: Sha256
    """Of rows.jsonl."""
    problems: int
    """Problems with at least one row."""
    problems_sampled: int
    counts: dict[str, Count]
    """As records.SampledDataset has them."""
    other_tokens: int
    """Rows whose answer is read back as other tokens than those that were sampled: a policy may write a word in pieces
    that the tokenizer would join, or a special token, and what follows a stop string is cut off."""
    model: dict[str, Any]
    """Who answered: source, revision, architecture, parameters, and `sha256` over weights, settings and tokenizer."""
    reward_digest: Sha256
    data: dict[str, Any]
    """Of the problems: path, sha256 and problems_digest."""
    prompt: dict[str, Any]
    """Template, chat template's digest, system message and prefill by which prompts were made. Whoever fine-tunes on
    the rows gives the same, for the same prompts."""
    sampling: dict[str, Any]
    filter: dict[str, Any]
    seed: int


def write_dataset(run_folder: Path, lines: Sequence[bytes], facts: SampledFacts) -> SampledDataset:
    """Write the folder whole and durably, read-only, in place of one that the same run had written. Raises
    DiskFullError."""
    folder = run_folder / FOLDER
    temporary = temporary_of(folder)
    size = sum(map(len, lines))
    with raise_when_full(run_folder, "the dataset"):
        need_room(run_folder, size, "the dataset")
        shutil.rmtree(temporary, ignore_errors=True)  # of a process that was killed in here
        temporary.mkdir()
        with (temporary / ROWS).open("wb") as handle:
            handle.writelines(lines)
        (temporary / FACTS).write_text(facts.model_dump_json(indent=2) + "\n", encoding="utf-8")
        for name in (ROWS, FACTS):
            fsync(temporary / name)
            (temporary / name).chmod(_READ_ONLY)
        publish_folder(temporary, folder)
    return SampledDataset(
        path=f"{FOLDER}/{ROWS}",
        content=facts.content,
        rows=facts.rows,
        size=size,
        sha256=facts.sha256,
        counts=facts.counts,
    )


def digest_of(lines: Sequence[bytes]) -> str:
    """SHA-256 of the file that holds these lines."""
    digest = hashlib.sha256()
    for line in lines:
        digest.update(line)
    return digest.hexdigest()
