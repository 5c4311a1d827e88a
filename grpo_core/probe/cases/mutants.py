"""Mutants of a program: one small change each, of the kind that a test ought to notice.

Reads and writes source text with `ast`; nothing is run. A mutant may do the same as the program after all, which is why
most of their classes hold a verifier back by share and not by one survivor.
"""

import ast
import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass

MAX_CHARS = 20_000
"""Longer programs are not mutated."""

Change = Callable[[ast.AST], ast.AST | None]
"""Gives the changed node, or None where the change does not apply. May change the node it is given."""

_COMPARED: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
_OPERATORS: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Add,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.FloorDiv,
    ast.Pow: ast.Mult,
}


@dataclass(frozen=True)
class Mutation:
    name: str
    title: str
    change: Change
    often_equal: bool = True
    """Whether a changed program quite often does the same as before."""


def _comparison(node: ast.AST) -> ast.AST | None:
    if not isinstance(node, ast.Compare) or type(node.ops[0]) not in _COMPARED:
        return None
    node.ops[0] = _COMPARED[type(node.ops[0])]()
    return node


def _arithmetic(node: ast.AST) -> ast.AST | None:
    if not isinstance(node, (ast.BinOp, ast.AugAssign)) or type(node.op) not in _OPERATORS:
        return None
    node.op = _OPERATORS[type(node.op)]()
    return node


def _constant(node: ast.AST) -> ast.AST | None:
    if not isinstance(node, ast.Constant) or isinstance(node.value, bool):
        return None
    if isinstance(node.value, int | float):
        return ast.Constant(node.value + 1)
    return ast.Constant(node.value + "x") if isinstance(node.value, str) and node.value else None


def _condition(node: ast.AST) -> ast.AST | None:
    if not isinstance(node, (ast.If, ast.While, ast.IfExp)):
        return None
    node.test = ast.UnaryOp(ast.Not(), node.test)
    return node


def _boolean(node: ast.AST) -> ast.AST | None:
    if not isinstance(node, ast.BoolOp):
        return None
    node.op = ast.Or() if isinstance(node.op, ast.And) else ast.And()
    return node


def _return_none(node: ast.AST) -> ast.AST | None:
    returns = isinstance(node, ast.Return) and node.value is not None
    return ast.Return(ast.Constant(None)) if returns else None


def _statement(node: ast.AST) -> ast.AST | None:
    calls = isinstance(node, ast.Expr) and isinstance(node.value, ast.Call)
    return ast.Pass() if isinstance(node, ast.AugAssign) or calls else None


def _branches(node: ast.AST) -> ast.AST | None:
    if isinstance(node, ast.If) and node.orelse:
        node.body, node.orelse = node.orelse, node.body
        return node
    if isinstance(node, ast.IfExp):
        node.body, node.orelse = node.orelse, node.body
        return node
    return None


def _one_round(node: ast.AST) -> ast.AST | None:
    if not isinstance(node, (ast.For, ast.While)):
        return None
    node.body.append(ast.Break())
    return node


def _early_return(node: ast.AST) -> ast.AST | None:
    """The function gives back its first parameter before it begins."""
    if not isinstance(node, ast.FunctionDef) or not node.args.args:
        return None
    node.body.insert(0, ast.Return(ast.Name(node.args.args[0].arg, ast.Load())))
    return node


def _slice(node: ast.AST) -> ast.AST | None:
    if not isinstance(node, ast.Subscript) or not isinstance(node.slice, ast.Slice):
        return None
    node.slice = ast.Slice(node.slice.upper, node.slice.lower, node.slice.step)
    return node


MUTATIONS = (
    Mutation("mutant_comparison", "a comparison changed (< to <=, == to !=)", _comparison),
    Mutation("mutant_arithmetic", "an operator changed (+ to -)", _arithmetic),
    Mutation("mutant_constant", "a constant changed (by 1, a text longer)", _constant),
    Mutation("mutant_condition", "a condition turned round", _condition),
    Mutation("mutant_boolean", "and for or", _boolean),
    Mutation("mutant_return_none", "None given back", _return_none, often_equal=False),
    Mutation("mutant_early_return", "its first parameter given back at once", _early_return, often_equal=False),
    Mutation("mutant_statement", "a statement left out", _statement),
    Mutation("mutant_branches", "the branches of a condition swapped", _branches),
    Mutation("mutant_one_round", "a loop left after its first round", _one_round),
    Mutation("mutant_slice", "the ends of a slice swapped", _slice),
)


def parsed(source: str) -> ast.Module | None:
    """The program's tree; None where it is none, or too long or deep to read."""
    if len(source) > MAX_CHARS:
        return None
    try:
        return ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def mutants(source: str, mutation: Mutation) -> Iterator[str]:
    """The program with the change made in one place, for each place where it can be made, in order of the text."""
    tree = parsed(source)
    if tree is None:
        return
    before = ast.unparse(tree)
    for index, _ in enumerate(ast.walk(tree)):
        changed = _changed(tree, index, mutation.change)
        if changed is not None and changed != before:
            yield changed


def _changed(tree: ast.Module, index: int, change: Change) -> str | None:
    whole: ast.AST = copy.deepcopy(tree)
    nodes = list(ast.walk(whole))
    node = nodes[index]
    is_constant = isinstance(node, ast.Constant)
    if is_constant and any(isinstance(parent, ast.Expr) and parent.value is node for parent in nodes):
        return None  # a docstring
    other = change(node)
    if other is None:
        return None
    if other is not node:
        whole = _Put(node, other).visit(whole)
    return ast.unparse(ast.fix_missing_locations(whole))


class _Put(ast.NodeTransformer):
    def __init__(self, node: ast.AST, other: ast.AST) -> None:
        self.node, self.other = node, other

    def visit(self, node: ast.AST) -> ast.AST:
        return self.other if node is self.node else super().generic_visit(node)


def renamed(source: str) -> str | None:
    """The program with the local names of its functions renamed, parameters left alone; None where there are none, or
    where a name is also used otherwise."""
    tree = parsed(source)
    if tree is None:
        return None
    stored: set[str] = set()
    kept: set[str] = set()
    for function in (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)):
        kept |= {arg.arg for arg in ast.walk(function.args) if isinstance(arg, ast.arg)}
        stored |= {
            node.id for node in ast.walk(function) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
        }
    for node in ast.walk(tree):
        match node:
            case ast.Global() | ast.Nonlocal():
                kept.update(node.names)
            case ast.FunctionDef() | ast.ClassDef():
                kept.add(node.name)
            case ast.keyword() if node.arg:
                kept.add(node.arg)
    for statement in tree.body:
        if not isinstance(statement, ast.FunctionDef):
            kept |= {node.id for node in ast.walk(statement) if isinstance(node, ast.Name)}
    new = {name: f"value_{index}" for index, name in enumerate(sorted(stored - kept))}
    if not new:
        return None
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and node.id in new:
            node.id = new[node.id]
    return ast.unparse(tree)
