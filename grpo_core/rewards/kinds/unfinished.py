"""What is wrong with an answer that equals the reference and is no answer: a number left to be worked out, the
problem's own formula given back, a product where a sum was to be expanded. Equality alone answers none of these.
"""

import re
from collections.abc import Iterator
from fractions import Fraction
from typing import Any

from grpo_core.rewards.kinds.equality import equations, in_written_order, is_name
from grpo_core.rewards.kinds.expressions import Costly, value_of

LEFT = "left to be worked out"
OWN_FORMULA = "the problem's own formula"
MAX_FORMULAS = 20
"""Of a prompt, the first of them."""

_MATHS = re.compile(r"\$\$(.+?)\$\$|\$(.+?)\$|\\\((.+?)\\\)|\\\[(.+?)\\\]", re.DOTALL)
_BARE = re.compile(r"(?:[^\sA-Za-z\\?;:]|\\[A-Za-z]+|(?<![A-Za-z])[A-Za-z](?![A-Za-z])|(?<=\S)[ ](?=[^\sA-Za-z]))+")
_HAS_OPERATION = re.compile(r"[-+*/^=<>\\]|[0-9)][A-Za-z(]")
_VERBS = {
    "expand": re.compile(r"\b(?:expand|multiply out)", re.IGNORECASE),
    "factor": re.compile(r"\bfactor", re.IGNORECASE),
    "solve": re.compile(r"\bsolve\b", re.IGNORECASE),
}


def unfinished(given: Any, expected: Any, formulas: frozenset[Any], prompt: str) -> str:
    """Why a tree that equals the reference's is no answer; empty where it is one. `formulas`: the prompt's, each as
    `canonical` and as `as_written` gives it."""
    if all(map(is_written, _numbers(expected))):
        decimal = any(part.is_Float for number in _numbers(expected) for part in number.atoms())
        if not all(is_written(number) or (decimal and _is_irrational(number)) for number in _numbers(given)):
            return LEFT
    if not all(number.free_symbols <= _symbols(expected) for number in values_in(given) if not is_name(number)):
        return LEFT
    if _has_functions(given) and not _has_functions(expected):
        return LEFT
    sides, wanted = (
        {as_written(tree), *(as_written(link.rhs) for link in equations(tree)[-1:])} for tree in (given, expected)
    )
    form, reference = canonical(given), canonical(expected)
    if sides & wanted:
        return ""
    if sides & formulas:
        return OWN_FORMULA
    if form == reference:
        return ""
    if form in formulas or (equations(given) and canonical(equations(given)[-1].rhs) in formulas - {reference}):
        return OWN_FORMULA
    undone = {
        "expand": _is_expanded(reference) and not _is_expanded(form),
        "factor": _factor_count(reference) > _factor_count(form),
        "solve": _is_solved(reference) and not _is_solved(form),
    }
    for verb, is_undone in undone.items():
        if _VERBS[verb].search(prompt) and is_undone:
            return f"not in the form that the problem asks for: {verb}"
    return ""


def is_written(tree: Any) -> bool:
    """A number in one of its notations: digits, a fraction that is no whole number, times a power of ten, a sign."""
    if tree.is_Number:
        return True
    if type(tree).__name__ == "UnevaluatedExpr":
        return bool(tree.args[0].is_Number)
    if tree.is_Pow:
        return tree.base == 10 and bool(tree.exp.is_Integer or is_written(tree.exp))
    if not tree.is_Mul:
        return False
    parts = [part for part in _factors(tree) if part != -1]
    if len(parts) <= 1:
        return all(map(is_written, parts)) or _is_quotient(parts)
    first, *others = parts
    hundredth = [part for part in others if type(part).__name__ == "UnevaluatedExpr"]
    others = [part for part in others if part not in hundredth]
    if not first.is_Number and not (hundredth and is_written(first)):
        return False
    return not others or (len(others) == 1 and (_is_quotient(parts[:2]) or _is_ten(others[0])))


def _factors(tree: Any) -> Iterator[Any]:
    for part in tree.args:
        if part.is_Mul:
            yield from _factors(part)
        else:
            yield part


def _is_ten(tree: Any) -> bool:
    return bool(tree.is_Pow and tree.base == 10)


def _is_quotient(parts: list[Any]) -> bool:
    """a/b, or 1/b, that is no division to be worked out: 6/2 is one."""
    *above, below = parts
    if not (below.is_Pow and below.exp == -1 and below.base.is_Number and below.base != 0):
        return False
    value = Fraction(str(above[0]) if above else 1) / Fraction(str(below.base))
    return value.denominator != 1 or below.base == 1


def _is_irrational(tree: Any) -> bool:
    """A number that a decimal can only round: a root or π, not √144."""
    try:
        value = value_of(tree)
    except (Costly, ValueError, ZeroDivisionError):
        return False
    if isinstance(value, Fraction):
        return False
    left = abs(value.real) * 10**12 % 1
    return bool(value.imag) or bool(min(left, 1 - left) > 1e-300)


def _numbers(tree: Any) -> Iterator[Any]:
    """The expressions without variables that an answer consists of."""
    return (value for value in values_in(tree) if not value.free_symbols)


def values_in(tree: Any) -> Iterator[Any]:
    """The expressions that an answer consists of."""
    from sympy import Basic, Expr, Interval  # type: ignore[import-untyped]

    links = equations(tree)
    if links:
        yield from values_in(links[-1].lhs if is_name(links[-1].rhs) and len(links) == 1 else links[-1].rhs)
    elif not isinstance(tree, Basic):  # a matrix
        for entry in tree:
            yield from values_in(entry)
    elif isinstance(tree, Expr):
        yield tree
    elif isinstance(tree, Interval):
        yield from (tree.start, tree.end)
    else:
        for part in in_written_order(tree):
            yield from values_in(part)


def is_plain(tree: Any) -> bool:
    """Whether all that it consists of are numbers in one of their notations, and names."""
    return all(is_name(value) or is_written(value) for value in values_in(tree))


def _symbols(tree: Any) -> set[Any]:
    return set().union(*(value.free_symbols for value in values_in(tree)))


def _has_functions(tree: Any) -> bool:
    """Whether a function's value is left in it, such as cos 30°; e counts, as that of the exponential."""
    from sympy import E, preorder_traversal

    nodes = (node for value in values_in(tree) for node in preorder_traversal(value))
    return any(node == E or (node.is_Function and not node.free_symbols) for node in nodes)


def as_written(tree: Any) -> str:
    """The names and arguments in it, in no order of terms and factors; nothing is worked out."""
    if not getattr(tree, "args", ()):
        return str(tree)
    name = type(tree).__name__
    parts = [as_written(part) for part in (_factors(tree) if name == "Mul" else tree.args) if part != 1]
    return f"{name}({', '.join(sorted(parts) if name in ('Add', 'Mul') else parts)})"


def canonical(tree: Any) -> Any:
    """The tree with sympy's order of terms and factors, nothing expanded: x+1 and 1+x are the same."""
    from sympy import Basic, Eq, Expr, Pow

    if not isinstance(tree, Basic):
        return tree.as_immutable()
    if not tree.args or not isinstance(tree, (Expr, Eq)):
        return tree
    parts = [canonical(part) for part in tree.args]
    if isinstance(tree, Pow) and parts[0].is_Number and parts[1].is_Number and abs(parts[1]) > 100:
        return tree
    return tree.func(*parts)


def squashed(text: str) -> str:
    """The text without white space and signs of display."""
    return re.sub(r"\s|\$|\\displaystyle|(?<=\\)[dt](?=frac)", "", text)


def formulas_in(prompt: str) -> Iterator[str]:
    """Texts in a prompt that are formulas: those between dollars, else runs without words."""
    marked = [next(filter(None, match.groups())) for match in _MATHS.finditer(prompt)]
    texts = marked or [match[0].strip(" .,") for match in _BARE.finditer(prompt)]
    yield from [text for text in texts if _HAS_OPERATION.search(text)][:MAX_FORMULAS]


def _sums(tree: Any) -> list[Any]:
    """The factors that are sums, each as often as it is one."""
    from sympy import Add, Mul, Pow

    sums = []
    for part in Mul.make_args(tree):
        base, times = (part.base, part.exp) if isinstance(part, Pow) and part.exp.is_Integer else (part, 1)
        if isinstance(base, Add) and times > 0:
            sums += [base] * min(int(times), 50)
    return sums


def _is_expanded(tree: Any) -> bool:
    from sympy import Add, Expr

    if not isinstance(tree, Expr):
        return True
    return not any(_sums(part) for part in Add.make_args(tree))


def _factor_count(tree: Any) -> int:
    """Factors with a variable, each as often as it is one."""
    from sympy import Expr, Mul

    parts = [part for part in Mul.make_args(tree) if part.free_symbols] if isinstance(tree, Expr) else []
    return sum(int(part.exp) if part.is_Pow and part.exp.is_Integer else 1 for part in parts)


def _is_solved(tree: Any) -> bool:
    """No equation, or one that says a variable's value."""
    links = equations(tree)
    return not links or any(
        is_name(side) and not other.has(side)
        for side, other in ((links[0].lhs, links[0].rhs), (links[-1].rhs, links[-1].lhs))
    )
