"""The kind process with small real classifiers of tokens, one of them with numbers known by hand."""

import json
import math

import pytest
import torch
from transformers import (
    AutoModelForTokenClassification,
    AutoTokenizer,
    LlamaForSequenceClassification,
    LlamaForTokenClassification,
)

from grpo_core.errors import ConfigError, ModelError
from grpo_core.rewards import KINDS
from grpo_core.rewards.base import Context
from grpo_core.rewards.process import Process, ProcessParams, aggregated, steps_of

from .classifiers import counted, sample, save, save_counting, scored


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    save_counting(folder / "models" / "process", LlamaForTokenClassification)
    save_counting(folder / "broken", LlamaForTokenClassification, head=math.nan)
    save(folder / "random", LlamaForTokenClassification, seed=1)
    save(folder / "whole", LlamaForSequenceClassification)
    return folder


def opened(home, path="models/process", **params):
    return Process(ProcessParams(path=path, **{"label": "good", **params}), Context(base=home))


def expected(*texts):
    """Share of the label good against one whose number is 0, at the end of each text."""
    return [1 / (1 + math.exp(-counted(text))) for text in texts]


def test_each_step_has_the_models_number_at_its_marker(home):
    (score,) = scored(opened(home), "a!\n\n!!\n\nbc", prompt="Q")
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


def test_aggregates_and_transforms(home):
    for how, value in (("mean", 0.5), ("min", 0.25), ("product", 0.09375), ("last", 0.75)):
        assert aggregated([0.5, 0.25, 0.75], how) == value
    for transform, value in (("none", 8 / 3), ("sigmoid", 0.935), ("softmax", 0.935)):
        (score,) = scored(opened(home, template="", marker="!", transform=transform), "!", prompt="")
        assert score.value == pytest.approx(value, abs=1e-3)


def test_the_other_label_has_the_rest(home):
    good, bad = (scored(opened(home, label=label), "a!")[0].value for label in ("good", "0"))
    assert good + bad == pytest.approx(1)
    with pytest.raises(ConfigError, match=r"2 labels \(0 bad, 1 good\)"):
        opened(home, label=None)


def test_a_batch_gives_what_each_text_gives_alone(home):
    texts = ["one\n\ntwo", "a\n\nb\n\nc\n\nd", "x", "a longer step than those of all others"]
    alone = [[step.value for step in scored(opened(home, "random"), text)[0].steps] for text in texts]
    for size in (1, 3, 64):
        for values, score in zip(alone, scored(opened(home, "random", batch_size=size), *texts), strict=True):
            assert [step.value for step in score.steps] == pytest.approx(values, abs=1e-5)
    assert len({round(value, 4) for values in alone for value in values}) > 4


def test_it_gives_what_transformers_gives(home):
    """Tokens step by step, as TRL's PRMTrainer lays them out; with bytes as tokens that is the text as a whole."""
    tokenizer = AutoTokenizer.from_pretrained(home / "random")
    model = AutoModelForTokenClassification.from_pretrained(home / "random").eval()
    ids = tokenizer("2+2=\none<s>two<s>", return_tensors="pt")["input_ids"]
    with torch.no_grad():
        shares = model(input_ids=ids).logits[0].softmax(-1)[:, 1]
    (score,) = scored(opened(home, "random", marker="<s>"), "one\n\ntwo")
    assert [step.value for step in score.steps] == pytest.approx([shares[10].item(), shares[16].item()], rel=1e-4)


def test_a_step_cannot_bring_a_marker_that_is_a_special_token(home):
    model = opened(home, "random", marker="<|end|>")
    mark = model._model.tokenizer.eos_token_id
    for text in ("one", "one<|end|>and more"):
        row = model._row(0, sample(text))
        assert row.ids.count(mark) == 1
        assert row.ids[-1] == mark


def test_what_cannot_be_scored_and_a_completion_without_a_step_which_earns_nothing(home):
    none, long, odd, good = scored(opened(home), " \n", "x" * 70, "\udfff", "!")
    assert (none.value, none.passed, none.steps, none.detail) == (0, False, (), "no step")
    assert (long.error_class, odd.error_class) == ("sample", "sample")
    assert "is never cut" in long.error
    assert good.value is not None
    (score,) = scored(opened(home, "broken"), "!")  # gives numbers that are none
    assert score.error_class == "value"
    with pytest.raises(ModelError, match=r"score\.bias"):  # a classifier of whole texts
        opened(home, "whole", label=None)


def test_the_facts(home):
    model = opened(home)
    scored(model, "ab\n\nc", "d", prompt="Q")
    facts = model.facts()
    assert (facts["texts"], facts["steps"], facts["tokens"]) == (2, 3, 11)  # Q\nab\nc\n and Q\nd\n
    assert (facts["label"], facts["aggregate"]) == ("good", "min")
    assert len(facts["weights"]["model.safetensors"]) == 64
    json.dumps(facts, allow_nan=False)
    assert KINDS["process"].steps
