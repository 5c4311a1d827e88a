r"""What a formula may cost, before it is read and before it is evaluated.

sympy works out numbers by itself wherever two trees are combined, and reading works out more: the bounds of a range
are compared, a root's index is inverted, a chain of relations is simplified. A short text such as ((9^{99})^{99})^{99}
makes numbers of gigabytes there. So a text is refused by the powers that are written in it, and a tree by an upper
bound of the bits that its numbers would have.
"""

import math
import re
from typing import Any

MAX_BITS = 200_000
"""Of a number that sympy would work out."""
MAX_POWERS = 1000
"""Product of all exponents of a text of which parts are evaluated while it is read."""
MAX_FACTORIAL = 10_000
MAX_DEGREE = 64
"""Of the roots in two bounds together: sympy decides whether they are equal by their minimal polynomial."""

_RELATION = r"[<>]|\\(?:le|ge|leq|geq|lt|gt|ne|neq|leqslant|geqslant)(?![A-Za-z])"
_EVALUATED = re.compile(rf"[,;]|\\sqrt *\[|\\exp|(?<![A-Za-z])e *\^|\\c[au]p|(?:{_RELATION}|=).*(?:{_RELATION}|=)")
_BOUND = re.compile(rf"[,;]|\\c[au]p|{_RELATION}")
_ROOT = re.compile(r"\\sqrt *(?:\[ *([0-9]+) *\])?|\^ *\{ *(?:[0-9]+ */ *|\\[dt]?frac *\{?[0-9]\}? *\{?)([0-9]+)")
_EXPONENT = re.compile(r"\^ *(?:\{((?:[^{}]|\{[^{}]*\})*)\}|\\?([A-Za-z0-9]+))")
_GROWS = re.compile(r"\\?(?:sinh|cosh|tanh|coth|exp)(?![A-Za-z])")
_ROUNDS = re.compile(r"\\(?:lfloor|lceil|bmod|mod|pmod)(?![A-Za-z])|!")
_NUMBER = re.compile(r"[0-9]+")


def costly_to_read(text: str) -> bool:
    """Whether parts of the text are evaluated while it is read, and may be numbers of any size."""
    if not _EVALUATED.search(text):
        return False
    exponents = [match[1] or match[2] for match in _EXPONENT.finditer(text)]
    growing = len(_GROWS.findall(text))
    if growing > 1 or any("^" in exponent or _GROWS.search(exponent) for exponent in exponents):
        return True
    if len(exponents) < text.count("^"):  # in brackets that nest deeper
        return True
    if _ROUNDS.search(text) and (growing or exponents):
        return True
    degrees = [math.prod(int(a or b or 2) for a, b in _ROOT.findall(bound)) for bound in _BOUND.split(text)]
    if any(left * right > MAX_DEGREE for left, right in zip(degrees, [*degrees[1:], 1], strict=True)):
        return True
    written = [int(number) for exponent in exponents for number in _NUMBER.findall(exponent)]
    return math.prod(max(1, number) for number in written) > MAX_POWERS


def costly_to_evaluate(tree: Any) -> bool:
    """Whether a tree of sympy, or a matrix, has no value (0/0), or numbers of more than MAX_BITS once worked out."""
    from sympy import Basic  # type: ignore[import-untyped]

    parts = [tree] if isinstance(tree, Basic) else list(tree)
    return not all(_bits(part) <= MAX_BITS for part in parts)


def _bits(node: Any) -> float:
    """An upper bound of the bits of the numbers in it, everything multiplied out; infinite where there is none."""
    from sympy import Basic, factorial, nan, zoo

    if not isinstance(node, Basic) or node in (nan, zoo):
        return math.inf
    if node.is_Rational:
        return float(int(node.p).bit_length() + int(node.q).bit_length())
    if getattr(node, "is_Pow", False):
        return _power_bits(node)
    if isinstance(node, factorial):
        (of,) = node.args
        if of.is_number and not (of.is_Number and abs(of) <= MAX_FACTORIAL):
            return math.inf
        return _bits(of) + (float(of) * 14 if of.is_Number else 1)
    return 1 + sum(map(_bits, node.args))


def _power_bits(node: Any) -> float:
    base, exponent = _bits(node.base), _bits(node.exp)
    if not node.exp.is_number:
        return base + exponent
    if not node.exp.is_Number and exponent > 64:
        return math.inf
    times = abs(float(node.exp)) if node.exp.is_Number else 2.0**exponent
    return 1 + exponent + base * max(1.0, times)
