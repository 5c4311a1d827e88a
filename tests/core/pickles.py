"""Pickles in the ways that libraries write them; made from the formats' definitions."""

import bz2
import collections
import gzip
import io
import lzma
import pickle
import tarfile
import zipfile
import zlib

import numpy as np
import torch

HARMFUL = collections.OrderedDict(a=1)
"""Stands for any object whose pickle fetches a name."""


def torch_file(**how: object) -> bytes:
    buffer = io.BytesIO()
    torch.save({"weight": torch.zeros(3)}, buffer, **how)
    return buffer.getvalue()


def numpy_file(array: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, array, allow_pickle=True)
    return buffer.getvalue()


def zipped(content: bytes) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("data", content)
    return buffer.getvalue()


def tarred(content: bytes) -> bytes:
    """As torch.save wrote before 2017: three members, each a pickle."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for name in ("storages", "tensors", "pickle"):
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
    return buffer.getvalue()


BINARY = {
    **{f"protocol {number}": pickle.dumps(HARMFUL, protocol=number) for number in range(2, 6)},
    "plain values, protocol 4": pickle.dumps({"a": 1}, protocol=4),
    "torch.save": torch_file(),
    "torch.save, cut off": torch_file()[:-30],
    "torch.save of old": torch_file(_use_new_zipfile_serialization=False),
    "numpy objects": numpy_file(np.array([HARMFUL], dtype=object)),
    "packed by gzip": gzip.compress(pickle.dumps(HARMFUL)),
    "packed by bzip2": bz2.compress(pickle.dumps(HARMFUL)),
    "packed by xz": lzma.compress(pickle.dumps(HARMFUL)),
    "packed by lzma": lzma.compress(pickle.dumps(HARMFUL), format=lzma.FORMAT_ALONE),
    "packed by zlib": zlib.compress(pickle.dumps(HARMFUL)),
    "packed by tar": tarred(pickle.dumps(HARMFUL, 0)),
    "packed by zip": zipped(pickle.dumps(HARMFUL, 0)),
}
PICKLES = BINARY | {"protocol 0": pickle.dumps(HARMFUL, 0), "a call": b"cposix\ngetpid\n(tR."}
"""Those of protocol 0 are text."""
