"""Pickles in every way that they are written, and what else opens as one; made from the formats' definitions."""

import bz2
import collections
import gzip
import io
import lzma
import pickle
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Callable

import numpy as np
import torch

HARMFUL = collections.OrderedDict(a=1)
"""Stands for any object whose pickle fetches a name."""


def torch_file(**how: object) -> bytes:
    buffer = io.BytesIO()
    torch.save({"weight": torch.zeros(3)}, buffer, **how)
    return buffer.getvalue()


def numpy_file(array: np.ndarray, *, packed: bool = False) -> bytes:
    buffer = io.BytesIO()
    if packed:
        np.savez(buffer, array=array)
    else:
        np.save(buffer, array, allow_pickle=True)
    return buffer.getvalue()


def numpy_header(text: str, *, version: int = 1) -> bytes:
    """An array's file with this header, and a pickle behind it."""
    length = struct.pack("<H" if version == 1 else "<I", len(text))
    return b"\x93NUMPY" + bytes([version, 0]) + length + text.encode() + pickle.dumps([HARMFUL])


OF_OBJECTS = "{'descr': '|O', 'fortran_order': False, 'shape': (1,)}"


def zipped(*contents: bytes, packing: int = zipfile.ZIP_DEFLATED, name: str = "data") -> bytes:
    """A member of each, by the name and a number."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for number, content in enumerate(contents):
            archive.writestr(zipfile.ZipInfo(f"{name}{number}"), content, packing)
    return buffer.getvalue()


def two_directories() -> bytes:
    """A zip in which zipfile finds text, by where its directory lies, and others a pickle, by where it says so."""
    parts = []
    for content, name in ((b"text", "a/read.me"), (pickle.dumps(HARMFUL), "a/data.pk")):
        archive = zipped(content, name=name, packing=zipfile.ZIP_STORED)
        places = archive.index(b"PK\x01\x02"), archive.index(b"PK\x05\x06")
        parts.append((archive[: places[0]], archive[places[0] : places[1]], archive[places[1] :]))
    (text, seen, _), (harmful, meant, end) = parts
    seen = seen[:42] + struct.pack("<L", len(harmful) - len(text)) + seen[46:]  # zipfile adds what lies between
    return harmful + meant + text + seen + end


def tarred(content: bytes, how: int = tarfile.PAX_FORMAT) -> bytes:
    """As torch.save wrote before 2017: three members, each a pickle."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=how) as archive:
        for name in ("storages", "tensors", "pickle"):
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
    return buffer.getvalue()


def unmarked(tar: bytes) -> bytes:
    """The oldest layout: no `ustar`, and the checksum is all that tells it."""
    block = bytearray(tar[:512])
    block[257:] = bytes(255)
    block[148:156] = b" " * 8
    block[148:156] = b"%06o\0 " % sum(block)
    return bytes(block) + tar[512:]


def both() -> bytes:
    """A whole safetensors file that is a pickle too: its first byte, of the header's length, begins a text of 90 bytes,
    and in the header follow texts of 126 bytes, which an unpickler skips one by one as far as into the tensors."""
    length = 90 << 8 | ord("C")
    begin = '{"__metadata__":{"m":"'.ljust(90 + 2 - 8, "x")
    end = '"}, "w":{"dtype":"U8","shape":[200],"data_offsets":[0,200]}}'
    texts, rest = divmod(length - len(begin) - len(end), 128)
    header = begin + ("U~" + "x" * 126) * texts + ("U~" + "x" * (rest - 2)) + end
    tensors = b"x" * (128 - rest - len(end)) + CALL + b"."
    return struct.pack("<Q", length) + header.encode() + tensors.ljust(200, b"x")


def empty_blocks(content: bytes) -> bytes:
    """zlib's format with a MiB before the first byte of content."""
    packed = zlib.compress(content)
    return packed[:2] + b"\x00\x00\x00\xff\xff" * 200_000 + packed[2:]


CALL = b"cposix\ngetpid\n(tR"
"""Fetches a name and calls it; protocol 0."""
PACKERS: dict[str, Callable[[bytes], bytes]] = {
    "gzip": gzip.compress,
    "bzip2": bz2.compress,
    "xz": lzma.compress,
    "lzma": lambda content: lzma.compress(content, format=lzma.FORMAT_ALONE),
    **{f"zlib {level}": lambda content, level=level: zlib.compress(content, level) for level in (0, 1, 3, 6, 9)},
    "zlib, torn": lambda content: zlib.compress(content, 0)[:-4] + b"torn",
    "zlib, cut off": lambda content: zlib.compress(content, 0)[:-4],
    "zlib behind empty blocks": empty_blocks,
    "joblib of old": lambda content: b"ZF" + hex(len(content)).ljust(19).encode() + zlib.compress(content),
    "tar": tarred,
    "tar of old": lambda content: unmarked(tarred(content, tarfile.USTAR_FORMAT)),
    "zip": zipped,
    "zip of zip": lambda content: zipped(zipped(content)),
    "zip behind an empty one": lambda content: zipped() + zipped(content),
    "zip, bzip2": lambda content: zipped(content, packing=zipfile.ZIP_BZIP2),
    "zip, two of one name": lambda content: zipped(content, b"text").replace(b"data1", b"data0"),
}
PICKLES = {
    **{f"packed by {name}": pack(pickle.dumps(HARMFUL)) for name, pack in PACKERS.items()},
    **{f"protocol 0, packed by {name}": pack(pickle.dumps(HARMFUL, 0)) for name, pack in PACKERS.items()},
    "lz4": b'\x04"M\x18' + bytes(20),
    "zstd": b"(\xb5/\xfd" + bytes(20),
    "zip with two directories": two_directories(),
    "zip, cut off before its end": torch_file()[:-30],
    "zip, only its beginning": torch_file()[:80],
    "numpy objects by another name": numpy_header(OF_OBJECTS.replace("|O", "object")),
    "numpy objects in fields": numpy_header(OF_OBJECTS.replace("'|O'", "[('a', [('b', '<f4'), ('c', '|O', (2,))])]")),
    "numpy objects in a block": numpy_header(OF_OBJECTS.replace("'|O'", "('|O', (2,))")),
    **{f"numpy objects, version {number}": numpy_header(OF_OBJECTS, version=number) for number in (1, 2, 3, 4)},
    "numpy objects behind spaces": numpy_header(" " * 70_000 + OF_OBJECTS, version=2),
    "numpy objects behind fewer": numpy_header(OF_OBJECTS.replace("{", "{" + " " * 9_000), version=2),
    "numpy, a header that is no literal": numpy_header("__import__('os')"),
    "numpy, cut off": numpy_header(OF_OBJECTS)[:40],
    "a call, in a whole safetensors file": both(),
    "a call by a list's method, and then anything": b"csys\npath\nS'here'\na\xff",
    **{f"protocol {number}": pickle.dumps(HARMFUL, protocol=number) for number in range(6)},
    "an import behind a MiB of plain values": b"I1\n0" * 300_000 + CALL + b".",
    "an import behind a long text": b"V" + b"a" * (2 << 20) + b"\n0" + CALL + b".",
    "an import behind many bytes": b"B" + struct.pack("<I", 2 << 20) + bytes(2 << 20) + b"0" + CALL + b".",
    "a call, and then anything": CALL + b"\xff\xffanything",
    "a call by another opcode": b"(S'a'\niposix\nstat\n\xff",
    "numbers that only an unpickler reads": b"I0x10\n0" + CALL + b".",
    "plain values without an end": b"I1\n0" * 600_000,
    "packed, behind a MiB of plain values": zipped(b"I1\n0" * 300_000 + CALL + b"."),
    "plain values, protocol 4": pickle.dumps({"a": 1}, protocol=4),
    "torch.save": torch_file(),
    "torch.save of old": torch_file(_use_new_zipfile_serialization=False),
    "numpy objects": numpy_file(np.array([HARMFUL], dtype=object)),
    "numpy fields of objects": numpy_file(np.zeros(2, dtype=[("a", "f4"), ("b", "O")])),
    "numpy objects, packed": numpy_file(np.array([HARMFUL], dtype=object), packed=True),
}
