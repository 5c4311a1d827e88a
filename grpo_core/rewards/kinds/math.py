r"""math: answer and reference are the same expression, set, interval, tuple, matrix, equation or inequality.

Read by math-verify, whose own time limits use SIGALRM and are off: it runs in a subprocess that is killed at its
deadline. Compared by arithmetic (`equality`, `expressions`), because sympy's rules can take for ever on hostile text.
An answer that is equal may still be none (`unfinished`).
"""

import re
from fractions import Fraction
from functools import lru_cache
from itertools import accumulate
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import Field

from grpo_core.data.problem import Problem
from grpo_core.errors import RewardError
from grpo_core.records.types import ComponentScore
from grpo_core.rewards.base import Kind, Params, ScoreRequest, always, extract_answer, missing_answer, shown
from grpo_core.rewards.kinds.cost import costly_to_evaluate, costly_to_read
from grpo_core.rewards.kinds.equality import equations, is_name, same
from grpo_core.rewards.kinds.expressions import leading_share
from grpo_core.rewards.kinds.latex import DELIMITED, PERCENT, is_division, parse_latex, unwrap
from grpo_core.rewards.kinds.numeric import parse_number
from grpo_core.rewards.kinds.unfinished import LEFT, canonical, formulas_in, unfinished

MAX_CHARS = 1000
MAX_DEPTH = 20
MAX_COUNTED_CHARS = 60

_WRAPPED = re.compile(DELIMITED + r"|\\boxed *\{(.*)\}", re.DOTALL)
_REFUSED = re.compile(
    r"\\(?:i*int|oint|sum|prod|lim)(?![A-Za-z])|\$|\\l?(?:land|wedge)(?![A-Za-z])|\\boxed|\\input|[0-9)}] *_|[0-9]{201}"
    r"|\\(?:gcd|lcm)(?![A-Za-z])|\\operatorname *\{ *(?:gcd|lcm|zeros|ones|diag|[hv]stack|orth)|\| *_|[\^_] *\{[^{}]*="
)
_THOUSANDS = re.compile(r"(?<=[0-9])(?:\\,|,\\!|\{,\}|[\u00a0\u2009\u202f]) *(?=[0-9]{3}(?![0-9]))")
_BESIDE = re.compile(r"(?<![_^])[0-9.] +[0-9.]")
_FACTOR = re.compile(r"((?<![\^_0-9])[0-9]+(?:\.[0-9]+)?|(?<![\^_])\)) *(?=(?:\\left *)?\()")
_E_NOTATION = re.compile(r"(?<![A-Za-z\\])([0-9.]+)[eE]([-+]?[0-9]{1,4})(?![0-9A-Za-z])")
_COUNTED = re.compile(r"\\(?:[dtc]?binom|choose)(?![A-Za-z])|[)}!] *!")
"""Factorials and binomials of more than a number or a variable: reading them works them out."""
_LARGE = re.compile(
    r"[0-9]{3}|\\(?:arc)?(?:sin|cos|tan|cot|sec|csc|ln|log|exp|sqrt)|\^[^A-Za-z]*[0-9]{2}|! *\)|!.*!.*!.*!"
)
_NAMES = re.compile(r"(?<![\\A-Za-z])(sin|cos|tan|cot|sec|csc|arcsin|arccos|arctan|log|ln|exp|pi)(?![A-Za-z])")
_MIXED = re.compile(r"([0-9]+) ([0-9]+) ?/ ?([0-9]+)")
_WORDS = re.compile(r"\\(?:text|textbf|mathrm|textit) *\{([^{}\\^_0-9]*)\}|([A-Za-z])")
_SIGNS = {
    "−": "-", "–": "-", "·": r"\cdot ", "⋅": r"\cdot ", "×": r"\times ", "÷": r"\div ", "≤": r"\le ", "≥": r"\ge ",
    "≠": r"\ne ", "∞": r"\infty ", "∪": r"\cup ", "∩": r"\cap ", "∈": r"\in ", "π": r"\pi ", "√": r"\sqrt ",
    "±": r"\pm ", "∅": r"\emptyset ", "°": r"^\circ ", "**": "^", "<=": r"\le ", ">=": r"\ge ", "!=": r"\ne ",
    r"\lor": ",", r"\vee": ",", "∨": ",",
}  # fmt: skip
_SIGN = re.compile("|".join(map(re.escape, _SIGNS)))

TROUBLE = (
    ArithmeticError, AssertionError, AttributeError, LookupError, NotImplementedError, RecursionError, TypeError,
    ValueError,
)  # fmt: skip
"""What sympy raises on trees that make no sense to it; an answer that makes it raise is wrong."""


class MathParams(Params):
    extract: Literal["answer_tag", "hashes", "boxed", "whole"] = "answer_tag"
    """Where the answer is: answer_tag `<answer>…</answer>`, hashes `#### …`, boxed `\\boxed{…}`, or whole for the
    completion itself, which must be the answer alone."""
    decimals: Annotated[int, Field(ge=0, le=12)] = 6
    """To how many decimals an expression with a decimal in it is compared; others are compared exactly. They
    must agree to half a percent in any case."""
    percent: Literal["ratio", "ignore"] = "ratio"
    """ratio: `50 %` is 0.5. ignore: the sign is dropped, so `50 %` is 50."""


class Read(NamedTuple):
    """A text as mathematics."""

    tree: Any
    """Of sympy; None for words of more than one letter."""
    words: str
    """The text of an answer in words, or a single letter; else empty."""
    braces: bool
    """It is written as a set."""
    percent: bool


def prepare() -> None:
    assert same(parse_latex("x + 1"), parse_latex("1 + x"), 6)


def score(sample: ScoreRequest, params: MathParams) -> ComponentScore:
    """1 when both are the same, else 0. Raises RewardError when the reference answer cannot be read."""
    answer = extract_answer(sample.completion, params.extract)
    expected = _read(sample.problem.answer)
    if expected is None:
        raise RewardError(
            f"problem {sample.problem.id}: the reference answer {shown(sample.problem.answer)!r} cannot be read as "
            "mathematics: write it in LaTeX, or use the kind exact for answers in words"
        )
    if answer is None:
        return ComponentScore(value=0.0, passed=False, detail=missing_answer(params.extract))
    if not answer:
        return ComponentScore(value=0.0, passed=False, detail="no text")
    passed, fault = _same(answer, sample.problem, expected, params)
    return ComponentScore(
        value=float(passed), passed=passed, detail=f"{fault}: {shown(answer)}" if fault else shown(answer)
    )


def _same(answer: str, problem: Problem, expected: Read, params: MathParams) -> tuple[bool, str]:
    """Whether both are the same; what is wrong with an answer that is not, or that is no answer."""
    number, other = (parse_number(text, percent=params.percent) for text in (answer, problem.answer))
    given = _read(answer)
    if len(expected.words) > 1:
        words = given.words if given is not None and given.words else " ".join(answer.split()).strip(" .$")
        return words.casefold() == expected.words.casefold(), ""
    if given is None or given.tree is None:
        return False, "not compared, too costly or not understood"
    if given.words and expected.words:
        return given.words == expected.words, ""
    if number is not None and other is not None:
        rounded = "." in answer or "." in problem.answer
        share = Fraction(leading_share(params.decimals))
        slack = min(Fraction(1, 2 * 10**params.decimals), abs(other) * share) if rounded else 0
        equal = abs(number - other) <= slack
    else:
        try:
            if not _may_be_compared(given, expected):
                return False, "not of the same form"
            equal = same(_scaled(expected, params), _scaled(given, params), params.decimals)
        except TROUBLE:
            return False, "not compared, not understood"
    fault = unfinished(given.tree, expected.tree, _formulas(problem.prompt), problem.prompt) if equal else ""
    whole = other is not None and other.denominator == 1 and not is_division(problem.answer)
    if equal and whole and is_division(answer):
        fault = LEFT
    return equal and not fault, fault


def _readable(text: str) -> str | None:
    """What math-verify is given for `text`; None for what it must not be given, because it reads it as something else:
    2(3) as 5, `1 2` as 3, 12_{3} as 12, and the last of several formulas as all."""
    if len(text) > MAX_CHARS:
        return None
    text = unwrap(" ".join(text.split()).removesuffix(".").strip(), _WRAPPED)
    text = _THOUSANDS.sub("", text.replace("\\$", ""))
    text = _MIXED.sub(r"\1\\frac{\2}{\3}", text)
    text = _E_NOTATION.sub(r"\1 \\cdot 10^{\2}", text)
    text = _SIGN.sub(lambda match: _SIGNS[match[0]], text)
    text = _NAMES.sub(r"\\\1", text)
    if not text or _REFUSED.search(text) or _BESIDE.search(text) or _depth(text) > MAX_DEPTH:
        return None
    if _COUNTED.search(text) and (len(text) > MAX_COUNTED_CHARS or _LARGE.search(text)):
        return None
    return None if costly_to_read(text) else _FACTOR.sub(r"\1 \\cdot ", text)


def _depth(text: str) -> int:
    """Of nested brackets; reading them takes time that is exponential in it."""
    return max(accumulate((char in "([{") - (char in ")]}") for char in text), default=0)


@lru_cache(maxsize=1024)
def _read(text: str) -> Read | None:
    """None for what is no mathematics, or could be costly."""
    from sympy import Expr  # type: ignore[import-untyped]

    readable = _readable(text)
    if readable is None:
        return None
    percent = PERCENT.search(readable) is not None
    readable = PERCENT.sub("", readable)
    alone = _WORDS.fullmatch(readable)
    words = " ".join((alone[1] or alone[2] or "").split()) if alone else ""
    if len(words) > 1:
        return Read(None, words, braces=False, percent=False)
    try:
        tree = parse_latex(readable)
        if tree is None or costly_to_evaluate(tree) or (percent and not isinstance(tree, Expr)):
            return None
    except TROUBLE:
        return None
    return Read(tree, words, braces="\\{" in readable, percent=percent)


def _may_be_compared(given: Read, expected: Read) -> bool:
    """Leaves out what is equal part by part and is not: a set and an ordered pair; numbers and the bounds of a range;
    an equation that says x of itself, or whose links are false, such as 3 = 5 for 5 and x = 4 = 5 for x = 5."""
    from sympy import FiniteSet, Interval, Tuple

    for side, other in ((given, expected), (expected, given)):
        if side.braces and not other.braces and isinstance(other.tree, (Interval, Tuple)):
            return False
        if isinstance(side.tree, (FiniteSet, Tuple)) and _is_range(other.tree):
            return False
    links = equations(given.tree)
    if not links or (len(links) == 1 and equations(expected.tree)):
        return True
    if is_name(links[0].lhs):
        if links[0].rhs.has(links[0].lhs):
            return False
        links = links[1:]
    return all(same(link.lhs, link.rhs, 6) for link in links)


def _is_range(tree: Any) -> bool:
    """An inequality, several of them, or `x in` a set that is not a list of its members."""
    from sympy import Eq, FiniteSet, Set
    from sympy.core.relational import Relational  # type: ignore[import-untyped]
    from sympy.logic.boolalg import BooleanFunction  # type: ignore[import-untyped]

    if isinstance(tree, Eq):
        return isinstance(tree.rhs, Set) and not isinstance(tree.rhs, FiniteSet)
    return isinstance(tree, Relational) or (isinstance(tree, BooleanFunction) and not equations(tree))


@lru_cache(maxsize=1024)
def _formulas(prompt: str) -> frozenset[Any]:
    """The formulas in a prompt, in sympy's order."""
    reads = [_read(text) for text in formulas_in(prompt)]
    return frozenset(canonical(read.tree) for read in reads if read is not None and read.tree is not None)


def _scaled(read: Read, params: MathParams) -> Any:
    from sympy import Rational

    if not read.percent or params.percent == "ignore":
        return read.tree
    return read.tree * Rational(1, 100)


SPEC = Kind(
    "math",
    MathParams,
    "the same expression, set, interval, tuple, matrix or equation, in LaTeX",
    "subprocess",
    answers=always,
    version=2,
)
