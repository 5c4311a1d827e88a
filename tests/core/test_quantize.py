"""The base model of adapters in 4 bits: what it is refused for, its settings by value, and what is saved of it."""

import json
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, BitsAndBytesConfig

from grpo_core.cli.main import main
from grpo_core.config.run import LoraConfig, ModelConfig
from grpo_core.errors import ModelError
from grpo_core.model.load import find_model, load_pretrained
from grpo_core.model.lora import adapter_layers, load_policy
from grpo_core.model.quantize import NF4, quantized_loading
from grpo_core.trainer.checkpoints.export import export
from grpo_core.trainer.checkpoints.write import save_weights

from .runs import state_of, write_state
from .test_model import change
from .tiny import config, tiny_folder

CPU = torch.device("cpu")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tiny_folder(tmp_path / "base")


def policy_of(folder: Path, **settings: str):
    given = ModelConfig(path=str(folder), lora=LoraConfig(rank=2), **settings)
    return load_policy(find_model(given, base=folder), given, device=CPU, seed=0)


def test_without_a_gpu_it_is_refused_with_the_remedy(folder):
    with pytest.raises(ModelError, match=r"needs a GPU, and this run trains on cpu; set engine\.device: cuda"):
        policy_of(folder, quantization="nf4")


@pytest.mark.skipif(find_spec("bitsandbytes") is not None, reason="bitsandbytes is installed here")
def test_without_the_package_it_is_refused_with_the_line_that_installs_it():
    with pytest.raises(ModelError, match=r"pip install 'cohort-grpo\[quantize\]'"):
        quantized_loading(torch.device("cuda"))


def test_the_settings_are_qlora_s():
    settings = BitsAndBytesConfig(**NF4).to_dict()
    assert {
        name: value for name, value in settings.items() if name.startswith("bnb_4bit") or name == "load_in_4bit"
    } == {
        "load_in_4bit": True,
        "bnb_4bit_quant_type": "nf4",
        "bnb_4bit_use_double_quant": True,
        "bnb_4bit_compute_dtype": "bfloat16",
        "bnb_4bit_quant_storage": "uint8",
    }


def test_a_folder_that_is_quantised_already_is_refused(folder):
    change(folder, "config.json", quantization_config={"quant_method": "bitsandbytes", "load_in_4bit": True})
    with pytest.raises(ModelError, match=r"quantised already.*model\.quantization: none"):
        load_pretrained(folder, AutoModelForCausalLM, dtype=torch.float32, quantized={})


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_merged_weights_are_those_of_the_base_without_quantisation(folder, tmp_path, dtype):
    """Written from the folder again, whatever the weights below the adapters have become."""
    policy = policy_of(folder, dtype=dtype)
    with torch.no_grad():
        for layer in adapter_layers(policy.model).values():
            layer.lora_B["default"].weight.normal_(std=0.1)
    save_weights(tmp_path / "plain", policy, step=1, run_folder=tmp_path)
    with torch.no_grad():
        for layer in adapter_layers(policy.model).values():
            layer.base_layer.weight.mul_(2)  # stands for what 4 bits leave of them
    save_weights(tmp_path / "quantized", replace(policy, quantized=True), step=1, run_folder=tmp_path)
    plain, written = (load_file(tmp_path / name / "model.safetensors") for name in ("plain", "quantized"))
    assert plain.keys() == written.keys()
    assert all(torch.equal(plain[name], written[name]) for name in plain)
    for name in ("config.json", "generation_config.json", "adapter/adapter_config.json"):
        assert json.loads((tmp_path / "plain" / name).read_text()) == json.loads(
            (tmp_path / "quantized" / name).read_text()
        )


def test_export_merges_into_the_base_without_quantisation(folder, tmp_path):
    """On a machine without a GPU too: the state is of a run on one, whose config alone differs here."""
    (tmp_path / "train.jsonl").write_text('{"prompt": "a", "answer": "b"}\n' * 3)
    settings = config(model={"path": "base", "lora": {"rank": 2}}, checkpoints={"every": 1})
    (tmp_path / "run.json").write_text(json.dumps(settings.to_dict()))
    assert main(["train", str(tmp_path / "run.json"), "--out", str(tmp_path / "run")]) == 0
    checkpoint = tmp_path / "run/checkpoints/step-000001"
    export(checkpoint, tmp_path / "plain")
    state: dict[str, Any] = state_of(checkpoint)
    state["config"]["model"]["quantization"] = "nf4"
    write_state(checkpoint, state)
    export(checkpoint, tmp_path / "quantized")
    plain, made = (load_file(tmp_path / name / "model.safetensors") for name in ("plain", "quantized"))
    assert plain.keys() == made.keys()
    assert all(torch.equal(plain[name], made[name]) for name in plain)
