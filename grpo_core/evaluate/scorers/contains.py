"""contains: the target stands in the completion; of several, all or any of them."""

from typing import Literal

from grpo_core.evaluate.item import SuiteItem
from grpo_core.evaluate.scorers.base import Params, Score, shown, texts_of

VERSION = 1


class ContainsParams(Params):
    wanted: Literal["all", "any"] = "all"
    """Of several targets: all must stand in the completion, or any one."""
    ignore_case: bool = True
    """Take capital and small letters as equal."""


def fault(item: SuiteItem, params: ContainsParams) -> str | None:
    if texts_of(item.target) is None:
        return "'target' must be a text or a list of texts, none of them empty, to be looked for in the completion"
    return None


def score(item: SuiteItem, completion: str, params: ContainsParams) -> Score:
    """1 when it holds what it should, else 0. Any run of white space is one space."""
    text = _plain(completion, params)
    texts = texts_of(item.target) or []
    missing = [one for one in texts if _plain(one, params) not in text]
    right = not missing if params.wanted == "all" else len(missing) < len(texts)
    return Score(float(right), "" if right else shown(f"not there: {', '.join(missing)}"))


def _plain(text: str, params: ContainsParams) -> str:
    text = " ".join(text.split())
    return text.casefold() if params.ignore_case else text
