"""equations: every equation that a completion writes out is a step, rewarded when it is true.

Rewards steps that can be checked by arithmetic, whatever the task. What cannot be read for certain (variables,
brackets, powers, percent signs, a unit between two numbers) is no step: it neither rewards nor costs. Reads text that a
model wrote: one pass over it, exact fractions of bounded length, nothing is evaluated as code.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction

from grpo_core.records.types import ComponentScore, StepScore
from grpo_core.rewards.base import Kind, Params, ScoreRequest, shown

MAX_TERMS = 20
MAX_NUMBER_CHARS = 30

_TOKEN = re.compile(
    r"(?P<word>[\w.,]+)"
    r"|(?P<power>\*\*+)"
    r"|(?P<operator>[-+−–*×·/÷]|\\(?:times|cdot|div)(?![A-Za-z]))"
    r"|(?P<equals>[=<>:]+)"
    r"|(?P<separator>\\[\[(\\])"
    r"|(?P<opening>[(\[{])"
    r"|(?P<closing>[)\]}]|\\[\])]|\\[A-Za-z]+)"
    r"|(?P<unsure>\\(?!\$)|[%^!°√∛∜∑∏∫±∓≈≅~≠≤≥‰′″])"
    r"|(?P<other>[^\s\\$€£¥])"
)
_NUMBER = re.compile(r"(?:[0-9]{1,3}(?:,[0-9]{3})+|[0-9]+)?(?:\.[0-9]+)?")
_OPERAND = re.compile(r"\s*[0-9.(+−-]")
_OPERATIONS = {"+": "+", "-": "-", "−": "-", "–": "-", "/": "/", "÷": "/", "\\div": "/"}  # all others multiply

# Kinds of tokens, one letter each, so that an equation is a regular expression over a line's kinds: N number, O
# operator, D operator that may be a dash or an asterisk, S sign of the number after it, E equals sign, P opening
# bracket, C closing bracket or LaTeX command, X what changes the number next to it, L anything else. An equation must
# not begin after what could belong to its first number, nor end before what may continue.
_EQUATION = re.compile(rf"(?<![ODSCX])S?N(?:[OD]S?N){{1,{MAX_TERMS - 1}}}ES?N(?![OD][SNPC]|OL|X)")


class EquationsParams(Params):
    rounded: bool = False
    """Take an equation as true, too, when its result is rounded to the decimals that are written: 10 / 3 = 3.33."""


@dataclass(frozen=True, slots=True)
class _Token:
    kind: str
    text: str
    end: int
    """Characters of the completion up to and including the token."""


def score(sample: ScoreRequest, params: EquationsParams) -> ComponentScore:
    """The share of true ones among the equations; 0 when there is none. Each is a step with value 1 or 0."""
    steps, false = [], ""
    for left, right, text, end in _equations(sample.completion):
        true = _holds(left, right, params)
        steps.append(StepScore(end=end, value=float(true)))
        if not true and not false:
            false = text
    if not steps:
        return ComponentScore(value=0.0, passed=False, detail="no equation", steps=())
    right_ones = sum(step.value for step in steps)
    detail = f"{right_ones:g} of {len(steps)} true" + (f"; false: {shown(false)}" if false else "")
    return ComponentScore(value=right_ones / len(steps), passed=not false, detail=detail, steps=tuple(steps))


def _equations(completion: str) -> Iterator[tuple[list[_Token], list[_Token], str, int]]:
    """(left side, right side, text, end) of each equation, in order. None goes over the end of a line."""
    start = 0
    for line in completion.splitlines(keepends=True):
        tokens = list(_tokens(line, start))
        kinds = "".join(token.kind for token in tokens)
        for match in _EQUATION.finditer(kinds):
            equation = tokens[match.start() : match.end()]
            equals = next(index for index, token in enumerate(equation) if token.kind == "E")
            text = " ".join(token.text for token in equation)
            yield equation[:equals], equation[equals + 1 :], text, equation[-1].end
        start += len(line)


def _tokens(line: str, start: int) -> Iterator[_Token]:
    previous = ""
    for match in _TOKEN.finditer(line):
        text, before, after = match[0], line[match.start() - 1 : match.start()], line[match.end() : match.end() + 1]
        end = start + match.end()
        kind = "L"
        match match.lastgroup:
            case "word":
                number = text.rstrip(".,")
                kind = "N" if _is_number(number) else "L"
                if kind == "N" and number != text:
                    yield _Token("N", number, end - len(text) + len(number))
                    kind, text = "L", text[len(number) :]
            case "operator":
                if previous == "" and (after.isspace() or text == "*"):
                    continue  # mark of a list at the beginning of a line, or slanted text: not there
                kind = _operator(text, previous)
            case "power":
                if not _is_power(line, match, previous):
                    continue  # bold text: not there
                kind = "X"
            case "equals":
                is_ratio = text == ":" and before.isdecimal() and after.isdecimal()
                kind = "E" if text == "=" else "X" if is_ratio else "L"
            case "opening":
                kind = "P"
            case "closing":
                kind = "L" if after.isspace() and not text.startswith("\\") else "C"
            case "unsure":
                kind = "X"
        previous = kind
        yield _Token(kind, text, end)


def _operator(text: str, previous: str) -> str:
    """Sign of the number after it, or operator between two."""
    if _OPERATIONS.get(text) in ("+", "-") and previous in ("", "O", "D", "E", "P"):
        return "S"
    return "D" if text in ("-", "−", "–", "*") else "O"


def _is_power(line: str, match: re.Match[str], previous: str) -> bool:
    """Whether asterisks are between two operands, with white space on both sides or on none, and not around bold
    text."""
    before, after = line[match.start() - 1 : match.start()], line[match.end() : match.end() + 1]
    if previous == "" or before.isspace() != after.isspace() or not _OPERAND.match(line, match.end()):
        return False
    return before.isspace() or before.isalnum() or before in ")]}"


def _is_number(text: str) -> bool:
    return 0 < len(text) <= MAX_NUMBER_CHARS and _NUMBER.fullmatch(text) is not None


def _holds(left: list[_Token], right: list[_Token], params: EquationsParams) -> bool:
    try:
        value = _value(left)
    except ZeroDivisionError:
        return False
    given = _value(right)
    if params.rounded:
        decimals = len(right[-1].text.partition(".")[2])
        return abs(value - given) <= Fraction(1, 2 * 10**decimals)
    return value == given


def _value(side: list[_Token]) -> Fraction:
    """Products and quotients first, then sums and differences, each from left to right. Raises ZeroDivisionError."""
    total, product, operation, sign = Fraction(0), Fraction(1), "*", 1
    for token in side:
        if token.kind == "S":
            sign = -1 if _OPERATIONS[token.text] == "-" else 1
        elif token.kind in ("O", "D"):
            operation = _OPERATIONS.get(token.text, "*")
        else:
            number = sign * Fraction(token.text.replace(",", ""))
            sign = 1
            if operation in ("+", "-"):
                total, product = total + product, number if operation == "+" else -number
            else:
                product = product * number if operation == "*" else product / number
    return total + product


SPEC = Kind("equations", EquationsParams, "the share of true ones among the equations written out", steps=True)
