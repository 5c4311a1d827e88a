"""Answers from a question's form, checked and converted to the value in the record. Knows no Django."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

from cohort.records.schema_types import AUDIENCES
from cohort.records.statements.questions import STAGE_KINDS, Question

MAX_CHARS = 20_000


class Unusable(ValueError):
    """An answer that does not fit the question; the message says what to do."""


@dataclass(frozen=True)
class Given:
    """An answer as a form holds it, right or not. Two that differ in white space or in the order of the choices are
    the same."""

    text: str
    chosen: tuple[str, ...]
    """Values of choices, in the question's order, unknown ones last."""
    audience: str

    @classmethod
    def of(cls, question: Question, *, text: str = "", chosen: Sequence[str] = (), audience: str = "") -> Self:
        """`audience` empty for the question's own."""
        known = [value for value, _ in question.choices if value in chosen]
        unknown = [value for value in chosen if value not in known]
        return cls(text.replace("\r\n", "\n").strip(), (*known, *unknown), audience or question.audience)

    @classmethod
    def stated(cls, question: Question, value: Any, text: str, audience: str) -> Self:
        """What the form holds of an answer that was saved so."""
        saved = value if isinstance(value, dict) else {}
        chosen = [saved["choice"]] if "choice" in saved else saved.get("choices", [])
        return cls.of(
            question, text=saved.get("words", "") if question.choices else text, chosen=chosen, audience=audience
        )

    @property
    def empty(self) -> bool:
        return not self.text and not self.chosen


@dataclass(frozen=True)
class Checked:
    """An answer as it is stored."""

    value: Any
    text: str
    audience: str


def checked(question: Question, given: Given) -> Checked:
    """Raises Unusable, with what to do."""
    text = text_checked(given.text)
    if not text and not question.choices:
        raise Unusable("Write something. To withdraw what was stated, use “Withdraw”.")
    value = value_of(question, text=text, chosen=list(given.chosen))
    if given.audience not in AUDIENCES:
        raise Unusable(f"{given.audience[:80]!a} is no audience; there are {', '.join(AUDIENCES)}.")
    return Checked(value, words_of(question, value, text), given.audience)


def text_checked(text: str, what: str = "The text") -> str:
    """`text` without white space around it. Raises Unusable for one that is too long or holds a NUL."""
    text = text.replace("\r\n", "\n").strip()
    if len(text) > MAX_CHARS:
        raise Unusable(
            f"{what} is {len(text):,} characters long; {MAX_CHARS:,} at most are taken. Shorten it, or put the long "
            "version elsewhere and give its address here."
        )
    if "\x00" in text:
        raise Unusable(f"{what} holds a NUL character, which cannot be stored. Remove it.")
    return text


def value_of(question: Question, *, text: str, chosen: list[str]) -> Any:
    """Machine-readable value; `text` comes from `text_checked`. Raises Unusable."""
    match question.kind:
        case "choice" | "several":
            return _chosen(question, chosen) | ({"words": text} if text else {})
        case "number":
            return _number(text)
        case "stages":
            return {"stages": _stages(text)}
        case "link":
            return {"link": text.split()[0]} if text.lower().startswith(("https://", "http://")) else None
        case "text":
            return None


def words_of(question: Question, value: Any, text: str) -> str:
    """The answer in words, as the record shows it."""
    match question.kind:
        case "choice":
            chosen = question.words_of(value["choice"])
        case "several":
            chosen = ", ".join(question.words_of(choice) for choice in value["choices"])
        case _:
            return text
    return f"{chosen}. {text}" if text else chosen


def _chosen(question: Question, chosen: list[str]) -> dict[str, Any]:
    known = [value for value, _ in question.choices]
    if odd := [choice for choice in chosen if choice not in known]:
        raise Unusable(f"{odd[0]!a} is none of the choices: {', '.join(known)}.")
    if not chosen:
        raise Unusable("Choose one of the answers." if question.kind == "choice" else "Choose one answer or more.")
    if question.kind == "choice":
        if len(chosen) > 1:
            raise Unusable("Choose one answer, not several.")
        return {"choice": chosen[0]}
    return {"choices": [value for value in known if value in chosen]}


def _number(text: str) -> dict[str, float]:
    first, _, _ = text.partition("\n")
    try:
        number = float(first.split()[0].replace(",", "").replace("×10^", "e"))
    except (ValueError, IndexError):
        number = math.nan
    if not math.isfinite(number) or number <= 0:
        raise Unusable("Begin with a number above 0, such as 1.2e22; its source may follow after it.")
    return {"flop": number}


def _stages(text: str) -> list[dict[str, str]]:
    stages = []
    for at, line in enumerate(filter(str.strip, text.split("\n")), start=1):
        kind, colon, what = (part.strip() for part in line.partition(":"))
        if not colon or kind not in STAGE_KINDS:
            raise Unusable(f"Line {at}: begin with one of {', '.join(STAGE_KINDS)}, then a colon, then the words.")
        if not what:
            raise Unusable(f"Line {at}: say after the colon what is known of that stage.")
        stages.append({"kind": kind, "what": what})
    return stages
