"""length: rewards a length within bounds, or by the cosine of it, apart for right and wrong answers.

Source of the cosine: Demystifying Long Chain-of-Thought Reasoning, arXiv 2502.03373, "cosine reward". Counting takes
one pass over the text; another rule decides whether the answer is right.
"""

import math
from typing import Annotated, Literal

from pydantic import Field, JsonValue, ValidationError

from grpo_core.records.types import ComponentScore
from grpo_core.rewards.base import Kind, Params, ScoreRequest
from grpo_core.rewards.kinds import choice, exact, numeric
from grpo_core.specs.fields import Count, CountOrZero

Judge = Literal["exact", "numeric", "choice"]
_JUDGES: dict[Judge, Kind] = {"exact": exact.SPEC, "numeric": numeric.SPEC, "choice": choice.SPEC}


class LengthParams(Params):
    unit: Literal["tokens", "words", "characters"] = "tokens"
    """What is counted. tokens: of the policy's tokenizer, the end token included; a pasted text has none. words: parted
    by white space, so of no use for Chinese, Japanese and Thai."""
    shape: Literal["linear", "cosine"] = "linear"
    """linear: 1 between least and most, falling in a straight line to 0 on either side. cosine: by right_by."""
    least: CountOrZero = 0
    """linear: below it the value is length / least."""
    most: Count = 512
    """linear: above it the value falls, until it is 0 at limit."""
    limit: Count = 1024
    """linear: 0 from here on. cosine: the length at which the curve ends; from here on the value is exceeded."""
    right_by: Judge = "numeric"
    """cosine: the kind of reward that says whether the answer is right."""
    right_params: Annotated[dict[str, JsonValue], Field(default_factory=dict)]
    """cosine: that kind's parameters."""
    right_short: float = 1.0
    """cosine: value of a right answer of length 0 (the paper's r₀ᶜ)."""
    right_long: float = 0.5
    """cosine: value of a right answer at limit (r_Lᶜ)."""
    wrong_short: float = -1.0
    """cosine: value of a wrong answer of length 0 (r₀ʷ)."""
    wrong_long: float = 0.0
    """cosine: value of a wrong answer at limit (r_Lʷ)."""
    exceeded: float = -1.0
    """cosine: value of a completion as long as limit or longer, right or wrong (r_e)."""


def faults(params: LengthParams) -> list[tuple[str, str]]:
    if params.shape == "linear":
        if not params.least <= params.most < params.limit:
            message = f"must be in this order: least {params.least}, most {params.most}, limit {params.limit}"
            return [("limit", message)]
        return []
    kind, given = _judge(params)
    if isinstance(given, str):
        return [("right_params", given)]
    return [("right_params", f"{name}: {fault}") for name, fault in kind.check(given)]


def columns(params: LengthParams) -> frozenset[str]:
    kind, given = _judge(params)
    return frozenset() if params.shape == "linear" or isinstance(given, str) else kind.columns(given)


def answers(params: LengthParams) -> bool:
    kind, given = _judge(params)
    return params.shape == "cosine" and not isinstance(given, str) and kind.answers(given)


def score(sample: ScoreRequest, params: LengthParams) -> ComponentScore:
    """The shape's value. Raises RewardError where the completion's tokens are not known."""
    length = _length(sample, params)
    shown_length = f"{length:,} {params.unit}"
    if params.shape == "linear":
        value = linear(length, least=params.least, most=params.most, limit=params.limit)
        return ComponentScore(value=value, passed=value == 1.0, detail=shown_length)
    kind, given = _judge(params)
    assert not isinstance(given, str)  # refused by `faults`
    judged: ComponentScore = kind.rule()(kind.sees(sample, given), given)
    if judged.error is not None:
        return judged
    right = bool(judged.passed)
    detail = f"{shown_length}, {'right' if right else 'wrong'}: {judged.detail}"
    if length >= params.limit:
        return ComponentScore(value=params.exceeded, passed=False, detail=detail)
    short, long = (params.right_short, params.right_long) if right else (params.wrong_short, params.wrong_long)
    return ComponentScore(value=cosine(length, params.limit, short, long), passed=right, detail=detail)


def linear(length: int, *, least: int, most: int, limit: int) -> float:
    """length / least below `least`, 1 up to `most`, then in a straight line to 0 at `limit`."""
    if length < least:
        return length / least
    if length <= most:
        return 1.0
    return max((limit - length) / (limit - most), 0.0)


def cosine(length: int, limit: int, short: float, long: float) -> float:
    """`short` at length 0, `long` at `limit`, half a cosine between: long + ½ (short − long)(1 + cos(π · length /
    limit)).

    Source: arXiv 2502.03373, CosFn.
    """
    return long + 0.5 * (short - long) * (1.0 + math.cos(math.pi * length / limit))


def _length(sample: ScoreRequest, params: LengthParams) -> int:
    if params.unit == "tokens":
        return sample.known_tokens()
    return len(sample.completion.split() if params.unit == "words" else sample.completion)


def _judge(params: LengthParams) -> tuple[Kind, Params | str]:
    """The kind that says what is right and its parameters, or what is wrong with these."""
    kind = _JUDGES[params.right_by]
    try:
        return kind, kind.params.model_validate(params.right_params)
    except ValidationError as error:
        first = error.errors()[0]
        return kind, f"{'.'.join(map(str, first['loc']))}: {first['msg']}"


SPEC = Kind(
    "length",
    LengthParams,
    "a length within bounds, or by its cosine, apart for right and wrong answers",
    check=faults,
    columns=columns,
    answers=answers,
)
