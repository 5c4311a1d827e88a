"""What is a pickle, by its bytes: whatever the file is called, and nothing that only looks like one."""

import collections
import contextlib
import importlib.util
import io
import json
import pickle
import struct
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file

from grpo_core.checkpoint_files import file_entries, read_manifest, verify_checkpoint, write_manifest
from grpo_core.checkpoints.write import save_weights
from grpo_core.errors import CheckpointError, ModelError
from grpo_core.pickle_bytes import is_old_pickle
from grpo_core.weight_bytes import TORN_ZIP, pickle_kind

from .tiny import load, tiny_folder

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


def zipped(content: bytes) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("data", content)
    return buffer.getvalue()


CALL = b"cposix\ngetpid\n(tR"
"""Fetches a name and calls it; protocol 0."""
PICKLES = {
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
OTHERS = {
    "nothing": b"",
    "JSON": json.dumps({"a": [1, 2]}).encode(),
    "text that begins like an opcode": b"cats and dogs\nare here\nand sleep.",
    "a merges file": b"#version: 0.2\nt h\nc a\n",
    "numbers, as text": b"I1\nI2\n.",
    "a long JSON of digits": json.dumps(list(range(400_000))).encode(),
    "a long number": b"1" * (2 << 20),
    "numbers in lines": b"".join(b"%d\n" % number for number in range(400_000)),
    "words in lines, one letter each": b"c\na\n(\nt\nR\n.\n" * 10_000,
    "words that are a module's and a name": b"cat\ndog\nRat\n(tR",
    "text in brackets": b"(in a sentence\nof two lines\n.)",
    "one line without an end": b"S" + b"a" * (2 << 20),
    "a length beyond the end": b"T\xff\xff\xff\x7f" + bytes(1000),
    "a length below nothing": b"T\xff\xff\xff\xff" + CALL,
    "plain values, packed": zipped(b"I1\nI2\n."),
    "numpy numbers": numpy_file(np.arange(4)),
    "numpy numbers, packed": numpy_file(np.arange(4), packed=True),
    "numpy text": numpy_file(np.array(["O", "|O"])),
}


@pytest.mark.parametrize("name", PICKLES)
def test_pickles_are_known_by_their_bytes(tmp_path: Path, name: str) -> None:
    for called in ("model.safetensors", "notes.txt"):
        (tmp_path / called).write_bytes(PICKLES[name])
        assert pickle_kind(tmp_path / called) is not None


@pytest.mark.parametrize("name", OTHERS)
def test_other_files_are_not_taken_for_pickles(tmp_path: Path, name: str) -> None:
    (tmp_path / "pytorch_model.bin").write_bytes(OTHERS[name])
    assert pickle_kind(tmp_path / "pytorch_model.bin") is None


def test_a_safetensors_file_that_begins_like_a_pickle(tmp_path: Path) -> None:
    """The length of its header, 0x0280 bytes, are its first two."""
    header = json.dumps({"w": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}).encode().ljust(0x280)
    (tmp_path / "w").write_bytes(struct.pack("<Q", len(header)) + header + bytes(4))
    assert (tmp_path / "w").read_bytes()[:2] == b"\x80\x02"
    assert pickle_kind(tmp_path / "w") is None
    (tmp_path / "w").write_bytes(struct.pack("<Q", len(header)) + header + bytes(3))
    assert pickle_kind(tmp_path / "w") == "a pickle"


def test_a_torn_zip_is_told_apart(tmp_path: Path) -> None:
    content = bytearray(torch_file())
    content[content.rindex(b"PK\x01\x02")] = 0
    (tmp_path / "w").write_bytes(content)
    assert pickle_kind(tmp_path / "w") == TORN_ZIP


def calls(content: bytes) -> bool:
    """Whether Python's unpickler calls anything of an installed module when it loads this."""
    called: list[str] = []

    class Listening(pickle.Unpickler):
        def find_class(self, module: str, function: str) -> object:
            if importlib.util.find_spec(module) is None:
                raise ImportError(module)
            return lambda *arguments: called.append(f"{module}.{function}")

    with contextlib.suppress(Exception):
        Listening(io.BytesIO(content)).load()
    return bool(called)


@pytest.mark.parametrize("name", [name for name in PICKLES if name.startswith(("an import", "a call", "numbers"))])
def test_the_harmful_ones_do_call(name: str) -> None:
    assert calls(PICKLES[name])


PIECES = [
    *(b"cposix\ngetpid\n", b"iposix\ngetpid\n", b"\x93", b"\x8c\x05posix", b"\x8c\x06getpid", b"\x95" + bytes(8)),
    *(b"(", b")", b"R", b"t", b"o", b"\x81", b"\x92", b"b", b"0", b"1", b"2", b"}", b"]", b"a", b"e", b"s", b"u", b"d"),
    *(b"\x85", b"\x86", b"l", b"N", b"p0\n", b"g0\n", b"q\x01", b"h\x01", b"\x94", b"I0x1\n", b"I01\n", b"F1\n"),
    *(b"S'a'\n", b"Va\n", b"K\x01", b"T\x01\x00\x00\x00a", b"U\x01a", b"\x8f", b"\x90", b"\x91", b".", b"x"),
]


@settings(max_examples=2000, deadline=None)
@given(st.lists(st.sampled_from(PIECES), max_size=14))
def test_whatever_calls_is_taken_for_a_pickle(pieces: list[bytes]) -> None:
    content = b"".join(pieces)
    if calls(content):
        assert is_old_pickle(io.BytesIO(content))


def test_files_of_a_model_are_no_pickles(tmp_path: Path) -> None:
    files = [path for path in tiny_folder(tmp_path / "model").rglob("*") if path.is_file()]
    assert {"model.safetensors", "tokenizer.json", "config.json"} <= {path.name for path in files}
    for path in files:
        assert pickle_kind(path) is None, path.name


def test_a_zip_whose_packed_bytes_are_torn(tmp_path: Path) -> None:
    content = bytearray(zipped(bytes(range(256)) * 100))
    content[40] = 0xFF
    (tmp_path / "w").write_bytes(content)
    assert pickle_kind(tmp_path / "w") == TORN_ZIP


@pytest.mark.parametrize("name", ["protocol 0", "protocol 5", "torch.save", "numpy objects"])
def test_a_model_folder_with_a_pickle_in_it_is_refused(tmp_path: Path, name: str) -> None:
    folder = tiny_folder(tmp_path / "model")
    load(folder)
    (folder / "readme.txt").write_bytes(PICKLES[name])
    with pytest.raises(ModelError, match=r"readme\.txt is .*pickle.*can run code.*save_pretrained"):
        load(folder)


def test_a_checkpoint_with_a_pickle_in_it_is_refused_though_its_manifest_lists_it(tmp_path: Path) -> None:
    policy = load(tiny_folder(tmp_path / "model"))
    folder = tmp_path / "checkpoints/final"
    save_weights(folder, policy, step=1, run_folder=tmp_path)
    manifest = read_manifest(folder)
    (folder / "optimizer.safetensors").write_bytes(pickle.dumps(HARMFUL))
    files = {name: entry for name, entry in file_entries(folder).items() if name != "checkpoint.json"}
    write_manifest(folder, manifest.model_copy(update={"files": files}))
    with pytest.raises(CheckpointError, match=r"optimizer\.safetensors is a pickle"):
        verify_checkpoint(folder)


def test_zip_archives_without_pickles_are_let_be(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.writestr("config.json", "{}")
    assert pickle_kind(tmp_path / "a.zip") is None
    save_file({"w": torch.zeros(2)}, tmp_path / "w.safetensors")
    assert pickle_kind(tmp_path / "w.safetensors") is None
