"""Runs on a model with a chat template: what policy, rewards, evaluations and record see, the preview of it before, and
the template in what is exported."""

import hashlib
import json

import pytest
from tokenizers import processors

from grpo_core.cli.main import main
from grpo_core.config.run import RunConfig
from grpo_core.data.loaders import load_problems
from grpo_core.data.prompts import PromptEncoder
from grpo_core.lab.preview import preview
from grpo_core.model.load import load_tokenizer
from grpo_core.model.tiny import END, PAD

from .runs import make_letters, outcome_of, rows, samples_of, train_here, write_problems
from .tiny import config, load

CHAT = (
    "{% for m in messages %}{{ m.role[0] + ':' + m.content + '<|pad|>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ 'a:' }}{% endif %}"
)
"""Ends a turn with a token that neither tokenizer nor generation config names."""
SETTINGS = {
    "data": {"path": "train.jsonl", "system": "Be <|pad|>.", "prefill": "(", "chat_template_kwargs": {"level": 2}},
    "sampling": {
        "group_size": 8,
        "prompts_per_step": 4,
        "max_completion_tokens": 24,
        "stop": ["e", "\n"],
        "min_p": 0.0001,
        "repetition_penalty": 1.1,
    },
    "algorithm": {"correction": {"mode": "none"}},
    "optim": {"steps": 2, "lr": 0.001},
    "eval": {"path": "heldout.jsonl", "temperature": 1.0},
}


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    folder = make_letters(tmp_path_factory.mktemp("chat"))
    tokenizer = load_tokenizer(folder / "base")
    tokenizer.chat_template = CHAT
    tokenizer.save_pretrained(folder / "base")
    return folder


@pytest.fixture(scope="module")
def trained(home):
    out = home / "run"
    assert train_here(home, out, **SETTINGS) == 0
    return out


def test_the_record_keeps_template_example_and_tokens(home, trained):
    manifest = json.loads((trained / "manifest.json").read_text())
    facts, tokenizer = manifest["data"]["train"], load_tokenizer(home / "base")
    assert facts["chat"] == {
        "source": "the tokenizer",
        "sha256": hashlib.sha256(CHAT.encode()).hexdigest(),
        "system": "Be <|pad|>.",
        "kwargs": {"level": 2},
        "prefill": "(",
    }
    example = facts["prompt_example"]
    assert example["text"] == "s:Be <|pad|>.<|pad|>u:say a<|pad|>a:("
    assert tokenizer.decode(example["tokens"]) == example["text"]
    pad = tokenizer.convert_tokens_to_ids(PAD)
    assert [index for index, token in enumerate(example["tokens"]) if token == pad] == [13, 21]
    assert example["answer_starts"] == len(example["tokens"]) - 1
    assert sum(facts["prompt_lengths"]["counts"]) == facts["problems"] == 16
    for phase in ("before", "after"):
        protocol = rows(trained / "evals" / f"{phase}.jsonl")[-1]["protocol"]
        assert protocol["chat"] == facts["chat"]
        assert protocol["stop"] == ["e", "\n"]


def test_nothing_after_an_end_is_scored(trained):
    samples = samples_of(trained)
    assert {sample["finish_reason"] for sample in samples} >= {"eos", "stop", "length"}
    for sample in samples:
        assert not {"e", "\n"} & set(sample["completion"])
        assert PAD not in sample["completion"]
        assert END not in sample["completion"]
    assert outcome_of(trained)["status"] == "finished"


def test_the_preview_is_what_the_run_saw(home, trained, capsys):
    path = home / "run.yaml"
    shown = preview(RunConfig.from_file(path), base=home)
    facts = json.loads((trained / "manifest.json").read_text())["data"]["train"]
    first = shown.rows[0]
    assert [token.id for token in first.tokens] == facts["prompt_example"]["tokens"]
    assert "".join(piece.text for piece in (*first.prompt, *first.answer)) == facts["prompt_example"]["text"]
    assert first.answer_starts == facts["prompt_example"]["answer_starts"]
    assert first.marked == "s:Be <|pad|>.⟦<|pad|>⟧u:say a⟦<|pad|>⟧a:▸("
    assert (first.question, first.answers, first.prefill) == ("say a", ("k",), "(")
    assert {end.text: end.named_by for end in shown.ends} == {
        END: ("generation_config", "config", "tokenizer"),
        PAD: ("chat template",),
    }
    assert (shown.problems, shown.longest, shown.over_limit, len(shown.rows)) == (16, len(first.tokens), 0, 3)
    assert main(["preview", str(path), "--rows", "1"]) == 0
    printed = capsys.readouterr().out
    assert first.marked in printed
    assert "16 prompts of" in printed
    assert main(["preview", str(path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == json.loads(shown.model_dump_json())


def test_prompts_over_the_limit_are_counted_before_launch(home):
    write_problems(home / "long.jsonl", ["say a", "say " + "b" * 90])
    parts = {"data": {"path": "long.jsonl", "max_prompt_tokens": 50}}
    shown = preview(config(**{**SETTINGS, **parts}), base=home)
    assert (shown.problems, shown.over_limit, shown.limit) == (2, 1, 50)


def test_a_template_of_the_config_goes_with_the_weights(home):
    template = CHAT.replace("m.role[0]", "m.role")
    out = home / "own"
    data = {**SETTINGS["data"], "chat_template": template}
    assert train_here(home, out, **{**SETTINGS, "data": data}) == 0
    facts = json.loads((out / "manifest.json").read_text())["data"]["train"]["chat"]
    assert facts["source"] == "data.chat_template"
    assert load(out / "checkpoints" / "final").tokenizer.chat_template == template
    assert main(["export", str(out / "checkpoints" / "step-000001"), "--out", str(home / "exported")]) == 0
    assert load(home / "exported").tokenizer.chat_template == template


def test_a_tag_that_the_prompt_opens_is_reported_at_the_start(home):
    data = {"path": "train.jsonl", "template": "{prompt}\n<think>"}
    reward = {"components": [{"name": "form", "kind": "r1_format"}]}
    settings = config(**{**SETTINGS, "data": data, "reward": reward})
    assert "data.prefill: <think>" in preview(settings, base=home).notes[0]
    out = home / "tag"
    assert train_here(home, out, **{**SETTINGS, "data": data, "reward": reward}) == 0
    reported = [row["message"] for row in rows(out / "events.jsonl") if row.get("type") == "prompts"]
    assert reported == list(preview(settings, base=home).notes)


def test_a_tokenizer_that_appends_an_end_trains_on_prompts_without_it(home):
    """Case 1 of runs that mislead: the policy would have read an end before every answer."""
    policy = load(home / "base")
    core, number = policy.tokenizer.backend_tokenizer, policy.tokenizer.eos_token_id
    plain = policy.encoder(config().data.model_copy(update={"chat": "none"}))
    problem = load_problems(home / "train.jsonl", "plain")[0]
    before = plain.encode(problem).tokens
    core.post_processor = processors.TemplateProcessing(single=f"$A {END}", special_tokens=[(END, number)])
    assert policy.tokenizer("x")["input_ids"][-1] == number
    assert PromptEncoder(policy.tokenizer, plain.config).encode(problem).tokens == before
