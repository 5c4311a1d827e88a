"""Loading models: what is taken, what is refused and how."""

import json
import os
import pickle
import shutil
from functools import partial
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from transformers import AutoTokenizer, LlamaForCausalLM

from grpo_core.config import ModelConfig
from grpo_core.errors import ModelError
from grpo_core.model.load import find_model, pick_device
from grpo_core.model.logprobs import completion_logprobs
from grpo_core.model.tiny import byte_tokenizer
from tests.needs import needs

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
    beside = Path(shutil.copytree(folder, tmp_path / "base"))
    assert find_model(ModelConfig(path="base"), base=tmp_path).folder == beside


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
