"""What becomes a reward model: language models of several families, each with a new head; what cannot."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForSequenceClassification, LlamaForSequenceClassification

from grpo_core.config.reward_model import RewardModelConfig
from grpo_core.config.run import ModelConfig
from grpo_core.errors import ModelError
from grpo_core.model.classifier import Classifier, load_classifier
from grpo_core.model.load import find_model
from grpo_core.model.tiny import byte_tokenizer
from grpo_core.training.reward_model import RewardModelTraining

from .families import families
from .rewards.classifiers import save
from .tiny import SHAPE, tiny_folder

FAMILIES = families("sampler", "shared") | families("layouts", "unshared")
TEXTS = [tuple(range(1, 1 + length)) for length in (3, 20, 7, 1)]


def config(**parts: Any) -> RewardModelConfig:
    base = {"model": {"path": "m"}, "data": {"path": "none"}, "eval": {"before": False, "after": False}}
    return RewardModelConfig.from_dict({**base, **parts})


def loaded(folder: Path, **parts: Any) -> Classifier:
    source = find_model(ModelConfig(path=str(folder)), base=Path("/"))
    return load_classifier(source, config(**parts), device=torch.device("cpu"))


def saved(folder: Path, make: Callable[[], Any]) -> Path:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        make().save_pretrained(folder)
    byte_tokenizer().save_pretrained(folder)
    return folder


@pytest.mark.parametrize("family", FAMILIES)
def test_padding_changes_no_reward(tmp_path: Path, family: str) -> None:
    """Of texts of several lengths together, as transformers gives each alone."""
    classifier = loaded(saved(tmp_path, FAMILIES[family]))
    assert classifier.new_head == "score.weight"
    model = classifier.loaded.model
    with torch.no_grad():
        alone = [model(input_ids=torch.tensor([text])).logits.item() for text in TEXTS]
    training = RewardModelTraining(classifier.loaded, config())
    assert training.rewards(TEXTS) == pytest.approx(alone, abs=1e-5)
    assert len({round(reward, 3) for reward in alone}) > 2


def test_a_new_head_is_drawn_from_the_seed_alone(tmp_path: Path) -> None:
    """Normal with variance 1 / (hidden size + 1); all other weights are the language model's."""
    tiny_folder(tmp_path)
    before = torch.random.get_rng_state()
    head, other = (loaded(tmp_path, seed=seed).loaded.model.score.weight for seed in (0, 1))
    assert torch.equal(torch.random.get_rng_state(), before)
    drawn = torch.randn((1, SHAPE.hidden), generator=torch.Generator().manual_seed(0))
    assert torch.equal(head, drawn / math.sqrt(SHAPE.hidden + 1))
    assert not torch.equal(head, other)
    state = loaded(tmp_path).loaded.model.state_dict()
    body = load_file(tmp_path / "model.safetensors")
    assert all(torch.equal(state[name], tensor) for name, tensor in body.items() if name != "lm_head.weight")


def test_a_classifier_of_two_labels_is_refused(tmp_path: Path) -> None:
    save(tmp_path, LlamaForSequenceClassification, labels={0: "bad", 1: "good"})
    with pytest.raises(ModelError, match="2 labels"):
        loaded(tmp_path)


def test_a_reward_model_keeps_its_head(tmp_path: Path) -> None:
    first = loaded(saved(tmp_path / "base", FAMILIES["llama"])).loaded
    first.model.save_pretrained(tmp_path / "trained")
    first.tokenizer.save_pretrained(tmp_path / "trained")
    again = loaded(tmp_path / "trained")
    assert again.new_head is None
    assert torch.equal(again.loaded.model.score.weight, first.model.score.weight)
    assert again.loaded.model.config.id2label == {0: "reward"}


def test_without_a_padding_token_it_is_the_end_token(tmp_path: Path) -> None:
    saved(tmp_path, FAMILIES["llama"])
    tokenizer = byte_tokenizer()
    tokenizer.pad_token = None
    tokenizer.save_pretrained(tmp_path)
    classifier = loaded(tmp_path).loaded
    assert classifier.pad_id == classifier.model.config.pad_token_id == tokenizer.eos_token_id


def test_a_family_without_classifiers_is_refused(tmp_path: Path) -> None:
    saved(tmp_path, families("layouts", "refused")["rows run into one another"])
    with pytest.raises(ModelError, match="Lfm2"):
        loaded(tmp_path)


def test_a_classifier_whose_weights_lack_the_head_is_refused(tmp_path: Path) -> None:
    """Its config calls it a reward model, its weights are a language model's."""
    made = saved(tmp_path / "base", FAMILIES["llama"])
    classifier = AutoModelForSequenceClassification.from_pretrained(made, num_labels=1)
    classifier.config.architectures = ["LlamaForSequenceClassification"]
    classifier.config.save_pretrained(made)
    with pytest.raises(ModelError, match="incomplete"):
        loaded(made)
