"""A folder of LoRA adapters as a run's base: the same go on, or become part of the weights, or are refused in words."""

import json
import shutil

import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from grpo_core.cli.main import main
from grpo_core.config.run import ModelConfig
from grpo_core.errors import ModelError
from grpo_core.model.load import find_model, load_model
from grpo_core.model.lora import NAME, adapter_layers, adapters_off, load_policy

from .runs import rows
from .tiny import config, tiny_folder

torch.set_num_threads(1)
CPU = torch.device("cpu")
LORA = {"rank": 2, "alpha": 6.0, "targets": "attention"}
PROJECTIONS = ["q_proj", "k_proj", "v_proj", "o_proj"]


@pytest.fixture
def home(tmp_path):
    """A base model and peft's own adapters for it, as they are after some training."""
    tiny_folder(tmp_path / "base")
    (tmp_path / "train.jsonl").write_text('{"prompt": "a", "answer": "b"}\n{"prompt": "c", "answer": "d"}\n')
    return tmp_path


def write_adapter(home, name="adapter", **settings):
    torch.manual_seed(3)
    base = AutoModelForCausalLM.from_pretrained(home / "base")
    given = {"r": 2, "lora_alpha": 6, "target_modules": PROJECTIONS, "init_lora_weights": False, **settings}
    model = get_peft_model(base, LoraConfig(task_type="CAUSAL_LM", **given))
    model.peft_config["default"].base_model_name_or_path = "base"
    model.save_pretrained(home / name)
    return home / name


def policy(home, **settings):
    given = ModelConfig(**{"path": "adapter", "lora": LORA, **settings})
    return load_policy(find_model(given, base=home), given, device=CPU, seed=0)


@torch.no_grad()
def logits(model):
    return model(torch.arange(40)[None]).logits


def theirs(home, name="adapter"):
    return PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(home / "base"), home / name)


@pytest.mark.parametrize("rslora", [False, True])
def test_the_same_adapters_go_on(home, rslora):
    write_adapter(home, use_rslora=rslora)
    ours = policy(home, lora={**LORA, "alpha": 6 * 2**0.5 if rslora else 6})
    assert torch.allclose(logits(ours.model), logits(theirs(home)), atol=1e-5)
    with adapters_off(ours.model):
        base = AutoModelForCausalLM.from_pretrained(home / "base")
        assert torch.allclose(logits(ours.model), logits(base), atol=1e-6)
    assert ours.trainable() == 2 * 4 * 2 * (32 + 32)  # layers · projections · rank · (inputs + outputs)


def test_merged_they_are_part_of_the_weights(home):
    write_adapter(home)
    whole = policy(home, adapter="merge", lora={})
    assert whole.trainable() == whole.parameters()
    fresh = policy(home, adapter="merge", lora={"rank": 4})
    assert all(layer.lora_B[NAME].weight.abs().max() == 0 for layer in adapter_layers(fresh.model).values())
    evaluated = load_model(find_model(ModelConfig(path="adapter"), base=home), dtype="float32", device=CPU)
    for model in (whole.model, fresh.model, evaluated.model):
        assert torch.allclose(logits(model), logits(theirs(home)), atol=1e-5)


@pytest.mark.parametrize(
    "lora", [{}, {**LORA, "rank": 4}, {**LORA, "alpha": 8.0}, {**LORA, "targets": "all_linear"}], ids=str
)
def test_settings_that_contradict_the_folder_are_refused_with_what_it_has(home, lora):
    write_adapter(home)
    with pytest.raises(ModelError, match=r"rank 2, alpha 6, on k_proj, o_proj, q_proj, v_proj.*model\.adapter: merge"):
        policy(home, lora=lora)


def settings_changed(**settings):
    def change(folder):
        path = folder / "adapter_config.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), **settings}))

    return change


def tensors_changed(change):
    def put(folder):
        path = folder / "adapter_model.safetensors"
        save_file(change(load_file(path)), path)

    return put


@pytest.mark.parametrize(
    ("damage", "word"),
    [
        (settings_changed(use_dora=True), "use_dora True, which is more than plain LoRA"),
        (settings_changed(peft_type="IA3"), "peft_type 'IA3'"),
        (settings_changed(modules_to_save=["lm_head"]), "modules_to_save"),
        (settings_changed(r=0), "r 0"),
        (settings_changed(base_model_name_or_path="elsewhere"), "no model folder 'elsewhere'"),
        (settings_changed(base_model_name_or_path=None), "names no base_model_name_or_path"),
        (settings_changed(base_model_name_or_path="adapter"), "holds adapters itself"),
        (
            lambda folder: (folder / "adapter_model.safetensors").rename(folder / "adapter_model.bin"),
            "no adapter_model",
        ),
        (tensors_changed(lambda t: {**t, next(iter(t)): next(iter(t.values())) * float("nan")}), "NaN or infinity"),
        (tensors_changed(lambda t: dict(list(t.items())[1:])), "not both there"),
        (
            tensors_changed(lambda t: {k.replace("layers.1", "layers.9"): v for k, v in t.items()}),
            "another base|layers",
        ),
        (tensors_changed(lambda t: {**t, "base_model.model.lm_head.weight": torch.ones(2)}), "no LoRA matrix"),
    ],
)
@pytest.mark.parametrize("adapter", ["continue", "merge"])
def test_a_folder_that_is_no_plain_lora_of_this_base_is_refused(home, damage, word, adapter):
    damage(write_adapter(home))
    with pytest.raises(ModelError, match=word):
        policy(home, adapter=adapter)


@pytest.mark.parametrize("adapter", ["continue", "merge"])
def test_a_run_goes_on_from_adapters_keeps_them_alone_and_names_them(home, adapter, capsys):
    write_adapter(home)
    model = {"path": "adapter", "adapter": adapter, "lora": LORA}
    given = config(model=model, checkpoints={"every": 1, "merged": False})
    (home / "run.json").write_text(json.dumps(given.to_dict()))
    assert main(["train", str(home / "run.json"), "--out", str(home / "run")]) == 0
    manifest = json.loads((home / "run/manifest.json").read_text())
    assert manifest["model"]["adapter"].keys() == {"adapter_config.json", "adapter_model.safetensors"}
    (event,) = [row for row in rows(home / "run/events.jsonl") if row.get("type") == "model"]
    assert ("go on being trained" if adapter == "continue" else "merged into the weights") in event["message"]
    final = home / "run/checkpoints/final"
    assert {"adapter_config.json", "adapter_model.safetensors", "tokenizer.json"} <= {p.name for p in final.iterdir()}
    assert not (final / "model.safetensors").exists()

    checkpoint = home / "run/checkpoints/step-000002"
    capsys.readouterr()
    assert main(["export", str(checkpoint), "--out", str(home / "alone"), "--adapter"]) == 0
    assert "kB" in capsys.readouterr().out
    assert (
        load_file(home / "alone/adapter_model.safetensors").keys()
        == load_file(final / "adapter_model.safetensors").keys()
    )
    assert main(["export", str(checkpoint), "--out", str(home / "whole")]) == 0
    whole = AutoModelForCausalLM.from_pretrained(home / "whole")
    if adapter == "continue":
        assert torch.allclose(logits(whole), logits(theirs(home, "alone")), atol=1e-5)
        shutil.rmtree(home / "adapter")
        shutil.copytree(home / "alone", home / "adapter")  # as a base again
        settings_changed(base_model_name_or_path="base")(home / "adapter")
        assert torch.allclose(logits(policy(home).model), logits(whole), atol=1e-5)


def test_adapters_alone_of_whole_training_are_refused(home, capsys):
    (home / "run.json").write_text(json.dumps(config(checkpoints={"every": 1}).to_dict()))
    assert main(["train", str(home / "run.json"), "--out", str(home / "run")]) == 0
    checkpoint = home / "run/checkpoints/step-000002"
    assert main(["export", str(checkpoint), "--out", str(home / "alone"), "--adapter"]) != 0
    assert "leave --adapter out" in capsys.readouterr().err
