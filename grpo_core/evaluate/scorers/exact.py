"""exact: the answer is the target, or one of the targets, character by character."""

from grpo_core.evaluate.item import SuiteItem
from grpo_core.evaluate.scorers.base import Answer, Params, Score, answer_in, shown, texts_of

VERSION = 1


class ExactParams(Params):
    extract: Answer = "auto"
    """Where the answer stands: answer_tag `<answer>…</answer>`, hashes `#### …`, boxed `\\boxed{…}`, last_number, whole
    for the completion itself; auto takes the first of the marks that is there, else the whole."""
    ignore_case: bool = False
    """Take capital and small letters as equal."""
    ignore_whitespace: bool = True
    """Take any run of white space as one space. White space at the ends never counts."""


def fault(item: SuiteItem, params: ExactParams) -> str | None:
    if texts_of(item.target) is None:
        return "'target' must be a text, or a list of texts of which any is right, to be compared exactly"
    return None


def score(item: SuiteItem, completion: str, params: ExactParams) -> Score:
    """1 when equal to a target, else 0."""
    answer, missing = answer_in(completion, params.extract, unmarked="whole")
    if answer is None:
        return Score(0.0, missing)
    wanted = {_normal(text, params) for text in texts_of(item.target) or ()}
    return Score(float(_normal(answer, params) in wanted), shown(answer))


def _normal(text: str, params: ExactParams) -> str:
    text = " ".join(text.split()) if params.ignore_whitespace else text.strip()
    return text.casefold() if params.ignore_case else text
