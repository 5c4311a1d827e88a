"""Digests of a model folder's files: what a manifest or a reward names a model by. Loads no torch."""

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path

from grpo_core.data.fingerprint import file_sha256

_TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "tokenizer.model",
    "vocab.json",
)
_TOKENIZER_MORE = ("merges.txt", "added_tokens.json", "chat_template.jinja")
_SETTINGS = ("config.json", "generation_config.json")
"""Of the model: rotary embedding, norms, tied weights, the ids that end a completion."""


def tokenizer_sha256(folder: Path) -> str:
    """One digest over the tokenizer's files."""
    return files_digest(_present(folder, (*_TOKENIZER_FILES, *_TOKENIZER_MORE)))


def settings_sha256(folder: Path) -> str:
    """One digest over the files of a model's settings."""
    return files_digest(_present(folder, _SETTINGS))


def _present(folder: Path, names: Sequence[str]) -> dict[str, str]:
    return {name: file_sha256(folder / name) for name in names if (folder / name).is_file()}


def files_digest(files: Mapping[str, str]) -> str:
    """SHA-256 of the lines `<sha256>  <name>`, sorted by name."""
    lines = "".join(f"{digest}  {name}\n" for name, digest in sorted(files.items()))
    return hashlib.sha256(lines.encode()).hexdigest()
