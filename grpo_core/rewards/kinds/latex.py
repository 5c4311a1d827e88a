r"""Numbers written in LaTeX: read by math-verify, compared here.

math-verify and the sympy below it can take for ever on hostile text, and their own time limits use SIGALRM, which
works only in a process's main thread. So math-verify is given only what `_readable` lets through, and what it read is
evaluated by arithmetic of a fixed size instead of by sympy's rules. math-verify is imported at the first need.
"""

import logging
import math
import re
from fractions import Fraction
from functools import cache, lru_cache
from typing import Any, NamedTuple

MAX_CHARS = 200
MAX_BRACKETS = 40
MAX_POWER = 999
EXACT_DIGITS = 1200
ROUNDED_SHARE = 1e-4

_LATEX = re.compile(r"[\\^_{}°]|\$.*\$", re.DOTALL)
DELIMITED = r"\$\$(.*)\$\$|\$(.*)\$|\\\((.*)\\\)|\\\[(.*)\\\]"
_WRAPPED = re.compile(
    DELIMITED + r"|\\(?:boxed|text|textbf|mathbf|boldsymbol) *\{(.*)\}|\*\*(.*)\*\*|[A-Za-z]? *=(.*)", re.DOTALL
)
_THOUSANDS = re.compile(r"(?<=[0-9])(?:,\\!|,|\{,\}|\\,)(?=[0-9]{3}(?![0-9]))")
_SPACE = re.compile(r"\\[,;:! ]|\\displaystyle(?![A-Za-z])|[~\s]")
_SIGNS = str.maketrans({"−": "-", "–": "-", "°": r"^\circ", "·": "*", "×": "*", "÷": "/"})
_POWER = re.compile(r"\^ *(?:([0-9]+)|\{ *\(? *([-+]? *[0-9]+) *\)? *\}|\( *([-+]? *[0-9]+) *\))")
_AFTER = r"(?:\\?%|\^ *(?:\\circ|\{ *\\circ *\})|°|\\(?:text|mathrm) *\{[A-Za-z .]*\}(?:\^\{[23]\})?| )*"
"""A percent or degree sign and units, after a number."""
_DIGITS = r"(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)"
_TEN = r"10 *\^\{-?[0-9]+\}"
_FRACTION = rf"\\[dtc]?frac *(?:\{{ *-?{_DIGITS} *\}}|[0-9]) *(?:\{{ *{_DIGITS} *\}}|[0-9])|{_DIGITS} */ *{_DIGITS}"
_WRITTEN = re.compile(
    rf"[-+ ]*(?:(?:[0-9]+ *)?(?:{_FRACTION})|(?:{_DIGITS} *(?:\\times|\\cdot|\*) *)?{_TEN}|{_DIGITS})" + _AFTER
)
_DIVISION = re.compile(r"[0-9.}] */ *[0-9.{]|\\[dtc]?frac")
_REPEATING = re.compile(r"([0-9]*)\.([0-9]*)\\(?:overline|bar) *\{ *([0-9]{1,20}) *\}")
_PART = re.compile(r"[,;&<>]|\\\\|\\(?:[lg]eq?|[lg]t|text *\{[^{}]*\})(?![A-Za-z])")
_QUOTIENT = re.compile(
    r"\\[dtc]?frac *(?:\{ *([0-9]+) *\}|([0-9])) *(?:\{ *([0-9]+) *\}|([0-9]))"
    r"|(?<![0-9.])([0-9]+) */ *([0-9]+)(?![0-9.])"
)
_WORKED_OUT_WHEN_READ = re.compile(r"÷|[0-9)}] *: *[0-9(]|\\(?:div|[dtc]?binom|choose)(?![A-Za-z])")
_READABLE = re.compile(
    r"(?:[0-9.+\-*/(){} ]|\\(?:[dtc]?frac|cdot|times|div|pi|left|right)(?![A-Za-z])|\\sqrt(?: *\[[2-9]\]|(?![A-Za-z]))"
    r"|\^\{-?[0-9]+\})+" + _AFTER
)
PERCENT = re.compile(r" *\\?% *$")
# Factors without a sign between them, which math-verify adds when both are whole (2(3) is 5 to it), and a power of a
# power without brackets.
_BESIDE = re.compile(r"[0-9.)}] *(?:\\left *)?\(|[)}] *[0-9.]|[0-9.] +[0-9.]|\^\{-?[0-9]+\} *\^\{")


class Value(NamedTuple):
    number: Any
    """Real or complex, of mpmath."""
    rounded: bool
    """Has a decimal in it."""


def is_latex(text: str) -> bool:
    return _LATEX.search(text) is not None


def as_value(text: str, number: Fraction | Value) -> Value:
    """The number that `text` is, whether it was read as plain or as LaTeX."""
    if isinstance(number, Value):
        return number
    return Value(_mp().mpf(number.numerator) / number.denominator, "/" not in text and number.denominator != 1)


def latex_value(text: str, *, ignore_percent: bool) -> Value | None:
    """The number that `text` is; None when it is not one, or could be costly to read."""
    readable = _readable(text, ignore_percent=ignore_percent)
    return None if readable is None else _read(readable)


def unwrap(text: str, wrapped: re.Pattern[str]) -> str:
    """The text without what `wrapped` matches around it, and without a full stop inside that."""
    while match := wrapped.fullmatch(text):
        text = match[match.lastindex or 0].strip().removesuffix(".")
    return text


def repeating_as_fractions(text: str) -> str:
    """0.1\\overline{6} as (16 − 1)/90, and so on."""

    def fraction(match: re.Match[str]) -> str:
        before, period = match[1] + match[2], match[3]
        ends = int(before + period) - int(before or "0")
        value = Fraction(ends, 10 ** len(match[2] + period) - 10 ** len(match[2]))
        return rf"\frac{{{value.numerator}}}{{{value.denominator}}}"

    return _REPEATING.sub(fraction, text)


def plain_text(text: str) -> str:
    """The text without what is around a number: dollars, \\boxed, bold, `x =`."""
    return unwrap(text.strip(), _WRAPPED)


def parse_latex(readable: str) -> Any:
    """The sympy tree, or matrix, of one formula without delimiters; None where math-verify reads none."""
    from math_verify import LatexExtractionConfig, parse

    logging.getLogger("math_verify").setLevel(logging.ERROR)  # it warns once that its time limit is off
    trees = parse(f"${readable}$", [LatexExtractionConfig()], "no_fallback", parsing_timeout=None, raise_on_error=False)
    return trees[0] if trees else None


def is_written(text: str) -> bool:
    """Whether LaTeX is a number in one of its notations (digits, a fraction, times a power of ten), and not an
    expression that is left to be worked out."""
    readable = _readable(text, ignore_percent=False)
    return readable is not None and _WRITTEN.fullmatch(readable) is not None


def is_division(text: str) -> bool:
    """Whether what is after the last equals sign is a fraction, which is no notation of a whole number."""
    return _DIVISION.search(text.rpartition("=")[2]) is not None


def is_undone(text: str) -> bool:
    """Whether a number in it is left to be worked out in a way that reading works out: 6/2, ÷, a binomial. What is
    before an equals sign is how the number came about."""
    parts = [part.rpartition("=")[2] for part in _PART.split(text)]
    quotients = [tuple(int(n) for n in match.groups() if n) for part in parts for match in _QUOTIENT.finditer(part)]
    return any(map(_WORKED_OUT_WHEN_READ.search, parts)) or any(b and a % b == 0 for a, b in quotients)


def equal(value: Value, expected: Value) -> bool:
    """To six decimals and to one part in ten thousand when one of them has a decimal in it, which may have been
    rounded; else exactly."""
    if (value.rounded or expected.rounded) and value.number:
        difference = abs(value.number - expected.number)
        return bool(difference <= min(5e-7, ROUNDED_SHARE * abs(expected.number)))
    return same_exactly(value, expected)


def same_exactly(value: Value, other: Value) -> bool:
    size = max(abs(value.number), abs(other.number)) if value.number and other.number else 1
    return bool(abs(value.number - other.number) <= _mp().mpf(10) ** -EXACT_DIGITS * size)


def _readable(text: str, *, ignore_percent: bool) -> str | None:
    """What math-verify is given for `text`; None for what it must not be given.

    One number written out: no variables, no tuples, no functions. A power is one whole number, and all powers multiply
    to at most MAX_POWER, so that no nesting of them makes a large number.
    """
    if len(text) > MAX_CHARS or sum(map(text.count, "({")) > MAX_BRACKETS:
        return None
    text = repeating_as_fractions(unwrap(text.strip().removesuffix("."), _WRAPPED))
    text = _SPACE.sub(" ", _THOUSANDS.sub("", text)).translate(_SIGNS).strip().removeprefix("\\$")
    if math.prod(max(1, abs(_power(match))) for match in _POWER.finditer(text)) > MAX_POWER:
        return None
    text = _POWER.sub(lambda match: f"^{{{_power(match)}}}", text)
    if ignore_percent:
        text = PERCENT.sub("", text)
    return text if _READABLE.fullmatch(text) and not _BESIDE.search(text) else None


def _power(match: re.Match[str]) -> int:
    return int("".join(part or "" for part in match.groups()).replace(" ", ""))


@lru_cache(maxsize=4096)
def _read(readable: str) -> Value | None:
    tree = parse_latex(readable)
    if not getattr(tree, "is_number", False):
        return None
    try:
        return Value(_evaluate(tree), any(leaf.is_Float for leaf in tree.atoms()))
    except (ArithmeticError, ValueError):  # such as 1/0
        return None


def _evaluate(tree: Any) -> Any:
    """The value of a sympy expression, node by node."""
    parts = [_evaluate(part) for part in tree.args]
    if tree.is_Rational:
        return _mp().mpf(tree.p) / tree.q
    if tree.is_Float:
        return _mp().mpf(str(tree))
    if tree.is_Add:
        return _mp().fsum(parts)
    if tree.is_Mul:
        return _mp().fprod(parts)
    if tree.is_Pow:
        return _mp().power(*parts)
    if tree.is_NumberSymbol and str(tree) == "pi":
        return +_mp().pi
    if len(parts) == 1 and type(tree).__name__ == "UnevaluatedExpr":  # the 1/100 of a percent sign
        return parts[0]
    raise ValueError(f"no number: {type(tree).__name__}")


@cache
def _mp() -> Any:
    """Arithmetic with EXACT_DIGITS and some more; our own, because anyone may set mpmath's shared one."""
    import mpmath  # type: ignore[import-untyped]

    context = mpmath.MPContext()
    context.dps = EXACT_DIGITS + 50
    return context
