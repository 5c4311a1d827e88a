"""number: the answer is the same number as the target. Compared by the reward kind numeric; digits of other scripts
count as digits."""

import unicodedata
from typing import Annotated, Literal

from pydantic import Field

from grpo_core.data.problem import Problem
from grpo_core.errors import RewardError
from grpo_core.evaluate.item import SuiteItem
from grpo_core.evaluate.scorers.base import Answer, Params, Score, answer_in, shown
from grpo_core.rewards.base import Unscored
from grpo_core.rewards.kinds import numeric

VERSION = 1


class NumberParams(Params):
    extract: Answer = "auto"
    """Where the answer stands: answer_tag `<answer>…</answer>`, hashes `#### …`, boxed `\\boxed{…}`, last_number, whole
    for the completion itself; auto takes the first of the marks that is there, else the last number."""
    tolerance: Annotated[float, Field(ge=0)] = 0.0
    """Largest difference that still counts as equal; 0 asks for exactly the same number."""
    percent: Literal["ratio", "ignore"] = "ignore"
    """ratio: `50 %` is the number 0.5. ignore: the sign is dropped, so `50 %` is 50."""


def fault(item: SuiteItem, params: NumberParams) -> str | None:
    if isinstance(item.target, bool) or not isinstance(item.target, str | int | float):
        return "'target' must be a number, or the text of one"
    try:
        _compare(item, "0", params)
    except RewardError:
        return f"'target' is {shown(str(item.target))!r}, which is not a number that can be compared"
    return None


def score(item: SuiteItem, completion: str, params: NumberParams) -> Score:
    """1 when both are the same number, else 0."""
    answer, missing = answer_in(_ascii_digits(completion), params.extract, unmarked="last_number")
    return Score(0.0, missing) if answer is None else _compare(item, answer, params)


def _compare(item: SuiteItem, answer: str, params: NumberParams) -> Score:
    settings = numeric.NumericParams(extract="whole", tolerance=params.tolerance, percent=params.percent)
    problem = Problem(id=item.id, prompt=item.prompt, answer=_ascii_digits(str(item.target)))
    found = numeric.score(Unscored(problem, answer), settings)
    return Score(found.value or 0.0, found.detail)


def _ascii_digits(text: str) -> str:
    """Decimal digits of any script as 0 to 9: ১২ is 12."""
    if text.isascii():
        return text
    return "".join(str(unicodedata.decimal(char)) if not char.isascii() and char.isdecimal() else char for char in text)
