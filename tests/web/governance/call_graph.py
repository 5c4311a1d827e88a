"""Which functions of the platform write to the database, and which of them reach the audit log; read from the source.

A call is followed where its name says what is called: a function of the same module, or one that was imported. Nothing
is guessed about methods of objects.
"""

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

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
    seen, ahead = set(), [name]
    while ahead:
        at = ahead.pop()
        if at in LOG:
            return True
        if at not in seen and at in found:
            seen.add(at)
            ahead += _resolved(found, at)
    return False


def _own(found: dict[str, Function], name: str) -> set[str]:
    """The function and the private ones of its module that it comes to through such."""
    seen, ahead = set(), [name]
    while ahead:
        at = ahead.pop()
        seen.add(at)
        ahead += [
            to
            for to in _resolved(found, at)
            if to in found and to not in seen and not found[to].public and found[to].module == found[name].module
        ]
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


EXEMPT = {
    "cohort.audit.services.integrate": "numbers the entries themselves",
    "cohort.audit.push.push": "hands the log's own head on; the log's page and the worker's log tell of it",
    "cohort.contamination.services.asked_for_choice": "asks the machine for a computation",
    "cohort.contamination.services.asked_for_dataset": "asks the machine for a computation",
    "cohort.contamination.services.asked_for_suite": "asks the machine for a computation",
    "cohort.contamination.services.check": "a computation's result; noted_at_launch logs what a run was launched with",
    "cohort.contamination.services.remind": "asks the machine for a computation again",
    "cohort.governance.services.seal_failed": "tells on the run why its record waits; nothing is decided",
    "cohort.lab.jobs.job_beat": "a sign of life; asking for a job, calling it off and what a probe found are logged",
    "cohort.lab.jobs.job_claim": "a worker takes a try of a reward, which decides nothing; who asked for it is logged",
    "cohort.lab.jobs.jobs_expire": "a job whose worker is gone waits for another; who asked for it is logged",
    "cohort.lab.jobs.jobs_revoked": "as jobs_expire; node_revoke logs",
    "cohort.runs.attempts.attempt_beat": "a sign of life, every ten seconds; the end of an attempt moves its run",
    "cohort.runs.attempts.run_moves": "an observation: the trainer moves again",
    "cohort.runs.checkpoints.removed": "what a node says that it no longer has",
    "cohort.runs.comparison_cache.suites_cached": "a computation's result, which may be computed anew at any time",
    "cohort.runs.nodes.node_present": "what a machine says that it is",
    "cohort.runs.outages.leases_capped": "puts times right after the clock was set back",
    "cohort.runs.outages.leases_count": "the reconciler's own sign of life",
    "cohort.runs.outages.tries_capped": "puts times right after the clock was set back",
    "cohort.runs.pulse.pulse": "the web server's own sign of life",
    "cohort.runs.transitions.run_event": "the run's own events; who changes the run logs",
    "cohort.runs.uploads.checkpoint_part": "parts of files that a worker sends; the run's events tell of whole ones",
}
"""Functions that write and leave no entry, each with the reason."""

FOUND = functions()
