"""Runs one program of tests against stand-ins, and says how it ended. Part of the text of a program inside the sandbox.

A name that the tests use is their own, Python's, a module of the standard library's or of the prelude's, and only then
the solution's: a solution that defines `abs` or `sorted` changes no test.
"""

from __future__ import annotations

import os
import sys

from grpo_core.rewards.code.inside_talk import Talk
from grpo_core.rewards.code.inside_tests import SHOWN, TESTS, Failed, Fault, Link

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, NoReturn

_TYPING = frozenset(
    ["Any", "Callable", "Dict", "Iterable", "Iterator", "List", "Optional", "Sequence", "Set", "Tuple", "Union"]
)


class _Names(dict):  # type: ignore[type-arg]
    """Python's own names; what is not among them is looked for in the standard library, then in the solution."""

    def __init__(self, builtins: dict[str, Any], link: Link, entry: str) -> None:
        super().__init__(builtins)
        self._link, self._entry = link, entry

    def __missing__(self, name: str) -> Any:
        if name.startswith("__"):
            raise KeyError(name)
        if name in _TYPING:
            import typing

            return getattr(typing, name)
        if name in sys.stdlib_module_names and name != self._entry:
            return __import__(name)
        try:
            self[name] = self._link.name(name)
        except NameError:
            raise KeyError(name) from None
        return self[name]


def run_tests(order: dict[str, Any], talk: Talk) -> NoReturn:
    """Says ["passed", calls] or ["failed", why, line, last call, calls] or ["fault", why]."""
    link = Link(talk)
    try:
        _run(order, link)
        verdict: list[Any] = _passed(link)
    except Fault as fault:
        verdict = ["fault", str(fault)[:SHOWN]]
    except SystemExit as ended:
        if ended.code is False:  # unittest.main() says whether something failed
            verdict = _passed(link)
        else:
            verdict = ["failed", "the tests ended the process", 0, link.last, link.calls]
    except BaseException as error:  # noqa: BLE001 - however tests end, but by passing, is a failure
        why = str(error)[:SHOWN] if isinstance(error, Failed) else type(error).__name__
        verdict = ["failed", why, _line(error), link.last, link.calls]
    if link.fault:
        verdict = ["fault", link.fault]
    talk.send(verdict, b"V")
    os._exit(0)


def _passed(link: Link) -> list[Any]:
    return ["failed", Failed.all[0], 0, link.last, link.calls] if Failed.all else ["passed", link.calls]


def _run(order: dict[str, Any], link: Link) -> None:
    import ast
    import builtins
    import importlib.util

    entry = order["entry"]
    module = type(sys)("__main__")
    space = module.__dict__
    space["__file__"] = TESTS
    try:
        prelude = ast.parse(order["prelude"])
        tests = ast.parse(order["text"])
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        line = f" in line {error.lineno}" if isinstance(error, SyntaxError) else ""
        raise Fault(f"the tests, or what stands before them, are no Python{line}: {error}") from None
    for node in ast.walk(tests):
        for name in _imported(node):
            if name.partition(".")[0] != "solution" and importlib.util.find_spec(name.partition(".")[0]) is None:
                raise Fault(f"the tests import {name!r}, which is not there; name its distribution in `packages`")
    if order["alone"]:
        given = {statement.name for statement in prelude.body if isinstance(statement, ast.ClassDef)} | {
            entry,
            *_TYPING,
        }
        if unknown := sorted(_unknown(tests, prelude) - given - sys.stdlib_module_names - set(dir(builtins))):
            raise Fault(
                f"the tests use {unknown[0]!r}, which is neither theirs nor the entry point {entry!r}; name the field "
                "that holds the code around the solution in `prelude`"
            )
    link.classes = used_as_classes(tests, prelude, entry)
    link.takes_ends = "StopIteration" in order["text"]
    prelude.body = [statement for statement in prelude.body if not _left_to_solution(statement, entry)]
    sys.modules["__main__"] = module
    sys.argv = [TESTS]
    try:
        exec(compile(prelude, "prelude.py", "exec"), space)
    except Exception as error:  # noqa: BLE001 - code of the dataset may raise anything
        raise Fault(
            f"what stands before the solution cannot be run by itself: {type(error).__name__}: {error}"
        ) from None
    space["__builtins__"] = _Names(vars(builtins), link, entry)
    solution = type(sys)("solution")
    solution.__dict__["__getattr__"] = lambda name: _attribute(link, name)
    sys.modules["solution"] = solution
    if entry:
        space.pop(entry, None)
        space[entry] = link.name(entry)
    exec(compile(tests, TESTS, "exec"), space)
    _run_defined(space, tests, entry)


def _run_defined(space: dict[str, Any], tests: Any, entry: str) -> None:
    """What test code defines for another to call: HumanEval's `check`, functions `test…`, classes of unittest."""
    import ast

    called = {
        node.value.func.id
        for node in tests.body
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call) and isinstance(node.value.func, ast.Name)
    }
    defined = [node for node in tests.body if isinstance(node, ast.FunctionDef | ast.ClassDef)]
    for node in defined:
        if isinstance(node, ast.FunctionDef) and node.name not in called:
            if node.name == "check" and entry and len(node.args.args) == 1:
                space["check"](space[entry])
            elif node.name.startswith("test") and len(node.args.args) == len(node.args.defaults):
                space[node.name]()
        elif isinstance(node, ast.ClassDef) and "unittest" in sys.modules:
            _run_unittest(space[node.name])


def _run_unittest(kind: Any) -> None:
    import unittest

    if not issubclass(kind, unittest.TestCase):
        return
    for test in unittest.defaultTestLoader.loadTestsFromTestCase(kind):
        test.debug()


def _attribute(link: Link, name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    try:
        return link.name(name)
    except NameError:
        raise AttributeError(f"the solution has no {name!r}") from None


def _unknown(tests: Any, prelude: Any) -> set[str]:
    """Names that the tests read and neither they nor the prelude define anywhere."""
    import ast

    read, made = set(), {"__name__", "__file__"}
    for tree in (tests, prelude):
        for node in ast.walk(tree):
            if isinstance(node, ast.Name):
                if not isinstance(node.ctx, ast.Load):
                    made.add(node.id)
                elif tree is tests:
                    read.add(node.id)
            elif isinstance(node, ast.FunctionDef | ast.ClassDef | ast.AsyncFunctionDef):
                made.add(node.name)
            elif isinstance(node, ast.arg):
                made.add(node.arg)
            elif isinstance(node, ast.alias):
                made.add((node.asname or node.name).partition(".")[0])
            elif isinstance(node, ast.ExceptHandler) and node.name:
                made.add(node.name)
    return read - made


def used_as_classes(tests: Any, prelude: Any, entry: str) -> frozenset[str]:
    """Capital names of which the tests show that they are classes: they read an attribute that no plain value has, of
    what such a name makes or of itself; or they test for its instances, or derive from it. The prelude decides
    where it defines the name. Nothing of the solution's is looked at."""
    import ast

    nodes = list(ast.walk(tests))
    flow = _Flow(nodes, entry)
    classes: set[str] = set()
    for node in nodes:
        if isinstance(node, ast.Attribute) and node.attr not in _of_plain_values():
            classes |= flow.makers(node.value) | flow.named(node.value)
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            if node.func.id in ("isinstance", "issubclass"):
                classes |= {name for part in ast.walk(node.args[-1]) for name in flow.named(part)}
        elif isinstance(node, ast.ClassDef):
            classes |= {name for base in node.bases for name in flow.named(base)}
    for statement in prelude.body:
        if isinstance(statement, ast.ClassDef):
            classes.add(statement.name)
        elif isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef):
            classes.discard(statement.name)
    return frozenset(classes)


class _Flow:
    """Which capital names of the solution's make what the tests' variables and attributes hold."""

    def __init__(self, nodes: list[Any], entry: str) -> None:
        import ast

        self._names: dict[str, str] = {}
        """Other names of the tests for the solution's."""
        for node in nodes:
            if isinstance(node, ast.ImportFrom) and node.module == "solution":
                self._names |= {alias.asname: alias.name for alias in node.names if alias.asname}
            elif isinstance(node, ast.FunctionDef) and node.name == "check" and entry and len(node.args.args) == 1:
                self._names[node.args.args[0].arg] = entry
        self._made: dict[str, set[str]] = {}
        bound = [pair for node in nodes for pair in _bound(node)]
        for _ in range(3):  # `b = a` may be read before `a = F(1)`
            for target, value in bound:
                for part in ast.walk(target):
                    if isinstance(part, ast.Name | ast.Attribute):
                        self._made.setdefault(ast.unparse(part), set()).update(self.makers(value))

    def named(self, node: Any) -> set[str]:
        """The capital name that `F` or `solution.F` is, alone in a set."""
        import ast

        name = ""
        if isinstance(node, ast.Name):
            name = self._names.get(node.id, node.id)
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "solution":
            name = node.attr
        return {name} if name[:1].isupper() else set()

    def makers(self, value: Any) -> set[str]:
        """Capital names whose results the value is, is computed from, or holds. A method's result is something else."""
        import ast

        if isinstance(value, ast.Name | ast.Attribute):
            return self._made.get(ast.unparse(value), set())
        if isinstance(value, ast.Call):
            return self.named(value.func)
        if isinstance(value, ast.BinOp | ast.UnaryOp | ast.BoolOp | ast.IfExp | ast.List | ast.Tuple | ast.ListComp):
            return {name for part in ast.iter_child_nodes(value) for name in self.makers(part)}
        return self.makers(value.value) if isinstance(value, ast.Subscript | ast.NamedExpr) else set()


def _bound(node: Any) -> list[tuple[Any, Any]]:
    """(target, value) of what the node assigns."""
    import ast

    if isinstance(node, ast.Assign):
        return [(target, node.value) for target in node.targets]
    if isinstance(node, ast.AnnAssign | ast.NamedExpr):
        return [(node.target, node.value)] if node.value is not None else []
    if isinstance(node, ast.For | ast.comprehension):
        return [(node.target, node.iter)]
    if isinstance(node, ast.withitem):
        return [(node.optional_vars, node.context_expr)] if node.optional_vars is not None else []
    return []


def _of_plain_values() -> set[str]:
    kinds = (bool, int, float, complex, str, bytes, list, tuple, dict, set)
    return {name for kind in kinds for name in dir(kind)}


def _left_to_solution(node: Any, entry: str) -> bool:
    import ast

    return isinstance(node, ast.ClassDef) or (isinstance(node, ast.FunctionDef) and node.name == entry)


def _imported(node: Any) -> list[str]:
    import ast

    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    return [node.module] if isinstance(node, ast.ImportFrom) and node.module and not node.level else []


def _line(error: BaseException) -> int:
    line, trace = 0, error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == TESTS:
            line = trace.tb_lineno
        trace = trace.tb_next
    return line
