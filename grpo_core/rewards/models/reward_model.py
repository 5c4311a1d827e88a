"""reward_model: a classifier that was trained on preferences or labels says how good a completion is.

Its number is no truth: a policy trained against it long enough finds what it overrates. Runs in the trainer's process,
beside the policy.
"""

import math
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Annotated, Any

from pydantic import Field

from grpo_core.records.types import ComponentScore
from grpo_core.rewards.base import Context, Kind, ScoreRequest
from grpo_core.rewards.models.scoring_model import (
    ModelParams,
    ScoringModel,
    Transform,
    filled,
    timed,
    too_long,
    unreadable,
)
from grpo_core.specs.fields import LongText


class RewardModelParams(ModelParams):
    template: Annotated[LongText, Field(max_length=20_000)] = "{prompt}{completion}"
    """What the model reads; {prompt}, {completion} and {answer} are filled in. Not used with chat."""
    chat: bool = False
    """Let the model's own chat template make the text, with the prompt as the user's turn and the completion as the
    assistant's. Most reward models of chats were trained so."""
    transform: Transform = "none"
    """none: the number as the model gives it. sigmoid: into 0 to 1. softmax: the label's share among all labels."""
    pass_at: float | None = None
    """Value from which on a completion counts as right; empty: the kind says nothing about right and wrong."""


def check(params: RewardModelParams) -> Iterator[tuple[str, str]]:
    """(parameter, what is wrong); looks at no file."""
    if not params.chat and "{completion}" not in params.template:
        yield "template", "does not hold {completion}, so the model would not see what it scores"


def open_scorer(params: RewardModelParams, context: Context) -> "RewardModel":
    """Raises ModelError or ConfigError."""
    return RewardModel(params, context)


class RewardModel:
    """Scores with one classifier."""

    def __init__(self, params: RewardModelParams, context: Context) -> None:
        self._params = params
        self._model = ScoringModel(params, context, head="sequence")
        if params.chat:
            self._model.check_chat()
        self._facts = {**self._model.facts(), "transform": params.transform}
        self._texts = self._tokens = 0

    def facts(self) -> dict[str, Any]:
        """Which model, by its hashes; texts and tokens that it has read so far in this process."""
        return {**self._facts, "texts": self._texts, "tokens": self._tokens}

    def score(self, samples: Sequence[ScoreRequest], check: Callable[[], None]) -> list[ComponentScore]:
        began = time.perf_counter()
        scores: dict[int, ComponentScore] = {}
        rows: list[list[int]] = []
        indices: list[int] = []
        for index, sample in enumerate(samples):
            check()
            if (fault := unreadable(sample)) is not None:
                scores[index] = fault
                continue
            try:
                ids = self._ids(sample)
            except ValueError as error:
                message = f"the model's chat template refuses the text: {error}"
                scores[index] = ComponentScore(value=None, error=message, error_class="sample")
                continue
            if len(ids) > self._model.longest:
                scores[index] = too_long(len(ids), self._model.longest)
            elif not ids:
                message = "prompt and completion are empty, and the reward's model reads no empty text"
                scores[index] = ComponentScore(value=None, error=message, error_class="sample")
            else:
                rows.append(ids)
                indices.append(index)
        for row, number in self._model.logits(rows, check, transform=self._params.transform):
            self._texts += 1
            self._tokens += len(rows[row])
            scores[indices[row]] = self._score(number, len(rows[row]))
        return timed([scores[position] for position in range(len(samples))], began)

    def close(self) -> None:
        """The weights go with the process that holds them."""

    def _ids(self, sample: ScoreRequest) -> list[int]:
        model = self._model
        if self._params.chat:
            return model.chat_ids(sample.problem.prompt, sample.completion)
        return model.ids(filled(self._params.template, sample, model, completion=sample.completion), special=True)

    def _score(self, number: float, tokens: int) -> ComponentScore:
        if not math.isfinite(number):
            message = f"the reward's model gave {number}, which is not a finite number"
            return ComponentScore(value=None, error=message, error_class="value")
        limit = self._params.pass_at
        passed = None if limit is None else number >= limit
        return ComponentScore(
            value=number, passed=passed, detail=f"{self._model.label_name} {number:.4g} of {tokens:,} tokens"
        )


SPEC = Kind(
    "reward_model",
    RewardModelParams,
    "model",
    __name__,
    "the number that a trained classifier gives the text (transformers, safetensors)",
    check=check,
)
