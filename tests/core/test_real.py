"""A language model as people have them: SmolLM2-135M-Instruct loads, samples, learns with LoRA and whole, resumes to
the bit and is exported (pytest -m real, after make smollm2)."""

import json

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from grpo_core.cli.main import main
from grpo_core.data.fingerprint import file_sha256
from grpo_core.model.layout_choice import check_layout, resolve_layout
from tests.needs import SMOLLM2, needs

from .runs import metrics_of, rows
from .tiny import load

pytestmark = pytest.mark.real
TRAINED = {"lora": {"rank": 4, "alpha": 8.0}, "whole": {}}
PROBLEMS = [
    ("Name a colour.", "The sky is blue."),
    ("Name an animal.", "A cat is an animal."),
    ("Say hello.", "Hello!"),
]
TEMPLATE = "<|im_start|>user\n{prompt}<|im_end|>\n<|im_start|>assistant\n"


@pytest.fixture(scope="module", autouse=True)
def two_threads():
    needs("smollm2")
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def write_config(home, lora):
    """Three steps, a checkpoint after the second. A sum is rarely right in so few tokens, closeness always differs."""
    lines = [json.dumps({"prompt": prompt, "answer": answer}) + "\n" for prompt, answer in PROBLEMS]
    (home / "train.jsonl").write_text("".join(lines))
    close = {"name": "close", "kind": "similarity", "params": {"measure": "chrf", "extract": "whole"}}
    config = {
        "model": {"path": str(SMOLLM2), "lora": lora},
        "data": {"path": "train.jsonl", "template": TEMPLATE},
        "reward": {"components": [close]},
        "sampling": {"group_size": 4, "prompts_per_step": 1, "max_completion_tokens": 8},
        "optim": {"steps": 3, "lr": 1e-6},
        "eval": {"before": False, "after": False},
        "checkpoints": {"every": 2, "best": False},
        "engine": {"device": "cpu", "threads": 2},
    }
    (home / "run.json").write_text(json.dumps(config))
    return str(home / "run.json")


def weights(folder):
    return file_sha256(folder / "checkpoints/final/model.safetensors")


def greedy(folder, text="The capital of France is"):
    """What transformers says with the folder, by itself."""
    tokenizer, model = AutoTokenizer.from_pretrained(folder), AutoModelForCausalLM.from_pretrained(folder)
    ids = tokenizer(TEMPLATE.format(prompt=text), return_tensors="pt", add_special_tokens=False)["input_ids"]
    made = model.generate(ids, max_new_tokens=12, do_sample=False)
    return tokenizer.decode(made[0, ids.shape[1] :], skip_special_tokens=True)


def test_it_loads_and_takes_every_layout():
    policy = load(SMOLLM2)
    assert policy.parameters() == 134_515_008
    assert policy.eos_ids == {2}
    assert policy.tokenizer.chat_template is not None
    assert resolve_layout(policy, "auto") == "shared"
    for layout in ("left", "packed"):
        check_layout(policy.model, layout)
    assert "Paris" in greedy(SMOLLM2)


@pytest.mark.parametrize("kind", TRAINED)
def test_it_learns_resumes_to_the_bit_and_is_exported(tmp_path, kind):
    run, again, made = tmp_path / "run", tmp_path / "again", tmp_path / "made"
    config = write_config(tmp_path, TRAINED[kind])
    assert main(["train", config, "--out", str(run)]) == 0
    (group,) = rows(run / "samples/step-000001.jsonl")
    assert len({sample["completion"] for sample in group["samples"]}) == 4
    assert all(metrics["grad_norm"] > 0 for metrics in metrics_of(run))
    checkpoint = run / "checkpoints/step-000002"
    assert main(["train", config, "--out", str(again), "--resume-from", str(checkpoint)]) == 0
    assert weights(again) == weights(run) != file_sha256(SMOLLM2 / "model.safetensors")

    assert main(["export", str(checkpoint), "--out", str(made)]) == 0
    before, second, third = (
        load_file(folder / "model.safetensors") for folder in (SMOLLM2, made, run / "checkpoints/final")
    )
    assert before.keys() == second.keys() == third.keys()
    name = "model.layers.3.self_attn.q_proj.weight"
    assert not torch.equal(before[name], second[name])
    assert not torch.equal(second[name], third[name])
    assert "Paris" in greedy(made)
