"""What a file of weights is, by its bytes and never by its name. Loads no torch and executes nothing.

A pickle can run any code when it is loaded, so one is refused wherever weights or settings are expected. Platform,
trainer and worker ask here, so that they refuse the same files. Into a zip archive is looked; what is packed in another
way, or twice, is refused unseen.
"""

import ast
import errno
import io
import json
import lzma
import math
import operator
import re
import struct
import tarfile
import zipfile
import zlib
from pathlib import Path
from typing import IO, Any, NoReturn

from grpo_core.errors import ModelError
from grpo_core.files.pickle_bytes import fetches_names

MAX_HEADER_BYTES = 100_000_000  # the safetensors library's own limit
TORN_ZIP = "a zip archive that cannot be read"
_TORN = (zipfile.BadZipFile, zlib.error, lzma.LZMAError, struct.error, RuntimeError, ValueError, EOFError)
"""What reading one raises, beside OSError, that is torn, packed in an unknown way, or encrypted."""
_PICKLE = "a pickle"
_ZIP = (b"PK\x03\x04", b"PK\x05\x06", b"PK\x07\x08")
_NUMPY = b"\x93NUMPY"
_NUMPY_LENGTHS = {1: "<H", 2: "<I", 3: "<I"}
"""How a header's length is written, by the format's version."""
_MOST_NUMPY_HEADER = 10_000  # characters; numpy itself reads a longer one only when told to trust the file
_NUMBERS_OR_TEXT = re.compile(r"[|<>=]?[biufcmMSUV]\d+(\[\w+\])?")
_COMPRESSED = {
    "gzip": rb"\x1f\x8b\x08",
    "bzip2": rb"BZh[1-9](1AY&SY|\x17rE8P\x90)",
    "xz": rb"\xfd7zXZ\0",
    "lzma": rb"\]\0.{11}\0",  # so begins what lzma packed; the header of a safetensors file has no zero byte there
    "lz4": rb"\x04\"M\x18",
    "zstd": rb"\(\xb5/\xfd",
    "old joblib": rb"ZF[\s\da-fA-FxL]{19}",
}
_LOOKED_AT = 65536
_SURELY_ZLIB = 4096
"""Bytes. Nothing else unpacks to so many; text does to a few, such as some that begins with x^."""


def pickle_kind(path: Path) -> str | None:
    """What kind of pickle the file is, or in what one may lie unseen ("a pickle", "a numpy array of objects, …",
    "a tar archive that may hold a pickle", TORN_ZIP); None when it is none. Reads the first 64 KiB, and further only
    along the opcodes of what may be a pickle or into a zip archive. Raises OSError when it cannot be read."""
    with path.open("rb") as handle:
        kind = _kind(handle)
        if kind != _PICKLE or not _is_safetensors(path):
            return kind
        # A safetensors file may begin with a pickle's mark by chance of its header's length, but calls nothing then.
        handle.seek(0)
        return kind if fetches_names(handle) else None


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


def _kind(stream: IO[bytes], *, packed: bool = False) -> str | None:
    """`packed`: whether the stream is what an archive holds. Must never be stricter than what opens such files is."""
    start = stream.read(_LOOKED_AT)
    if start.startswith(_ZIP):
        return "a zip archive that may hold a pickle" if packed else _zip_kind(stream)
    if start.startswith(_NUMPY):
        return _numpy_kind(start)
    if _is_tar(start):
        return "a tar archive that may hold a pickle"
    for name, pattern in _COMPRESSED.items():
        if re.match(pattern, start, re.DOTALL):
            return f"a file compressed by {name} that may hold a pickle"
    if len(start) >= 2 and start[0] == 0x80 and start[1] <= 5:
        return _PICKLE
    stream.seek(0)
    return _PICKLE if fetches_names(stream) else _zlib_kind(start, packed=packed)


def _zip_kind(handle: IO[bytes]) -> str | None:
    """A zip is what torch.save and numpy.savez write; a torn one is refused too, for nobody can say what it holds."""
    try:
        with zipfile.ZipFile(handle) as archive:
            if _is_moved(handle, archive):
                return TORN_ZIP
            for member in archive.infolist():
                if member.filename.lower().endswith(".pkl"):
                    return "a zip archive with a pickle in it (as torch.save writes)"
                with archive.open(member) as content:
                    if (kind := _kind(content, packed=True)) is not None:
                        return f"a zip archive that holds {kind}"
    except _TORN:
        return TORN_ZIP
    except OSError as error:
        if error.errno in (None, errno.EINVAL):  # bz2's, of torn bytes; a member's place that no file can have
            return TORN_ZIP
        raise
    return None


def _is_moved(handle: IO[bytes], archive: zipfile.ZipFile) -> bool:
    """Whether the archive's directory lies elsewhere than the archive says. zipfile goes by where it lies, others by
    what is said, and so they may find other members."""
    handle.seek(archive.start_dir)
    first = archive.infolist()[:1]
    return bool(first) and struct.unpack("<42xL", handle.read(46))[0] != first[0].header_offset


def _numpy_kind(start: bytes) -> str | None:
    """https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html: numbers lie there as they are, objects
    as a pickle. The header is read as numpy reads it."""
    unreadable = "a numpy array that may hold a pickle (its header cannot be read)"
    layout = _NUMPY_LENGTHS.get(start[6]) if len(start) >= 12 else None
    if layout is None:
        return unreadable
    begin = 8 + struct.calcsize(layout)
    (length,) = struct.unpack_from(layout, start, 8)
    if length > _MOST_NUMPY_HEADER or begin + length > len(start):
        return unreadable
    try:
        header = ast.literal_eval(start[begin : begin + length].decode("utf-8" if start[6] == 3 else "latin-1"))
        descr = header["descr"]
    except (ValueError, TypeError, KeyError, SyntaxError, MemoryError, RecursionError):
        return unreadable
    return None if _holds_no_objects(descr) else "a numpy array of objects, which is a pickle"


def _holds_no_objects(descr: object) -> bool:
    """Of the types that numpy writes: a name such as <f4, fields, or (type, shape). Other names are not guessed at."""
    if isinstance(descr, str):
        return _NUMBERS_OR_TEXT.fullmatch(descr) is not None
    if isinstance(descr, tuple):
        return len(descr) == 2 and _holds_no_objects(descr[0])
    return isinstance(descr, list) and all(
        isinstance(field, tuple) and len(field) in (2, 3) and _holds_no_objects(field[1]) for field in descr
    )


def _is_tar(start: bytes) -> bool:
    """By the first entry's checksum, as tarfile does: the oldest tars have no other mark."""
    try:
        tarfile.TarInfo.frombuf(start[: tarfile.BLOCKSIZE], tarfile.ENCODING, "surrogateescape")
    except tarfile.HeaderError:
        return False
    return True


def _zlib_kind(start: bytes, *, packed: bool) -> str | None:
    """zlib's mark is two bytes that text may begin with, so what comes out decides."""
    unpacker, content = zlib.decompressobj(), bytearray()
    refused = "a file compressed by zlib that may hold a pickle"
    try:
        for place in range(len(start)):  # byte by byte, because an error takes with it what the same call unpacked
            content += unpacker.decompress(start[place : place + 1])
            if unpacker.eof or len(content) > _SURELY_ZLIB:
                return refused
        if len(start) == _LOOKED_AT:
            return refused
    except zlib.error:
        pass  # not zlib, or torn: what came out before is still read by whoever opens it
    if packed:
        return refused if content else None
    return None if _kind(io.BytesIO(content), packed=True) is None else refused
