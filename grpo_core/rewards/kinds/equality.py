"""Whether two answers that math-verify read are the same, part by part: sets, intervals, tuples, matrices, equations,
inequalities, and in the end pairs of expressions, by `expressions.same_value`.
"""

from collections.abc import Sequence
from typing import Any

from grpo_core.rewards.kinds.expressions import proportional, same_value


def same(expected: Any, given: Any, decimals: int) -> bool:
    """Raises ArithmeticError, ValueError or TypeError for parts that cannot be compared."""
    from sympy import Expr, FiniteSet, Interval, MatrixBase, Tuple, Union, oo  # type: ignore[import-untyped]
    from sympy.core.relational import Relational  # type: ignore[import-untyped]

    if equations(expected) and equations(given):
        return _same_equations(equations(expected)[-1], equations(given), decimals)
    expected, given = (_alone(_right_side(tree)) for tree in (expected, given))
    if isinstance(expected, MatrixBase) and isinstance(given, MatrixBase):
        return bool(expected.shape == given.shape) and _each(list(expected), list(given), decimals)
    if isinstance(expected, Expr) and isinstance(given, Expr):
        if expected.has(oo) or given.has(oo):
            return bool(expected == given)
        return same_value(expected, given, decimals)
    if _is_relation(expected) != _is_relation(given):
        expected, given = _as_set(expected), _as_set(given)
    if isinstance(expected, Relational) and isinstance(given, Relational):
        return _same_relations(expected, given, decimals)
    if _is_pair(expected) and isinstance(given, (FiniteSet, Tuple)):
        return _each([expected.start, expected.end], in_written_order(given), decimals)
    if isinstance(expected, Interval) and isinstance(given, Interval):
        is_same = (expected.left_open, expected.right_open) == (given.left_open, given.right_open)
        return is_same and _each([expected.start, expected.end], [given.start, given.end], decimals)
    if isinstance(expected, Tuple) or isinstance(given, Tuple):
        if _is_pair(given):
            given = Tuple(given.start, given.end)
        return all(isinstance(side, (FiniteSet, Tuple)) for side in (expected, given)) and _each(
            in_written_order(expected), in_written_order(given), decimals
        )
    for kinds in ((FiniteSet,), (Union,), _connectives()):
        if isinstance(expected, kinds) and type(expected).__name__ == type(given).__name__:
            return _match(list(expected.args), list(given.args), decimals)
    return bool(expected == given)


def equations(tree: Any) -> list[Any]:
    """The links of an equation or a chain of them, in order; none for anything else."""
    from sympy import And, Eq

    links = in_written_order(tree) if isinstance(tree, And) else [tree]
    return links if all(isinstance(link, Eq) for link in links) else []


def in_written_order(tree: Any) -> list[Any]:
    return list(getattr(tree, "_unsorted_args", tree.args))


def is_name(tree: Any) -> bool:
    """A variable, or a function's name with its arguments: what an equation says a value of."""
    return bool(getattr(tree, "is_Symbol", False) or getattr(tree, "is_Function", False))


def _right_side(tree: Any) -> Any:
    links = equations(tree)
    if len(links) == 1:
        return _turned(links[0].lhs, links[0].rhs)[1]
    return links[-1].rhs if links else tree


def _alone(tree: Any) -> Any:
    """The member of a set of one."""
    from sympy import FiniteSet

    return next(iter(tree.args)) if isinstance(tree, FiniteSet) and len(tree.args) == 1 else tree


def _same_equations(expected: Any, links: Sequence[Any], decimals: int) -> bool:
    """`links`: a chain such as x = 2 + 3 = 5, whose last side is the value."""
    (left, right), (other, value) = (_turned(link.lhs, link.rhs) for link in (expected, links[0]))
    if is_name(left) and is_name(other):
        return bool(left == other) and same(right, value if len(links) == 1 else links[-1].rhs, decimals)
    return len(links) == 1 and proportional(left - right, other - value, decimals, sign=False)


def _turned(left: Any, right: Any) -> tuple[Any, Any]:
    return (right, left) if is_name(right) and not is_name(left) else (left, right)


def _same_relations(expected: Any, given: Any, decimals: int) -> bool:
    """Inequalities whose sides differ by the same, up to a positive factor; for ≠ up to any."""
    from sympy import Ne

    sides = []
    for relation in (expected, given):
        less = relation.rel_op in ("<", "<=", "!=")
        strict = relation.rel_op.rstrip("=") or relation.rel_op
        left, right = (relation.lhs, relation.rhs) if less else (relation.rhs, relation.lhs)
        sides.append((strict.replace(">", "<") + ("=" if relation.rel_op in ("<=", ">=") else ""), left - right))
    (kind, difference), (other, given_difference) = sides
    return kind == other and proportional(difference, given_difference, decimals, sign=not isinstance(expected, Ne))


def _is_relation(tree: Any) -> bool:
    from sympy.core.relational import Relational

    return isinstance(tree, (Relational, *_connectives()))


def _as_set(tree: Any) -> Any:
    """The set that one variable's bounds are, such as x > 1; the tree itself where it is none."""
    from sympy import Intersection, Or, Union
    from sympy.core.relational import Relational

    parts = tree.args if isinstance(tree, _connectives()) else [tree]
    bounds = all(isinstance(part, Relational) and _is_bound(part) for part in parts)
    if not bounds or len(set().union(*(part.free_symbols for part in parts))) != 1:
        return tree
    return (Union if isinstance(tree, Or) else Intersection)(*map(_half_line, parts))


def _half_line(relation: Any) -> Any:
    from sympy import FiniteSet, Interval, Union, oo

    turned = relation if relation.lhs.is_Symbol else relation.reversed
    bound = turned.rhs
    below, above = Interval.open(-oo, bound), Interval.open(bound, oo)
    return {
        "<": below,
        "<=": Interval(-oo, bound),
        ">": above,
        ">=": Interval(bound, oo),
        "!=": Union(below, above),
        "==": FiniteSet(bound),
    }[turned.rel_op]


def _is_bound(relation: Any) -> bool:
    from sympy import Function

    sides = (relation.lhs, relation.rhs)
    return any(side.is_Symbol for side in sides) and any(side.is_number and not side.has(Function) for side in sides)


def _is_pair(tree: Any) -> bool:
    """(1, 2), which is read as an interval and may be a pair."""
    from sympy import Interval

    return isinstance(tree, Interval) and bool(tree.left_open) and bool(tree.right_open)


def _each(expected: Sequence[Any], given: Sequence[Any], decimals: int) -> bool:
    pairs = zip(expected, given, strict=False)
    return len(expected) == len(given) and all(same(side, other, decimals) for side, other in pairs)


def _match(expected: Sequence[Any], given: Sequence[Any], decimals: int) -> bool:
    """Each of the one is one of the other, in any order."""
    left = list(given)
    for part in expected:
        index = next((index for index, other in enumerate(left) if same(part, other, decimals)), None)
        if index is None:
            return False
        left.pop(index)
    return not left


def _connectives() -> tuple[Any, ...]:
    from sympy import And, Or

    return (And, Or)
