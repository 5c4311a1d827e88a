"""Test cases of a problem, as a dataset holds them: four forms, read into one.

Reads data, runs nothing. What cannot be read is reported as the problem's fault, never as the completion's.
"""

import ast
import builtins
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from grpo_core.data.problem import Problem
from grpo_core.errors import RewardError

Form = Literal["input", "call", "program", "asserts"]
"""Text in and text out; calls with what they return; a test program; a list of assert statements."""

MAX_CASES = 1_000
MAX_TEXT = 1024 * 1024
_BUILTINS = frozenset(dir(builtins))
_LAZY = frozenset({"map", "filter", "zip", "enumerate"})


@dataclass(frozen=True, slots=True)
class InputCase:
    """A run of the whole program: its stdin, and the stdout that is expected."""

    stdin: str
    output: str


@dataclass(frozen=True, slots=True)
class CallCase:
    name: str
    returns: Any
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    literal: bool = False
    """Arguments and result are Python literals, compared with exact types, not JSON, which has no tuples or sets."""


@dataclass(frozen=True, slots=True)
class ProgramCase:
    """Test code that raises when the solution is wrong."""

    text: str


Case = InputCase | CallCase | ProgramCase


@dataclass(frozen=True, slots=True)
class Cases:
    form: Form
    """Of the first case."""
    entry: str
    """Name that the tests call, "" where there is none or several."""
    named: bool
    """The problem or the settings name the entry point; it was not guessed from the tests."""
    cases: tuple[Case, ...]


def read_cases(problem: Problem, *, tests: str = "tests", entry_point: str = "") -> Cases:
    """The cases in the field `tests` of the problem. Raises RewardError where they cannot be read, or where a program
    that does nothing would pass them all."""
    where = f"problem {problem.id}, field {tests!r}"
    if tests not in problem.meta:
        raise RewardError(f"{where}: is not there; it holds the test cases")
    given = problem.meta["entry_point"] if not entry_point and "entry_point" in problem.meta else entry_point
    if given and (not isinstance(given, str) or not given.isidentifier()):
        raise RewardError(f"{where}: the entry point {given!r} is no name of a function")
    entry: str = given or ""
    value = _unwrapped(problem.meta[tests])
    if not value:
        raise RewardError(f"{where}: holds no case")
    if len(value) > MAX_CASES:
        raise RewardError(f"{where}: holds {len(value):,} cases; at most {MAX_CASES:,} can be run")
    if all(isinstance(text, str) for text in value):
        guessed = entry or _called(value, where)
        cases: tuple[Case, ...] = tuple(_asserted(text, guessed) for text in value)
        form: Form = "asserts" if len(value) > 1 or isinstance(cases[0], CallCase) else "program"
    else:
        cases = tuple(_case(case, f"{where}, case {number}", entry) for number, case in enumerate(value, start=1))
        form = "input" if isinstance(cases[0], InputCase) else "call" if isinstance(cases[0], CallCase) else "program"
        names = {case.name for case in cases if isinstance(case, CallCase)}
        guessed = entry or (names.pop() if len(names) == 1 else "")
    for case in cases:
        if isinstance(case, ProgramCase) and (kept := _unsendable(case.text, entry)):
            raise RewardError(
                f"{where}: {kept!r} hands the solution an object that cannot be sent to it, so that no solution can "
                "pass; hand over plain values, such as a list of them"
            )
    if all(isinstance(case, InputCase) and not case.output.strip() for case in cases):
        raise RewardError(f"{where}: every case expects no output, so a program that does nothing would pass")
    if all(isinstance(case, CallCase) and case.returns is None for case in cases):
        raise RewardError(f"{where}: every case expects None, so a function that does nothing would pass")
    return Cases(form, guessed, bool(entry), cases)


def _unwrapped(value: Any) -> list[Any]:
    """A list of cases from whatever the field holds."""
    if isinstance(value, str):
        try:
            decoded = json.loads(value) if value.lstrip()[:1] in ("[", "{") else value
        except (ValueError, RecursionError):
            decoded = value
        return [decoded] if isinstance(decoded, str) else _unwrapped(decoded)
    if isinstance(value, dict) and isinstance(value.get("inputs"), list) and isinstance(value.get("outputs"), list):
        if value.get("fn_name") or len(value["inputs"]) != len(value["outputs"]):
            return [value]  # reported as a case that cannot be read
        return [{"input": given, "output": out} for given, out in zip(value["inputs"], value["outputs"], strict=True)]
    return value if isinstance(value, list) else [value]


def _case(case: Any, where: str, entry: str) -> Case:
    if not isinstance(case, dict):
        raise RewardError(
            f"{where}: is {type(case).__name__}; expected an object with input and output, call, or program"
        )
    if "program" in case:
        return ProgramCase(_text(case, "program", where))
    if "input" in case or "output" in case:
        return InputCase(_text(case, "input", where), _text(case, "output", where))
    if "returns" not in case:
        keys = ", ".join(sorted(map(str, case))) or "nothing"
        raise RewardError(f"{where}: has neither input and output, nor call and returns, nor program; found {keys}")
    name = case.get("call", entry)
    if not isinstance(name, str) or not all(part.isidentifier() for part in name.split(".")):
        raise RewardError(f"{where}: 'call' is {name!r}; expected the name of a function")
    args, kwargs, returns = case.get("args", []), case.get("kwargs", {}), case["returns"]
    literal = case.get("python", False) is True
    if literal:
        args, kwargs, returns = (
            _literal(value, key, where) if isinstance(value, str) else value
            for key, value in (("args", args), ("kwargs", kwargs), ("returns", returns))
        )
    if not isinstance(args, list | tuple) or not isinstance(kwargs, dict):
        raise RewardError(f"{where}: 'args' must be a list and 'kwargs' an object")
    return CallCase(name, returns, tuple(args), kwargs, literal)


def _text(case: dict[str, Any], key: str, where: str) -> str:
    value = case.get(key)
    if isinstance(value, list) and all(isinstance(line, str) for line in value):
        value = "\n".join(value)
    if not isinstance(value, str):
        raise RewardError(f"{where}: {key!r} is {type(value).__name__}; expected text")
    if len(value) > MAX_TEXT:
        raise RewardError(f"{where}: {key!r} has {len(value):,} characters; at most {MAX_TEXT:,} can be given")
    return value


def _literal(text: str, key: str, where: str) -> Any:
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError, RecursionError, MemoryError) as error:
        raise RewardError(f"{where}: {key!r} is no Python literal: {error}") from None


def _asserted(text: str, entry: str) -> Case:
    """`assert f(1, 2) == 3` with literals is a call whose result we compare ourselves; all else is a program."""
    tree = _parsed(text)
    match tree.body if tree else []:
        case [
            ast.Assert(
                test=ast.Compare(
                    left=ast.Call(func=ast.Name(id=name), args=args, keywords=keywords),
                    ops=[ast.Eq()],
                    comparators=[right],
                )
            )
        ] if name not in _BUILTINS or name == entry:
            try:
                given = tuple(ast.literal_eval(argument) for argument in args)
                named = {str(keyword.arg): ast.literal_eval(keyword.value) for keyword in keywords if keyword.arg}
                if len(named) == len(keywords):
                    return CallCase(name, ast.literal_eval(right), given, named, literal=True)
            except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
                pass  # not all of it is literal: the judge's process evaluates it
    return ProgramCase(text)


def _called(texts: list[str], where: str) -> str:
    """The one name that all asserts call and that is not Python's own; where they call none but Python's own, the first
    of these (MBPP has problems that ask for a function `sum`)."""
    own: dict[str, None] = {}
    builtin: dict[str, None] = {}
    for text in texts:
        tree = _parsed(text)
        if tree is None and len(texts) > 1:
            raise RewardError(f"{where}: {text[:80]!r} is no Python")
        made = set(_defined(tree)) if tree else set()
        for node in ast.walk(tree) if tree else ():
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id not in made:
                (builtin if node.func.id in _BUILTINS else own)[node.func.id] = None
    if not own:
        return next(iter(builtin), "") if len(texts) > 1 else ""
    return next(iter(own)) if len(own) == 1 else ""


def _defined(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.arg):
            yield node.arg
        elif isinstance(node, ast.alias):
            yield (node.asname or node.name).partition(".")[0]


def _unsendable(text: str, entry: str) -> str:
    """The first call of the solution with a generator, or an object of a plain class of the tests'; "" where none is
    plain to see: what else cannot be sent is reported when the tests run. `entry`: as it is named, not guessed, since
    code before the solution may define the name."""
    tree = _parsed(text)
    nodes = list(ast.walk(tree)) if tree else []
    theirs = set(_defined(tree)) if tree else set()
    classes = {node.name for node in nodes if isinstance(node, ast.ClassDef) and _makes_plain_objects(node)}
    named = {node.args.args[0].arg for node in nodes if isinstance(node, ast.FunctionDef) and _is_check(node)}
    if entry not in theirs:
        named.add(entry)
    for node in nodes:
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            values = [*node.args, *(keyword.value for keyword in node.keywords)]
            if node.func.id in named and any(_is_object(value, classes, theirs) for value in values):
                return ast.unparse(node)[:80]
    return ""


def _is_check(node: ast.FunctionDef) -> bool:
    return node.name == "check" and len(node.args.args) == 1


def _makes_plain_objects(node: ast.ClassDef) -> bool:
    """Whether it derives from nothing, and its objects cannot be called, as functions can that are handed over."""
    return not node.bases and "__call__" not in {part.name for part in node.body if isinstance(part, ast.FunctionDef)}


def _is_object(value: ast.expr, classes: set[str], theirs: set[str]) -> bool:
    if isinstance(value, ast.GeneratorExp):
        return True
    if not isinstance(value, ast.Call) or not isinstance(value.func, ast.Name):
        return False
    name = value.func.id
    of_values = (
        name == "iter" and len(value.args) == 1 and isinstance(value.args[0], ast.List | ast.Tuple | ast.Constant)
    )
    return name in classes or (name not in theirs and (name in _LAZY or of_values))


def _parsed(text: str) -> ast.Module | None:
    try:
        return ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
