"""Scores completions with a rubric: every component over every sample, in order, errors kept with their sample.

What a component raises while scoring never escapes unseen: the config's `on_error` decides what the sample gets. Where
a kind runs is its mode: rules inline, slow rules in subprocesses (`subprocess_pool.py`), the rest in a scorer
that the kind opens. Infrastructure errors are tried again.
"""

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any, Self

from grpo_core.data.problem import Problem
from grpo_core.records.types import ComponentScore
from grpo_core.rewards.base import Context, Scorer, ScoreRequest, shown
from grpo_core.rewards.models.scoring_model import ModelScorer
from grpo_core.rewards.python.session import shared_sandbox
from grpo_core.rewards.rubric import Rubric, RubricPart, Scored
from grpo_core.rewards.scoring import ruled
from grpo_core.rewards.subprocess_pool import Pool
from grpo_core.runtime.watchdog import doing

FIRST_PAUSE = 0.25
"""Seconds before the first new try; every further pause is twice as long."""
_TICK = 0.1

Attempt = Callable[[Sequence[ScoreRequest]], Sequence[ComponentScore]]


def with_retries(
    samples: Sequence[ScoreRequest], attempt: Attempt, *, retries: int, check: Callable[[], None]
) -> list[ComponentScore]:
    """One score each, in order, after at most `retries` more tries of those with an infrastructure error."""
    scores = list(attempt(samples))
    for again in range(retries):
        indices = [position for position, score in enumerate(scores) if score.error_class == "infra"]
        if not indices:
            break
        _wait(FIRST_PAUSE * 2**again, check)
        for index, score in zip(indices, attempt([samples[position] for position in indices]), strict=True):
            scores[index] = score.model_copy(update={"tries": scores[index].tries + score.tries})
    return scores


def _with_prefill(score: ComponentScore, sample: ScoreRequest, seen: ScoreRequest) -> ComponentScore:
    """The score, whose detail says so where prefill and completion were scored as one text."""
    if seen.completion == sample.completion:
        return score
    note = f"scored after the prefill {shown(sample.prefill)!r}"
    return score.model_copy(update={"detail": f"{score.detail} ({note})" if score.detail else note})


def _wait(seconds: float, check: Callable[[], None]) -> None:
    until = time.monotonic() + seconds
    while (left := until - time.monotonic()) > 0:
        check()
        time.sleep(min(left, _TICK))


class Runner:
    """Holds open what the rubric's components need, until it is closed. One caller at a time."""

    def __init__(self, rubric: Rubric, context: Context | None = None) -> None:
        """Raises a GrpoError when something that a component needs is not there: a sandbox, a model, a module."""
        self.rubric = rubric
        self._limits = rubric.config.limits
        self._context = context or Context(limits=self._limits)
        self._scorers: dict[str, Scorer] = {}
        with ExitStack() as opened:
            subprocess_kinds = [part.component.kind for part in rubric.parts if part.kind.mode == "subprocess"]
            self._pool = Pool(subprocess_kinds, workers=self._limits.workers, deadline=self._limits.deadline_seconds)
            opened.callback(self._pool.close)
            for part in rubric.parts:
                if part.kind.mode not in ("inline", "subprocess"):
                    scorer = part.kind.open(part.params, self._context)
                    opened.callback(scorer.close)
                    self._scorers[part.component.name] = scorer
            self._opened = opened.pop_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End all that it started; may be called twice."""
        self._opened.close()

    def facts(self) -> dict[str, Any]:
        """For the manifest, of each component that holds something open, by its name."""
        return {name: scorer.facts() for name, scorer in self._scorers.items()}

    def models(self) -> list[ModelScorer[Any]]:
        """The trained classifiers among the components, which know how long a text is for them."""
        return [scorer for scorer in self._scorers.values() if isinstance(scorer, ModelScorer)]

    def sandbox(self) -> dict[str, Any] | None:
        """The sandbox's report as the manifest holds it; None where no component needs one."""
        return shared_sandbox().report.to_json() if self.rubric.needs_sandbox else None

    def score(self, samples: Sequence[ScoreRequest], *, check: Callable[[], None] = lambda: None) -> list[Scored]:
        """Score each, in order; `check` is called often and may raise to stop. Raises RewardError only where a
        component failed and `on_error` is fail."""
        rows: list[dict[str, ComponentScore]] = [{} for _ in samples]
        for part in self.rubric.parts:
            indices = [index for index, sample in enumerate(samples) if part.takes(sample.problem)]
            seen = [part.kind.sees(samples[index], part.params) for index in indices]
            for index, sample, score in zip(indices, seen, self._component(part, seen, check), strict=True):
                rows[index][part.component.name] = _with_prefill(score, samples[index], sample)
        return [self.rubric.combine(row, of=sample.problem.id) for sample, row in zip(samples, rows, strict=True)]

    def score_one(self, problem: Problem, completion: str, *, tokens: int | None = None) -> Scored:
        return self.score([ScoreRequest(problem, completion, tokens)])[0]

    def _component(
        self, part: RubricPart, samples: Sequence[ScoreRequest], check: Callable[[], None]
    ) -> list[ComponentScore]:
        what = f"reward {part.component.name}"
        doing(what, f"{len(samples)} samples")
        if part.kind.mode == "inline":
            scores = []
            for number, sample in enumerate(samples, start=1):
                check()
                doing(what, f"sample {number} of {len(samples)}")
                scores.append(ruled(part.kind, part.params, sample))
            return scores

        def attempt(subset: Sequence[ScoreRequest]) -> list[ComponentScore]:
            if part.kind.mode == "subprocess":
                return self._pool.score(part, subset, check)
            return self._scorers[part.component.name].score(subset, check)

        # A judge and a model decide themselves what is worth another try, and when.
        retries = self._limits.retries if part.kind.mode in ("subprocess", "sandbox") else 0
        return with_retries(samples, attempt, retries=retries, check=check)
