"""numeric: the extracted answer and the reference are the same number.

Plain numbers are compared exactly, as fractions, in a few microseconds. Only text with LaTeX in it goes to
math-verify, which is imported at that moment. Its own time limits use SIGALRM, which works only in a process's main
thread, so they are switched off; instead a LaTeX answer that could cost much (long, or with powers of powers or
factorials) is not compared at all and does not pass.
"""

import logging
import re
from decimal import Decimal
from fractions import Fraction
from functools import lru_cache
from typing import Annotated, Any, Literal

from pydantic import Field

from grpo_core.data.problem import Problem
from grpo_core.errors import RewardError
from grpo_core.records import ComponentScore
from grpo_core.rewards.base import Extract, Params, extract_answer, missing_answer, shown

MAX_PLAIN_CHARS = 100
MAX_LATEX_CHARS = 200

_SPACES = "\u00a0\u2009\u202f"  # no-break, thin and narrow no-break space, as thousands separators
_DECIMAL = re.compile(
    rf"(?P<whole>[0-9]{{1,3}}(?:[,{_SPACES}][0-9]{{3}})+|[0-9]+)?(?P<rest>\.[0-9]*)?(?P<exponent>[eE][-+]?[0-9]{{1,3}})?"
)
_MIXED = re.compile(r"(?:([0-9]+) )?([0-9]+) ?/ ?([0-9]+)")
_LATEX = re.compile(r"[\\^_{}]|\$.*\$", re.DOTALL)
_COSTLY = re.compile(r"!|\\(?:binom|dbinom|sum|prod|int|lim|uparrow)|\^.*\^|\^\s*\{?[-+]?[0-9]{4}", re.DOTALL)


class NumericParams(Params):
    extract: Extract = "answer_tag"
    """Where the answer stands: answer_tag `<answer>…</answer>`, hashes `#### …`, boxed `\\boxed{…}`, last_number, or
    whole for the completion itself."""
    tolerance: Annotated[float, Field(ge=0)] = 0.0
    """Largest difference that still counts as equal; 0 asks for exactly the same number. Not used for LaTeX, which
    math-verify compares to six decimals."""
    percent: Literal["ratio", "ignore"] = "ratio"
    """ratio: `50 %` is the number 0.5. ignore: the sign is dropped, so `50 %` is 50."""


def score(problem: Problem, completion: str, params: NumericParams) -> ComponentScore:
    """1 when both are the same number, else 0. Raises RewardError when the reference answer is not a number."""
    reference = parse_number(problem.answer, percent=params.percent)
    if reference is None and not (is_latex(problem.answer) and _is_number(problem.answer)):
        raise RewardError(
            f"problem {problem.id}: the reference answer {shown(problem.answer)!r} is not a number; "
            "use the kind exact for answers in words"
        )
    answer = extract_answer(completion, params.extract)
    if answer is None:
        return ComponentScore(value=0.0, passed=False, detail=missing_answer(params.extract))
    given = parse_number(answer, percent=params.percent)
    if given is not None and reference is not None:
        passed = abs(given - reference) <= Fraction(params.tolerance)
        return ComponentScore(value=float(passed), passed=passed, detail=shown(answer))
    if given is None and not is_latex(answer):
        return ComponentScore(value=0.0, passed=False, detail=f"not a number: {shown(answer)}")
    if len(answer) > MAX_LATEX_CHARS or _COSTLY.search(answer):
        return ComponentScore(value=0.0, passed=False, detail=f"too costly to compare: {shown(answer)}")
    passed = _same_latex(problem.answer, answer)
    return ComponentScore(value=float(passed), passed=passed, detail=shown(answer))


def parse_number(text: str, *, percent: Literal["ratio", "ignore"] = "ratio") -> Fraction | None:
    """The number that `text` is, exactly; None when it is not one, or not a plain one.

    Taken: sign (also −), `1,234.5`, `.5`, `1e-3` (exponent of at most three digits), `3/4`, `1 1/2`, one currency
    sign before or after, one percent sign, a full stop at the end. Thousands separators must stand where they belong:
    `1,23` is refused, because it could mean 1.23.
    """
    text = text.strip()
    if not text or len(text) > MAX_PLAIN_CHARS:
        return None
    text, negative = _sign(text)
    stripped = text.strip("$€£¥").strip()
    if len(text) - len(stripped) > 2:
        return None
    text = stripped
    if not negative:
        text, negative = _sign(text)
    text = text.removesuffix(".") if text.count(".") > 1 or text.endswith("%.") else text
    is_percent = text.endswith("%")
    number = _unsigned(text.removesuffix("%").rstrip())
    if number is None:
        return None
    if is_percent and percent == "ratio":
        number /= 100
    return -number if negative else number


def is_latex(text: str) -> bool:
    return _LATEX.search(text) is not None


def _sign(text: str) -> tuple[str, bool]:
    if text[:1] in ("-", "−", "+"):
        return text[1:].lstrip(), text[0] != "+"
    return text, False


def _unsigned(text: str) -> Fraction | None:
    if match := _MIXED.fullmatch(text):
        wholes, above, below = int(match[1] or 0), int(match[2]), int(match[3])
        return wholes + Fraction(above, below) if below else None
    match = _DECIMAL.fullmatch(text)
    if match is None or not re.search(r"[0-9]", (match["whole"] or "") + (match["rest"] or "")):
        return None
    whole = re.sub(rf"[,{_SPACES}]", "", match["whole"] or "0")
    return Fraction(Decimal(whole + (match["rest"] or "") + (match["exponent"] or "")))


def _is_number(text: str) -> bool:
    return any(getattr(found, "is_number", False) for found in _latex(text))


def _same_latex(reference: str, answer: str) -> bool:
    from math_verify import verify

    return bool(verify(_latex(reference), _latex(answer), timeout_seconds=None, raise_on_error=True))


@lru_cache(maxsize=4096)
def _latex(text: str) -> list[Any]:
    """What math-verify reads in `text`; an empty list when that is nothing. math-verify wants LaTeX inside `$…$`."""
    from math_verify import parse

    for name in ("math_verify.parser", "math_verify.grader"):  # each warns once that its time limit is off
        logging.getLogger(name).setLevel(logging.ERROR)
    wrapped = text if "$" in text or "\\boxed" in text else f"${text}$"
    return list(parse(wrapped, parsing_timeout=None, raise_on_error=False))
