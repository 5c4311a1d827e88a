"""Which files a model folder or a checkpoint may hold. Loads no torch and executes nothing.

A pickle can run any code when it is loaded, and loaders choose by a file's name. So only names that no loader unpickles
are let in, and what they hold must fit: weights are safetensors whose header parses, the rest is text or a
sentencepiece model. Platform, trainer and worker use this module, so that they refuse the same files.
"""

import codecs
import json
import math
import operator
import struct
from collections.abc import Collection
from pathlib import Path
from typing import Any, NoReturn

from grpo_core.errors import ModelError

SUFFIXES = (".safetensors", ".json", ".txt", ".model", ".jinja")
"""Of files that are loaded."""
PROVENANCE = "provenance.json"
"""Of a model folder: how it was made, for the record."""
MAX_HEADER_BYTES = 100_000_000  # the safetensors library's own limit
MAX_JSON_BYTES = 10_000_000
_PROSE = (".md", "LICENSE", "NOTICE", ".gitattributes")
"""Endings of files that lie in many model folders and that nothing loads."""
_SENTENCEPIECE = b"\n"
"""Tag of the first field of its protobuf, and no opcode of a pickle."""
_CHECKED_BYTES = 65536
_CONVERT = (
    "Convert it where you trust it: "
    'python -c "from transformers import AutoModelForCausalLM as M; '
    "M.from_pretrained('FOLDER').save_pretrained('FOLDER-safe')\", copy the tokenizer's files there, and give the new "
    "folder. What is no part of the model, take away."
)


def check_model_file(path: Path) -> None:
    """Raises ModelError where the file may be a pickle or is not whole, OSError when it cannot be read. Of weights the
    header is read, of other files the first 64 KiB."""
    name = path.name
    if not name.endswith((*SUFFIXES, *_PROSE)):
        raise ModelError(
            f"{name} may be a pickle, which can run code when it is loaded: a model folder may hold only "
            f"{', '.join(SUFFIXES)} and prose. {_CONVERT}"
        )
    if path.suffix == ".safetensors":
        safetensors_header(path)
    elif not _is_text(path) and not (path.suffix == ".model" and _starts_with(path, _SENTENCEPIECE)):
        what = "neither text nor a sentencepiece model" if path.suffix == ".model" else "not text"
        raise ModelError(f"{name} is {what}, so it may be or hold a pickle. {_CONVERT}")


def check_indices(folder: Path, weights: Collection[str]) -> None:
    """Raises ModelError where an index of shards names other files than `weights`: they would be loaded too."""
    for index in sorted(folder.glob("*.safetensors.index.json")):
        shards = read_json_object(index).get("weight_map")
        if not isinstance(shards, dict):
            raise ModelError(f"{index.name} has no weight_map. Copy it again.")
        if missing := sorted({str(name) for name in shards.values()} - set(weights)):
            raise ModelError(
                f"{index.name} names files that are not there or not safetensors: {', '.join(missing)}. Copy them too."
            )


def read_json_object(path: Path) -> dict[str, Any]:
    """Raises ModelError where the file is missing, too large, no JSON or no object."""
    name = path.name
    if not path.is_file():
        raise ModelError(f"The folder has no {name}. It must be a folder as transformers' save_pretrained writes it.")
    if path.stat().st_size > MAX_JSON_BYTES:
        raise ModelError(f"{name} is larger than {MAX_JSON_BYTES:,} bytes, which no such file is.")
    try:
        value = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise ModelError(f"{name} is not JSON: {error}.") from None
    if not isinstance(value, dict):
        raise ModelError(f"{name} is not a JSON object.")
    return value


def safetensors_header(path: Path) -> dict[str, Any]:
    """The entries of a safetensors file's header: 8 bytes of length, little-endian, then so many bytes of JSON. Raises
    ModelError when the file is no whole safetensors file."""
    size = path.stat().st_size

    def fail(why: str) -> NoReturn:
        raise ModelError(f"{path.name} is not a safetensors file, or not all of it is there: {why}. Copy it again.")

    with path.open("rb") as handle:
        first = handle.read(8)
        if len(first) < 8:
            fail(f"it has {size} bytes")
        (length,) = struct.unpack("<Q", first)
        if length > min(MAX_HEADER_BYTES, size - 8):
            fail(f"its header claims {length:,} bytes of a file of {size:,}")
        raw = handle.read(length)
    try:
        header = json.loads(raw)
        tensors = [entry for name, entry in header.items() if name != "__metadata__"]
        end = max((operator.index(entry["data_offsets"][1]) for entry in tensors), default=0)
        sizes_known = all(
            all(isinstance(edge, int) and edge >= 0 for edge in entry["shape"])
            and math.prod(entry["shape"]) <= 8 * size  # no type has less than a bit
            for entry in tensors
        )
    except (ValueError, RecursionError, AttributeError, KeyError, IndexError, TypeError):
        fail("its header cannot be read")
    if not sizes_known or 8 + length + end != size:
        fail(f"its tensors end at byte {8 + length + end:,} of {size:,}")
    return {name: entry for name, entry in header.items() if name != "__metadata__"}


def _is_text(path: Path) -> bool:
    with path.open("rb") as file:
        start = file.read(_CHECKED_BYTES)
    try:
        return "\0" not in codecs.getincrementaldecoder("utf-8")().decode(start)  # the last character may be cut
    except UnicodeDecodeError:
        return False


def _starts_with(path: Path, mark: bytes) -> bool:
    with path.open("rb") as file:
        return file.read(len(mark)) == mark
