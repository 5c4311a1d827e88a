"""choice: the option that the answer names is the right one, by its letter or its text.

A match of text, not a reading: an answer that hedges between options names none. It looks only where `extract` says, so
that naming every option somewhere earns nothing. One pass over the text.
"""

import re
from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import Field

from grpo_core.data.problem import Problem
from grpo_core.errors import RewardError
from grpo_core.records.types import ComponentScore
from grpo_core.rewards.base import Column, Kind, Params, ScoreRequest, always, extract_answer, missing_answer, shown

LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
NAMES_NONE = "names no option"

_BEFORE = r"(?:\\(?:text|textbf|mathrm|mathbf|boxed)\{|[*_(\[{$\"'`]){0,4}"
_AFTER = r"[*_)\]}$\"'`]{0,4}"
_ALONE = re.compile(rf"{_BEFORE}([A-Za-z]){_AFTER}[.:]?")
_OPENING = re.compile(r"[*_(\[]{0,3}([A-Z])(?:[*_]{0,2}[.:)\]]|[*_]{2})[*_]{0,2}\s+(?=\S)")
_MARKED = re.compile(r"(?<!\w)\(?([A-Z])[*_]{0,2}[.:)](?!\w)")
_STATED = r"(?:\s++is\b)?+\s*+:?+\s*+[*_(\[$\"']{0,3}([A-Z])(?=[.,:;!*_)\]$\"'\s]|$)"
_ANSWER_STATED = re.compile(rf"(?i:\banswer){_STATED}")
_OPTION_STATED = re.compile(rf"(?i:\b(?:option|choice)){_STATED}")
_AND_ANOTHER = re.compile(r"[*_)\]$\"']{0,3}\s*+(?:,|/|&|or\b|and\b)\s*+[*_(\[$\"']{0,3}([A-Z])(?![\w'’])")
_CONTINUES = re.compile(r"[ \t]++\w")
_WORDS = re.compile(r"\w+")


class ChoiceParams(Params):
    extract: Literal["answer_tag", "hashes", "boxed", "whole", "marked"] = "answer_tag"
    """Where the answer is: answer_tag `<answer>…</answer>`, hashes `#### …`, boxed `\\boxed{…}`, whole for the
    completion itself, or marked for the first of the marks that is there, else the whole."""
    column: Column = ""
    """Field of the problem that lists the options' texts, such as choices; then a text is taken for its letter. Empty:
    letters alone."""
    options: Annotated[int, Field(ge=2, le=26)] = 4
    """How many options there are when no column lists them: 4 is A to D."""
    reference: Literal["letter", "text", "from_0", "from_1"] = "letter"
    """What the problem's answer is: letter, the option's text, or its number from_0 or from_1."""
    letters: bool = True
    """Take an option's letter for an answer; off asks for its text."""
    inside: bool = False
    """Where no option is named otherwise, take the one whose text is part of the answer, and no other's: `the capital
    is Paris`."""


def faults(params: ChoiceParams) -> list[tuple[str, str]]:
    if params.reference == "text" and not params.column:
        return [("reference", "an answer that is an option's text needs the column that lists the options")]
    if not params.letters and not params.column:
        return [("letters", "an option can be named by its text only where a column lists the options")]
    return []


def score(sample: ScoreRequest, params: ChoiceParams) -> ComponentScore:
    """1 when the option named is the reference, else 0. Raises RewardError for a problem without options or answer."""
    texts = _texts(sample.problem, params)
    count = len(texts) or params.options
    right = _reference(sample.problem, texts, count, params)
    answer = extract_answer(sample.completion, params.extract)
    if answer is None:
        return ComponentScore(value=0.0, passed=False, detail=missing_answer(params.extract))
    option, how = named_option(answer, count, texts, letters=params.letters)
    if option is None and params.inside and how == NAMES_NONE:
        option, how = _option_inside(answer, texts)
    if option is None:
        return ComponentScore(value=0.0, passed=False, detail=how)
    passed = option == right
    return ComponentScore(value=float(passed), passed=passed, detail=f"{LETTERS[option]} ({how})")


def named_option(text: str, count: int, texts: Sequence[str] = (), *, letters: bool = True) -> tuple[int | None, str]:
    """Number of the option that `text` names, from 0, and how; None with the reason.

    In this order: the whole text is a letter, or an option's text; it opens with a letter and a mark (`B. Paris`) and
    marks no other; the last letter after "answer", else after "option" or "choice". Two letters in a row name none.
    """
    text = text.strip()
    if not text:
        return None, "no text"
    by_text = [number for number, option in enumerate(texts) if _plain(option) == _plain(text)]
    if letters and (alone := _ALONE.fullmatch(text)):
        index = LETTERS.index(alone[1].upper())
        return (None, "a letter, and the text of another option") if by_text not in ([], [index]) else _in(index, count)
    if by_text:
        return (by_text[0], "text") if len(by_text) == 1 else (None, "the text of several options")
    if not letters:
        return None, NAMES_NONE
    if opening := _OPENING.match(text):
        return _opened(text, opening, count, texts)
    matches = _named_letters(_ANSWER_STATED, text) or _named_letters(_OPTION_STATED, text)
    if not matches:
        return None, NAMES_NONE
    another = _AND_ANOTHER.match(text, matches[-1].end())
    if another and not _is_word(another, text):
        return None, "names several options"
    return _in(LETTERS.index(matches[-1][1]), count)


def _option_inside(text: str, texts: Sequence[str]) -> tuple[int | None, str]:
    """The option whose words are in the text in a row; of two of which one holds the other, the longer."""
    words = f" {' '.join(_WORDS.findall(text.casefold()))} "
    options = [f" {' '.join(_WORDS.findall(option.casefold()))} " for option in texts]
    inside = [index for index, option in enumerate(options) if option.strip() and option in words]
    longest = [i for i in inside if not any(options[i] != options[j] and options[i] in options[j] for j in inside)]
    if len(longest) == 1:
        return longest[0], "text"
    return None, "names several options" if longest else NAMES_NONE


def _opened(text: str, opening: re.Match[str], count: int, texts: Sequence[str]) -> tuple[int | None, str]:
    marked = {LETTERS.index(match[1]) for match in _MARKED.finditer(text)}
    index = LETTERS.index(opening[1])
    if len({index} | {other for other in marked if other < count}) > 1:
        return None, "names several options"
    rest = _plain(text[opening.end() :])
    by_text = [other for other, option in enumerate(texts) if _plain(option) == rest]
    if by_text and index not in by_text:
        return None, f"the letter {LETTERS[index]}, and the text of {LETTERS[by_text[0]]}"
    return _in(index, count)


def _named_letters(pattern: re.Pattern[str], text: str) -> list[re.Match[str]]:
    return [match for match in pattern.finditer(text) if not _is_word(match, text)]


def _is_word(match: re.Match[str], text: str) -> bool:
    """A and I are words too: "the answer is A bird" names nothing."""
    return match[1] in "AI" and _CONTINUES.match(text, match.end()) is not None


def _in(index: int, count: int) -> tuple[int | None, str]:
    return (index, "letter") if index < count else (None, f"names {LETTERS[index]}, which is no option")


def _plain(text: str) -> str:
    return " ".join(text.split()).removesuffix(".").casefold()


def _texts(problem: Problem, params: ChoiceParams) -> list[str]:
    if not params.column:
        return []
    options: Any = problem.meta.get(params.column)
    is_list = isinstance(options, list) and 2 <= len(options) <= len(LETTERS)
    if not is_list or not all(isinstance(option, str) for option in options):
        raise RewardError(
            f"problem {problem.id}: {params.column!r} must be a list of 2 to {len(LETTERS)} texts, one for each option"
        )
    return list(options)


def _reference(problem: Problem, texts: Sequence[str], count: int, params: ChoiceParams) -> int:
    answer = problem.answer.strip()
    index: int | None = None
    if params.reference == "text":
        same = [number for number, option in enumerate(texts) if _plain(option) == _plain(answer)]
        index = same[0] if len(same) == 1 else None
    elif params.reference == "letter":
        match = _ALONE.fullmatch(answer)
        index = LETTERS.index(match[1].upper()) if match else None
    elif answer.isascii() and answer.isdecimal() and len(answer) <= 2:
        index = int(answer) - (params.reference == "from_1")
    if index is None or not 0 <= index < count:
        expected = {
            "letter": f"a letter from A to {LETTERS[count - 1]}",
            "text": "the text of exactly one option",
            "from_0": f"a number from 0 to {count - 1}",
            "from_1": f"a number from 1 to {count}",
        }[params.reference]
        raise RewardError(f"problem {problem.id}: the reference answer is {shown(answer)!r}; expected {expected}")
    return index


SPEC = Kind(
    "choice",
    ChoiceParams,
    "the option named is the right one, by its letter or its text",
    check=faults,
    answers=always,
)
