"""Loading models: what is taken, what is refused and how. What is a pickle, by its bytes: whatever the file is called,
and nothing that only looks like one."""

import contextlib
import importlib.util
import io
import json
import os
import pickle
import shutil
import struct
import tempfile
import zipfile
import zlib
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from transformers import AutoTokenizer, LlamaForCausalLM

from grpo_core.cli.main import main
from grpo_core.config.run import ModelConfig
from grpo_core.distributed.device import pick_device
from grpo_core.errors import CheckpointError, ModelError
from grpo_core.files.checkpoint import file_entries, read_manifest, verify_checkpoint, write_manifest
from grpo_core.files.pickle_bytes import fetches_names
from grpo_core.files.weights import TORN_ZIP, pickle_kind
from grpo_core.model.load import find_model, weight_files
from grpo_core.model.logprobs import completion_logprobs
from grpo_core.model.tiny import byte_tokenizer
from grpo_core.trainer.checkpoints.write import save_weights
from tests.needs import needs
from tests.tables import cases

from .pickles import HARMFUL, PACKERS, PICKLES, numpy_file, torch_file, two_directories, zipped
from .tiny import load, tiny_folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tiny_folder(tmp_path_factory.mktemp("models") / "base")


@pytest.fixture
def copy(folder, tmp_path):
    return Path(shutil.copytree(folder, tmp_path / "copy"))


@given(text=st.text().filter(lambda text: "<|end|>" not in text and "<|pad|>" not in text))
@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@example(text="what is 3 + 4? e\u0301 ✓ \x00\n\t  two  spaces")  # the accent is a character of its own and stays one
def test_any_text_survives_the_saved_tokenizer(tokenizer, text):
    ids = tokenizer(text)["input_ids"]
    assert ids == byte_tokenizer()(text)["input_ids"]
    assert len(ids) == len(text.encode())
    assert tokenizer.decode(ids, skip_special_tokens=False) == text
    assert tokenizer.eos_token_id != tokenizer.pad_token_id
    assert len(tokenizer) == 258


@pytest.fixture(scope="module")
def tokenizer(folder):
    return AutoTokenizer.from_pretrained(folder)


# ---------------------------------------------------------------------- finding and loading


def test_relative_folder_is_found_beside_the_config_then_in_grpo_models(folder, tmp_path, monkeypatch):
    monkeypatch.setenv("GRPO_MODELS", str(folder.parent))
    assert find_model(ModelConfig(path="base"), base=tmp_path).folder == folder
    nearest = Path(shutil.copytree(folder, tmp_path / "base"))
    assert find_model(ModelConfig(path="base"), base=tmp_path).folder == nearest


def test_missing_folder_names_where_it_was_looked_for(tmp_path, monkeypatch):
    monkeypatch.setenv("GRPO_MODELS", str(tmp_path / "store"))
    with pytest.raises(ModelError) as caught:
        find_model(ModelConfig(path="nowhere"), base=tmp_path)
    assert all(str(folder / "nowhere") in str(caught.value) for folder in (tmp_path, tmp_path / "store"))
    with pytest.raises(ModelError, match="40 hex digits"):
        find_model(ModelConfig(path="someone/model", revision="main"), base=tmp_path)


def test_a_folder_never_stands_in_for_a_pinned_commit(folder, tmp_path, monkeypatch):
    """Neither next to the config nor below GRPO_MODELS."""
    for root in (tmp_path, tmp_path / "store"):
        shutil.copytree(folder, root / "someone" / "model")
    monkeypatch.setenv("GRPO_MODELS", str(tmp_path / "store"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    with pytest.raises(ModelError, match=f"someone/model' at {'0' * 40}"):
        find_model(ModelConfig(path="someone/model", revision="0" * 40), base=tmp_path)


def without_weights(folder, name="notes"):
    (folder / "model.safetensors").unlink()
    (folder / name).write_bytes(b"anything")


def incomplete(folder):
    weights = load_file(folder / "model.safetensors")
    del weights["model.layers.1.mlp.up_proj.weight"]
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


def change(folder, name, **settings_):
    (folder / name).write_text(json.dumps({**json.loads((folder / name).read_text()), **settings_}))


def with_code(folder):
    classes = {"AutoConfig": "evil.C", "AutoModelForCausalLM": "evil.M"}
    change(folder, "config.json", model_type="homemade", auto_map=classes)
    (folder / "evil.py").write_text("raise SystemExit('code of the model folder ran')")


# transformers would load adapters on top of the weights when peft is installed, and not when it is not.
@pytest.mark.parametrize(
    ("damage", "word"),
    [
        (without_weights, r"\.safetensors"),
        *((partial(without_weights, name=name), name) for name in ("pytorch_model.bin", "model.pt", "model.pth")),
        (lambda folder: (folder / "notes").write_bytes(pickle.dumps({})), "notes is a .*pickle"),
        (lambda folder: (folder / "config.json").unlink(), r"config\.json"),
        (incomplete, r"incomplete.*layers\.1\.mlp\.up_proj"),
        (lambda folder: os.truncate(folder / "model.safetensors", 2000), "cannot load the model"),
        (with_code, "cannot load the model"),
        (lambda folder: (folder / "adapter_config.json").write_text("{}"), r"adapter_config\.json.*merge_and_unload"),
    ],
)
def test_a_folder_that_is_no_whole_model_is_refused(copy, damage, word):
    damage(copy)
    with pytest.raises(ModelError, match=word):
        load(copy)


def test_every_end_token_counts_and_dropout_does_not(copy):
    change(copy, "generation_config.json", eos_token_id=[1, 106])
    change(copy, "config.json", attention_dropout=0.5)
    policy = load(copy)
    assert policy.eos_ids == {1, 106, 256}
    first, second = (completion_logprobs(policy.model, [[1, 2]], [[3, 4, 5]]) for _ in range(2))
    assert torch.equal(first, second)


def test_cuda_is_refused_where_there_is_none():
    needs("no-gpu")
    with pytest.raises(ModelError, match="sees no GPU"):
        pick_device("cuda")
    assert pick_device("auto").type == "cpu"


def test_logits_that_the_trainer_does_not_know_are_refused(copy, monkeypatch):
    plain = LlamaForCausalLM.forward

    def odd(self, *arguments, **named):
        output = plain(self, *arguments, **named)
        output.logits = output.logits * 1.5 + 1
        return output

    monkeypatch.setattr(LlamaForCausalLM, "forward", odd)
    with pytest.raises(ModelError, match="changes its logits"):
        load(copy)


OTHERS = {
    "a long JSON of digits": json.dumps(list(range(400_000))).encode(),
    "a long number": b"1" * (2 << 20),
    "numbers in lines": b"".join(b"%d\n" % number for number in range(400_000)),
    "words in lines, one letter each": b"c\na\n(\nt\nR\n.\n" * 10_000,
    "one line without an end": b"S" + b"a" * (2 << 20),
    "a length beyond the end": b"T\xff\xff\xff\x7f" + bytes(1000),
    "plain values, packed": zipped(b"I1\nI2\n."),
    "numpy numbers": numpy_file(np.arange(4)),
    "numpy numbers, packed": numpy_file(np.arange(4), packed=True),
    "numpy text": numpy_file(np.array(["O", "|O"])),
    "numpy fields": numpy_file(np.zeros(2, dtype=[("O", "f4", (2,)), ("b", [("c", "S3"), ("d", "M8[25s]")])])),
    "numpy truth, complex numbers, packed": zipped(numpy_file(np.array([True])), numpy_file(np.zeros(2, "c16"))),
    "an empty zip": zipped(),
    "zip, each packing": zipped(b"text", packing=zipfile.ZIP_BZIP2),
    "zip, stored": zipped(b"text", packing=zipfile.ZIP_STORED),
    "text that begins like zlib, packed": zipped(b"xy^2"),
    "a sentencepiece model": b"".join(
        b"\n" + bytes([len(piece) + 9, 10, len(piece)]) + piece + b"\x15" + struct.pack("<f", -number) + b"\x18\x01"
        for number, piece in enumerate([b"<unk>", b"<s>", b"</s>", "\u2581the".encode(), b"P", b"cos"])
    ),
    "a picture (PNG)": b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR" + bytes(17) + b"\0\0\0\x0cIDAT" + zlib.compress(bytes(99)),
    "a picture (JPEG)": b"\xff\xd8\xff\xe0\0\x10JFIF\0" + bytes(range(256)),
    "ONNX": b"\x08\x08\x12\x07pytorch\x1a\x052.0.0" + bytes(range(256)),
    "zeros": bytes(2048),
    "a short file of every byte": bytes(range(256)) * 3,
}


@pytest.mark.parametrize(
    ("name", "called"),
    [*((name, "notes.txt") for name in PICKLES), ("torch.save", "another.safetensors"), ("protocol 4", "config.json")],
)
def test_pickles_are_known_by_their_bytes(tmp_path: Path, name: str, called: str) -> None:
    save_file({"w": torch.zeros(2)}, tmp_path / "model.safetensors")
    assert weight_files(tmp_path) == [tmp_path / "model.safetensors"]
    (tmp_path / called).write_bytes(PICKLES[name])
    with pytest.raises(ModelError, match=rf"/{called} is a "):
        weight_files(tmp_path)


@settings(max_examples=50)
@given(st.integers(0, 5), st.lists(st.sampled_from(sorted(PACKERS)), max_size=4))
def test_however_packed(protocol: int, packers: list[str]) -> None:
    content = pickle.dumps(HARMFUL, protocol)
    for name in packers:
        content = PACKERS[name](content)
    with tempfile.NamedTemporaryFile() as file:
        Path(file.name).write_bytes(content)
        assert pickle_kind(Path(file.name)) is not None


@settings(max_examples=50)
@given(st.text())
def test_text_is_accepted_though_it_begins_like_zlib(text: str) -> None:
    with tempfile.NamedTemporaryFile() as file:
        Path(file.name).write_bytes(b"x^" + text.encode("utf-8"))
        assert pickle_kind(Path(file.name)) is None


@pytest.mark.parametrize(
    "content", [*cases("weights/harmless", "text"), *(pytest.param(OTHERS[name], id=name) for name in OTHERS)]
)
def test_other_files_are_not_taken_for_pickles(tmp_path: Path, content: str | bytes) -> None:
    """Text of the table stands for bytes, as Latin-1."""
    raw = content.encode("latin-1") if isinstance(content, str) else content
    (tmp_path / "pytorch_model.bin").write_bytes(raw)
    assert pickle_kind(tmp_path / "pytorch_model.bin") is None


def test_a_safetensors_file_that_begins_like_a_pickle(tmp_path: Path) -> None:
    """The length of its header, 0x0280 bytes, are its first two."""
    header = json.dumps({"w": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}).encode().ljust(0x280)
    (tmp_path / "w").write_bytes(struct.pack("<Q", len(header)) + header + bytes(4))
    assert (tmp_path / "w").read_bytes()[:2] == b"\x80\x02"
    assert pickle_kind(tmp_path / "w") is None
    (tmp_path / "w").write_bytes(struct.pack("<Q", len(header)) + header + bytes(3))
    assert pickle_kind(tmp_path / "w") == "a pickle"


@pytest.mark.parametrize("length", [376, 0x0280])  # as zlib begins, and as a pickle does
def test_large_weights_are_not_read_through(tmp_path: Path, length: int) -> None:
    size = 5 << 30
    header = json.dumps({"w": {"dtype": "U8", "shape": [size], "data_offsets": [0, size]}}).encode().ljust(length)
    (tmp_path / "w").write_bytes(struct.pack("<Q", length) + header)
    os.truncate(tmp_path / "w", 8 + length + size)  # zeros that take no room
    before = bytes_read()
    assert pickle_kind(tmp_path / "w") is None
    assert bytes_read() - before < 1 << 20


def bytes_read() -> int:
    """By this process, from anywhere (Linux: proc_pid_io(5))."""
    return int(Path("/proc/self/io").read_text().split()[1])


def test_a_torn_zip_is_told_apart(tmp_path: Path) -> None:
    whole = torch_file()
    unlisted = bytearray(whole)
    unlisted[whole.rindex(b"PK\x01\x02")] = 0
    packed = bytearray(zipped(bytes(range(256)) * 100))
    packed[40] = 0xFF
    for content in (unlisted, whole[:-1], whole[:-30], whole[:80], whole[:4], two_directories(), packed):
        (tmp_path / "w").write_bytes(content)
        assert pickle_kind(tmp_path / "w") == TORN_ZIP


@pytest.mark.parametrize("offset", [5, 1 << 62, (1 << 63) - 1, (1 << 64) - 1])
def test_a_zip_with_a_member_where_none_is(tmp_path: Path, offset: int) -> None:
    with zipfile.ZipFile(tmp_path / "w", "w") as archive:
        archive.writestr("a", "text")
        archive.writestr("b", "text")
        archive.infolist()[1].header_offset = offset
    assert pickle_kind(tmp_path / "w") == TORN_ZIP


PACKINGS = [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA]


@settings(max_examples=100)
@given(st.sampled_from(PACKINGS), st.lists(st.tuples(st.integers(4), st.integers(0, 255)), max_size=4))
def test_a_damaged_zip_is_judged_too(packing: int, damages: list[tuple[int, int]]) -> None:
    """Whatever is wrong with it, it is told as such, and no other error comes of it."""
    content = bytearray(zipped(b"text " * 9, b"more", packing=packing))
    for offset, value in damages:
        content[4 + offset % (len(content) - 4)] = value
    with tempfile.NamedTemporaryFile() as file:
        Path(file.name).write_bytes(content)
        assert pickle_kind(Path(file.name)) in (None, TORN_ZIP)


def calls(content: bytes) -> bool:
    """Whether Python's unpickler calls anything of an installed module when it loads this."""
    called: list[str] = []

    class Fetched:
        def __init__(self, name: str) -> None:
            def call(*arguments: object) -> None:
                called.append(name)

            self.append = self.extend = self.add = self.__setstate__ = call

        def __call__(self, *arguments: object) -> None:
            self.append()

        def __setitem__(self, *arguments: object) -> None:
            self.append()

    class Listening(pickle.Unpickler):
        def find_class(self, module: str, function: str) -> object:
            if importlib.util.find_spec(module) is None:
                raise ImportError(module)
            return Fetched(f"{module}.{function}")

    with contextlib.suppress(Exception):
        Listening(io.BytesIO(content)).load()
    return bool(called)


PIECES = [
    *(b"cposix\ngetpid\n", b"iposix\ngetpid\n", b"\x93", b"\x8c\x05posix", b"\x8c\x06getpid", b"\x95" + bytes(8)),
    *(b"(", b")", b"R", b"t", b"o", b"\x81", b"\x92", b"b", b"0", b"1", b"2", b"}", b"]", b"a", b"e", b"s", b"u", b"d"),
    *(b"\x85", b"\x86", b"l", b"N", b"p0\n", b"g0\n", b"q\x01", b"h\x01", b"\x94", b"I0x1\n", b"I01\n", b"F1\n"),
    *(b"S'a'\n", b"Va\n", b"K\x01", b"T\x01\x00\x00\x00a", b"U\x01a", b"\x8f", b"\x90", b"\x91", b".", b"x"),
]


@settings(max_examples=400)
@given(st.lists(st.sampled_from(PIECES), max_size=14))
def test_whatever_calls_is_taken_for_a_pickle(pieces: list[bytes]) -> None:
    content = b"".join(pieces)
    if calls(content):
        assert fetches_names(io.BytesIO(content))


@pytest.mark.parametrize("name", ["protocol 0", "torch.save", "packed by gzip", "packed by tar"])
def test_a_checkpoint_with_a_pickle_in_it_is_refused_though_its_manifest_lists_it(tmp_path: Path, name: str) -> None:
    policy = load(tiny_folder(tmp_path / "model"))
    folder = tmp_path / "checkpoints/final"
    save_weights(folder, policy, step=1, run_folder=tmp_path)
    manifest = read_manifest(folder)
    (folder / "optimizer.safetensors").write_bytes(PICKLES[name])
    files = {path: entry for path, entry in file_entries(folder).items() if path != "checkpoint.json"}
    write_manifest(folder, manifest.model_copy(update={"files": files}))
    with pytest.raises(CheckpointError, match=r"optimizer\.safetensors is a .*pickle"):
        verify_checkpoint(folder)
    assert main(["export", str(folder), "--out", str(tmp_path / "made")]) == 7
    assert not (tmp_path / "made").exists()
