"""contains: the reference is part of the completion; of several references, all of them or any."""

from typing import Literal

from grpo_core.records.types import ComponentScore
from grpo_core.rewards.base import Column, Kind, Params, ScoreRequest, compares_answer, reference_texts, shown


class ContainsParams(Params):
    column: Column = ""
    """Field of the problem with a text, or a list of texts, to look for. Empty: the problem's answer."""
    wanted: Literal["all", "any"] = "all"
    """Of several texts: all must be in the completion, or any one."""
    ignore_case: bool = True
    """Take capital and small letters as equal."""


def score(sample: ScoreRequest, params: ContainsParams) -> ComponentScore:
    """1 or 0; any run of white space is one space. Raises RewardError for a problem without a text to look for."""
    texts = reference_texts(sample.problem, params.column)
    completion = _plain(sample.completion, params)
    missing = [text for text in texts if _plain(text, params) not in completion]
    passed = not missing if params.wanted == "all" else len(missing) < len(texts)
    detail = "" if passed else shown(f"missing: {', '.join(missing)}")
    return ComponentScore(value=float(passed), passed=passed, detail=detail)


def _plain(text: str, params: ContainsParams) -> str:
    text = " ".join(text.split())
    return text.casefold() if params.ignore_case else text


SPEC = Kind("contains", ContainsParams, "the reference is part of the completion", answers=compares_answer)
