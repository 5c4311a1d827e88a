"""Reads the source of a person's verifier and says what is wrong with it, line by line. It never runs any of it.

For the editor in the browser, and for a config before its run begins. The list of imports is a help, so that a missing
module is reported before a run and not in it; what a verifier can do is bounded by the sandbox alone.
"""

import ast
import difflib
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

MOST_BYTES = 64 * 1024
NAME = "verify"
_SHOWN = 120

PACKAGES: dict[str, tuple[str, ...]] = {
    "jsonschema": ("jsonschema",),
    "math-verify": ("math_verify", "latex2sympy2_extended", "sympy"),
    "numpy": ("numpy",),
    "regex": ("regex",),
    "scipy": ("scipy", "numpy"),
    "sympy": ("sympy", "mpmath"),
}
"""Distributions that a verifier may ask for, and the modules that it may import then."""

_STANDARD = """
    __future__ abc array ast base64 binascii bisect calendar cmath codecs collections contextlib copy csv
    dataclasses datetime decimal difflib enum fractions functools graphlib hashlib heapq hmac html io itertools
    json keyword logging math numbers operator pprint random re secrets statistics string struct sys textwrap time
    tokenize traceback types typing unicodedata uuid warnings xml zlib zoneinfo
"""
STANDARD = frozenset(_STANDARD.split())
"""Modules of Python that a verifier may import: those that have work to do where there is no network, no file and no
other program."""


@dataclass(frozen=True, slots=True)
class SourceFault:
    """One thing that is wrong."""

    line: int
    """From 1."""
    column: int
    """From 1, in characters."""
    message: str
    shown: str
    """The line with a caret under the column, for a fixed-width font."""

    def __str__(self) -> str:
        return f"line {self.line}: {self.message}\n{self.shown}" if self.shown else f"line {self.line}: {self.message}"


def check_source(source: str, packages: Sequence[str] = ()) -> list[SourceFault]:
    """Everything that is wrong, in order of lines; empty for a source that can be tried."""
    size = len(source.encode(errors="surrogatepass"))
    if size > MOST_BYTES:
        return [SourceFault(1, 1, f"the source has {size:,} bytes; it may have {MOST_BYTES:,}", "")]
    if not source.strip():
        return [SourceFault(1, 1, f"the source is empty; it must define {NAME}(sample)", "")]
    lines = source.splitlines()
    if "\0" in source:
        line = source[: source.index("\0")].count("\n") + 1
        return [SourceFault(line, 1, "the source holds the character NUL; take it out", "")]
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of an escape such as "\d", which is no fault
            tree = ast.parse(source)
    except SyntaxError as error:
        return [_fault(lines, error.lineno or 1, error.offset or 1, f"syntax error: {error.msg}")]
    except (RecursionError, MemoryError):
        return [SourceFault(1, 1, "the source is nested too deeply to be read", "")]
    except ValueError as error:  # half a surrogate pair, a number of many thousand digits
        return [SourceFault(1, 1, f"the source cannot be read: {error}", "")]
    faults = [*_imports(tree, lines, packages), *_function(tree, lines)]
    return sorted(faults, key=lambda fault: (fault.line, fault.column))


def _imports(tree: ast.Module, lines: Sequence[str], packages: Sequence[str]) -> Iterator[SourceFault]:
    allowed = STANDARD.union(*(PACKAGES.get(package, ()) for package in packages))
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [node.module or ""]
            if node.level:
                yield _at(lines, node, "a verifier is one file: there is nothing beside it to import from")
                continue
        else:
            continue
        for name in names:
            if name.partition(".")[0] not in allowed:
                yield _at(lines, node, _not_allowed(name, allowed))


def _not_allowed(name: str, allowed: frozenset[str]) -> str:
    module = name.partition(".")[0]
    offering = sorted(package for package, modules in PACKAGES.items() if module in modules)
    if offering:
        return f"the import of {name!r} needs the package {offering[0]}: add it to the verifier's packages"
    near = difflib.get_close_matches(module, sorted(allowed), 1, 0.75)
    meant = f"; did you mean {near[0]!r}?" if near else ""
    return f"the import of {name!r} is not allowed in a verifier{meant}"


def _function(tree: ast.Module, lines: Sequence[str]) -> Iterator[SourceFault]:
    """What is wrong with `verify`: that it is missing, or cannot be called with one sample, or gives nothing."""
    definition: ast.stmt | None = None
    for node in ast.walk(tree):  # also one in an `if` or a `try`
        match node:
            case ast.FunctionDef(name="verify") | ast.AsyncFunctionDef(name="verify"):
                definition = node
            case ast.Assign() if any(isinstance(target, ast.Name) and target.id == NAME for target in node.targets):
                definition = node
            case ast.ImportFrom() if any((alias.asname or alias.name) == NAME for alias in node.names):
                definition = node
    if definition is None:
        defined = [node.name for node in tree.body if isinstance(node, ast.FunctionDef)]
        near = difflib.get_close_matches(NAME, defined, 1, 0.6)
        meant = f"; rename {near[0]}" if near else ""
        yield SourceFault(len(lines), 1, f"the source defines no function {NAME}(sample){meant}", "")
    elif isinstance(definition, ast.AsyncFunctionDef):
        yield _at(lines, definition, f"{NAME} is async; write `def {NAME}(sample):`")
    elif isinstance(definition, ast.FunctionDef):
        yield from _signature(definition, lines)


def _signature(node: ast.FunctionDef, lines: Sequence[str]) -> Iterator[SourceFault]:
    given = node.args
    positional = [*given.posonlyargs, *given.args]
    needed = len(positional) - len(given.defaults)
    if needed > 1 or not (positional or given.vararg):
        count = "no argument" if not positional else f"{needed} arguments without a default"
        yield _at(lines, node, f"{NAME} takes {count}; it is called with one: {NAME}(sample)")
    for name, default in zip(given.kwonlyargs, given.kw_defaults, strict=True):
        if default is None:
            yield _at(lines, name, f"{NAME} is called as {NAME}(sample), so {name.arg!r} needs a default")
    inside = list(_own(node))
    if any(isinstance(inner, ast.Yield | ast.YieldFrom) for inner in inside):
        yield _at(lines, node, f"{NAME} has `yield`, so it gives no value; use `return`")
    elif not any(isinstance(inner, ast.Raise) or (isinstance(inner, ast.Return) and inner.value) for inner in inside):
        yield _at(lines, node, f"{NAME} never returns a value; return a number, True or False, or a dict")


def _own(node: ast.FunctionDef) -> Iterator[ast.AST]:
    """All of a function's body but the functions and classes in it."""
    waiting: list[ast.AST] = list(node.body)
    while waiting:
        child = waiting.pop()
        yield child
        if not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | ast.ClassDef):
            waiting += ast.iter_child_nodes(child)


def _at(lines: Sequence[str], node: ast.stmt | ast.arg, message: str) -> SourceFault:
    text = lines[node.lineno - 1] if node.lineno <= len(lines) else ""
    column = len(text.encode()[: node.col_offset].decode(errors="ignore")) + 1  # the tree counts bytes
    return _fault(lines, node.lineno, column, message)


def _fault(lines: Sequence[str], line: int, column: int, message: str) -> SourceFault:
    line = min(max(line, 1), max(len(lines), 1))
    text = lines[line - 1] if lines else ""
    column = min(max(column, 1), len(text) + 1)
    start = max(0, column - _SHOWN + 20)
    part, before = text[start : start + _SHOWN], text[start : column - 1]
    space = "".join("\t" if sign == "\t" else " " for sign in before)
    head = f"{line:>4} | "
    return SourceFault(line, column, message, f"{head}{part}\n{' ' * (len(head) - 2)}| {space}^")
