"""A language model as people have them: SmolLM2-135M-Instruct loads, is prompted through its chat template, samples,
learns with LoRA and whole, resumes to the bit and is exported (pytest -m real, after make smollm2)."""

import json

import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from grpo_core.cli.main import main
from grpo_core.config.prompt import PromptConfig
from grpo_core.data.loaders import load_problems
from grpo_core.data.prompts import PromptEncoder
from grpo_core.model.layout_choice import check_layout, resolve_layout
from grpo_core.model.load import load_tokenizer
from tests.needs import SMOLLM2, needs

from .runs import metrics_of, rows
from .tiny import load

pytestmark = pytest.mark.real
SYSTEM = {"role": "system", "content": "Answer in a word."}
TALK = [
    {"role": "user", "content": "Name a colour."},
    {"role": "assistant", "content": "Blue."},
    {"role": "user", "content": "Another one?\n"},
]
PROMPTS = {"text": "Name a <b>colour</b>.\n", "turn": TALK[:1], "turns": TALK, "system and turns": [SYSTEM, *TALK]}
ADAPTERS = "adapter_model.safetensors"
WEIGHT = "model.layers.3.self_attn.q_proj.weight"
# What is trained and on which prompts, at a learning rate that is seen in the weights kept: adapters begin with a
# product of 0, and bfloat16 rounds a weight of 0.05 to 0.0002.
TRAINED = {
    "adapters": ({"lora": {"rank": 4, "alpha": 8.0}}, 1e-3, [TALK[:1], [SYSTEM, *TALK], TALK]),
    "whole": ({}, 1e-5, ["Name a colour.", "Name an animal.", "Say hello."]),
    "whole in bfloat16": ({"dtype": "bfloat16"}, 1e-4, ["Name a colour.", "Name an animal.", "Say hello."]),
}


@pytest.fixture(scope="module", autouse=True)
def two_threads():
    needs("smollm2")
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def template_ids(prompt):
    """By transformers alone."""
    conversation = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
    tokenizer = AutoTokenizer.from_pretrained(SMOLLM2)
    return tokenizer.apply_chat_template(conversation, add_generation_prompt=True)["input_ids"]


def write_rows(path, prompts):
    lines = [json.dumps({"prompt": prompt, "answer": "The sky is blue."}) + "\n" for prompt in prompts]
    path.write_text("".join(lines), encoding="utf-8")


def write_config(home, model, lr, prompts):
    """Three steps, a checkpoint after the second. Closeness differs where an exact answer is rare."""
    write_rows(home / "train.jsonl", prompts)
    close = {"name": "close", "kind": "similarity", "params": {"measure": "chrf", "extract": "whole"}}
    config = {
        "model": {"path": str(SMOLLM2), **model},
        "data": {"path": "train.jsonl"},
        "reward": {"components": [close]},
        "sampling": {"group_size": 4, "prompts_per_step": 1, "max_completion_tokens": 8},
        "optim": {"steps": 3, "lr": lr},
        "eval": {"before": False, "after": False},
        "checkpoints": {"every": 2, "best": False, "merged": "lora" not in model},
        "engine": {"device": "cpu", "threads": 2},
    }
    (home / "run.json").write_text(json.dumps(config))
    return str(home / "run.json")


def weights(folder):
    return load_file(folder / "model.safetensors")


def same(tensors, others):
    return tensors.keys() == others.keys() and all(torch.equal(tensors[name], others[name]) for name in tensors)


def share_moved(before, after):
    """Share of a projection's numbers that differ, in the number format of `after`."""
    return (before[WEIGHT].to(after[WEIGHT].dtype) != after[WEIGHT]).float().mean().item()


def greedy(folder, *, adapter=None):
    """What transformers says with the folder, by itself; with `adapter` peft's on top of it."""
    tokenizer, model = AutoTokenizer.from_pretrained(folder), AutoModelForCausalLM.from_pretrained(folder)
    model = model if adapter is None else PeftModel.from_pretrained(model, adapter)
    question = [{"role": "user", "content": "What is the capital of France?"}]
    ids = tokenizer.apply_chat_template(question, add_generation_prompt=True, return_tensors="pt")["input_ids"]
    made = model.generate(input_ids=ids, max_new_tokens=12, do_sample=False)
    return tokenizer.decode(made[0, ids.shape[1] :], skip_special_tokens=True)


def test_it_loads_and_takes_every_layout():
    policy = load(SMOLLM2)
    assert policy.parameters() == 134_515_008
    assert policy.eos_ids == {2}
    assert resolve_layout(policy, "auto") == "shared"
    for layout in ("left", "packed"):
        check_layout(policy.model, layout)
    assert "Paris" in greedy(SMOLLM2)


@pytest.mark.parametrize("prompt", PROMPTS.values(), ids=list(PROMPTS))
def test_prompts_have_the_ids_of_transformers(tmp_path, prompt):
    write_rows(tmp_path / "rows.jsonl", [prompt])
    encoder = PromptEncoder(load_tokenizer(SMOLLM2), PromptConfig())
    (problem,) = load_problems(tmp_path / "rows.jsonl", "auto")
    prompted = encoder.encode(problem)
    assert list(prompted.tokens) == template_ids(prompt)
    assert prompted.answer_starts == len(prompted.tokens)
    assert prompted.text.endswith("<|im_end|>\n<|im_start|>assistant\n")
    assert encoder.facts()["source"] == "the tokenizer"
    assert encoder.turn_ends() == {2}


@pytest.mark.parametrize("kind", TRAINED)
def test_it_learns_resumes_to_the_bit_and_is_exported(tmp_path, kind):
    model, lr, prompts = TRAINED[kind]
    run, again, made = tmp_path / "run", tmp_path / "again", tmp_path / "made"
    config = write_config(tmp_path, model, lr, prompts)
    assert main(["train", config, "--out", str(run)]) == 0
    example = json.loads((run / "manifest.json").read_text())["data"]["train"]["prompt_example"]
    assert example["tokens"] == template_ids(prompts[0])
    (group,) = rows(run / "samples/step-000001.jsonl")
    assert len({sample["completion"] for sample in group["samples"]}) == 4
    assert all(metrics["grad_norm"] > 0 for metrics in metrics_of(run))
    checkpoint, final = run / "checkpoints/step-000002", run / "checkpoints/final"
    assert main(["train", config, "--out", str(again), "--resume-from", str(checkpoint)]) == 0
    assert main(["export", str(checkpoint), "--out", str(made)]) == 0
    before, second = weights(SMOLLM2), weights(made)
    assert before.keys() == second.keys()
    assert second[WEIGHT].dtype == (torch.bfloat16 if "dtype" in model else torch.float32)
    assert share_moved(before, second) > 0.2
    assert "Paris" in greedy(made)
    if "lora" in model:
        adapters_are_kept_alone(final, again / "checkpoints/final", checkpoint, tmp_path / "alone")
        return
    third = weights(final)
    assert same(weights(again / "checkpoints/final"), third)
    assert share_moved(second, third) > 0.05


def adapters_are_kept_alone(final, again, checkpoint, alone):
    """By a run with checkpoints.merged off and by export --adapter, for peft to load on the base model."""
    assert not (final / "model.safetensors").exists()
    third = load_file(final / ADAPTERS)
    assert same(load_file(again / ADAPTERS), third)
    assert main(["export", str(checkpoint), "--out", str(alone), "--adapter"]) == 0
    second = load_file(alone / ADAPTERS)
    assert second.keys() == third.keys()
    assert not any(torch.equal(second[name], third[name]) for name in second)
    assert load_tokenizer(alone).chat_template == load_tokenizer(SMOLLM2).chat_template
    assert "Paris" in greedy(SMOLLM2, adapter=alone)
