"""reasoning_gym: the scorer of the reasoning-gym task that made the problem.

The scorers are a third party's code over text that a model wrote, and some evaluate it: they run in the sandbox, each
sample in a separate process.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Annotated, Any

from pydantic import Field

from grpo_core.data import gym
from grpo_core.data.problem import Problem
from grpo_core.errors import ConfigError, RewardError
from grpo_core.records.types import ComponentScore
from grpo_core.rewards.base import Context, Extract, Kind, Params, ScoreRequest, extract_answer, missing_answer, shown
from grpo_core.rewards.python.session import Sessions
from grpo_core.rewards.scoring import failed
from grpo_core.specs.fields import Positive

AUTO = "auto"


class GymParams(Params):
    task: str = AUTO
    """Name of a task whose problems alone are scored; auto: each problem by the task that made it."""
    extract: Extract = "answer_tag"
    """Where the answer is: answer_tag `<answer>…</answer>`, hashes `#### …`, boxed `\\boxed{…}`, last_number, or
    whole for the completion itself."""
    full_marks_only: bool = False
    """Score 1 for a right answer and else 0. Many tasks give part of it, some 0.01 to 0.05 for any answer at all."""
    memory_mb: Annotated[int, Field(ge=256, le=16384)] = 2048
    """Most memory of a process that scores, in MiB."""
    call_seconds: Positive | None = None
    """Longest that scoring one sample may take, at most the reward's limits.deadline_seconds; empty: as long."""


def faults(params: GymParams) -> Iterator[tuple[str, str]]:
    if params.task != AUTO:
        try:
            gym.known(params.task)
        except ConfigError as error:
            yield "task", str(error)


def check_problem(problem: Problem, params: GymParams) -> None:
    task = problem.meta.get(gym.META)
    if not isinstance(task, dict) or not isinstance(task.get("entry"), dict) or task.get("name") not in gym.NAMES:
        raise RewardError(f"problem {problem.id} was made by no task: its field {gym.META!r} is none of `grpo tasks`")
    if params.task not in (AUTO, task["name"]):
        raise RewardError(
            f"problem {problem.id} was made by the task {task['name']}, and this reward is for {params.task}"
        )


class GymScorer:
    """Holds open the boxes that reasoning-gym is loaded in."""

    def __init__(self, params: GymParams, context: Context) -> None:
        gym.installed()
        self._params = params
        self._sessions = Sessions(
            "gym_inside.py",
            context.limits,
            hello={"tasks": [] if params.task == AUTO else [params.task]},
            packages=(gym.PACKAGE,),
            memory_mb=params.memory_mb,
            call_seconds=params.call_seconds,
        )

    def score(self, samples: Sequence[ScoreRequest], check: Callable[[], None]) -> list[ComponentScore]:
        scores: list[ComponentScore | None] = [self._at_once(sample) for sample in samples]
        pending = [(at, sample) for at, sample in enumerate(samples) if scores[at] is None]
        answers = self._sessions.submit([self._request(sample) for _, sample in pending], check)
        for (at, sample), answer in zip(pending, answers, strict=True):
            scores[at] = answer.score(lambda reply, sample=sample: self._score(reply, sample))  # type: ignore[misc]
        return [score for score in scores if score is not None]

    def facts(self) -> dict[str, Any]:
        return {"task": self._params.task, **self._sessions.facts()}

    def close(self) -> None:
        self._sessions.close()

    def _at_once(self, sample: ScoreRequest) -> ComponentScore | None:
        """What needs no scorer: a problem that no task made, a completion without an answer."""
        try:
            check_problem(sample.problem, self._params)
        except RewardError as error:
            return failed("sample", str(error))
        if not extract_answer(sample.completion, self._params.extract):
            return ComponentScore(value=0.0, passed=False, detail=missing_answer(self._params.extract))
        return None

    def _request(self, sample: ScoreRequest) -> dict[str, Any]:
        return {
            "answer": extract_answer(sample.completion, self._params.extract),
            "task": sample.problem.meta[gym.META],
        }

    def _score(self, reply: dict[str, Any], sample: ScoreRequest) -> ComponentScore:
        value, detail = reply.get("value"), reply.get("detail")
        if not isinstance(value, float) or not 0 <= value <= 1 or not isinstance(detail, str):
            return failed("value", f"the task's scorer gave {str(value)[:100]}, which is no share from 0 to 1")
        passed = value >= 1
        if self._params.full_marks_only:
            value = float(passed)
        given = extract_answer(sample.completion, self._params.extract) or ""
        return ComponentScore(value=value, passed=passed, detail=detail or shown(given))


open_scorer = GymScorer


SPEC = Kind(
    "reasoning_gym",
    GymParams,
    "the scorer of the reasoning-gym task that made the problem",
    "sandbox",
    check=faults,
    check_problem=check_problem,
    columns=lambda params: frozenset({gym.META}),
)
