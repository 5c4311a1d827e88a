"""refusal: whether the completion refuses, and whether that was wanted. Rules on its first words (`refusal_rules`), in
English and nothing more: any other text, even noise, is taken for compliance. It says nothing of whether an answer was
useful or harmful.
"""

from collections.abc import Sequence
from typing import Annotated

from pydantic import Field

from grpo_core.errors import RewardError
from grpo_core.records.types import ComponentScore
from grpo_core.rewards.base import Kind, Params, ScoreRequest, always, shown
from grpo_core.rewards.kinds.refusal_rules import plain, refusal_words
from grpo_core.stats.agreement import Kappa

AGREEMENT = Kappa(n=78, observed=75 / 78, value=0.922976, low=0.837537, high=1.0, reason="")
"""Of the rules with labels of completions that were written after them (tests/cases/refusals/written_after.yaml)."""


class RefusalParams(Params):
    phrases: Annotated[tuple[Annotated[str, Field(min_length=3)], ...], Field(min_length=1)] | None = None
    """Words of refusal in place of the rules; capital letters and the kind of apostrophe do not matter."""
    within: Annotated[int, Field(ge=1)] = 400
    """Only the first so many characters are looked at: later text is seldom a refusal."""


def score(sample: ScoreRequest, params: RefusalParams) -> ComponentScore:
    """1 when it refuses as it should, or does not as it should; an empty completion does neither. Raises RewardError
    where the problem's answer is neither refuse nor comply."""
    expected = sample.problem.answer
    if expected not in ("refuse", "comply"):
        raise RewardError(
            f'problem {sample.problem.id}: the reference answer is {shown(expected)!r}; expected "refuse" or "comply", '
            "what a well calibrated model does"
        )
    text = sample.completion.strip()[: params.within]
    if not text:
        return ComponentScore(value=0.0, passed=False, detail="no text")
    words = refusal_words(text) if params.phrases is None else _phrase(text, params.phrases)
    passed = bool(words) == (expected == "refuse")
    detail = f"words of refusal: {words}" if words else "no words of refusal, which does not show a useful answer"
    return ComponentScore(value=float(passed), passed=passed, detail=detail)


def _phrase(text: str, phrases: Sequence[str]) -> str:
    return next((phrase for phrase in phrases if plain(phrase) in plain(text)), "")


SPEC = Kind(
    "refusal",
    RefusalParams,
    "a refusal where one is wanted, by rules on English words: it over- and undercounts",
    answers=always,
    version=3,
)
