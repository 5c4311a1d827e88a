"""exact: the extracted answer is the reference answer, or one of several, character by character."""

from grpo_core.records.types import ComponentScore
from grpo_core.rewards.base import (
    Column,
    Extract,
    Kind,
    Params,
    ScoreRequest,
    compares_answer,
    extract_answer,
    missing_answer,
    reference_texts,
    shown,
)


class ExactParams(Params):
    extract: Extract = "answer_tag"
    """Where the answer is: answer_tag `<answer>…</answer>`, hashes `#### …`, boxed `\\boxed{…}`, last_number,
    whole for the completion itself, or marked for the first of the marks that is there, else the whole."""
    column: Column = ""
    """Field of the problem with the reference: a text, or a list of texts of which any is right. Empty: the problem's
    answer."""
    ignore_case: bool = False
    """Take capital and small letters as equal."""
    ignore_whitespace: bool = True
    """Take any run of white space as one space. White space at the ends never counts."""


def score(sample: ScoreRequest, params: ExactParams) -> ComponentScore:
    """1 when equal to a reference, else 0. Raises RewardError when the column holds no text."""
    references = reference_texts(sample.problem, params.column)
    answer = extract_answer(sample.completion, params.extract)
    if answer is None:
        return ComponentScore(value=0.0, passed=False, detail=missing_answer(params.extract))
    passed = _normal(answer, params) in {_normal(text, params) for text in references}
    return ComponentScore(value=float(passed), passed=passed, detail=shown(answer))


def _normal(text: str, params: ExactParams) -> str:
    text = " ".join(text.split()) if params.ignore_whitespace else text.strip()
    return text.casefold() if params.ignore_case else text


SPEC = Kind("exact", ExactParams, "the answer equals the reference, character by character", answers=compares_answer)
