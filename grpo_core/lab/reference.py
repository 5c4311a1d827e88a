"""What a row of a dataset answers: its own worked completion, or its reference answer in the form that the reward pays
most."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from grpo_core.data.problem import Problem
from grpo_core.probe.cases.cases import asked
from grpo_core.probe.cases.forms import forms_for
from grpo_core.rewards.base import Unscored
from grpo_core.rewards.runner import Runner

OWN = ("completion", "solution")
"""Fields of a row that hold a whole answer."""
_TRIED = 10
"""Problems on which forms are compared."""


@dataclass(frozen=True)
class RowAnswer:
    problem: Problem
    completion: str
    origin: Literal["row", "reference"]


@dataclass(frozen=True)
class Answered:
    answers: list[RowAnswer]
    form: str | None
    """In words, the form of the reference answers; None where every row has an answer of its own."""


def answered(problems: Sequence[Problem], *, runner: Runner, check: Callable[[], None] = lambda: None) -> Answered:
    """One answer for each problem, in order."""
    told = asked(runner.rubric, problems)
    bare = [one for one in told if _own(one.problem) is None]
    if not bare:
        return Answered([RowAnswer(one, _own(one) or "", "row") for one in problems], None)
    tried = bare[:_TRIED]
    best, most = None, float("-inf")
    for form in forms_for(runner.rubric, {one.subject for one in bare}):
        texts = [(one.problem, form.write(one.problem, one.gold)) for one in tried]
        samples = [Unscored(problem, text) for problem, text in texts if text is not None]
        earned = sum(scored.reward or 0.0 for scored in runner.score(samples, check=check)) / len(tried)
        if samples and earned > most + 1e-9:  # the first of equals: the one that the parameters name first
            best, most = form, earned
    answers = []
    for one in told:
        own = _own(one.problem)
        if own is not None:
            answers.append(RowAnswer(one.problem, own, "row"))
        else:
            text = best.write(one.problem, one.gold) if best is not None else None
            answers.append(RowAnswer(one.problem, one.gold if text is None else text, "reference"))
    return Answered(answers, best.title if best is not None else None)


def _own(problem: Problem) -> str | None:
    for field in OWN:
        text = problem.meta.get(field)
        if isinstance(text, str) and text.strip():
            return text
    return None
