"""Scores completions with a rubric: every component over every sample, in order, errors kept with their sample.

What a component raises while scoring never escapes unseen: the config's `on_error` decides what the sample gets.
"""

import time
from collections.abc import Callable, Sequence
from typing import Any, Self

from grpo_core.data.problem import Problem
from grpo_core.errors import RewardError
from grpo_core.records import ComponentScore, ErrorClass
from grpo_core.rewards.base import Context, Scorer, Unscored
from grpo_core.rewards.rubric import Rubric, RubricPart, Scored


class Runner:
    """Holds open what the rubric's components need, until it is closed."""

    def __init__(self, rubric: Rubric, context: Context | None = None) -> None:
        """Raises a GrpoError when something that a component needs is not there: a sandbox, a model, a module."""
        self.rubric = rubric
        self._context = context or Context(limits=rubric.config.limits)
        self._scorers: dict[str, Scorer] = {}
        for part in rubric.parts:
            if part.kind.place not in ("here", "aside"):
                self._scorers[part.component.name] = part.kind.open(part.params, self._context)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        for scorer in self._scorers.values():
            scorer.close()

    def facts(self) -> dict[str, Any]:
        """What the manifest says of each component that holds something open, by its name."""
        return {name: scorer.facts() for name, scorer in self._scorers.items()}

    def score(self, samples: Sequence[Unscored], *, check: Callable[[], None] = lambda: None) -> list[Scored]:
        """Score each, in order; `check` is called often and may raise to stop. Raises RewardError only where a
        component failed and `on_error` is fail."""
        names = [part.component.name for part in self.rubric.parts]
        columns = [self._component(part, samples, check) for part in self.rubric.parts]
        rows = zip(samples, zip(*columns, strict=True), strict=True)
        return [self.rubric.combine(dict(zip(names, row, strict=True)), of=sample.problem.id) for sample, row in rows]

    def one(self, problem: Problem, completion: str, *, tokens: int | None = None) -> Scored:
        return self.score([Unscored(problem, completion, tokens)])[0]

    def _component(
        self, part: RubricPart, samples: Sequence[Unscored], check: Callable[[], None]
    ) -> list[ComponentScore]:
        if part.component.name in self._scorers:
            return self._scorers[part.component.name].score(samples, check)
        told = []
        for sample in samples:
            check()
            told.append(self._ruled(part, sample))
        return told

    def _ruled(self, part: RubricPart, sample: Unscored) -> ComponentScore:
        began = time.perf_counter()
        try:
            result = part.kind.rule()(sample, part.params)
        except Exception as error:  # noqa: BLE001 - a component may raise anything; the error policy answers it
            kind: ErrorClass = "sample" if isinstance(error, RewardError) else "verifier"
            told = f"{type(error).__name__}: {error}"
            result = ComponentScore(value=None, error=told, error_class=kind)
        return result.model_copy(update={"seconds": time.perf_counter() - began})
