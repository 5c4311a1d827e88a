"""reward_model: a classifier that was trained on preferences or labels says how good a completion is.

Its number is no truth: a policy trained against it long enough finds what it overrates. Runs in the trainer's process,
next to the policy.
"""

import math
from collections.abc import Iterator, Mapping
from typing import Annotated, Any

from pydantic import Field

from grpo_core.config.reward_model import TRAINED_ON, scoring_texts
from grpo_core.errors import ConfigError
from grpo_core.records.types import ComponentScore
from grpo_core.rewards.base import Context, Kind, ScoreRequest, template_columns
from grpo_core.rewards.models.scoring_model import ModelParams, ModelScorer, Row, ScoringModel, Transform
from grpo_core.rewards.scoring import failed
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
    """Value from which on a completion counts as right; empty: the kind does not decide right or wrong."""


def check(params: RewardModelParams) -> Iterator[tuple[str, str]]:
    """(parameter, what is wrong); looks at no file."""
    if not params.chat and "{completion}" not in params.template:
        yield "template", "does not hold {completion}, so the model would not see what it scores"


class RewardModel(ModelScorer[RewardModelParams]):
    """Scores with one classifier."""

    def __init__(self, params: RewardModelParams, context: Context) -> None:
        super().__init__(params, context, head="sequence", transform=params.transform)
        if params.chat:
            self._model.texts.check_chat()
        _check_trained_texts(params, self._model)

    def _row(self, sample: ScoreRequest) -> Row | ComponentScore:
        model, problem = self._model, sample.problem
        try:
            if self._params.chat:
                ids = model.texts.chat_ids(problem.prompt, sample.completion)
            else:
                ids = model.texts.template_ids(
                    self._params.template,
                    prompt=problem.prompt,
                    completion=sample.completion,
                    answer=problem.answer,
                )
        except ValueError as error:
            return failed("sample", f"the model's chat template refuses the text: {error}")
        if not ids:
            return failed("sample", "prompt and completion are empty, and the reward's model reads no empty text")
        return Row(ids)

    def _score(self, row: Row, output: Any) -> ComponentScore:
        number: float = output
        if not math.isfinite(number):
            return failed("value", f"the reward's model gave {number}, which is not a finite number")
        limit = self._params.pass_at
        passed = None if limit is None else number >= limit
        return ComponentScore(
            value=number, passed=passed, detail=f"{self._model.label_name} {number:.4g} of {len(row.ids):,} tokens"
        )


def _check_trained_texts(params: RewardModelParams, model: ScoringModel) -> None:
    """A model that Cohort trained says what texts it learned from; of others it gives numbers too, and they mean
    nothing. Raises ConfigError."""
    trained = getattr(model.model.config, TRAINED_ON, None)
    if trained is None:
        return
    given = scoring_texts(params.template, chat=params.chat)
    if given != trained:
        raise ConfigError(
            f"the reward model in {model.folder} was trained on texts made with {_words(trained)}, and here they would "
            f"be made with {_words(given)}; give it the same"
        )


def _words(texts: Mapping[str, Any]) -> str:
    return "chat: true" if texts["chat"] else f"chat: false and template: {texts['template']!r}"


open_scorer = RewardModel
"""Raises ModelError or ConfigError."""


SPEC = Kind(
    "reward_model",
    RewardModelParams,
    "the number that a trained classifier gives the text (transformers, safetensors)",
    "model",
    check=check,
    columns=lambda params: template_columns(params.template),
)
