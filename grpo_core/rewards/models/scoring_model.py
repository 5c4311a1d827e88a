"""What the kinds with their own weights share: loading a classifier safely, its tokens, its batches, its facts.

Only safetensors are read and no code that comes with a model is run, as with the policy (grpo_core/model/load.py).
Torch and transformers are imported when a model is opened, not before.
"""

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Generic, Literal, TypeVar

from pydantic import Field

from grpo_core.errors import ConfigError, ModelError
from grpo_core.records.types import ComponentScore
from grpo_core.rewards.base import Context, Params, ScoreRequest
from grpo_core.rewards.models.texts import ScoringTexts
from grpo_core.rewards.scoring import failed
from grpo_core.specs.fields import Count
from grpo_core.text import UNSTORABLE

Transform = Literal["none", "sigmoid", "softmax"]
Head = Literal["sequence", "token"]


class ModelParams(Params):
    """Of both kinds: which model, and how it is run."""

    path: Annotated[str, Field(min_length=1, max_length=500)]
    """Folder with safetensors weights, looked for as model.path is; or a Hugging Face Hub id, with revision."""
    revision: Annotated[str, Field(pattern=r"^[0-9a-f]{40}$")] | None = None
    """Commit of the Hub repository, 40 hex digits. Needed with a Hub id; with it, no folder is looked at."""
    label: Annotated[str, Field(min_length=1, max_length=200)] | None = None
    """Which of the model's labels counts: its name, or its number from 0. Needed unless there is only one."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Number format of the weights."""
    device: Literal["same", "cpu"] = "same"
    """same: where the policy is."""
    batch_size: Annotated[int, Field(ge=1, le=4096)] = 16
    """Texts that the model reads at once. The scores do not depend on it but for rounding."""
    max_tokens: Count | None = None
    """A longer text is an error, never cut; empty: as many as the model has positions."""


P = TypeVar("P", bound=ModelParams)


class ScoringModel:
    """A classifier with its tokenizer, ready to score."""

    def __init__(self, params: ModelParams, context: Context, *, head: Head) -> None:
        """Raises ModelError or ConfigError for anything missing, odd or unsafe."""
        import torch
        from transformers import AutoModelForSequenceClassification, AutoModelForTokenClassification

        from grpo_core.config.run import ModelConfig
        from grpo_core.model.load import find_model, load_pretrained

        given = ModelConfig(path=params.path, revision=params.revision)
        kind = {"sequence": AutoModelForSequenceClassification, "token": AutoModelForTokenClassification}[head]
        try:
            self.source = find_model(given, base=context.base)
            self.folder = self.source.folder
            if self.source.overlays:
                raise ModelError(
                    f"{params.path} holds no whole model; merge it into a model folder first (grpo export)"
                )
            self.model, self.tokenizer, missing = load_pretrained(self.folder, kind, dtype=getattr(torch, params.dtype))
        except ModelError as error:
            raise ModelError(f"the reward's model: {error}") from error
        if missing:
            raise ModelError(
                f"{self.folder} is no such classifier: {len(missing)} tensors are missing, first {missing[0]}. A "
                "language model without a trained head has none that could score; give a reward model"
            )
        self._dtype = params.dtype
        self._batch_size = params.batch_size
        self.device = torch.device("cpu" if params.device == "cpu" else context.device)
        self.model.to(self.device).eval().requires_grad_(False)
        self.label = _label(params.label, self.model.config, self.folder)
        self.model.config.use_cache = False
        positions = getattr(self.model.config.get_text_config(), "max_position_embeddings", None)
        # Both, for some models count positions that no text may use (RoBERTa's begin at 2).
        known = (params.max_tokens, positions, self.tokenizer.model_max_length)
        self.longest = int(min(limit for limit in known if limit))
        self.pad_id: int | None = self.model.config.get_text_config().pad_token_id
        self.texts = ScoringTexts(self.tokenizer, source=self.folder)

    def facts(self) -> dict[str, Any]:
        from grpo_core.data.fingerprint import file_sha256
        from grpo_core.model.source import (
            files_digest,
            settings_sha256,
            tokenizer_sha256,
            vocabulary_sha256,
            weight_files,
        )

        weights = {path.name: file_sha256(path) for path in weight_files(self.folder)}
        return {
            "source": self.source.given,
            "revision": self.source.revision,
            "architecture": type(self.model).__name__,
            "parameters": sum(parameter.numel() for parameter in self.model.parameters()),
            "dtype": self._dtype,
            "device": str(self.device),
            "label": self.label_name,
            "weights": weights,
            "weights_sha256": files_digest(weights),
            "settings_sha256": settings_sha256(self.folder),
            "tokenizer_sha256": tokenizer_sha256(self.folder),
            "vocabulary_sha256": vocabulary_sha256(self.tokenizer),
        }

    @property
    def label_name(self) -> str:
        return str(self.model.config.id2label[self.label])

    def first_ids(self) -> list[int]:
        """The token that a text of this model begins with, if it has one."""
        candidates = (self.tokenizer.bos_token_id, self.tokenizer.cls_token_id)
        return [token for token in candidates if token is not None][:1]

    def logits(
        self, rows: Sequence[list[int]], check: Callable[[], None], *, transform: Transform
    ) -> Iterator[tuple[int, Any]]:
        """(index in `rows`, numbers of the label), in whatever order is quick: one number for a text, or one for each
        of its tokens. No row is empty or longer than `longest`. Of one length at a time where the model has no token
        to pad with."""
        import torch

        order = sorted(range(len(rows)), key=lambda position: len(rows[position]))
        size = self._batch_size if self.pad_id is not None else 1
        for start in range(0, len(order), size):
            check()
            indices = order[start : start + size]
            width = max(len(rows[position]) for position in indices)
            ids_BT = torch.full((len(indices), width), self.pad_id or 0, dtype=torch.long)
            mask_BT = torch.zeros_like(ids_BT)
            for row, index in enumerate(indices):
                ids_BT[row, : len(rows[index])] = torch.tensor(rows[index])
                mask_BT[row, : len(rows[index])] = 1
            with torch.no_grad():
                out = self.model(input_ids=ids_BT.to(self.device), attention_mask=mask_BT.to(self.device)).logits
            chosen = _transformed(out.double().cpu(), transform)[..., self.label]
            for row, index in enumerate(indices):
                yield index, chosen[row].tolist() if chosen.dim() == 1 else chosen[row, : len(rows[index])].tolist()


@dataclass(frozen=True)
class Row:
    """One sample as the model reads it."""

    ids: list[int]
    marks: Sequence[int] = ()
    """Indices into `ids` at which the steps' numbers are."""
    ends: Sequence[int] = ()
    """Characters of the completion up to and including each step."""


class ModelScorer(ABC, Generic[P]):
    """Scores all samples with one classifier: a kind says what of a sample is read, and what an output is worth."""

    def __init__(self, params: P, context: Context, *, head: Head, transform: Transform) -> None:
        self._params, self._transform = params, transform
        self._model = ScoringModel(params, context, head=head)
        self._facts = {**self._model.facts(), "transform": transform}
        self._texts = self._tokens = 0

    def facts(self) -> dict[str, Any]:
        """Which model, by its hashes; texts and tokens that it has read so far in this process."""
        return {**self._facts, "texts": self._texts, "tokens": self._tokens}

    def score(self, samples: Sequence[ScoreRequest], check: Callable[[], None]) -> list[ComponentScore]:
        began = time.perf_counter()
        scores: dict[int, ComponentScore] = {}
        rows: list[tuple[int, Row]] = []
        for index, sample in enumerate(samples):
            check()
            outcome = self._checked(sample)
            if isinstance(outcome, Row):
                rows.append((index, outcome))
            else:
                scores[index] = outcome
        for at, output in self._model.logits([row.ids for _, row in rows], check, transform=self._transform):
            index, row = rows[at]
            self._texts += 1
            self._tokens += len(row.ids)
            scores[index] = self._score(row, output)
        share = (time.perf_counter() - began) / max(1, len(scores))
        return [scores[index].model_copy(update={"seconds": share}) for index in range(len(samples))]

    @property
    def longest(self) -> int:
        """Most tokens that the model reads of a sample."""
        return self._model.longest

    def tokens_of(self, sample: ScoreRequest) -> int:
        """How many tokens the sample is for the model, also beyond what it reads; 0 where it reads nothing of it."""
        row = unreadable(sample) or self._row(sample)
        return len(row.ids) if isinstance(row, Row) else 0

    def close(self) -> None:
        """The weights go with the process that holds them."""

    def _checked(self, sample: ScoreRequest) -> Row | ComponentScore:
        row = unreadable(sample) or self._row(sample)
        longest = self.longest
        return too_long(len(row.ids), longest) if isinstance(row, Row) and len(row.ids) > longest else row

    @abstractmethod
    def _row(self, sample: ScoreRequest) -> Row | ComponentScore:
        """What the model reads of a sample, however long; a score where there is nothing to read."""

    @abstractmethod
    def _score(self, row: Row, output: Any) -> ComponentScore:
        """The score that the model's output for a row is."""


def unreadable(sample: ScoreRequest) -> ComponentScore | None:
    """The error of a sample whose text no tokenizer takes; None for all others."""
    if UNSTORABLE.search(sample.problem.prompt + sample.problem.answer + sample.completion):
        return failed("sample", "the text holds NUL or half a surrogate pair, which the reward's model cannot read")
    return None


def too_long(tokens: int, longest: int) -> ComponentScore:
    return failed(
        "sample",
        f"prompt and completion are {tokens:,} tokens of the reward's model, which reads {longest:,}; a text is never "
        "cut. Lower sampling.max_completion_tokens, or take a model with more positions",
    )


def _label(label: str | None, config: Any, folder: Path) -> int:
    names = {int(key): str(name) for key, name in config.id2label.items()}
    listed = ", ".join(f"{index} {name}" for index, name in sorted(names.items()))
    if label is None:
        if len(names) == 1:
            return next(iter(names))
        raise ConfigError(f"the model in {folder} has {len(names)} labels ({listed}): say by `label` which one counts")
    for number, name in names.items():
        if label in (name, str(number)):
            return number
    raise ConfigError(f"the model in {folder} has no label {label!r}; it has {listed}")


def _transformed(logits: Any, transform: Transform) -> Any:
    if transform == "sigmoid":
        return logits.sigmoid()
    return logits.softmax(-1) if transform == "softmax" else logits
