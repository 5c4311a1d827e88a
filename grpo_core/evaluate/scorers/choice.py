"""choice: the option named is the right one, by its letter or its text.

A text match, not a reading: an answer that hedges between two options names none.
"""

import re

from grpo_core.evaluate.item import LETTERS, SuiteItem
from grpo_core.evaluate.scorers.base import Params, Score, shown
from grpo_core.rewards.base import extract_answer

VERSION = 1

_ALONE = re.compile(r"[*_\[(]{0,3}([A-Za-z])[*_\])]{0,3}[.:]?")
_SAID = re.compile(r"(?i:\banswer|\boption)(?i:\s++is)?\s*+:?\s*+[*_\[(]{0,3}([A-Z])(?=[.,:;*_\])\n]|\s|$)")
_FIRST = re.compile(r"\s*[*_\[(]{0,3}([A-Z])(?:[.:)\]*_]|\s*(?:\n|$))")
_WORDS = re.compile(r"\w+")


class ChoiceParams(Params):
    letters: bool = True
    """Take an option's letter for an answer; off asks for its text."""


def fault(item: SuiteItem, params: ChoiceParams) -> str | None:
    if not item.choices:
        return "has no 'choices', so there is nothing to choose from"
    return None


def score(item: SuiteItem, completion: str, params: ChoiceParams) -> Score:
    """1 when the option named is the target, else 0."""
    found, how = named_option(completion, item.choices, letters=params.letters)
    if found is None:
        return Score(0.0, how)
    return Score(float(found == item.target), shown(f"{LETTERS[found]}. {item.choices[found]} ({how})"))


def named_option(completion: str, choices: tuple[str, ...], *, letters: bool = True) -> tuple[int | None, str]:
    """Number of the option that the completion names, from 0, and how it was found; None with the reason.

    In this order: a letter that is the whole answer; the last letter after "answer" or "option"; a letter that opens
    the text; the one option whose text stands in it. The answer is what the last `<answer>` tag holds, else all.
    """
    tagged = extract_answer(completion, "answer_tag")
    text = (tagged if tagged is not None else completion).strip()
    if not text:
        return None, "no text"
    if letters:
        if (alone := _ALONE.fullmatch(text)) is not None:
            return _letter(alone[1].upper(), choices)
        # A and I are words too: "the answer is A bird".
        said = [m for m in _SAID.finditer(text) if m[1] not in "AI" or not _goes_on(text, m.end(1))]
        if said:
            return _letter(said[-1][1], choices)
        if (first := _FIRST.match(text)) is not None:
            return _letter(first[1], choices)
    held = _held(text, choices)
    if len(held) == 1:
        return held[0], "text"
    return None, "names no option" if not held else f"names {len(held)} options"


def _letter(letter: str, choices: tuple[str, ...]) -> tuple[int | None, str]:
    place = LETTERS.index(letter)
    return (place, "letter") if place < len(choices) else (None, f"names {letter}, which is no option")


def _goes_on(text: str, end: int) -> bool:
    """Whether a word follows on the same line."""
    return re.match(r"[ \t]+\w", text[end : end + 20]) is not None


def _held(text: str, choices: tuple[str, ...]) -> list[int]:
    """Options whose words stand in the text in a row; of two of which one holds the other, the longer where it does."""
    words = " ".join(_words(text))
    found = [(place, told) for place, choice in enumerate(choices) if (told := " ".join(_words(choice)))]
    found = [(place, told) for place, told in found if f" {told} " in f" {words} "]
    return [
        place for place, told in found if not any(told != other and f" {told} " in f" {other} " for _, other in found)
    ]


def _words(text: str) -> list[str]:
    return _WORDS.findall(text.casefold())
