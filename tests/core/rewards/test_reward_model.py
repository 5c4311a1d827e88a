"""The kinds reward_model and process with small real classifiers, some of them with numbers known by hand."""

import hashlib
import json
import math
from functools import partial
from pathlib import Path

import pytest
import torch
import transformers
from transformers import BertForSequenceClassification, LlamaForSequenceClassification, LlamaForTokenClassification

from grpo_core.errors import ConfigError, ModelError
from grpo_core.rewards import KINDS, Runner
from grpo_core.rewards.base import Context
from grpo_core.rewards.models.process import Process, ProcessParams, aggregated, steps_of
from grpo_core.rewards.models.reward_model import RewardModel, RewardModelParams
from tests.core.pickles import torch_file
from tests.core.tiny import tiny_folder

from .classifiers import counted, sample, save, save_counting, scored
from .scoring import Stop, rubric_of, stop_after


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    save_counting(folder / "models" / "reward", LlamaForSequenceClassification)
    save_counting(folder / "broken", LlamaForSequenceClassification, head=math.nan)
    save(folder / "random", LlamaForSequenceClassification, seed=1)
    save(folder / "unpadded", LlamaForSequenceClassification, seed=1, pad_token_id=None)
    save(folder / "three", LlamaForSequenceClassification, labels={0: "bad", 1: "so", 2: "good"}, seed=2)
    save(folder / "chat", LlamaForSequenceClassification, chat=True, seed=1)
    save(folder / "encoder", BertForSequenceClassification, labels={0: "REWARD"}, seed=3, initializer_range=0.02)
    return folder


def opened(home, path="models/reward", **params):
    return RewardModel(RewardModelParams(path=path, **params), Context(base=home))


def values(model, *completions, prompt=""):
    return [score.value for score in scored(model, *completions, prompt=prompt)]


def test_the_numbers_are_the_models_of_texts_that_are_filled_into_the_template(home):
    # 8p / √(1 + 8p²): p = 1 gives 8/3, p = 1/2 gives 4/√3.
    expected = [8 / 3, 0, 4 / math.sqrt(3), 4 / math.sqrt(3), 2 / math.sqrt(1.5)]
    assert values(opened(home), "!", "no", "a!", "b!c!", "aaa!") == pytest.approx(expected, rel=1e-5)
    assert values(opened(home), "!!", prompt="ab") == pytest.approx([4 / math.sqrt(3)], rel=1e-5)
    model = opened(home, template="{answer}|{completion}|{prompt}|{other}")
    (score,) = scored(model, "!{prompt}!", prompt="{answer}", answer="!")
    assert score.value == pytest.approx(counted("!|!{prompt}!|{answer}|{other}"), rel=1e-5)


def test_transforms_and_where_a_text_passes(home):
    for transform, value in (("none", 8 / 3), ("sigmoid", 1 / (1 + math.exp(-8 / 3))), ("softmax", 1)):
        assert values(opened(home, transform=transform), "!") == pytest.approx([value], rel=1e-5)
    assert [score.passed for score in scored(opened(home), "!")] == [None]
    limited = scored(opened(home, pass_at=1.5), "!", "no", prompt="")
    assert [score.passed for score in limited] == [True, False]
    assert limited[0].detail == "REWARD 2.667 of 1 tokens"


@pytest.mark.parametrize("path", ["random", "unpadded", "encoder"])
def test_a_batch_gives_what_each_text_gives_alone(home, path):
    """And so does a model without a token to fill up with, which reads one text at a time."""
    texts = ["4", "a longer completion with many words", "", "x" * 40, "é字\U0001f600", "4"]
    alone = [values(opened(home, path), text)[0] for text in texts]
    for size in (1, 2, 64):
        assert values(opened(home, path, batch_size=size), *texts) == pytest.approx(alone, abs=1e-5)
    assert len({round(value or 0, 4) for value in alone}) > (0 if path == "encoder" else 3)


def test_it_gives_what_transformers_gives(home):
    tokenizer = transformers.AutoTokenizer.from_pretrained(home / "random")
    model = transformers.AutoModelForSequenceClassification.from_pretrained(home / "random")
    with torch.no_grad():
        theirs = model(**tokenizer(["what? 4"], return_tensors="pt", return_token_type_ids=False)).logits[0, 0].item()
    assert values(opened(home, "random"), "4", prompt="what? ") == pytest.approx([theirs], rel=1e-5)


# ---------------------------------------------------------------------- labels and chat


def test_one_of_several_labels_is_named(home):
    with pytest.raises(ConfigError, match="0 bad, 1 so, 2 good"):
        opened(home, "three")
    with pytest.raises(ConfigError, match="'best'"):
        opened(home, "three", label="best")
    by_name = values(opened(home, "three", label="good"), "4")
    assert values(opened(home, "three", label="2"), "4") == by_name
    shares = [opened(home, "three", label=label, transform="softmax") for label in ("bad", "so", "good")]
    assert sum(values(model, "4")[0] for model in shares) == pytest.approx(1)


def test_chat_makes_turns_and_nobody_forges_one(home):
    chat = opened(home, "chat", chat=True)
    plain = opened(home, "random", template="{prompt}{completion}")  # the same weights
    turns = "<|user|>2+2=<|end|><|assistant|>4<|end|>"
    # Special tokens of a chat template are read as such; spelled out in a completion they are broken up.
    assert chat._row(sample("4")).ids == chat._model.texts.ids(turns, special=False)
    end = chat._model.tokenizer.eos_token_id
    assert chat._row(sample("4")).ids.count(end) == 2
    assert chat._row(sample("4<|end|>")).ids.count(end) == 2
    assert plain._row(sample("4<|end|>")).ids.count(end) == 0
    assert values(chat, "4") != values(plain, "4")


def test_chat_needs_a_template(home, tmp_path):
    with pytest.raises(ConfigError, match="chat template"):
        opened(home, "random", chat=True)
    folder = save(tmp_path / "odd", LlamaForSequenceClassification, chat=True)
    template = folder / "chat_template.jinja"
    template.write_text("{{ raise_exception('one turn only') }}")
    with pytest.raises(ConfigError, match="one turn only"):
        opened(tmp_path, "odd", chat=True)
    template.write_text("{% if 'bad' in messages[1]['content'] %}{{ raise_exception('no') }}{% endif %}x")
    good, bad = scored(opened(tmp_path, "odd", chat=True), "good", "bad")
    assert good.error is None
    assert bad.error_class == "sample"


# ---------------------------------------------------------------------- what cannot be scored


def test_a_text_is_never_cut(home):
    fits, long = scored(opened(home), "x" * 64, "x" * 65, prompt="")
    assert fits.error is None
    assert (long.error_class, long.value) == ("sample", None)
    assert all(number in long.error for number in ("65", "64"))
    (short,) = scored(opened(home, max_tokens=3), "abcd", prompt="")
    assert short.error_class == "sample"


def test_texts_that_no_tokenizer_reads_and_a_number_that_is_none(home):
    *bad, good = scored(opened(home, template="{completion}"), "\ud800", "a\x00b", "", "!")
    assert ([score.error_class for score in bad], good.error_class) == (["sample"] * 3, None)
    (score,) = scored(opened(home, "broken"), "!")
    assert (score.error_class, "nan" in score.error) == ("value", True)


def test_it_stops_when_asked_to(home):
    with pytest.raises(Stop):
        opened(home, batch_size=1).score([sample("!")] * 4, stop_after(5))


# ---------------------------------------------------------------------- models that are refused


sequence = partial(save, kind=LlamaForSequenceClassification)


def pickled(folder):
    (sequence(folder) / "training.bin").write_bytes(torch_file())


def torn(folder):
    weights = sequence(folder) / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-10])


def with_code(folder):
    config = json.loads((sequence(folder) / "config.json").read_text())
    config["auto_map"] = {"AutoConfig": "own.Config", "AutoModelForSequenceClassification": "own.M"}
    (folder / "config.json").write_text(json.dumps(config | {"model_type": "own"}))
    (folder / "own.py").write_text("raise SystemExit('this code ran')")


@pytest.mark.parametrize(
    ("make", "fault"),
    [
        # Of a language model transformers would make up a head.
        (tiny_folder, "score.weight"),
        (Path.mkdir, "config.json"),
        (pickled, "training.bin"),
        (torn, "not all of it is there"),
        (with_code, r"own\.py"),
    ],
    ids=["language model", "empty", "pickled", "torn", "with code"],
)
def test_models_that_are_refused(make, fault, tmp_path):
    make(tmp_path / "bad")
    with pytest.raises(ModelError, match=fault):
        opened(tmp_path, "bad")


# ---------------------------------------------------------------------- the record, and the page


def test_the_facts_name_the_weights_by_their_hashes(home):
    model = opened(home)
    scored(model, "ab", "c", prompt="")
    facts = model.facts()
    weights = hashlib.sha256((home / "models" / "reward" / "model.safetensors").read_bytes()).hexdigest()
    line = hashlib.sha256(f"{weights}  model.safetensors\n".encode()).hexdigest()
    assert facts["weights"] == {"model.safetensors": weights}
    assert (facts["weights_sha256"], facts["source"], facts["revision"]) == (line, "models/reward", None)
    assert (facts["texts"], facts["tokens"], facts["architecture"]) == (2, 3, "LlamaForSequenceClassification")
    json.dumps(facts, allow_nan=False)


def test_a_runner_scores_with_it_among_others(home):
    params = {"path": "models/reward", "template": "{completion}"}
    model = {"kind": "reward_model", "weight": 0.5, "params": params}
    rubric = rubric_of(model, {"kind": "exact", "params": {"extract": "whole"}})
    assert not rubric.needs_sandbox
    with Runner(rubric, Context(base=home)) as runner:
        wrong, right = runner.score([sample("!"), sample("4")])
        assert (wrong.reward, right.reward) == (pytest.approx(4 / 3), 1)
        assert runner.facts()["c0"]["texts"] == 2


# ---------------------------------------------------------------------- process: a number for each step


@pytest.fixture(scope="module")
def tokens(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    save_counting(folder / "models" / "process", LlamaForTokenClassification)
    save_counting(folder / "broken", LlamaForTokenClassification, head=math.nan)
    save(folder / "random", LlamaForTokenClassification, seed=1)
    save(folder / "whole", LlamaForSequenceClassification)
    return folder


def opened_process(tokens, path="models/process", **params):
    return Process(ProcessParams(path=path, **{"label": "good", **params}), Context(base=tokens))


def expected(*texts):
    """Share of the label good against one whose number is 0, at the end of each text."""
    return [1 / (1 + math.exp(-counted(text))) for text in texts]


def test_each_step_has_the_models_number_at_its_marker(tokens):
    (score,) = scored(opened_process(tokens), "a!\n\n!!\n\nbc", prompt="Q")
    # What the model has read at each marker: 1 of 5 bytes is a mark, then 3 of 8, then 3 of 11.
    numbers = expected("Q\na!\n", "Q\na!\n!!\n", "Q\na!\n!!\nbc\n")
    assert numbers[0] == pytest.approx(1 / (1 + math.exp(-1.6 / math.sqrt(1.32))))
    assert score.steps is not None
    assert [step.value for step in score.steps] == pytest.approx(numbers, rel=1e-5)
    assert [step.end for step in score.steps] == [2, 6, 10]
    assert (score.value, score.passed) == (pytest.approx(numbers[0], rel=1e-5), True)


def test_steps_and_where_they_end():
    assert steps_of("a\n\nb", "\n\n") == [("a", 1), ("b", 4)]
    assert steps_of("\n\n a \n\n\n\nb c\n", "\n\n") == [("a", 4), ("b c", 12)]
    assert steps_of("a;b;;", ";") == [("a", 1), ("b", 3)]
    assert steps_of("one", "\n\n") == [("one", 3)]
    assert steps_of(" \n\n ", "\n\n") == steps_of("", "\n\n") == []
    assert steps_of("é\n\n\U0001f600", "\n\n") == [("é", 1), ("\U0001f600", 4)]


def test_aggregates_and_transforms(tokens):
    for how, value in (("mean", 0.5), ("min", 0.25), ("product", 0.09375), ("last", 0.75)):
        assert aggregated([0.5, 0.25, 0.75], how) == value
    for transform, value in (("none", 8 / 3), ("sigmoid", 0.935), ("softmax", 0.935)):
        (score,) = scored(opened_process(tokens, template="", marker="!", transform=transform), "!", prompt="")
        assert score.value == pytest.approx(value, abs=1e-3)


def test_the_other_label_has_the_rest(tokens):
    good, bad = (scored(opened_process(tokens, label=label), "a!")[0].value for label in ("good", "0"))
    assert good + bad == pytest.approx(1)
    with pytest.raises(ConfigError, match=r"2 labels \(0 bad, 1 good\)"):
        opened_process(tokens, label=None)


def test_steps_get_in_a_batch_what_they_get_alone(tokens):
    texts = ["one\n\ntwo", "a\n\nb\n\nc\n\nd", "x", "a longer step than those of all others"]
    alone = [[step.value for step in scored(opened_process(tokens, "random"), text)[0].steps] for text in texts]
    for size in (1, 3, 64):
        for values, score in zip(alone, scored(opened_process(tokens, "random", batch_size=size), *texts), strict=True):
            assert [step.value for step in score.steps] == pytest.approx(values, abs=1e-5)
    assert len({round(value, 4) for values in alone for value in values}) > 4


def test_steps_get_what_transformers_gives(tokens):
    """Tokens step by step, as TRL's PRMTrainer lays them out; with bytes as tokens that is the text as a whole."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(tokens / "random")
    model = transformers.AutoModelForTokenClassification.from_pretrained(tokens / "random").eval()
    ids = tokenizer("2+2=\none<s>two<s>", return_tensors="pt")["input_ids"]
    with torch.no_grad():
        shares = model(input_ids=ids).logits[0].softmax(-1)[:, 1]
    (score,) = scored(opened_process(tokens, "random", marker="<s>"), "one\n\ntwo")
    assert [step.value for step in score.steps] == pytest.approx([shares[10].item(), shares[16].item()], rel=1e-4)


def test_a_step_cannot_bring_a_marker_that_is_a_special_token(tokens):
    model = opened_process(tokens, "random", marker="<|end|>")
    mark = model._model.tokenizer.eos_token_id
    for text in ("one", "one<|end|>and more"):
        row = model._row(sample(text))
        assert row.ids.count(mark) == 1
        assert row.ids[-1] == mark


def test_what_cannot_be_scored_and_a_completion_without_a_step_which_earns_nothing(tokens):
    none, long, odd, good = scored(opened_process(tokens), " \n", "x" * 70, "\udfff", "!")
    assert (none.value, none.passed, none.steps, none.detail) == (0, False, (), "no step")
    assert (long.error_class, odd.error_class) == ("sample", "sample")
    assert "is never cut" in long.error
    assert good.value is not None
    (score,) = scored(opened_process(tokens, "broken"), "!")  # gives numbers that are none
    assert score.error_class == "value"
    with pytest.raises(ModelError, match=r"score\.bias"):  # a classifier of whole texts
        opened_process(tokens, "whole", label=None)


def test_the_facts(tokens):
    model = opened_process(tokens)
    scored(model, "ab\n\nc", "d", prompt="Q")
    facts = model.facts()
    assert (facts["texts"], facts["steps"], facts["tokens"]) == (2, 3, 11)  # Q\nab\nc\n and Q\nd\n
    assert (facts["label"], facts["aggregate"]) == ("good", "min")
    assert len(facts["weights"]["model.safetensors"]) == 64
    json.dumps(facts, allow_nan=False)
    assert KINDS["process"].steps
