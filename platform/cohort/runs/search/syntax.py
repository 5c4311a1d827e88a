"""From what a person typed to terms. Knows no field and no database: what a name means is `fields`' to say.

query = {term}
term  = ["-"] (value | field operator value)
field, value = text without spaces, or in double quotes, within which \\" is a quote and \\\\ a backslash
"""

import re
from dataclasses import dataclass
from typing import Literal, cast

from cohort.base.storable import Refused

Operator = Literal["=", "!=", ">", ">=", "<", "<=", ":"]
MOST_CHARACTERS = 2000
MOST_TERMS = 20

_SPACE = re.compile(r"\s+")
_OPERATOR = re.compile(r"\s*(!=|>=|<=|==|=|>|<|:)\s*")
_NAME = re.compile(r"[^\W\d][\w./@-]*")
_QUOTED = re.compile(r'"((?:[^"\\]|\\.)*)"', re.DOTALL)
_BARE = re.compile(r"[^\s\"]\S*")
_ESCAPE = re.compile(r"\\(.)", re.DOTALL)


class SearchError(Refused, code="bad_search"):
    """What is wrong with a query, and what to write instead; `start` and `end` say where, as positions in it."""

    def __init__(self, message: str, *, start: int, end: int, code: str) -> None:
        super().__init__(message, code=code)
        self.start, self.end = start, end


@dataclass(frozen=True)
class Term:
    """A condition; a free word where `field` is empty."""

    field: str
    operator: Operator
    value: str
    negated: bool
    start: int
    end: int

    def refused(self, message: str, code: str) -> SearchError:
        return SearchError(message, start=self.start, end=self.end, code=code)


def parse(text: str) -> list[Term]:
    """Raises SearchError."""
    if len(text) > MOST_CHARACTERS:
        raise SearchError(
            f"The search has {len(text):,} characters; at most {MOST_CHARACTERS:,} are read. Leave conditions out.",
            start=MOST_CHARACTERS,
            end=len(text),
            code="search_too_long",
        )
    terms: list[Term] = []
    at = _after_space(text, 0)
    while at < len(text):
        terms.append(_term(text, at))
        at = _after_space(text, terms[-1].end)
    if len(terms) > MOST_TERMS:
        raise terms[MOST_TERMS].refused(
            f"The search has {len(terms)} conditions; at most {MOST_TERMS} are read. Leave one out.", "too_many_terms"
        )
    return terms


def quoted(value: str) -> str:
    """The value as a query has it: in quotes where it would be read as something else without them."""
    if re.fullmatch(r"[\w.+/@][\w.+/@-]*", value):
        return value
    return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _after_space(text: str, at: int) -> int:
    space = _SPACE.match(text, at)
    return space.end() if space else at


def _term(text: str, start: int) -> Term:
    at = start
    negated = text[at] == "-" and at + 1 < len(text) and not text[at + 1].isspace()
    if negated:
        at += 1
    name, after = _field(text, at)
    operator = _OPERATOR.match(text, after) if name else None
    if operator is None:
        if lone := _OPERATOR.match(text, at):
            raise SearchError(
                f"A field is missing before {lone[1]}: write one, as in reward{lone[1]}0.5, or put the text in quotes.",
                start=start,
                end=lone.end(),
                code="field_missing",
            )
        value, end = _value(text, at)
        return Term("", ":", value, negated, start, end)
    if operator.end() == len(text):
        raise SearchError(
            f"A value is missing after {name}{operator[1]}: write one, as in reward>0.5 or state=failed.",
            start=start,
            end=len(text),
            code="value_missing",
        )
    value, end = _value(text, operator.end())
    sign = "=" if operator[1] == "==" else cast("Operator", operator[1])
    return Term(name, sign, value, negated, start, end)


def _field(text: str, at: int) -> tuple[str, int]:
    """(the name that may be a field's, where it ends); empty without one."""
    if match := _QUOTED.match(text, at):
        return _ESCAPE.sub(r"\1", match[1]), match.end()
    if match := _NAME.match(text, at):
        return match[0], match.end()
    return "", at


def _value(text: str, at: int) -> tuple[str, int]:
    if text[at] == '"':
        match = _QUOTED.match(text, at)
        if match is None:
            raise SearchError(
                "The quote that begins here does not end: add a closing one.",
                start=at,
                end=len(text),
                code="quote_open",
            )
        return _ESCAPE.sub(r"\1", match[1]), match.end()
    match = _BARE.match(text, at)
    assert match is not None, "neither a space nor a quote"
    return match[0], match.end()
