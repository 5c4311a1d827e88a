"""What a file of weights is, by its bytes and never by its name. Loads no torch and executes nothing.

A pickle can run any code when it is loaded, so one is refused wherever weights or settings are expected. Platform,
trainer and worker ask here, so that they refuse the same files.
"""

import json
import math
import operator
import re
import struct
import zipfile
import zlib
from pathlib import Path
from typing import IO, Any, NoReturn

from grpo_core.errors import ModelError
from grpo_core.pickle_bytes import is_old_pickle

MAX_HEADER_BYTES = 100_000_000  # the safetensors library's own limit
_TORN = (zipfile.BadZipFile, zlib.error, NotImplementedError, RuntimeError, ValueError, EOFError)
"""What reading one raises that is torn, packed in an unknown way, or encrypted."""
TORN_ZIP = "a zip archive that cannot be read"
_NUMPY = b"\x93NUMPY"
_OBJECTS = re.compile(rb"""['"][|<>=]?O\d*['"]""")
_LOOKED_AT = 65536


def pickle_kind(path: Path) -> str | None:
    """What kind of pickle the file is ("a pickle", "a zip archive with a pickle in it (as torch.save writes)", "a numpy
    array of objects, …"); None when it is none. Raises OSError when it cannot be read."""
    with path.open("rb") as handle:
        start = handle.read(4)
        if start == b"PK\x03\x04" and zipfile.is_zipfile(handle):
            return _zip_kind(handle)
        handle.seek(0)
        kind = _stream_kind(handle)
    # A safetensors file may start like a pickle by chance of its header's length; only a whole header proves it.
    return kind if kind is None or not _is_safetensors(path) else None


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


def _is_safetensors(path: Path) -> bool:
    try:
        safetensors_header(path)
    except ModelError:
        return False
    return True


def _zip_kind(handle: IO[bytes]) -> str | None:
    """A zip is what torch.save and numpy.savez write; a torn one is refused too, for nobody can say what it holds."""
    try:
        with zipfile.ZipFile(handle) as archive:
            for name in archive.namelist():
                if name.endswith(".pkl"):
                    return "a zip archive with a pickle in it (as torch.save writes)"
                with archive.open(name) as member:
                    if (kind := _stream_kind(member)) is not None:
                        return f"a zip archive with {kind} in it"
    except _TORN:
        return TORN_ZIP
    return None


def _stream_kind(stream: IO[bytes]) -> str | None:
    start = stream.read(_LOOKED_AT)
    if start[:6] == _NUMPY:
        return "a numpy array of objects, which is a pickle" if _OBJECTS.search(start) else None
    if len(start) >= 2 and start[0] == 0x80 and start[1] <= 5:
        return "a pickle"
    stream.seek(0)
    return "a pickle" if is_old_pickle(stream) else None
