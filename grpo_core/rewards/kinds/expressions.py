"""Whether two expressions of sympy are equal in value, decided by arithmetic of bounded size and not by simplifying.

Rational numbers are fractions, all others have DIGITS digits and exponents of any size, so that nothing overflows or
underflows. Expressions with variables are compared at fixed points: two that differ agree at random points with
probability 0, as for polynomials by the lemma of Schwartz (1980). No rule of sympy is applied, so no text can make it
search for one; what has no value here (an integral, a limit, a sum) is left to be worked out, and equals itself alone.
"""

import hashlib
import math
from collections.abc import Callable
from fractions import Fraction
from functools import cache
from typing import Any

DIGITS, EXACT_DIGITS = 1250, 1100
MAX_BITS = 200_000
"""Of a fraction's numerator; beyond it is a number of DIGITS digits."""
MAX_MAGNITUDE = 4000
"""Of a function's argument, in bits: 10^1000 has 3,322."""
MAX_EXPONENT = 200
"""Of an exponent, in bits, and of the arguments of factorials: the result's own exponent is as large."""
MAX_COUNTED = 10_000
"""Factorials and binomials of smaller numbers are worked out exactly."""
POINTS = 6
SCALED_POINTS = (Fraction(10) ** 40, Fraction(1, 10**40))
"""Where decimals are compared with a tolerance: large and small values of the variables, at which each term counts."""

Number = Any
"""A Fraction, or a real or complex number of mpmath."""


class Costly(ArithmeticError):
    """Too large to be worked out."""


def same_value(expected: Any, given: Any, decimals: int) -> bool:
    """Whether two expressions are equal; to `decimals` places, and in their leading digits, where a decimal is in one.
    Raises ArithmeticError or ValueError where one has no value."""
    if expected == given:
        return True
    rounded = expected.has(_sympy().Float) or given.has(_sympy().Float)
    if not (_variables(expected) | _variables(given)):
        left, right = value_of(expected), value_of(given)
        return _close(left, right, decimals) if rounded else _equal(left, right)
    scales = [Fraction(1)] * POINTS + list(SCALED_POINTS if rounded else ())
    values = [pair for index, scale in enumerate(scales) if (pair := _at_point(expected, given, index, scale))]
    compared = [pair for pair in values if not any(map(_is_complex, pair))] or values
    if rounded:
        return bool(compared) and all(_near(left, right, 2 * 10.0**-decimals) for left, right in compared)
    return bool(compared) and all(_equal(left, right) for left, right in compared)


def proportional(expected: Any, given: Any, decimals: int, *, sign: bool) -> bool:
    """Whether one is a constant times the other, so that both are 0 at the same points; with `sign` a positive one."""
    if not _variables(expected) == _variables(given) != set():
        return False
    if same_value(expected, given, decimals):
        return True
    rounded = expected.has(_sympy().Float) or given.has(_sympy().Float)
    scales = [Fraction(1)] * POINTS + list(SCALED_POINTS if rounded else ())
    values = [pair for index, scale in enumerate(scales) if (pair := _at_point(expected, given, index, scale))]
    values = [pair for pair in values if not any(map(_is_complex, pair))]
    if len(values) < 2 or any(left == 0 or right == 0 for left, right in values):
        return False
    ratio = _wide(values[0][0]) / _wide(values[0][1])
    share = 2 * 10.0**-decimals if rounded else 0.0
    return (ratio > 0 or not sign) and all(_near(left, ratio * _wide(right), share) for left, right in values)


def value_of(tree: Any, point: Callable[[Any], Number] | None = None) -> Number:
    """The value, variables at `point`. Raises Costly, ValueError for what has no value here, ZeroDivisionError."""
    if tree.is_Rational:
        return Fraction(int(tree.p), int(tree.q))
    if tree.is_Float:
        return Fraction(str(tree))
    if point is not None and _is_variable(tree):
        return point(tree)
    if tree.is_NumberSymbol or tree == _sympy().I:
        return _constant(tree)
    return _combine(tree, [value_of(part, point) for part in tree.args])


def _combine(tree: Any, parts: list[Number]) -> Number:
    name = type(tree).__name__
    if tree.is_Add:
        return _folded(parts, lambda left, right: left + right)
    if tree.is_Mul:
        return _folded(parts, lambda left, right: left * right)
    if tree.is_Pow:
        return _power(*parts)
    if name == "exp":
        return _power(_mp().e + 0, parts[0])
    if name in ("factorial", "binomial"):
        return _counted(name, parts)
    if name in ("Abs", "floor", "ceiling", "Max", "Min", "UnevaluatedExpr"):
        return _plain(name, parts)
    if name == "Mod" and all(isinstance(part, Fraction) for part in parts):
        return parts[0] % parts[1]
    if name == "log" and len(parts) == 2:
        return _call("log", parts[0]) / _call("log", parts[1])
    if name in _FUNCTIONS and len(parts) == 1:
        return _call(name, parts[0])
    raise ValueError(f"{name} is left to be worked out")


_FUNCTIONS = frozenset(
    {"sin", "cos", "tan", "cot", "sec", "csc", "asin", "acos", "atan", "acot", "asec", "acsc"}
    | {"sinh", "cosh", "tanh", "coth", "asinh", "acosh", "atanh", "log"}
)


def _call(name: str, argument: Number) -> Number:
    argument = _wide(argument)
    _bounded(argument, MAX_EXPONENT if name in ("sinh", "cosh", "tanh", "coth") else MAX_MAGNITUDE)
    return _finite(getattr(_mp(), name)(argument))


def _power(base: Number, exponent: Number) -> Number:
    if isinstance(base, Fraction) and isinstance(exponent, Fraction) and exponent.denominator == 1:
        times = abs(exponent.numerator)
        if max(base.numerator.bit_length(), base.denominator.bit_length()) * times <= MAX_BITS:
            return base ** int(exponent)
    wide = _wide(exponent)
    _bounded(wide, MAX_EXPONENT)
    return _finite(_mp().power(_wide(base), wide))


def _counted(name: str, parts: list[Number]) -> Number:
    whole = [int(part) for part in parts if isinstance(part, Fraction) and part.denominator == 1 and part >= 0]
    if len(whole) < len(parts):
        raise ValueError(f"{name} of what is no whole number")
    if max(whole) < MAX_COUNTED:
        return Fraction(math.factorial(whole[0]) if name == "factorial" else math.comb(*whole))
    wide = [_wide(part) for part in parts]
    for part in wide:
        _bounded(part, MAX_EXPONENT)
    return _finite(getattr(_mp(), name)(*wide))


def _plain(name: str, parts: list[Number]) -> Number:
    if name == "UnevaluatedExpr":
        return parts[0]
    if name == "Abs":
        return abs(parts[0])
    if any(map(_is_complex, parts)):
        raise ValueError("complex numbers have no order")
    if name in ("Max", "Min"):
        return (max if name == "Max" else min)(parts, key=_wide)
    if not isinstance(parts[0], Fraction):
        _bounded(parts[0], MAX_MAGNITUDE)
    return Fraction(int((_mp().floor if name == "floor" else _mp().ceil)(_wide(parts[0]))))


def _folded(parts: list[Number], operation: Callable[[Number, Number], Number]) -> Number:
    total = parts[0]
    for part in parts[1:]:
        exact = isinstance(total, Fraction) and isinstance(part, Fraction)
        total = operation(total, part) if exact else operation(_wide(total), _wide(part))
        if isinstance(total, Fraction) and total.numerator.bit_length() + total.denominator.bit_length() > MAX_BITS:
            total = _wide(total)
    return total


# ---------------------------------------------------------------------- numbers


def _equal(left: Number, right: Number) -> bool:
    if isinstance(left, Fraction) and isinstance(right, Fraction):
        return left == right
    left, right = _wide(left), _wide(right)
    size = max(abs(left), abs(right)) if left and right else 1
    return bool(abs(left - right) <= _mp().mpf(10) ** -EXACT_DIGITS * size)


def _close(expected: Number, given: Number, decimals: int) -> bool:
    """Within half of the last decimal, and within two digits more than that of the value's own size."""
    return _near(expected, given, leading_share(decimals)) and bool(
        abs(_wide(expected) - _wide(given)) <= _mp().mpf(10) ** -decimals / 2
    )


def leading_share(decimals: int) -> float:
    """How far two numbers may differ relative to their size, when they agree to so many decimals: with 6 decimals
    0.0000001 and 0.0000002 would be equal."""
    return min(5e-3, 100 * 10.0**-decimals)


def _near(expected: Number, given: Number, share: float) -> bool:
    return _equal(expected, given) or bool(abs(_wide(expected) - _wide(given)) <= share * abs(_wide(expected)))


def _at_point(expected: Any, given: Any, index: int, scale: Fraction) -> tuple[Number, Number] | None:
    """Both values at one point; None where one has none there."""
    names = sorted(_variables(expected) | _variables(given), key=str)
    whole = expected.has(*_counting()) or given.has(*_counting())
    place = {name: _coordinate(str(name), index, whole=whole) * scale for name in names}
    try:
        return value_of(expected, place.__getitem__), value_of(given, place.__getitem__)
    except (Costly, ZeroDivisionError):
        return None


def _counting() -> tuple[Any, ...]:
    return _sympy().factorial, _sympy().binomial


def _coordinate(name: str, index: int, *, whole: bool) -> Fraction:
    """0.5 to 2.5 by hash; the first points have positive values, the next negative ones, the others either. `whole`:
    5 to 44, for expressions that are defined for counts."""
    digest = hashlib.sha256(f"{index} {name}".encode()).digest()
    if whole:
        return Fraction(5 + digest[0] % 40)
    size = Fraction(1, 2) + Fraction(int.from_bytes(digest[:4]), 2**31)
    negative = index in (2, 3) or (index > 3 and digest[4] % 2 == 1)
    return -size if negative else size


def _variables(tree: Any) -> set[Any]:
    return {node for node in _sympy().preorder_traversal(tree) if _is_variable(node)}


def _is_variable(node: Any) -> bool:
    return bool(node.is_Symbol or isinstance(node, _sympy().core.function.AppliedUndef))


def _is_complex(number: Number) -> bool:
    return bool(getattr(number, "imag", 0))


def _constant(tree: Any) -> Number:
    known = {"pi": _mp().pi, "E": _mp().e, "GoldenRatio": _mp().phi}
    if tree == _sympy().I:
        return _mp().mpc(0, 1)
    if str(tree) not in known:
        raise ValueError(f"no value: {tree}")
    return known[str(tree)] + 0


def _wide(number: Number) -> Number:
    return _mp().mpf(number.numerator) / number.denominator if isinstance(number, Fraction) else number


def _bounded(number: Number, bits: int) -> None:
    if number and _mp().mag(number) > bits:
        raise Costly(f"a number of more than {bits} bits")


def _finite(number: Number) -> Number:
    if not _mp().isfinite(number):
        raise ZeroDivisionError("no finite value")
    return number


@cache
def _mp() -> Any:
    """Arithmetic with DIGITS digits; our own, because anyone may set mpmath's shared one."""
    import mpmath  # type: ignore[import-untyped]

    context = mpmath.MPContext()
    context.dps = DIGITS
    return context


def _sympy() -> Any:
    import sympy  # type: ignore[import-untyped]

    return sympy
