"""What the scorers of suite items share. Everything here runs on text that a model wrote: it takes time about linear in
it, and executes nothing. Loads no torch."""

from dataclasses import dataclass
from typing import Any, Literal

from grpo_core.rewards.base import Extract, Params, extract_answer, missing_answer, shown

__all__ = ["Answer", "Params", "Score", "answer_in", "shown", "texts_of"]

Answer = Literal["auto", "answer_tag", "hashes", "boxed", "last_number", "whole"]

_MARKED: tuple[Extract, ...] = ("answer_tag", "hashes", "boxed")


@dataclass(frozen=True, slots=True)
class Score:
    """A scorer's word on one completion."""

    score: float
    """0 to 1; 0 on an error."""
    detail: str = ""
    """What was extracted, or why it was not right."""
    error: str | None = None
    """Class and message of what the scorer raised; null when it could judge."""


def answer_in(completion: str, how: Answer, *, unmarked: Extract) -> tuple[str | None, str]:
    """The answer that the completion gives and, where there is none, what is missing. auto: the last `<answer>` tag,
    else what follows the last `####`, else the last `\\boxed{…}`, else `unmarked`."""
    if how != "auto":
        return extract_answer(completion, how), missing_answer(how)
    for mark in _MARKED:
        if (found := extract_answer(completion, mark)) is not None:
            return found, ""
    return extract_answer(completion, unmarked), missing_answer(unmarked)


def texts_of(target: Any) -> list[str] | None:
    """A target that is a text or a list of texts, as a list; None when it is neither, or one is empty."""
    texts = target if isinstance(target, list) else [target]
    return texts if texts and all(isinstance(text, str) and text.strip() for text in texts) else None
