"""Adapters inside the policy: what they compute, what is trained, what is the reference, what is saved."""

import json
import math
import shutil
from contextlib import suppress

import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from grpo_core.config.run import LoraConfig, ModelConfig
from grpo_core.errors import ModelError
from grpo_core.files.checkpoint import verify_checkpoint
from grpo_core.model.load import find_model
from grpo_core.model.logprobs import completion_logprobs
from grpo_core.model.lora import NAME, adapter_layers, adapters_off, add_adapters, load_policy
from grpo_core.model.source import weight_files
from grpo_core.trainer.checkpoints.write import save_weights

from .families import families
from .tiny import load, tiny_folder

PROMPTS = [[10, 20, 30], [40], [50, 60, 70, 80, 90, 100]]
COMPLETIONS = [[1, 2, 3, 4], [5], [6, 7]]
LORA = LoraConfig(rank=4, alpha=8.0)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tiny_folder(tmp_path_factory.mktemp("models") / "base")


def adapted(folder, lora=LORA, *, dtype="float32", seed=5, trained=True):
    """A policy with adapters, as they might be after some training."""
    policy = load(folder, dtype=dtype)
    add_adapters(policy, lora, seed=seed)
    if trained:
        random = torch.Generator().manual_seed(1)
        for layer in adapter_layers(policy.model).values():
            weight = layer.lora_B[NAME].weight
            weight.data = torch.empty(weight.shape).normal_(0, 0.2, generator=random)
    return policy


def logprobs(model, **options):
    return completion_logprobs(model, PROMPTS, COMPLETIONS, **options)


@torch.no_grad()
def logits(model):
    return model(torch.arange(40)[None]).logits


def other_model(folder, tmp_path, name):
    """The tiny model's tokenizer with another model's weights."""
    copy = shutil.copytree(folder, tmp_path / "other")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = families("adapters", "all")[name]()
    for parameter, weight in model.named_parameters():
        if parameter.endswith("q_proj.bias"):
            torch.nn.init.constant_(weight, 0.3)
    model.save_pretrained(copy)
    return copy


# ---------------------------------------------------------------------- at the start


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_new_policy_is_the_base_model_exactly_and_only_its_adapters_get_gradients_in_fp32(folder, dtype):
    policy, trained = adapted(folder, dtype=dtype, trained=False), adapted(folder, dtype=dtype)
    assert torch.equal(logprobs(load(folder, dtype=dtype).model), logprobs(policy.model))
    for model in (policy.model, trained.model):
        logprobs(model).sum().backward()
    for layer in adapter_layers(policy.model).values():  # dL/dA = Bᵀ·… and B is 0
        assert layer.lora_A[NAME].weight.grad.abs().max() == 0
        assert layer.lora_B[NAME].weight.grad.abs().max() > 0
    for name, weight in trained.model.named_parameters():
        if "lora_" in name:
            assert weight.dtype == weight.grad.dtype == torch.float32
            assert weight.grad.abs().max() > 0, name
        else:
            assert weight.dtype == getattr(torch, dtype)
            assert weight.grad is None
            assert not weight.requires_grad


def test_what_is_trained_and_how_much(folder):
    base = load(folder)
    # rank · (inputs + outputs): four projections 32 → 32, three of the feed-forward between 32 and 64; two layers
    added = 4 * (4 * (32 + 32) + 3 * (32 + 64)) * 2
    source, device = find_model(ModelConfig(path=str(folder)), base=folder), torch.device("cpu")
    policy = load_policy(source, ModelConfig(path=str(folder), lora=LORA), device=device, seed=0)
    assert policy.adapters == LORA
    assert policy.trainable() == added
    assert policy.parameters() == base.parameters() + added
    assert all("lm_head" not in name for name in adapter_layers(policy.model))
    assert adapted(folder, LoraConfig(rank=4, targets="attention")).trainable() == 4 * 4 * (32 + 32) * 2
    plain = load_policy(source, ModelConfig(path=str(folder)), device=device, seed=0)
    assert plain.adapters is None
    assert plain.trainable() == plain.parameters() == base.trainable()
    with pytest.raises(ValueError, match="no adapters"), adapters_off(plain.model):
        pass


def test_first_values_come_from_their_own_seed(folder):
    def first(seed, drawn):
        torch.manual_seed(drawn)
        state = torch.random.get_rng_state()
        model = load(folder)
        add_adapters(model, LORA, seed=seed)
        torch.manual_seed(drawn)
        assert torch.equal(torch.random.get_rng_state(), state)
        return {name: layer.lora_A[NAME].weight for name, layer in adapter_layers(model.model).items()}

    ours, again, other = first(5, 1), first(5, 2), first(6, 2)
    assert all(torch.equal(ours[name], again[name]) for name in ours)
    assert not any(torch.equal(ours[name], other[name]) for name in ours)
    values = torch.cat([weight.flatten() for name, weight in ours.items() if "down" not in name])
    assert 0.99 / math.sqrt(32) < values.abs().max() <= 1 / math.sqrt(32)
    assert values.mean().abs() < 0.01


# ---------------------------------------------------------------------- what they compute


def test_a_layer_by_hand(folder):
    """W·x + (alpha / rank)·B·A·x, here with alpha / rank = 3 / 2."""
    policy = adapted(folder, LoraConfig(rank=2, alpha=3.0, targets="attention"))
    layer = policy.model.model.layers[0].self_attn.k_proj
    x_3D = torch.linspace(-1, 1, 96).view(3, 32)
    w, a, b = (m.weight.double() for m in (layer.base_layer, layer.lora_A[NAME], layer.lora_B[NAME]))
    expected = x_3D.double() @ w.T + 1.5 * (x_3D.double() @ a.T @ b.T)
    assert torch.allclose(layer(x_3D).double(), expected, rtol=0, atol=1e-6)
    assert (expected - x_3D.double() @ w.T).abs().max() > 0.1


@pytest.mark.parametrize("layout", ["left", "packed"])
def test_log_probabilities_are_those_of_the_adapted_models_own_logits(folder, layout):
    policy = adapted(folder)
    got = logprobs(policy.model, layout=layout)
    expected = []
    for prompt, completion in zip(PROMPTS, COMPLETIONS, strict=True):
        table_TV = torch.log_softmax(policy.model(torch.tensor([[*prompt, *completion]])).logits[0].double(), -1)
        expected += [table_TV[len(prompt) - 1 + t, token].item() for t, token in enumerate(completion)]
    assert got.tolist() == pytest.approx(expected, abs=1e-5)
    assert (logprobs(load(folder).model) - got).abs().max() > 0.5


# ---------------------------------------------------------------------- the reference


def test_with_the_adapters_off_the_model_is_the_base_model(folder):
    policy = adapted(folder)
    base, on = logprobs(load(folder).model), logprobs(policy.model)
    frozen = policy.model.model.layers[0].self_attn.k_proj.lora_A[NAME].weight.requires_grad_(False)
    with suppress(KeyError), adapters_off(policy.model):  # an exception switches them on again
        assert torch.equal(logprobs(policy.model), base)
        with adapters_off(policy.model):
            assert torch.equal(logprobs(policy.model), base)
        assert torch.equal(logprobs(policy.model), base)  # the inner one did not switch them on
        raise KeyError
    assert torch.equal(logprobs(policy.model), on)
    assert not torch.allclose(on, base, atol=0.1)
    assert sum(p.numel() for p in policy.model.parameters() if p.requires_grad) == 4352 - frozen.numel()


def test_a_reference_between_forward_and_backward_takes_no_gradient_away(folder):
    def gradient(look):
        policy = adapted(folder)
        loss = logprobs(policy.model).sum()
        if look:
            with torch.no_grad(), adapters_off(policy.model):
                logprobs(policy.model)
        loss.backward()
        return torch.cat([p.grad.flatten() for p in policy.model.parameters() if p.requires_grad])

    assert torch.equal(gradient(True), gradient(False))


# ---------------------------------------------------------------------- saving


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")  # peft's own use of it
def test_the_saved_folder_is_a_plain_model_with_the_adapters_in_its_weights(folder, tmp_path):
    policy = adapted(folder)
    before, weights = logits(policy.model), {k: v.clone() for k, v in policy.model.state_dict().items()}
    saved = tmp_path / "checkpoints/final"
    manifest = save_weights(saved, policy, step=3, run_folder=tmp_path)
    assert load_file(saved / "model.safetensors").keys() == load_file(folder / "model.safetensors").keys()
    assert weight_files(saved) == [saved / "model.safetensors"]
    plain = AutoModelForCausalLM.from_pretrained(saved)
    assert not any("lora" in name for name, _ in plain.named_modules())
    assert torch.allclose(logits(plain), before, rtol=0, atol=2e-5)
    assert (before - logits(load(folder).model)).abs().max() > 1
    assert torch.allclose(logits(load(saved).model), before, rtol=0, atol=2e-5)  # and as the next run's base
    # The live model is as it was.
    assert torch.equal(logits(policy.model), before)
    assert all(torch.equal(value, weights[key]) for key, value in policy.model.state_dict().items())
    assert verify_checkpoint(saved).files == manifest.files
    assert {"adapter/adapter_config.json", "adapter/adapter_model.safetensors"} <= manifest.files.keys()
    assert {path.suffix for path in saved.rglob("*") if path.is_file()} == {".json", ".safetensors"}
    # peft loads the adapters onto the base.
    theirs = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(folder), saved / "adapter")
    assert torch.allclose(logits(theirs), before, rtol=0, atol=1e-5)
    settings = json.loads((saved / "adapter/adapter_config.json").read_text())
    assert (settings["r"], settings["lora_alpha"], settings["lora_dropout"]) == (4, 8, 0.0)
    assert settings["base_model_name_or_path"] == str(folder)


def test_a_merged_weight_by_hand(folder, tmp_path):
    policy = adapted(folder, LoraConfig(rank=4, alpha=2.0), dtype="bfloat16")
    save_weights(tmp_path / "final", policy, step=1, run_folder=tmp_path)
    layer = policy.model.model.layers[1].mlp.down_proj
    w, a, b = (m.weight.float() for m in (layer.base_layer, layer.lora_A[NAME], layer.lora_B[NAME]))
    got = load_file(tmp_path / "final/model.safetensors")["model.layers.1.mlp.down_proj.weight"]
    assert got.dtype == torch.bfloat16
    assert torch.equal(got, (w + 0.5 * (b @ a)).bfloat16())
    assert not torch.equal(got, layer.base_layer.weight)


def test_tied_embeddings_and_biases(folder, tmp_path):
    """Qwen's small models use the input embedding as output layer, and give attention biases."""
    policy = adapted(other_model(folder, tmp_path, "tied"))
    assert policy.model.get_output_embeddings().weight is policy.model.get_input_embeddings().weight
    save_weights(tmp_path / "final", policy, step=1, run_folder=tmp_path)
    plain = AutoModelForCausalLM.from_pretrained(tmp_path / "final")
    assert torch.allclose(logits(plain), logits(policy.model), rtol=0, atol=1e-5)
    assert "lm_head.weight" not in load_file(tmp_path / "final/model.safetensors")


# ---------------------------------------------------------------------- which layers


def test_attention_by_the_familys_own_names(folder, tmp_path):
    policy = load(other_model(folder, tmp_path, "neox"))
    add_adapters(policy, LoraConfig(rank=2, targets="attention"), seed=0)
    names = {f"gpt_neox.layers.0.attention.{name}" for name in ("query_key_value", "dense")}
    assert set(adapter_layers(policy.model)) == names


@pytest.mark.parametrize("targets", ["all_linear", "attention"])
def test_a_model_without_such_layers_is_refused_with_what_it_has(folder, tmp_path, targets):
    policy = load(other_model(folder, tmp_path, "gpt2"))
    with pytest.raises(ModelError, match=r"GPT2LMHeadModel.*c_attn \(Conv1D\)"):
        add_adapters(policy, LoraConfig(rank=2, targets=targets), seed=0)


def test_a_name_that_means_other_layers_too_is_written_in_full(folder):
    """Adapters on one of two layers of the same last name must not be loaded onto both."""
    policy = load(folder)
    policy.model.model.layers[0].mlp.v_proj = torch.nn.Linear(2, 2)
    add_adapters(policy, LoraConfig(rank=2, targets="attention"), seed=0)
    names = {f"model.layers.{layer}.self_attn.{name}_proj" for layer in (0, 1) for name in "qkvo"}
    assert set(adapter_layers(policy.model)) == names
