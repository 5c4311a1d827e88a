"""process: a classifier of tokens (a process reward model) scores each step of a completion.

The text is split into steps at a separator; a marker is put after each, and the model's number at the marker is the
step's. As TRL's PRMTrainer trains them: the tokens of the prompt, then of each step those of its text and the marker's.
With algorithm.supervision: process each step is rewarded where it ends. Runs in the trainer's process, next
to the policy.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from operator import itemgetter
from statistics import fmean
from typing import Annotated, Any, Literal

from pydantic import Field

from grpo_core.records.types import ComponentScore, StepScore
from grpo_core.rewards.base import Context, Kind, ScoreRequest, template_columns
from grpo_core.rewards.models.scoring_model import ModelParams, ModelScorer, Row, Transform
from grpo_core.rewards.scoring import failed
from grpo_core.specs.fields import LongText


class ProcessParams(ModelParams):
    template: Annotated[LongText, Field(max_length=20_000)] = "{prompt}\n"
    """What the model reads before the steps; {prompt} and {answer} are filled in."""
    separator: Annotated[LongText, Field(min_length=1, max_length=40)] = "\n\n"
    """What separates two steps of a completion. A step of white space alone is none."""
    marker: Annotated[LongText, Field(min_length=1, max_length=40)] = "\n"
    """What the model was trained to see after each step: its number at the last token of it is the step's. May be one
    of its special tokens."""
    transform: Transform = "softmax"
    """softmax: the label's share among all labels. sigmoid: into 0 to 1. none: the number as the model gives it."""
    aggregate: Literal["mean", "min", "product", "last"] = "min"
    """What the value of the whole completion is, of its steps' numbers. Process supervision takes those of the
    steps."""
    pass_at: float = 0.5
    """Value from which on a completion counts as right."""


def check(params: ProcessParams) -> Iterator[tuple[str, str]]:
    """(parameter, what is wrong); looks at no file."""
    if "{completion}" in params.template:
        yield "template", "holds {completion}: the steps come after the template, with a marker behind each"
    if not params.separator.strip(" "):
        yield "separator", "is only spaces, so every word would be a step"


class Process(ModelScorer[ProcessParams]):
    """Scores steps with one classifier."""

    def __init__(self, params: ProcessParams, context: Context) -> None:
        super().__init__(params, context, head="token", transform=params.transform)
        self._marker = self._model.texts.ids(params.marker, special=False)
        self._facts["aggregate"] = params.aggregate
        self._steps = 0

    def facts(self) -> dict[str, Any]:
        """Which model, by its hashes; texts, steps and tokens that it has read so far in this process."""
        return super().facts() | {"steps": self._steps}

    def _row(self, sample: ScoreRequest) -> Row | ComponentScore:
        model, steps = self._model, steps_of(sample.completion, self._params.separator)
        if not steps:
            return ComponentScore(value=0.0, passed=False, detail="no step", steps=())
        problem, texts = sample.problem, model.texts
        before = texts.filled(self._params.template, prompt=problem.prompt, completion="", answer=problem.answer)
        ids = [*model.first_ids(), *texts.ids(before, special=False)]
        marks = []
        for text, _ in steps:
            ids += [*texts.ids(texts.plain(text), special=False), *self._marker]
            marks.append(len(ids) - 1)
        return Row(ids, marks, [end for _, end in steps])

    def _score(self, row: Row, output: Any) -> ComponentScore:
        numbers: list[float] = [output[mark] for mark in row.marks]
        self._steps += len(numbers)
        if not all(math.isfinite(number) for number in numbers):
            return failed("value", "the reward's model gave a step a number that is not finite")
        value = aggregated(numbers, self._params.aggregate)
        lowest = min(range(len(numbers)), key=numbers.__getitem__)
        return ComponentScore(
            value=value,
            passed=value >= self._params.pass_at,
            detail=f"{len(numbers)} steps; lowest is step {lowest + 1} with {numbers[lowest]:.4g}",
            steps=tuple(StepScore(end=end, value=number) for end, number in zip(row.ends, numbers, strict=True)),
        )


open_scorer = Process
"""Raises ModelError or ConfigError."""


def steps_of(completion: str, separator: str) -> list[tuple[str, int]]:
    """(text without white space around it, characters of the completion up to and including it) of each step."""
    steps, start = [], 0
    for part in completion.split(separator):
        if text := part.strip():
            steps.append((text, start + len(part.rstrip())))
        start += len(part) + len(separator)
    return steps


def aggregated(numbers: Sequence[float], how: Literal["mean", "min", "product", "last"]) -> float:
    """Of one number or more."""
    aggregates: dict[str, Callable[[Sequence[float]], float]]
    aggregates = {"mean": fmean, "min": min, "product": math.prod, "last": itemgetter(-1)}
    return aggregates[how](numbers)


SPEC = Kind(
    "process",
    ProcessParams,
    "each step's number of a process reward model (a classifier of tokens)",
    "model",
    steps=True,
    check=check,
    columns=lambda params: template_columns(params.template),
)
