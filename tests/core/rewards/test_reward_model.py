"""The kind reward_model with small real classifiers, one of them with numbers known by hand."""

import hashlib
import json
import math
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer, LlamaForSequenceClassification

from grpo_core.config_reward import RewardConfig
from grpo_core.errors import ConfigError, Interrupted, ModelError
from grpo_core.rewards import Rubric, Runner
from grpo_core.rewards.base import Context
from grpo_core.rewards.reward_model import RewardModel, RewardModelParams
from tests.core.pickles import torch_file
from tests.core.tiny import tiny_folder

from .classifiers import counted, sample, save_counting, save_encoder, save_sequence


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    save_counting(folder / "models" / "reward", LlamaForSequenceClassification)
    save_sequence(folder / "random", seed=1)
    save_sequence(folder / "three", labels={0: "bad", 1: "so", 2: "good"}, seed=2)
    save_sequence(folder / "chat", chat=True, seed=1)
    save_encoder(folder / "encoder")
    return folder


def opened(home, path="models/reward", **params):
    return RewardModel(RewardModelParams(path=path, **params), Context(base=home))


def scored(model, samples):
    return model.score(samples, lambda: None)


def values(model, *completions, prompt=""):
    return [one.value for one in scored(model, [sample(text, prompt=prompt) for text in completions])]


def test_the_numbers_are_the_models(home):
    # 8p / √(1 + 8p²): p = 1 gives 8/3, p = 1/2 gives 4/√3.
    found = values(opened(home), "!", "no", "a!", "b!c!", "aaa!")
    assert found == pytest.approx([8 / 3, 0, 4 / math.sqrt(3), 4 / math.sqrt(3), 2 / math.sqrt(1.5)], rel=1e-5)
    assert values(opened(home), "!!", prompt="ab") == pytest.approx([4 / math.sqrt(3)], rel=1e-5)


def test_texts_are_filled_into_the_template(home):
    model = opened(home, template="{answer}|{completion}|{prompt}|{other}")
    (score,) = scored(model, [sample("!{prompt}!", prompt="{answer}", answer="!")])
    assert score.value == pytest.approx(counted("!|!{prompt}!|{answer}|{other}"), rel=1e-5)


@pytest.mark.parametrize(
    ("transform", "value"), [("none", 8 / 3), ("sigmoid", 1 / (1 + math.exp(-8 / 3))), ("softmax", 1)]
)
def test_transforms(home, transform, value):
    assert values(opened(home, transform=transform), "!") == pytest.approx([value], rel=1e-5)


def test_passed_is_said_only_where_it_is_asked_for(home):
    assert [one.passed for one in scored(opened(home), [sample("!")])] == [None]
    limited = scored(opened(home, pass_at=1.5), [sample("!", prompt=""), sample("no", prompt="")])
    assert [one.passed for one in limited] == [True, False]
    assert limited[0].detail == "REWARD 2.667 of 1 tokens"


@pytest.mark.parametrize("path", ["random", "encoder"])
def test_a_batch_gives_what_each_text_gives_alone(home, path):
    texts = ["4", "a longer completion with many words", "", "x" * 40, "é字\U0001f600", "4"]
    alone = [values(opened(home, path), text)[0] for text in texts]
    for size in (1, 2, 64):
        assert values(opened(home, path, batch_size=size), *texts) == pytest.approx(alone, abs=1e-5)
    assert len({round(one or 0, 4) for one in alone}) > (3 if path == "random" else 0)


def test_it_gives_what_transformers_gives(home):
    tokenizer = AutoTokenizer.from_pretrained(home / "random")
    model = AutoModelForSequenceClassification.from_pretrained(home / "random")
    with torch.no_grad():
        theirs = model(**tokenizer(["what? 4"], return_tensors="pt", return_token_type_ids=False)).logits[0, 0].item()
    assert values(opened(home, "random"), "4", prompt="what? ") == pytest.approx([theirs], rel=1e-5)


def test_a_model_without_a_token_to_fill_up_with_reads_one_text_at_a_time(home, tmp_path):
    folder = save_sequence(tmp_path / "unpadded", seed=1)
    config = json.loads((folder / "config.json").read_text())
    config["pad_token_id"] = None
    (folder / "config.json").write_text(json.dumps(config))
    texts = ("4", "a longer one", "")
    assert values(opened(tmp_path, "unpadded"), *texts) == pytest.approx(
        values(opened(home, "random"), *texts), abs=1e-5
    )


# ---------------------------------------------------------------------- labels and chat


def test_one_of_several_labels_is_named(home):
    with pytest.raises(ConfigError, match="0 bad, 1 so, 2 good"):
        opened(home, "three")
    with pytest.raises(ConfigError, match="'best'"):
        opened(home, "three", label="best")
    by_name = values(opened(home, "three", label="good"), "4")
    assert values(opened(home, "three", label="2"), "4") == by_name
    shares = [
        values(opened(home, "three", label=label, transform="softmax"), "4")[0] for label in ("bad", "so", "good")
    ]
    assert sum(shares) == pytest.approx(1)


def test_chat_makes_turns_and_nobody_forges_one(home):
    chat = opened(home, "chat", chat=True)
    plain = opened(home, "random", template="{prompt}{completion}")  # the same weights
    turns = "<|user|>2+2=<|end|><|assistant|>4<|end|>"
    # Special tokens of a chat template are read as such; spelled out in a completion they are broken up.
    assert chat._ids(sample("4")) == chat._model.ids(turns, special=False)
    end = chat._model.tokenizer.eos_token_id
    assert chat._ids(sample("4")).count(end) == 2
    assert chat._ids(sample("4<|end|>")).count(end) == 2
    assert plain._ids(sample("4<|end|>")).count(end) == 0
    assert values(chat, "4") != values(plain, "4")


def test_chat_needs_a_template(home, tmp_path):
    with pytest.raises(ConfigError, match="chat template"):
        opened(home, "random", chat=True)
    folder = save_sequence(tmp_path / "odd", chat=True)
    template = folder / "chat_template.jinja"
    template.write_text("{{ raise_exception('one turn only') }}")
    with pytest.raises(ConfigError, match="one turn only"):
        opened(tmp_path, "odd", chat=True)
    template.write_text("{% if 'bad' in messages[1]['content'] %}{{ raise_exception('no') }}{% endif %}x")
    good, bad = scored(opened(tmp_path, "odd", chat=True), [sample("good"), sample("bad")])
    assert good.error is None
    assert bad.error_class == "sample"


# ---------------------------------------------------------------------- what cannot be scored


def test_a_text_is_never_cut(home):
    fits, long = scored(opened(home), [sample("x" * 64, prompt=""), sample("x" * 65, prompt="")])
    assert fits.error is None
    assert (long.error_class, long.value) == ("sample", None)
    assert all(number in (long.error or "") for number in ("65", "64"))
    (short,) = scored(opened(home, max_tokens=3), [sample("abcd", prompt="")])
    assert short.error_class == "sample"


@pytest.mark.parametrize("completion", ["\ud800", "a\x00b", ""])
def test_texts_that_no_tokenizer_reads(home, completion):
    bad, good = scored(opened(home, template="{completion}"), [sample(completion), sample("!")])
    assert (bad.error_class, good.error_class) == ("sample", None)


def test_a_number_that_is_none_is_an_error(home, tmp_path):
    folder = save_counting(tmp_path / "broken", LlamaForSequenceClassification)
    model = LlamaForSequenceClassification.from_pretrained(folder)
    with torch.no_grad():
        model.score.weight.fill_(math.nan)
    model.save_pretrained(folder)
    (score,) = scored(opened(tmp_path, "broken"), [sample("!")])
    assert (score.error_class, "nan" in (score.error or "")) == ("value", True)


def test_it_stops_when_asked_to(home):
    model, asked = opened(home, batch_size=1), iter([None] * 5)

    def check():
        if next(asked, "stop") == "stop":
            raise Interrupted("stop")

    with pytest.raises(Interrupted):
        model.score([sample("!")] * 4, check)


# ---------------------------------------------------------------------- models that are refused


def language_model(folder):
    tiny_folder(folder)  # transformers would make up a head


def pickled(folder):
    (save_sequence(folder) / "training.bin").write_bytes(torch_file())


def adapted(folder):
    (save_sequence(folder) / "adapter_config.json").write_text("{}")


def torn(folder):
    weights = save_sequence(folder) / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-10])


def with_code(folder):
    config = json.loads((save_sequence(folder) / "config.json").read_text())
    config["auto_map"] = {"AutoConfig": "own.Config", "AutoModelForSequenceClassification": "own.M"}
    (folder / "config.json").write_text(json.dumps(config | {"model_type": "own"}))
    (folder / "own.py").write_text("raise SystemExit('this code ran')")


@pytest.mark.parametrize(
    ("make", "fault"),
    [
        (lambda folder: None, "no model folder"),
        (language_model, "score.weight"),
        (Path.mkdir, "config.json"),
        (pickled, "training.bin"),
        (adapted, "adapters"),
        (torn, "cannot load"),
        (with_code, "cannot load"),
    ],
    ids=["missing", "language model", "empty", "pickled", "adapted", "torn", "with code"],
)
def test_models_that_are_refused(make, fault, tmp_path):
    make(tmp_path / "bad")
    with pytest.raises(ModelError, match=fault):
        opened(tmp_path, "bad")


# ---------------------------------------------------------------------- the record, and the page


def test_the_facts_name_the_weights_by_their_hashes(home):
    model = opened(home)
    scored(model, [sample("ab", prompt=""), sample("c", prompt="")])
    facts = model.facts()
    weights = hashlib.sha256((home / "models" / "reward" / "model.safetensors").read_bytes()).hexdigest()
    line = hashlib.sha256(f"{weights}  model.safetensors\n".encode()).hexdigest()
    assert facts["weights"] == {"model.safetensors": weights}
    assert (facts["weights_sha256"], facts["source"], facts["revision"]) == (line, "models/reward", None)
    assert (facts["texts"], facts["tokens"], facts["architecture"]) == (2, 3, "LlamaForSequenceClassification")
    json.dumps(facts, allow_nan=False)


def test_a_runner_scores_with_it_among_others(home):
    params = {"path": "models/reward", "template": "{completion}"}
    components = [
        {"name": "good", "kind": "reward_model", "weight": 0.5, "params": params},
        {"name": "right", "kind": "exact", "params": {"extract": "whole"}},
    ]
    rubric = Rubric(RewardConfig.model_validate({"components": components}))
    assert not rubric.needs_sandbox
    with Runner(rubric, Context(base=home)) as runner:
        wrong, right = runner.score([sample("!"), sample("4")])
        assert (wrong.reward, right.reward) == (pytest.approx(4 / 3), 1)
        assert runner.facts()["good"]["texts"] == 2
