"""What an evaluation answers and how each answer is judged: the held-out problems by the run's reward or `eval.reward`,
the items of a suite by the suite's scorer. All of them go through the one loop of `trainer.evaluation`. Loads no torch.
"""

import hashlib
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from grpo_core.config.evaluation import HELDOUT
from grpo_core.config.kinds import AnsweringConfig
from grpo_core.config.prompt import PromptConfig
from grpo_core.data.fingerprint import problems_digest
from grpo_core.data.problem import Problem
from grpo_core.data.prompts import Encoded, PromptEncoder, encode_problems
from grpo_core.errors import ConfigError, DataError
from grpo_core.evaluate.suites.load import Suite
from grpo_core.records.types import ComponentScore
from grpo_core.rewards import Runner, ScoreRequest

_HELDOUT_STREAM, _SUITE_STREAM = 2, 4
"""Names of random streams, apart from training: 0 and 1 are in trainer/sampling.py, 3 and 5 in trainer/recorder.py."""


@dataclass(frozen=True)
class Manner:
    """How everything is answered, the same before and after."""

    prompts: PromptConfig
    stop: tuple[str, ...]
    """Texts that end a completion."""
    max_prompt_tokens: int | None
    """Of a suite's item; None: as the model's context allows, as in a run, whose data.max_prompt_tokens is of
    problems."""
    max_completion_tokens: int
    temperature: float
    samples: int
    """Completions per problem."""
    seed: int


@dataclass(frozen=True, slots=True)
class Answered:
    """One completion to be judged."""

    index: int
    """Of its problem among the task's prompts."""
    completion: str
    tokens: int


@dataclass(frozen=True)
class Task:
    """One set of problems with its judge."""

    name: str
    """Of the suite, or `heldout`."""
    prompts: Encoded
    max_completion_tokens: int
    stream: tuple[int, ...]
    """Beginning of the key that its random numbers are drawn by: no task's completions depend on which others run."""
    judge: Callable[[Sequence[Answered], Callable[[], None]], list[ComponentScore]]
    """One score each, in order, its value 0 to 1, or null with an error. Never raises for a completion, unless the run
    is to stop; the function that it is given is called often, and may raise to stop."""
    parts: Sequence[tuple[str, str]]
    """Slice and cluster of each problem."""
    protocol: dict[str, Any]
    """What must be equal before and after. Digests are SHA-256."""


def manner_of(config: AnsweringConfig) -> Manner:
    """As the config says it."""
    return Manner(
        prompts=config.data,
        stop=config.sampling.stop,
        max_prompt_tokens=None,
        max_completion_tokens=config.eval_max_completion_tokens,
        temperature=config.eval.temperature,
        samples=config.eval.samples_per_problem,
        seed=config.seed,
    )


def heldout_task(encoded: Encoded, *, runner: Runner, manner: Manner) -> Task:
    """Right or wrong by the success component of `runner`'s reward."""
    reward = runner.rubric.config
    problems = [prompted.problem for prompted in encoded.prompts]
    digest = problems_digest(problems)
    return Task(
        name=HELDOUT,
        prompts=encoded,
        max_completion_tokens=manner.max_completion_tokens,
        stream=(manner.seed, _HELDOUT_STREAM),
        judge=partial(_passed, problems, runner, reward.success_of, manner.prompts.prefill),
        parts=[("", "")] * len(problems),
        protocol={
            **_protocol(manner, encoded, manner.prompts.template, manner.max_completion_tokens),
            "success": reward.success_component,
            "reward_digest": runner.rubric.digest,
            "problems": len(problems),
            "problems_digest": digest,
            "items_digest": digest,
            "scorer_digest": runner.rubric.digest,
        },
    )


def first_of(task: Task, limit: int | None) -> Task:
    """The task of its first `limit` problems, each with the random numbers that it has in the whole; `task` itself
    where it has no more."""
    if limit is None or limit >= len(task.prompts.prompts):
        return task
    return replace(
        task,
        prompts=replace(task.prompts, prompts=task.prompts.prompts[:limit]),
        parts=task.parts[:limit],
        protocol={**task.protocol, "problems": limit, "first": limit},
    )


def suite_task(suite: Suite, encoded: Encoded, manner: Manner) -> Task:
    """`encoded` is what `encode_items` gave."""
    config = suite.config
    longest = _longest(suite, manner)
    return Task(
        name=config.name,
        prompts=encoded,
        max_completion_tokens=longest,
        stream=(manner.seed, _SUITE_STREAM, int.from_bytes(hashlib.sha256(config.name.encode()).digest()[:8])),
        judge=partial(_scored, suite, manner.prompts.prefill),
        parts=[(item.slice, item.cluster) for item in suite.items],
        protocol={
            **_protocol(manner, encoded, _template(suite, manner), longest),
            "problems": len(suite.items),
            "suite_version": config.version,
            "title": config.title,
            "category": config.category,
            "higher_is": config.higher_is,
            "file_sha256": suite.sha256,
            "items_digest": suite.digest,
            "scorer": config.scorer.kind,
            "scorer_digest": suite.scorer.digest,
        },
    )


def encode_items(suite: Suite, encoder: PromptEncoder, manner: Manner) -> Encoded:
    """Every item as the policy sees it; none is dropped. Raises DataError naming suite and item."""
    problems = [item.problem() for item in suite.items]
    return encode_problems(problems, encoder, template=_template(suite, manner), source=f"suite {suite.config.name}")


def suite_fits(suite: Suite, encoded: Encoded, manner: Manner, *, context: int | None) -> None:
    """As `prompts_fit`, of a suite's items and its own limit."""
    longest = _longest(suite, manner)
    prompts_fit(encoded, manner, longest=longest, context=context, source=f"suite {suite.config.name}", each="item")


def prompts_fit(encoded: Encoded, manner: Manner, *, longest: int, context: int | None, source: str, each: str) -> None:
    """Raises DataError for a prompt over the manner's `max_prompt_tokens`, ConfigError for one that leaves no room for
    a completion of `longest` tokens in the model's `context`; both name the source and the item, `each` in words."""
    for prompted in encoded.prompts:
        tokens = len(prompted.tokens)
        if manner.max_prompt_tokens is not None and tokens > manner.max_prompt_tokens:
            raise DataError(
                f"{source}: the prompt of {each} {prompted.problem.id} has {tokens} tokens, over "
                f"--max-prompt-tokens {manner.max_prompt_tokens}; raise the limit, or take the {each} out"
            )
        if context is not None and tokens + longest > context:
            raise ConfigError(
                f"{source}: the prompt of {each} {prompted.problem.id} ({tokens} tokens) and the completion limit "
                f"({longest}) need {tokens + longest} positions; the model has {context}. Lower "
                f"max_completion_tokens, or take the {each} out"
            )


def _protocol(manner: Manner, encoded: Encoded, template: str, longest: int) -> dict[str, Any]:
    return {
        "template": template,
        "chat": dict(encoded.chat),
        "stop": list(manner.stop),
        "temperature": manner.temperature,
        "samples_per_problem": manner.samples,
        "max_completion_tokens": longest,
        "seed": manner.seed,
    }


def _template(suite: Suite, manner: Manner) -> str:
    return suite.config.template if suite.config.template is not None else manner.prompts.template


def _longest(suite: Suite, manner: Manner) -> int:
    return suite.config.max_completion_tokens or manner.max_completion_tokens


def _passed(
    problems: Sequence[Problem],
    runner: Runner,
    success: Callable[[Collection[str]], str],
    prefill: str,
    answered: Sequence[Answered],
    check: Callable[[], None],
) -> list[ComponentScore]:
    """All in one go, so that a parallel verifier has enough to do."""
    samples = [ScoreRequest(problems[answer.index], answer.completion, answer.tokens, prefill) for answer in answered]
    scores = [scored.components[success(scored.components)] for scored in runner.score(samples, check=check)]
    return [score.model_copy(update={"value": float(score.passed is True)}) for score in scores]


def _scored(
    suite: Suite, prefill: str, answered: Sequence[Answered], check: Callable[[], None]
) -> list[ComponentScore]:
    answers = [(suite.items[answer.index], answer.completion) for answer in answered]
    return suite.scorer.score(answers, check, prefill=prefill)
