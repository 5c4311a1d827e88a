"""exact: the extracted answer is the reference answer, character by character."""

from grpo_core.records.types import ComponentScore
from grpo_core.rewards.base import Extract, Kind, Params, Unscored, extract_answer, missing_answer, shown


class ExactParams(Params):
    extract: Extract = "answer_tag"
    """Where the answer stands: answer_tag `<answer>…</answer>`, hashes `#### …`, boxed `\\boxed{…}`, last_number, or
    whole for the completion itself."""
    ignore_case: bool = False
    """Take capital and small letters as equal."""
    ignore_whitespace: bool = True
    """Take any run of white space as one space. White space at the ends never counts."""


def score(sample: Unscored, params: ExactParams) -> ComponentScore:
    """1 when equal, else 0."""
    answer = extract_answer(sample.completion, params.extract)
    if answer is None:
        return ComponentScore(value=0.0, passed=False, detail=missing_answer(params.extract))
    passed = _normal(answer, params) == _normal(sample.problem.answer, params)
    return ComponentScore(value=float(passed), passed=passed, detail=shown(answer))


def _normal(text: str, params: ExactParams) -> str:
    text = " ".join(text.split()) if params.ignore_whitespace else text.strip()
    return text.casefold() if params.ignore_case else text


SPEC = Kind(
    "exact",
    ExactParams,
    "here",
    __name__,
    "the answer equals the reference, character by character",
)
