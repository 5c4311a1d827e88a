"""Loading models: what is taken, what is refused and how. No pickle gets in, whatever it is called."""

import json
import os
import pickle
import shutil
import struct
from functools import partial
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from transformers import AutoTokenizer, LlamaForCausalLM

from grpo_core.cli.main import main
from grpo_core.config.run import ModelConfig
from grpo_core.distributed.environment import pick_device
from grpo_core.errors import CheckpointError, ModelError
from grpo_core.files.checkpoint import file_entries, read_manifest, verify_checkpoint, write_manifest
from grpo_core.files.weights import check_model_file
from grpo_core.model.load import find_model
from grpo_core.model.logprobs import completion_logprobs
from grpo_core.model.source import weight_files
from grpo_core.model.tiny import byte_tokenizer
from grpo_core.trainer.checkpoints.write import save_weights
from tests.needs import needs

from .pickles import BINARY, PICKLES
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
    with pytest.raises(ModelError, match=r"no model folder 'someone/model'.*give model\.revision \(the commit\)"):
        find_model(ModelConfig(path="someone/model"), base=tmp_path)
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


def custom_class(folder):
    classes = {"AutoConfig": "evil.C", "AutoModelForCausalLM": "evil.M"}
    change(folder, "config.json", model_type="homemade", auto_map=classes)


def with_code(folder):
    custom_class(folder)
    (folder / "evil.py").write_text("raise SystemExit('code of the model folder ran')")


# transformers would load adapters on top of the weights when peft is installed, and not when it is not.
@pytest.mark.parametrize(
    ("damage", "word"),
    [
        (lambda folder: (folder / "model.safetensors").unlink(), r"no \*\.safetensors"),
        *((partial(without_weights, name=name), name) for name in ("pytorch_model.bin", "model.pt", "model.pth")),
        (lambda folder: (folder / "notes").write_bytes(pickle.dumps({})), "notes may be a pickle"),
        (lambda folder: (folder / "config.json").unlink(), r"config\.json"),
        (incomplete, r"incomplete.*layers\.1\.mlp\.up_proj"),
        (lambda folder: os.truncate(folder / "model.safetensors", 2000), "not all of it is there"),
        (with_code, r"evil\.py may be"),
        (custom_class, "cannot load the model"),
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


@pytest.mark.parametrize("name", PICKLES)
@pytest.mark.parametrize("called", ["notes", "w.bin", "w.pt", "w.pkl", "w.PT", "w.npz", "w.json.gz", "w.safetensors"])
def test_a_pickle_is_refused_by_its_name_or_as_no_weights(tmp_path: Path, name: str, called: str) -> None:
    (tmp_path / called).write_bytes(PICKLES[name])
    with pytest.raises(ModelError, match=rf"{called} (may be a pickle|is not a safetensors file)"):
        weight_files(tmp_path)


@pytest.mark.parametrize("name", BINARY)
@pytest.mark.parametrize("called", ["config.json", "merges.txt", "tokenizer.model", "chat_template.jinja", "LICENSE"])
def test_what_a_loader_reads_as_text_must_be_text(tmp_path: Path, name: str, called: str) -> None:
    """A pickle of protocol 0 is text too, and what reads a file of these names takes it for nothing else."""
    (tmp_path / called).write_bytes(BINARY[name])
    with pytest.raises(ModelError, match=rf"{called} is (not|neither) text.*pickle"):
        weight_files(tmp_path)


SENTENCEPIECE = b"".join(
    b"\n" + bytes([len(piece) + 9, 10, len(piece)]) + piece + b"\x15" + struct.pack("<f", -number) + b"\x18\x01"
    for number, piece in enumerate([b"<unk>", b"<s>", b"</s>", "\u2581the".encode(), b"P", b"cos"])
)


def test_what_a_model_folder_holds_is_let_in(tmp_path: Path) -> None:
    save_file({"w": torch.zeros(2)}, tmp_path / "model.safetensors")
    contents = {
        "config.json": b"{}",
        "merges.txt": b"#version: 0.2\nt h\nc a\n",
        "vocab.txt": "é".encode() * 40_000,  # a character is cut where the check ends
        "tokenizer.model": SENTENCEPIECE,
        "tiktoken.model": b"IQ== 0\nIg== 1\n",
        "chat_template.jinja": b"{%- for message in messages %}{{ message.content }}{% endfor %}",
        "README.md": b"# A model\n",
        "LICENSE": b"MIT",
        ".gitattributes": b"*.safetensors filter=lfs\n",
        "pytorch_model.bin.index.json": b'{"weight_map": {"w": "pytorch_model.bin"}}',  # nothing reads it
    }
    for name, content in contents.items():
        (tmp_path / name).write_bytes(content)
    (tmp_path / "original").mkdir()
    (tmp_path / "original" / "consolidated.pth").write_bytes(PICKLES["torch.save"])
    assert weight_files(tmp_path) == [tmp_path / "model.safetensors"]


def test_an_index_that_names_what_is_no_safetensors_file(tmp_path: Path) -> None:
    """transformers loads each file that an index names, by its name."""
    save_file({"w": torch.zeros(2)}, tmp_path / "model.safetensors")
    (tmp_path / "weights.txt").write_bytes(PICKLES["protocol 0"])
    (tmp_path / "other.safetensors.index.json").write_text('{"weight_map": {"w": "weights.txt"}}')
    with pytest.raises(ModelError, match=r"weights\.txt"):
        weight_files(tmp_path)


@pytest.mark.parametrize("length", [376, 0x0280])  # as zlib begins, and as a pickle does
def test_large_weights_are_not_read_through(tmp_path: Path, length: int) -> None:
    size = 5 << 30
    header = json.dumps({"w": {"dtype": "U8", "shape": [size], "data_offsets": [0, size]}}).encode().ljust(length)
    (tmp_path / "w.safetensors").write_bytes(struct.pack("<Q", length) + header)
    os.truncate(tmp_path / "w.safetensors", 8 + length + size)  # zeros that take no room
    before = bytes_read()
    check_model_file(tmp_path / "w.safetensors")
    assert bytes_read() - before < 1 << 20


def bytes_read() -> int:
    """By this process, from anywhere (Linux: proc_pid_io(5))."""
    return int(Path("/proc/self/io").read_text().split()[1])


@pytest.mark.parametrize("name", ["protocol 0", "torch.save", "packed by gzip", "packed by tar"])
def test_a_checkpoint_with_a_pickle_in_it_is_refused_though_its_manifest_lists_it(tmp_path: Path, name: str) -> None:
    policy = load(tiny_folder(tmp_path / "model"))
    folder = tmp_path / "checkpoints/final"
    save_weights(folder, policy, step=1, run_folder=tmp_path)
    manifest = read_manifest(folder)
    (folder / "optimizer.safetensors").write_bytes(PICKLES[name])
    files = {path: entry for path, entry in file_entries(folder).items() if path != "checkpoint.json"}
    write_manifest(folder, manifest.model_copy(update={"files": files}))
    with pytest.raises(CheckpointError, match=r"optimizer\.safetensors is not a safetensors file"):
        verify_checkpoint(folder)
    assert main(["export", str(folder), "--out", str(tmp_path / "made")]) == 7
    assert not (tmp_path / "made").exists()


def reshaped(folder, out, *, dtype=torch.float32, shard="20KB", **settings_):
    """The folder's model as people publish it: in several files, in bf16, with a tied head."""
    model = LlamaForCausalLM.from_pretrained(folder, dtype=dtype, **settings_)
    model.tie_weights()
    model.save_pretrained(out, max_shard_size=shard)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(folder / name, out)
    return out


def test_sharded_weights_are_the_same_model(folder, tmp_path):
    sharded = reshaped(folder, tmp_path / "sharded")
    assert len(weight_files(sharded)) > 3
    plain, policy = load(folder), load(sharded)
    assert torch.equal(*(completion_logprobs(p.model, [[1, 2]], [[3, 4, 5]]) for p in (plain, policy)))
    weight_files(sharded)[1].unlink()
    with pytest.raises(ModelError, match="names files that are not there"):
        load(sharded)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("tied", [True, False])
def test_bf16_weights_and_tied_heads_survive_load_and_save(folder, tmp_path, dtype, tied):
    given = reshaped(folder, tmp_path / "given", dtype=getattr(torch, dtype), shard="1GB", tie_word_embeddings=tied)
    policy = load(given, dtype=dtype)
    save_weights(tmp_path / "final", policy, step=1, run_folder=tmp_path)
    before, after = (load_file(path / "model.safetensors") for path in (given, tmp_path / "final"))
    assert ("lm_head.weight" in after) is not tied
    assert before.keys() == after.keys()
    for name, weight in before.items():
        assert weight.dtype == after[name].dtype == getattr(torch, dtype)
        assert torch.equal(weight, after[name])
    again = load(tmp_path / "final", dtype=dtype)
    assert torch.equal(*(completion_logprobs(p.model, [[1, 2]], [[3, 4, 5]]) for p in (policy, again)))


def test_numbers_that_are_none_are_named(copy):
    weights = load_file(copy / "model.safetensors")
    weights["model.norm.weight"][:3] = torch.tensor([float("nan"), float("inf"), -float("inf")])
    save_file(weights, copy / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ModelError, match=r"NaN or infinity: 3 numbers of 1 tensors, first model\.norm\.weight"):
        load(copy)


def test_a_model_without_a_padding_token_pads_with_its_end(copy):
    change(copy, "tokenizer_config.json", pad_token=None)
    change(copy, "generation_config.json", pad_token_id=None)
    policy = load(copy)
    assert policy.tokenizer.pad_token_id is None
    assert {policy.pad_id} == policy.eos_ids == {256}


def test_a_pickle_beside_safetensors_is_refused(copy):
    """transformers takes the safetensors; another loader, of another version, might not."""
    (copy / "pytorch_model.bin").write_bytes(b"anything")
    with pytest.raises(ModelError, match=r"pytorch_model\.bin may be a pickle.*no part of the model, take away"):
        load(copy)
