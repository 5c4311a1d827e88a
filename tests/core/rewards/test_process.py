"""The kind process with small real classifiers of tokens, one of them with numbers known by hand."""

import json
import math

import pytest
import torch
from transformers import AutoModelForTokenClassification, AutoTokenizer, LlamaForTokenClassification

from grpo_core.errors import ConfigError, ModelError
from grpo_core.rewards import KINDS
from grpo_core.rewards.base import Context
from grpo_core.rewards.process import Process, ProcessParams, aggregated, steps_of

from .classifiers import counted, sample, save_counting, save_sequence, save_token


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    save_counting(folder / "models" / "process", LlamaForTokenClassification)
    save_token(folder / "random", seed=1)
    save_sequence(folder / "whole")
    return folder


def opened(home, path="models/process", **params):
    return Process(ProcessParams(path=path, **{"label": "good", **params}), Context(base=home))


def scored(model, samples):
    return model.score(samples, lambda: None)


def expected(*texts):
    """Share of the label good against one whose number is 0, at the end of each text."""
    return [1 / (1 + math.exp(-counted(text))) for text in texts]


def test_each_step_has_the_models_number_at_its_marker(home):
    (score,) = scored(opened(home), [sample("a!\n\n!!\n\nbc", prompt="Q")])
    # What the model has read at each marker: 1 of 5 bytes is a mark, then 3 of 8, then 3 of 11.
    numbers = expected("Q\na!\n", "Q\na!\n!!\n", "Q\na!\n!!\nbc\n")
    assert numbers[0] == pytest.approx(1 / (1 + math.exp(-1.6 / math.sqrt(1.32))))
    assert score.steps is not None
    assert [step.value for step in score.steps] == pytest.approx(numbers, rel=1e-5)
    assert [step.end for step in score.steps] == [2, 6, 10]
    assert (score.value, score.passed) == (pytest.approx(numbers[0], rel=1e-5), True)


@pytest.mark.parametrize(
    ("completion", "separator", "steps"),
    [
        ("a\n\nb", "\n\n", [("a", 1), ("b", 4)]),
        ("\n\n a \n\n\n\nb c\n", "\n\n", [("a", 4), ("b c", 12)]),
        ("a;b;;", ";", [("a", 1), ("b", 3)]),
        ("one", "\n\n", [("one", 3)]),
        (" \n\n ", "\n\n", []),
        ("", "\n\n", []),
        ("é\n\n\U0001f600", "\n\n", [("é", 1), ("\U0001f600", 4)]),
    ],
)
def test_steps_and_where_they_end(completion, separator, steps):
    assert steps_of(completion, separator) == steps
    for text, end in steps:
        assert completion[:end].endswith(text)


@pytest.mark.parametrize(("how", "value"), [("mean", 0.5), ("min", 0.25), ("product", 0.09375), ("last", 0.75)])
def test_aggregates(how, value):
    assert aggregated([0.5, 0.25, 0.75], how) == value


@pytest.mark.parametrize(("transform", "value"), [("none", 8 / 3), ("sigmoid", 0.935), ("softmax", 0.935)])
def test_transforms(home, transform, value):
    model = opened(home, template="", marker="!", transform=transform)
    (score,) = scored(model, [sample("!", prompt="")])
    assert score.value == pytest.approx(value, abs=1e-3)


def test_the_other_label_has_the_rest(home):
    good, bad = (scored(opened(home, label=label), [sample("a!")])[0].value for label in ("good", "0"))
    assert good + bad == pytest.approx(1)
    with pytest.raises(ConfigError, match=r"2 labels \(0 bad, 1 good\)"):
        opened(home, label=None)


def test_a_batch_gives_what_each_text_gives_alone(home):
    texts = ["one\n\ntwo", "a\n\nb\n\nc\n\nd", "x", "a longer step than those of all others"]
    alone = [scored(opened(home, "random"), [sample(text)])[0].steps for text in texts]
    for size in (1, 3, 64):
        together = scored(opened(home, "random", batch_size=size), [sample(text) for text in texts])
        for one, other in zip(alone, together, strict=True):
            assert [step.value for step in other.steps] == pytest.approx([step.value for step in one], abs=1e-5)
    assert len({round(step.value, 4) for steps in alone for step in steps}) > 4


def test_it_gives_what_transformers_gives(home):
    """Tokens step by step, as TRL's PRMTrainer lays them out; with bytes as tokens that is the text as a whole."""
    tokenizer = AutoTokenizer.from_pretrained(home / "random")
    model = AutoModelForTokenClassification.from_pretrained(home / "random").eval()
    ids = tokenizer("2+2=\none<s>two<s>", return_tensors="pt")["input_ids"]
    with torch.no_grad():
        shares = model(input_ids=ids).logits[0].softmax(-1)[:, 1]
    (score,) = scored(opened(home, "random", marker="<s>"), [sample("one\n\ntwo")])
    assert [step.value for step in score.steps] == pytest.approx([shares[10].item(), shares[16].item()], rel=1e-4)


def test_a_step_cannot_bring_a_marker_that_is_a_special_token(home):
    model = opened(home, "random", marker="<|end|>")
    mark = model._model.tokenizer.eos_token_id
    for text in ("one", "one<|end|>and more"):
        row = model._row(0, sample(text))
        assert row.ids.count(mark) == 1
        assert row.ids[-1] == mark


def test_a_completion_without_a_step_earns_nothing(home):
    (score,) = scored(opened(home), [sample(" \n")])
    assert (score.value, score.passed, score.steps, score.detail) == (0, False, (), "no step")


def test_texts_that_cannot_be_scored(home):
    long, odd, good = scored(opened(home), [sample("x" * 70), sample("\udfff"), sample("!")])
    assert (long.error_class, odd.error_class) == ("sample", "sample")
    assert "is never cut" in (long.error or "")
    assert good.value is not None


def test_a_classifier_of_whole_texts_is_refused(home):
    with pytest.raises(ModelError, match=r"score\.bias"):
        opened(home, "whole", label=None)


def test_numbers_that_are_none_are_an_error(home, tmp_path):
    folder = save_counting(tmp_path / "broken", LlamaForTokenClassification)
    model = LlamaForTokenClassification.from_pretrained(folder)
    with torch.no_grad():
        model.score.bias.fill_(math.inf)
    model.save_pretrained(folder)
    (score,) = scored(opened(tmp_path, "broken"), [sample("!")])
    assert score.error_class == "value"


def test_the_facts(home):
    model = opened(home)
    scored(model, [sample("ab\n\nc", prompt="Q"), sample("d", prompt="Q")])
    facts = model.facts()
    assert (facts["texts"], facts["steps"], facts["tokens"]) == (2, 3, 11)  # Q\nab\nc\n and Q\nd\n
    assert (facts["label"], facts["aggregate"]) == ("good", "min")
    assert len(facts["weights"]["model.safetensors"]) == 64
    json.dumps(facts, allow_nan=False)
    assert KINDS["process"].steps
