"""Loads the model that becomes a reward model: a sequence classifier with one number, from a language model, which gets
a new head, or from a reward model, which is trained on.

Only safetensors are read and no code that comes with a model is run, as everywhere (grpo_core.model.load).
"""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForSequenceClassification
from transformers.utils import logging

from grpo_core.config.reward_model import TRAINED_ON, RewardModelConfig, scoring_texts
from grpo_core.errors import ModelError
from grpo_core.files.weights import read_json_object
from grpo_core.model.load import LoadedModel, ModelSource, check_finite, embedding_rows, load_pretrained
from grpo_core.model.source import check_began

LABEL = "reward"


@dataclass(frozen=True)
class Classifier:
    """A model to train as a reward model."""

    loaded: LoadedModel
    """Whose `model` gives one number for a text."""
    new_head: str | None
    """Name of the head's weight where it was made here, from the seed; None of a reward model."""


def load_classifier(source: ModelSource, config: RewardModelConfig, *, device: torch.device) -> Classifier:
    """Load it, and note in its config which texts it learns from. Raises ModelError.

    A new head is drawn from the run's seed: normal with variance 1 / (hidden size + 1), as in Stiennon et al. 2020
    (arXiv 2009.01325). The global random state is left alone."""
    folder = source.folder
    check_began(source)
    if source.overlays:
        raise ModelError(
            f"{source.given} lies on top of {folder} and is no whole model; make one model folder first, with grpo "
            "export"
        )
    names = read_json_object(folder / "config.json").get("architectures") or []
    trained = any(str(name).endswith("ForSequenceClassification") for name in names)
    dtype = getattr(torch, config.model.dtype)
    with torch.random.fork_rng(devices=[]), _quiet():  # transformers draws what is missing, and says so at length
        model, tokenizer, missing = load_pretrained(
            folder, AutoModelForSequenceClassification, dtype=dtype, settings={} if trained else {"num_labels": 1}
        )
    if trained and missing:
        raise ModelError(f"the weights in {folder} are incomplete; {len(missing)} tensors are missing: {missing[0]}")
    if model.config.num_labels != 1:
        raise ModelError(
            f"{folder} is a classifier of {model.config.num_labels} labels; a reward model gives one number. Begin "
            "from a language model, or from a classifier with one label"
        )
    if not trained:
        _draw_head(model, missing, folder, seed=config.seed)
        model.config.id2label, model.config.label2id = {0: LABEL}, {LABEL: 0}
    if config.data.chat_template is not None:
        tokenizer.chat_template = config.data.chat_template
    setattr(model.config, TRAINED_ON, scoring_texts(config.data.template, chat=config.data.chat))
    model.config.use_cache = False
    model.to(device)
    check_finite(model, folder)
    model.eval()  # stays so: without dropout, what is trained is what scores
    pad_id = _padding(model, tokenizer)
    loaded = LoadedModel(model, tokenizer, frozenset(_ends(tokenizer)), pad_id, source, device)
    return Classifier(loaded, missing[0] if missing else None)


@contextmanager
def _quiet() -> Iterator[None]:
    """Without transformers' report of tensors that are missing: what is missing is checked here."""
    before = logging.get_verbosity()
    logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    try:
        yield
    finally:
        logging.set_verbosity(before)


def _draw_head(model: Any, missing: list[str], folder: Path, *, seed: int) -> None:
    weights = dict(model.named_parameters())
    if len(missing) != 1 or weights[missing[0]].shape[0] != 1 or weights[missing[0]].ndim != 2:
        raise ModelError(
            f"{folder} cannot become a reward model: {type(model).__name__} lacks {', '.join(missing) or 'no head'} in "
            "it, where one matrix of the head is expected; begin from a decoder-only language model"
        )
    weight = weights[missing[0]]
    drawn = torch.randn(weight.shape, generator=torch.Generator().manual_seed(seed))
    with torch.no_grad():
        weight.copy_(drawn / math.sqrt(weight.shape[1] + 1))


def _padding(model: Any, tokenizer: Any) -> int:
    """The id that fills up a batch; the model finds the end of a text by it, so its config holds it. Without one of
    its own it is the end token, as is usual."""
    config, rows = model.config.get_text_config(), embedding_rows(model)
    candidates = (config.pad_token_id, tokenizer.pad_token_id, tokenizer.eos_token_id, 0)
    pad_id = next(int(id_) for id_ in candidates if id_ is not None and id_ < rows)
    config.pad_token_id = pad_id
    return pad_id


def _ends(tokenizer: Any) -> list[int]:
    return [] if tokenizer.eos_token_id is None else [int(tokenizer.eos_token_id)]
