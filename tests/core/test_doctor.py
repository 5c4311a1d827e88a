"""Each fault of a model folder is named with what to do; a sound folder passes."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoTokenizer

from grpo_core.cli.main import main
from grpo_core.errors import DataError, ModelError
from grpo_core.model.tiny import END, PAD

from .families import families
from .runs import rows
from .test_model import change
from .tiny import config, tiny_folder

torch.set_num_threads(1)
CHATML = (
    "{% for message in messages %}{{ message.role + ':' + message.content + '" + END + "' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ 'assistant:' }}{% endif %}"
)
THINKING = CHATML.replace("'assistant:'", "'assistant:<think>\\n'")
R1 = {"reward": {"components": [{"name": "form", "kind": "r1_format"}]}}
TAGGED = {"reward": {"components": [{"name": "right", "kind": "exact"}]}}
EXACT = {"reward": {"components": [{"name": "answer", "kind": "exact", "params": {"extract": "whole"}}]}}


@pytest.fixture(scope="module")
def sound(tmp_path_factory):
    """With a chat template."""
    folder = tiny_folder(tmp_path_factory.mktemp("models") / "base")
    (folder / "chat_template.jinja").write_text(CHATML)
    return folder


@pytest.fixture
def folder(sound, tmp_path):
    return Path(shutil.copytree(sound, tmp_path / "base"))


def doctor(folder, capsys, **parts):
    """Exit status, and each finding by its code."""
    words = ["doctor", str(folder), "--json"]
    if parts:
        path = folder.parent / "run.json"
        path.write_text(json.dumps(config(**parts).to_dict()))
        words.insert(2, str(path))
    status = main(words)
    return status, {finding["code"]: finding for finding in json.loads(capsys.readouterr().out)["findings"]}


def template(folder, text):
    (folder / "chat_template.jinja").write_text(text)


def with_tokens(folder, **names):
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.add_special_tokens(names)
    tokenizer.save_pretrained(folder)


def post_process(folder, single):
    """As tokenizers of Llama and T5 add tokens to every text."""
    path = folder / "tokenizer.json"
    content = json.loads(path.read_text())
    content["post_processor"] = {
        "type": "TemplateProcessing",
        "single": [
            {"Sequence": {"id": "A", "type_id": 0}} if part == "A" else {"SpecialToken": {"id": part, "type_id": 0}}
            for part in single
        ],
        "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {END: {"id": END, "ids": [256], "tokens": [END]}},
    }
    path.write_text(json.dumps(content))


def ruined(folder):
    weights = load_file(folder / "model.safetensors")
    weights["model.layers.1.mlp.up_proj.weight"][3, :2] = torch.tensor([float("nan"), float("inf")])
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


def other_weights(section, part, name):
    def put(folder):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            families(section, part)[name]().save_pretrained(folder)

    return put


def fewer_rows(rows):
    """As a folder whose tokenizer got tokens that its embedding was never resized for."""

    def cut(folder):
        weights = load_file(folder / "model.safetensors")
        for name in ("model.embed_tokens.weight", "lm_head.weight"):
            weights[name] = weights[name][:rows].clone()
        save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
        change(folder, "config.json", vocab_size=rows, pad_token_id=None, eos_token_id=None)
        change(folder, "generation_config.json", pad_token_id=None, eos_token_id=None)

    return cut


def shard_missing(folder):
    index = {"metadata": {}, "weight_map": {"lm_head.weight": "model-00002-of-00002.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


LORA = {"model": {"path": "base", "lora": {"rank": 2}}}
FAULTS = {
    "ends of the generation config": (
        lambda folder: change(folder, "generation_config.json", eos_token_id=[1, 106]),
        {},
        ("ends_differ", "warning", "generation_config 1", "eos_token_id to [1, 106, 256]"),
    ),
    "an end in the template alone": (
        lambda folder: template(folder, CHATML.replace(END, PAD)),
        {},
        ("ends_differ", "warning", "chat template 257", "[256, 257]"),
    ),
    "an end that is no token": (
        lambda folder: template(folder, CHATML.replace(END, "###")),
        {},
        ("turn_end_not_a_token", "warning", "'###'", "sampling.stop"),
    ),
    "pad ends": (
        lambda folder: with_tokens(folder, pad_token=END),
        {},
        ("pad_is_end", "note", "256", "nothing for a run"),
    ),
    "no pad": (
        lambda folder: change(folder, "tokenizer_config.json", pad_token=None),
        {},
        ("pad_missing", "note", "no padding token", "nothing for a run"),
    ),
    "an end appended": (
        lambda folder: post_process(folder, ["A", END]),
        {},
        ("tokenizer_appends", "warning", END, "post-processor"),
    ),
    "two beginnings": (
        lambda folder: (post_process(folder, [END, "A"]), template(folder, "{{ '" + END + "' }}" + CHATML)),
        {},
        ("two_beginnings", "warning", END, "add_special_tokens=False"),
    ),
    "no template": (
        lambda folder: (folder / "chat_template.jinja").unlink(),
        {"data": {"path": "train.jsonl", "chat": "template"}},
        ("template_missing", "error", "no chat template", "data.chat_template"),
    ),
    "a template with a fault": (
        lambda folder: template(folder, "{% for message in messages %}"),
        {},
        ("template_fault", "error", "no Jinja template", "chat_template.jinja"),
    ),
    "a template that thinks": (
        lambda folder: template(folder, THINKING),
        R1,
        ("template_opens_tag", "error", "form waits for it", "data.prefill"),
    ),
    "a template that has thought": (
        lambda folder: template(folder, THINKING.replace("<think>", "<think>\\n\\n</think>")),
        R1,
        ("template_opens_tag", "error", "itself writes <think>", "data.prefill"),
    ),
    "a template that begins the answer": (
        lambda folder: template(folder, THINKING.replace("think", "answer")),
        TAGGED,
        ("template_opens_tag", "error", "itself writes <answer>", "data.prefill"),
    ),
    "sampling defaults": (
        lambda folder: change(folder, "generation_config.json", do_sample=True, temperature=0.6, top_p=0.9),
        {},
        ("generation_defaults", "warning", "temperature 0.6, top_p 0.9", "leaves them out"),
    ),
    "experts without adapters": (
        other_weights("sampler", "untraced", "experts"),
        LORA,
        ("lora_misses_layers", "warning", "experts", "model.lora.rank 0"),
    ),
    "nothing to adapt": (
        other_weights("adapters", "all", "gpt2"),
        LORA,
        ("lora_fits_nothing", "error", "c_attn (Conv1D)", "all weights"),
    ),
    "windows": (
        other_weights("sampler", "windowed", "every layer"),
        {},
        ("layout_falls_back", "note", "sliding_window", "nothing"),
    ),
    "windows, and a layout that needs none": (
        other_weights("sampler", "windowed", "every layer"),
        {"engine": {"threads": 1, "layout": "shared"}},
        ("layout_refused", "error", "sliding_window", "auto"),
    ),
    "capped scores and logits": (
        other_weights("sampler", "untraced", "capped"),
        {},
        (
            "layout_falls_back",
            "note",
            "its attention is eager, which caps its scores at 50, and cannot be taken over",
            "nothing",
        ),
    ),
    "an output layer that is more than a product": (
        other_weights("sampler", "untraced", "capped"),
        {},
        ("head_by_autograd", "note", "caps its logits (final_logit_softcapping 30)", "nothing"),
    ),
    "padding without a row": (
        lambda folder: change(folder, "config.json", vocab_size=200),
        {},
        ("cannot_load", "error", "its padding token 257 is beyond the 200 tokens of its vocab_size", "the message"),
    ),
    "tokens without a row, in every prompt": (
        fewer_rows(200),
        {},
        ("tokenizer_too_large", "error", "58 tokens beyond the 200 rows", "resize_token_embeddings"),
    ),
    "tokens without a row, in no prompt": (
        fewer_rows(257),
        {},
        (
            "tokenizer_too_large",
            "warning",
            "1 tokens beyond the 257 rows of the model's embedding, first '<|pad|>'",
            "own",
        ),
    ),
    "ruined weights": (
        ruined,
        {},
        ("cannot_load", "error", "2 numbers of 1 tensors, first model.layers.1.mlp.up_proj.weight", "the message"),
    ),
    "a shard that is missing": (
        shard_missing,
        {},
        ("cannot_load", "error", "model-00002-of-00002.safetensors", "the message"),
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_named_with_its_fix(folder, capsys, fault):
    plant, parts, (code, severity, message, fix) = FAULTS[fault]
    plant(folder)
    status, findings = doctor(folder, capsys, **parts)
    assert code in findings, findings
    assert findings[code]["severity"] == severity
    assert message in findings[code]["message"]
    assert fix in findings[code]["fix"]
    failed = any(finding["severity"] == "error" for finding in findings.values())
    assert status == (ModelError.exit_status if failed else 0)


def test_a_sound_folder_passes(folder, capsys):
    assert doctor(folder, capsys, **EXACT) == (0, {})
    assert main(["doctor", str(folder)]) == 0
    assert "nothing to mend" in capsys.readouterr().out


def test_a_run_refuses_a_prompt_with_a_token_that_has_no_row(folder, tmp_path, capsys):
    fewer_rows(200)(folder)
    (tmp_path / "train.jsonl").write_text('{"prompt": "a", "answer": "b"}\n{"prompt": "a\\rb", "answer": "b"}\n')
    path = tmp_path / "run.json"
    path.write_text(json.dumps(config(data={"path": "train.jsonl", "chat": "none"}).to_dict()))
    assert main(["train", str(path), "--out", str(tmp_path / "run")]) == DataError.exit_status
    said = capsys.readouterr().err
    assert "problem line-2: the tokenizer gives it the token" in said
    assert "the model's embedding has 200 rows; take the model's own tokenizer, or resize" in said


def test_a_template_that_thinks_hurts_no_reward_that_does_not_wait(folder, capsys):
    template(folder, THINKING)
    status, findings = doctor(folder, capsys, **EXACT)
    assert (status, findings["template_opens_tag"]["severity"]) == (0, "note")


def test_a_run_records_what_the_doctor_warns_of(folder, tmp_path):
    change(folder, "generation_config.json", temperature=0.6)
    (tmp_path / "train.jsonl").write_text('{"prompt": "a", "answer": "b"}\n' * 3)
    path = tmp_path / "run.json"
    path.write_text(json.dumps(config().to_dict()))
    assert main(["train", str(path), "--out", str(tmp_path / "run")]) == 0
    events = rows(tmp_path / "run/events.jsonl")
    (event,) = [event for event in events if event.get("type") == "model"]
    assert event["data"] == {"code": "generation_defaults"}
    assert "temperature 0.6" in event["message"]


def test_a_trained_folder_ends_where_the_run_did_and_carries_no_sampling_defaults(folder, tmp_path, capsys):
    """The template's own end counts, and so does each that the base model names."""
    template(folder, CHATML.replace(END, PAD))
    change(folder, "generation_config.json", temperature=0.6, eos_token_id=[106])
    (tmp_path / "train.jsonl").write_text('{"prompt": "a", "answer": "b"}\n' * 3)
    path = tmp_path / "run.json"
    path.write_text(json.dumps(config(checkpoints={"every": 1}).to_dict()))
    assert main(["train", str(path), "--out", str(tmp_path / "run")]) == 0
    checkpoint = tmp_path / "run/checkpoints/step-000001"
    assert main(["export", str(checkpoint), "--out", str(tmp_path / "made")]) == 0
    for made in (tmp_path / "run/checkpoints/final", tmp_path / "made"):
        settings = json.loads((made / "generation_config.json").read_text())
        settings.pop("transformers_version")
        assert settings == {"eos_token_id": [106, 256, 257], "pad_token_id": 257}
        capsys.readouterr()
        assert "generation_defaults" not in doctor(made, capsys)[1]
