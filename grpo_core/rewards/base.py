"""What the reward kinds share: parameters, and how an answer is taken out of a completion.

Everything here runs on text that a model wrote: each extraction takes time linear in it and executes nothing.
"""

import re
from typing import Literal

from pydantic import BaseModel, ConfigDict

Extract = Literal["answer_tag", "hashes", "boxed", "last_number", "whole"]

_NUMBER = re.compile(r"(?:(?<![\w.)])[-−])?[$€£¥]?[0-9](?:[0-9,]*[0-9])?(?:\.[0-9]+)?(?:/[0-9]+)?%?")
_SHOWN = 200


class Params(BaseModel):
    """Base of every kind's parameters: frozen, no unknown fields, field docstrings kept as descriptions."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True, allow_inf_nan=False)


def extract_answer(completion: str, how: Extract) -> str | None:
    """The part of `completion` that is its answer, stripped; None when there is none.

    answer_tag: inside the last `<answer>…</answer>`. hashes: the rest of the line after the last `####`.
    boxed: inside the last `\\boxed{…}`, braces balanced. last_number: the last number in the text. whole: all of it.
    """
    match how:
        case "answer_tag":
            end = completion.rfind("</answer>")
            start = completion.rfind("<answer>", 0, end) if end >= 0 else -1
            return completion[start + len("<answer>") : end].strip() if start >= 0 else None
        case "hashes":
            _, marks, rest = completion.rpartition("####")
            return rest.partition("\n")[0].strip() if marks else None
        case "boxed":
            return _boxed(completion)
        case "last_number":
            numbers = _NUMBER.findall(completion)
            return numbers[-1] if numbers else None
        case "whole":
            return completion.strip()


def missing_answer(how: Extract) -> str:
    """What to say when `extract_answer` found nothing."""
    return {
        "answer_tag": "no <answer>…</answer>",
        "hashes": "no ####",
        "boxed": "no \\boxed{…}",
        "last_number": "no number",
        "whole": "no text",
    }[how]


def shown(text: str) -> str:
    """Text for a detail line: cut when long, so that a record does not hold a completion twice."""
    return text if len(text) <= _SHOWN else text[: _SHOWN - 1] + "…"


def _boxed(completion: str) -> str | None:
    start = completion.rfind("\\boxed{")
    if start < 0:
        return None
    start += len("\\boxed{")
    depth = 1
    for place in range(start, len(completion)):
        depth += {"{": 1, "}": -1}.get(completion[place], 0)
        if depth == 0:
            return completion[start:place].strip()
    return None
