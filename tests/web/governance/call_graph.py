"""Which functions of the platform write to the database, and which of them reach the audit log; read from the source.

A call is followed where its name says what is called: a function of the same module, or one that was imported. Nothing
is guessed about methods of objects.
"""

import ast
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from tests.tables import cases

ROOT = Path(__file__).resolve().parents[3] / "platform"
LOG = {"cohort.audit.services.log", "cohort.audit.entries.log"}
_MAKES = {"create", "bulk_create", "get_or_create", "update_or_create", "bulk_update"}
_SQL = ("INSERT", "UPDATE", "DELETE", "TRUNCATE", "COPY")


@dataclass
class Function:
    name: str
    """cohort.runs.nodes.node_drain"""
    writes: bool = False
    """In its own body."""
    calls: set[str] = field(default_factory=set)

    @property
    def module(self) -> str:
        return self.name.rpartition(".")[0]

    @property
    def public(self) -> bool:
        return not self.name.rpartition(".")[2].startswith("_")


def functions() -> dict[str, Function]:
    """Every function at the top of a module of the platform."""
    found: dict[str, Function] = {}
    for file in sorted((ROOT / "cohort").rglob("*.py")):
        module = ".".join(file.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        tree = ast.parse(file.read_text(encoding="utf-8"))
        names = dict(_names(tree, module))
        for node in tree.body:
            if isinstance(node, ast.FunctionDef):
                function = Function(f"{module}.{node.name}")
                for call in ast.walk(node):
                    if isinstance(call, ast.Call):
                        function.writes |= _writes(call)
                        if called := _called(call.func, names):
                            function.calls.add(called)
                found[function.name] = function
    return found


def writing(found: dict[str, Function]) -> list[str]:
    """Public functions that write, themselves or by private ones of their module."""
    return sorted(
        name for name, one in found.items() if one.public and any(found[at].writes for at in _own(found, name))
    )


def logged(found: dict[str, Function], name: str) -> bool:
    """Whether the function comes to the audit log, by whatever it calls."""
    return not LOG.isdisjoint(_reached(found, name, lambda _: True))


def _own(found: dict[str, Function], name: str) -> set[str]:
    """The function and the private ones of its module that it comes to through such."""
    mine = found[name].module
    return _reached(found, name, lambda to: to in found and not found[to].public and found[to].module == mine)


def _reached(found: dict[str, Function], name: str, through: Callable[[str], bool]) -> set[str]:
    seen, ahead = {name}, [name]
    while ahead:
        at = ahead.pop()
        new = {to for to in _resolved(found, at) if through(to)} - seen if at in found else set()
        seen |= new
        ahead += new
    return seen


def _resolved(found: dict[str, Function], name: str) -> Iterator[str]:
    """What the function calls; a package's name for a function of one of its modules is followed there."""
    for called in found[name].calls:
        if called in found or called in LOG:
            yield called
        else:
            package, _, short = called.rpartition(".")
            yield from (other for other in found if other.startswith(f"{package}.") and other.endswith(f".{short}"))


def _names(tree: ast.Module, module: str) -> Iterator[tuple[str, str]]:
    """(name in the module, what it stands for); imports inside functions count too."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            yield from ((one.asname or one.name, f"{node.module}.{one.name}") for one in node.names)
        elif isinstance(node, ast.Import):
            yield from ((one.asname or one.name, one.name) for one in node.names)
    for node in tree.body:
        if isinstance(node, ast.FunctionDef):
            yield node.name, f"{module}.{node.name}"


def _called(func: ast.expr, names: dict[str, str]) -> str:
    if isinstance(func, ast.Name):
        return names.get(func.id, "")
    if isinstance(func, ast.Attribute) and isinstance(func.value, ast.Name) and func.value.id in names:
        return f"{names[func.value.id]}.{func.attr}"
    return ""


def _writes(call: ast.Call) -> bool:
    """Whether it is a write of Django's, by its form; `digest.update(part)` and `text.save(path)` are none."""
    if not isinstance(call.func, ast.Attribute):
        return False
    match call.func.attr:
        case "save" | "update" | "delete":
            return not call.args and (call.func.attr != "update" or bool(call.keywords))
        case "execute":
            first = call.args[0] if call.args else None
            text = first.value if isinstance(first, ast.Constant) and isinstance(first.value, str) else ""
            return text.lstrip().upper().startswith(_SQL)
        case attribute:
            return attribute in _MAKES


EXEMPT = dict(case.values for case in cases("governance/unlogged_writes", "function", "reason"))
"""Functions that write and leave no entry, each with the reason."""

FOUND = functions()
