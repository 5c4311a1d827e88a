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
from grpo_core.rewards.kinds.expressions import leading_share, value_of
from grpo_core.rewards.kinds.latex import (
    DELIMITED,
    PERCENT,
    is_division,
    is_undone,
    parse_latex,
    repeating_as_fractions,
    unwrap,
)
from grpo_core.rewards.kinds.numeric import parse_number
from grpo_core.rewards.kinds.unfinished import (
    LEFT,
    OWN_FORMULA,
    as_written,
    canonical,
    formulas_in,
    is_plain,
    squashed,
    unfinished,
    values_in,
)

MAX_CHARS = 1000
MAX_DEPTH = 12
MAX_COUNTED_CHARS = 60

_WRAPPED = re.compile(DELIMITED + r"|\\boxed *\{(.*)\}|\*\*(.*)\*\*|=(.*)", re.DOTALL)
_REFUSED = re.compile(
    r"\\(?:i*int|oint|sum|prod|lim|gcd|lcm|det)(?![A-Za-z])|\$|\\l?(?:land|wedge)(?![A-Za-z])|\\boxed|\\input"
    r"|[0-9)}] *_"
    r"|\\operatorname *\{ *(?:gcd|lcm|det|zeros|ones|diag|[hv]stack|orth)|\| *_|[\^_] *\{[^{}]*=|[0-9]{201}"
    r"|\\begin *\{ *[vV]matrix|matrix *\} *(?:\\right *[)\]|.])? *\^"
    r"|\\(?:text[a-z]*|math(?:rm|it)|[mh]box) *\{(?! *,? *(?:or|and) *\})[^{}]*(?:[0-9]|\b(?:or|and|not)\b)[^{}]*\}"
)
"""Also a word next to an answer that holds a second one, such as 5\\text{ or 4}: reading leaves it out."""
_STYLE = re.compile(
    r"\\(?:text)?color *\{[a-z]+\}|\\(?:mathbf|bm|boldsymbol|underline|fbox)(?![A-Za-z])|\\text(?:bf|it"
    r"|rm)?(?= *\{[0-9.,]+\})"
)
_POINT = re.compile(r"(?:\\left *)?\((?: *[A-Za-z] *,)+ *[A-Za-z] *(?:\\right *)?\) *= *(?=(?:\\left *)?\()")
_BUILDER = re.compile(r"(?:\\left *)?\\\{ *([A-Za-z]) *(?:\\mid|:|\|) *(\S.*?) *(?:\\right *)?\\\}")
_PLAIN_BINOMIAL = re.compile(r"\\[dtc]?binom *\{ *[0-9]{1,4} *\} *\{ *[0-9]{1,4} *\}")
_JOINED = re.compile(r"(?<![A-Za-z])(or|and)(?![A-Za-z])")
_APPROX = re.compile(r"≈|\\approx(?![A-Za-z])")
_THOUSANDS = re.compile(r"(?<=[0-9])(?:\\[,;: ]|,\\!|\{,\}|[\u00a0\u2009\u202f]) *(?=[0-9]{3}(?![0-9]))")
_GROUPED = re.compile(r"(?<![0-9.])(?<![0-9.] )[0-9]{1,3}(?: [0-9]{3})+(?![0-9]| [0-9])")
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
    r"\lor": r"\text{ or }", r"\vee": r"\text{ or }", "∨": r"\text{ or }", r"\varnothing": r"\emptyset ",
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
    if sides := _approximation(answer):
        return max((_same(side, problem, expected, params) for side in sides), key=lambda result: result[0])
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
    undone = is_plain(expected.tree) and is_undone(answer) and not is_undone(problem.answer) if equal else False
    if equal and (undone or (whole and is_division(answer))):
        fault = LEFT
    elif equal and squashed(answer) in _formulas(problem.prompt) - {squashed(problem.answer)}:  # such as 10/15 for 2/3
        fault = OWN_FORMULA
    return equal and not fault, fault


def _approximation(answer: str) -> list[str]:
    """Both sides of 2\\sqrt{3} \\approx 3.46, either of which may be the answer, or the one after a name; none where it
    is no such text, or where the decimals are not those of the other side."""
    left, *right = _APPROX.split(unwrap(answer.strip().rstrip("."), _WRAPPED))
    rounded = parse_number(right[0]) if len(right) == 1 else None
    exact = _read(left) if left.strip() and rounded is not None else None
    if rounded is None or (left.strip() and (exact is None or exact.tree is None)):
        return []
    if exact is None or is_name(exact.tree):
        return right
    try:
        off = abs(float(value_of(next(values_in(exact.tree)))) - float(rounded))
    except TROUBLE:
        return []
    return [left, right[0]] if off <= 0.501 * 10.0 ** -len(right[0].partition(".")[2].strip()) else []


def _readable(text: str) -> str | None:
    """What math-verify is given for `text`; None for what it must not be given, because it reads it as something else:
    2(3) as 5, `1 2` as 3, 12_{3} as 12, and the last of several formulas as all."""
    if len(text) > MAX_CHARS:
        return None
    text = _STYLE.sub("", unwrap(" ".join(text.split()).rstrip(".,;").strip(), _WRAPPED))
    text = _BUILDER.sub(r"\2", _POINT.sub("", text))
    text = repeating_as_fractions(text)
    text = _THOUSANDS.sub("", text.replace("\\$", "").replace("\\ \\%", "\\%"))
    text = _GROUPED.sub(lambda match: match[0].replace(" ", ""), text)
    text = _MIXED.sub(r"\1\\frac{\2}{\3}", text)
    text = _E_NOTATION.sub(r"\1 \\cdot 10^{\2}", text)
    text = _SIGN.sub(lambda match: _SIGNS[match[0]], text)
    text = _NAMES.sub(r"\\\1", text)
    if not text or _REFUSED.search(text) or _APPROX.search(text) or _BESIDE.search(text) or _depth(text) > MAX_DEPTH:
        return None
    if _COUNTED.search(_PLAIN_BINOMIAL.sub("n", text)) and (len(text) > MAX_COUNTED_CHARS or _LARGE.search(text)):
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
    words = " ".join((alone[1] or alone[2] or "").split()).strip("()") if alone else ""
    if len(words) > 1:
        return Read(None, words, braces=False, percent=False)
    try:
        tree = _joined(parse_latex(words or readable), readable)
        if tree is None or costly_to_evaluate(tree) or (percent and not isinstance(tree, Expr)):
            return None
        sides = [parse_number(side) for side in readable.split("=")] if isinstance(tree, Expr) else []
        if len({side for side in sides if side is not None}) > 1:  # reading keeps one of 5 = 4 = 5
            return None
    except TROUBLE:
        return None
    return Read(tree, words, braces="\\{" in readable, percent=percent)


def _joined(tree: Any, readable: str) -> Any:
    """Inequalities that are read as a set of them, joined by the word between them."""
    from sympy import And, Eq, FiniteSet, Or
    from sympy.core.relational import Relational  # type: ignore[import-untyped]

    words = set(_JOINED.findall(readable))
    if not isinstance(tree, FiniteSet) or len(words) != 1:
        return tree
    if not all(isinstance(part, Relational) and not isinstance(part, Eq) for part in tree.args):
        return tree
    return (Or if words == {"or"} else And)(*tree.args, evaluate=False)


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
    if len(links) == 1 and is_name(links[0].rhs) and not links[0].lhs.has(links[0].rhs):  # 5 = x
        return True
    if is_name(links[0].lhs) or _is_length(links[0].lhs):
        if links[0].rhs.has(links[0].lhs):
            return False
        links = links[1:]
    return all(same(link.lhs, link.rhs, 6) for link in links)


def _is_length(tree: Any) -> bool:
    """AB, which is read as a product, as what an equation says the value of."""
    return bool(getattr(tree, "is_Mul", False)) and all(part.is_Symbol for part in tree.args)


def _is_range(tree: Any) -> bool:
    """An inequality, several of them, or `x in` a set that is not a list of its members."""
    from sympy import Eq, FiniteSet, Set
    from sympy.core.relational import Relational
    from sympy.logic.boolalg import BooleanFunction  # type: ignore[import-untyped]

    if isinstance(tree, Eq):
        return isinstance(tree.rhs, Set) and not isinstance(tree.rhs, FiniteSet)
    return isinstance(tree, Relational) or (isinstance(tree, BooleanFunction) and not equations(tree))


@lru_cache(maxsize=1024)
def _formulas(prompt: str) -> frozenset[Any]:
    """The formulas in a prompt, in sympy's order, as they are written, and as text."""
    texts = list(formulas_in(prompt))
    trees = [read.tree for text in texts if (read := _read(text)) is not None and read.tree is not None]
    return frozenset(form(tree) for tree in trees for form in (canonical, as_written)) | {*map(squashed, texts)}


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
    version=3,
)
