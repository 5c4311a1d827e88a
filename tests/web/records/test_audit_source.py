"""Every function of the platform that writes to the database leaves an entry in the audit log, or says why not.

A write is read from the source, by its form. Whom a function may call is known from the names in its code, as its
module has them; nothing is guessed about methods of objects. test_audit_walk.py calls those of people, catalog, nodes
and runs.
"""

import ast
import inspect
import sys
from collections.abc import Callable, Iterator
from functools import cached_property
from importlib import import_module
from pathlib import Path
from types import CodeType, FunctionType, ModuleType

from celery import Task

from tests.tables import cases

ROOT = Path(__file__).resolve().parents[3] / "platform"
LOG = {"cohort.audit.services.log", "cohort.audit.entries.log"}
EXEMPT = dict(case.values for case in cases("records/unlogged_writes", "function", "reason"))
"""Functions that write and leave no entry, each with the reason."""
_MAKES = {"create", "bulk_create", "get_or_create", "update_or_create", "bulk_update"}
_SQL = ("INSERT", "UPDATE", "DELETE", "TRUNCATE", "COPY")


class Functions:
    """Every function at the top of a module of the platform, by its full name."""

    def __init__(self) -> None:
        self._by_name = {}
        for file in sorted((ROOT / "cohort").rglob("*.py")):
            name = ".".join(file.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
            if not name.endswith("__main__"):
                for value in vars(import_module(name)).values():
                    if (function := _function(value)) and function.__module__ == name:
                        self._by_name[_name(function)] = function

    @cached_property
    def writing(self) -> list[str]:
        """Public functions that write, themselves or by private ones of their module."""
        return sorted(name for name in self._by_name if _public(name) and any(map(self._writes, self._own(name))))

    def logged(self, name: str) -> bool:
        """Whether the function comes to the audit log, by whatever it calls."""
        return not LOG.isdisjoint(self._reached(name, lambda _: True))

    def _own(self, name: str) -> set[str]:
        module = name.rpartition(".")[0]
        return self._reached(name, lambda to: not _public(to) and to.rpartition(".")[0] == module)

    def _reached(self, name: str, through: Callable[[str], bool]) -> set[str]:
        seen, ahead = {name}, [name]
        while ahead:
            called = {_name(function) for function in _called(self._by_name[ahead.pop()])} & self._by_name.keys()
            ahead += (new := {to for to in called if through(to)} - seen)
            seen |= new
        return seen

    def _writes(self, name: str) -> bool:
        tree = ast.parse(inspect.getsource(self._by_name[name]))
        return any(isinstance(node, ast.Call) and _is_write(node) for node in ast.walk(tree))


def _name(function: FunctionType) -> str:
    return f"{function.__module__}.{function.__qualname__}"


def _public(name: str) -> bool:
    return not name.rpartition(".")[2].startswith("_")


def _function(value: object) -> FunctionType | None:
    """What stands below decorators, and in a task of Celery's."""
    function = value.run if isinstance(value, Task) else value
    inner = inspect.unwrap(function) if callable(function) and not isinstance(function, type) else None
    return inner if isinstance(inner, FunctionType) else None


def _called(function: FunctionType) -> Iterator[FunctionType]:
    names = _names(function.__code__)
    for name in names:
        value = function.__globals__.get(name, sys.modules.get(name))  # of this module, or imported in the function
        values = [getattr(value, part, None) for part in names] if isinstance(value, ModuleType) else [value]
        yield from filter(None, map(_function, values))


def _names(code: CodeType) -> set[str]:
    inner = (_names(const) for const in code.co_consts if isinstance(const, CodeType))
    return set(code.co_names).union(*inner)


def _is_write(call: ast.Call) -> bool:
    """Whether it is a write of Django's, by its form; `digest.update(part)` and `text.save(path)` are none."""
    if not isinstance(call.func, ast.Attribute):
        return False
    match call.func.attr:
        case "save" | "update" | "delete":
            return not call.args and (call.func.attr != "update" or bool(call.keywords))
        case "execute":
            match call.args:
                case [ast.Constant(value=str(text)), *_]:
                    return text.lstrip().upper().startswith(_SQL)
            return False
        case attribute:
            return attribute in _MAKES


FUNCTIONS = Functions()


def test_every_function_that_writes_comes_to_the_log_or_says_why_not() -> None:
    writing = FUNCTIONS.writing
    assert {"cohort.accounts.services.membership_remove", "cohort.catalog.services.dataset_create"} <= set(writing)
    silent = {name for name in writing if not FUNCTIONS.logged(name)}
    assert sorted(silent - EXEMPT.keys()) == [], "call audit.log in these, or say in EXEMPT why not"
    assert sorted(EXEMPT.keys() - silent) == [], "these log by now, or are gone: take them out of EXEMPT"
