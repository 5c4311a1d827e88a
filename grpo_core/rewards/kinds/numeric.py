"""numeric: the extracted answer and the reference are the same number.

Plain numbers are compared exactly, as fractions, in a few microseconds. Text with LaTeX in it goes to
`grpo_core.rewards.kinds.latex`, which refuses what could be costly.
"""

import re
from decimal import Decimal
from fractions import Fraction
from typing import Annotated, Literal

from pydantic import Field

from grpo_core.errors import RewardError
from grpo_core.records.types import ComponentScore
from grpo_core.rewards.base import Extract, Kind, Params, ScoreRequest, always, extract_answer, missing_answer, shown
from grpo_core.rewards.kinds.latex import (
    Value,
    as_value,
    equal,
    is_division,
    is_latex,
    is_written,
    latex_value,
    plain_text,
    same_exactly,
)

MAX_PLAIN_CHARS = 100

_SPACES = " \u00a0\u2009\u202f"  # also no-break, thin and narrow no-break space, as thousands separators
_DECIMAL = re.compile(
    rf"(?P<whole>[0-9]{{1,3}}(?:[,{_SPACES}][0-9]{{3}})+|[0-9]+)?(?P<rest>\.[0-9]*)?(?P<exponent>[eE][-+]?[0-9]{{1,3}})?"
)
_ROOT = re.compile(r"\\(?:sqrt|pi)(?![A-Za-z])")
_MIXED = re.compile(r"(?:([0-9]+) )?([0-9]+) ?/ ?([0-9]+)")


class NumericParams(Params):
    extract: Extract = "answer_tag"
    """Where the answer is: answer_tag `<answer>…</answer>`, hashes `#### …`, boxed `\\boxed{…}`, last_number,
    whole for the completion itself, or marked_number for the first of the marks that is there, else the last number."""
    tolerance: Annotated[float, Field(ge=0)] = 0.0
    """Largest difference that still counts as equal; 0 requires exactly the same number. Not used for LaTeX, which
    is compared to six decimals, and to one part in ten thousand, when a decimal is in it, else exactly."""
    percent: Literal["ratio", "ignore"] = "ratio"
    """ratio: `50 %` is the number 0.5. ignore: the sign is dropped, so `50 %` is 50."""


def score(sample: ScoreRequest, params: NumericParams) -> ComponentScore:
    """1 when both are the same number, else 0. Raises RewardError when the reference answer is not a number."""
    expected = _read(sample.problem.answer, params)
    if expected is None:
        raise RewardError(
            f"problem {sample.problem.id}: the reference answer {shown(sample.problem.answer)!r} is not a number that "
            "can be compared: write it with digits, signs, fractions, roots, \\pi and small whole powers, or use the "
            "kind exact for answers in words"
        )
    answer = extract_answer(sample.completion, params.extract)
    if answer is None:
        return ComponentScore(value=0.0, passed=False, detail=missing_answer(params.extract))
    given = _read(answer, params)
    if given is None:
        fault = "not compared, too costly or not understood" if is_latex(answer) else "not a number"
        return ComponentScore(value=0.0, passed=False, detail=f"{fault}: {shown(answer)}")
    if isinstance(given, Fraction) and isinstance(expected, Fraction):
        passed = abs(given - expected) <= Fraction(params.tolerance)
    else:
        passed = equal(as_value(answer, given), as_value(sample.problem.answer, expected))
    if passed and not _is_worked_out(answer, given, sample.problem.answer, expected):
        return ComponentScore(value=0.0, passed=False, detail=f"left to be worked out: {shown(answer)}")
    return ComponentScore(value=float(passed), passed=passed, detail=shown(answer))


def _is_worked_out(answer: str, given: Fraction | Value, reference: str, expected: Fraction | Value) -> bool:
    """A plain number wants a plain number: √144 is no 12, 6/2 no 3. What a decimal can only round, a root or π, may
    be left as it is."""
    if isinstance(expected, Value) and not is_written(reference):
        return True
    if isinstance(given, Value) and not is_written(answer):
        wanted, value = as_value(reference, expected), as_value(answer, given)
        return wanted.rounded and _ROOT.search(answer) is not None and not same_exactly(value, wanted)
    whole = as_value(reference, expected).number % 1 == 0 and not is_division(reference)
    return not (whole and is_division(answer))


def _read(text: str, params: NumericParams) -> Fraction | Value | None:
    """The number that `text` is, a fraction where it is a plain one."""
    number = parse_number(text, percent=params.percent)
    if number is None:
        number = parse_number(plain_text(text), percent=params.percent)
    if number is not None or not is_latex(text):
        return number
    return latex_value(text, ignore_percent=params.percent == "ignore")


def parse_number(text: str, *, percent: Literal["ratio", "ignore"] = "ratio") -> Fraction | None:
    """The number that `text` is, exactly; None when it is not one, or not a plain one.

    Taken: sign (also −), `1,234.5`, `.5`, `1e-3` (exponent of at most three digits), `3/4`, `1 1/2`, one currency
    sign before or after, one percent sign, a full stop at the end. Thousands separators must be where they belong:
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


def _sign(text: str) -> tuple[str, bool]:
    if text[:1] in ("-", "−", "–", "+"):
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


SPEC = Kind("numeric", NumericParams, "answer and reference are the same number", answers=always, version=3)
