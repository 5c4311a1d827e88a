"""An evaluation of a model outside of a run: the same tasks, streams, scorers and loop as before and after training, so
that its scores are those that a run of the model would report with this seed. Loads torch only when it evaluates."""

import math
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from grpo_core.data.loaders import load_problems
from grpo_core.data.prompts import encode_problems
from grpo_core.evaluate.suites.load import load_suites
from grpo_core.evaluate.task import Manner, heldout_task, prompts_fit
from grpo_core.lab.job import MAX_ITEMS, EvaluateOptions, Job
from grpo_core.lab.models import job_model, rows_at_once, use_threads
from grpo_core.lab.result import MAX_RESULT_BYTES, fewer_texts, kept_text
from grpo_core.records.bounds import Count, Name, Seconds
from grpo_core.records.types import Body, EvalItem, EvalResult
from grpo_core.rewards import Rubric, Runner
from grpo_core.rewards.base import Context
from grpo_core.runtime.progress import Progress

_TEXTS = ("prompt", "answer", "completion", "detail")
_LONGEST_NAME = 200
"""Characters of an item's id, its slice and its cluster."""


class ModelEvaluation(Body):
    """result.json of an evaluation. Phases are `before`, as nothing was trained."""

    kind: Literal["evaluate"] = "evaluate"
    model: str
    """As the job names it."""
    device: Name
    results: Annotated[list[EvalResult], Field(min_length=1, max_length=1000)]
    items: Annotated[list[EvalItem], Field(min_length=1, max_length=MAX_ITEMS)]
    """Of all results, in order."""
    texts_left_out: Count = 0
    """How many items are here without their texts, because the result was too large."""
    seconds: Seconds
    """Of the whole job, loading included."""

    @model_validator(mode="after")
    def _agrees(self) -> Self:
        """Totals are those of the items."""
        by_suite: dict[str, list[EvalItem]] = {result.suite: [] for result in self.results}
        if len(by_suite) < len(self.results):
            raise ValueError("results: a suite has one result")
        for item in self.items:
            if item.suite not in by_suite:
                raise ValueError(f"items: {item.suite} has no result")
            if any(len(text) > _LONGEST_NAME for text in (item.problem_id, item.slice, item.cluster)):
                raise ValueError(f"items: ids, slices and clusters have at most {_LONGEST_NAME} characters")
            by_suite[item.suite].append(item)
        for result in self.results:
            _require_totals(result, by_suite[result.suite])
        return self


def _require_totals(result: EvalResult, items: list[EvalItem]) -> None:
    twice = [name for name, times in Counter(item.problem_id for item in items).items() if times > 1]
    if twice:
        raise ValueError(f"items: {twice[0]} of {result.suite} is there twice")
    totals = (len(items), sum(item.truncated for item in items), sum(item.error is not None for item in items))
    correct = math.fsum(item.score for item in items)
    if totals != (result.problems, result.truncated, result.errors) or not math.isclose(
        correct, result.correct, abs_tol=1e-6
    ):
        raise ValueError(f"results: the totals of {result.suite} are not those of its items")


def evaluate_model(
    job: Job,
    options: EvaluateOptions,
    *,
    base: Path,
    device: str,
    progress: Progress,
    check: Callable[[], None],
) -> ModelEvaluation:
    """Of a job whose data and suites are at paths relative to `base`. Raises a GrpoError that names suite and item."""
    from grpo_core.rollout.local import LocalRollout
    from grpo_core.trainer.evaluation import evaluate_all
    from grpo_core.trainer.inputs import suite_tasks

    assert job.model is not None
    began = time.monotonic()
    limited = [suite.model_copy(update={"limit": options.limit or suite.limit}) for suite in job.suites]
    suites = load_suites(limited, base=base)
    manner = Manner(
        prompts=options,
        stop=options.stop,
        max_prompt_tokens=None,
        max_completion_tokens=options.max_completion_tokens,
        temperature=options.temperature,
        samples=options.samples,
        seed=options.seed,
    )
    with ExitStack() as opened:
        # Opened first: a missing sandbox or judge is reported before a model is loaded.
        heldout = None
        if job.data is not None and job.reward is not None:
            rubric, data = Rubric(job.reward), job.data
            context = Context(limits=rubric.config.limits, base=base, device=device)
            problems = load_problems(base / data.path, data.format, columns=data.columns, limit=options.limit)
            heldout = rubric.readable(problems, drop=False)[0], opened.enter_context(Runner(rubric, context))
        use_threads(job.threads)
        progress.begin("loading the model", 1)
        policy = job_model(job.model, base, device)
        tasks = []
        if heldout is not None:
            source = "the held-out problems"
            encoded = encode_problems(heldout[0], policy.encoder(options), source=source)
            longest = options.max_completion_tokens
            prompts_fit(encoded, manner, longest=longest, context=policy.context, source=source, each="problem")
            tasks.append(heldout_task(encoded, runner=heldout[1], manner=manner))
        tasks += suite_tasks(suites, policy, manner)
        progress.begin("evaluating", sum(len(task.prompts.prompts) for task in tasks))
        rollout = LocalRollout(policy, max_rows=rows_at_once(policy), check=check, log=progress.line)
        evaluations = list(
            evaluate_all(
                "before", tasks, rollout=rollout, policy=policy, manner=manner, progress=progress.advance, check=check
            )
        )
    evaluation = ModelEvaluation(
        model=job.model.path,
        device=device,
        results=[evaluation.result for evaluation in evaluations],
        items=[_kept(item) for evaluation in evaluations for item in evaluation.items],
        seconds=time.monotonic() - began,
    )
    return fitted(evaluation)


def fitted(evaluation: ModelEvaluation, limit: int = MAX_RESULT_BYTES) -> ModelEvaluation:
    """In at most `limit` bytes of JSON: where it has more, the last items lose their texts, and it records how many
    did."""
    items, left_out = fewer_texts(evaluation, evaluation.items, without_texts, limit)
    return evaluation.model_copy(update={"items": items, "texts_left_out": left_out}) if left_out else evaluation


def without_texts(item: EvalItem) -> EvalItem:
    return item.model_copy(update=dict.fromkeys(_TEXTS, ""))


def _kept(item: EvalItem) -> EvalItem:
    return item.model_copy(update={name: kept_text(getattr(item, name)) for name in _TEXTS})
