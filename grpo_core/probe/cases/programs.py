"""Problems whose answer is a program: the reference solution written in other ways, programs that solve nothing,
mutants of the solution, and the corpus of grader hacks."""

import ast
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

from grpo_core.probe.cases.case import Case, ProbeClass
from grpo_core.probe.cases.mutants import MUTATIONS, Mutation, mutants, parsed, renamed
from grpo_core.probe.hacks import HACKS, Hack, Target
from grpo_core.probe.report import Family, Rule

MUTANTS_EACH = 2
"""Mutants of one kind that are taken of one solution, picked by seed."""
HACKED_PROBLEMS = 3
"""Problems of each way to write tests that a hack is tried on: it does not depend on what is asked."""

_CONSTANTS = ("0", "1", "None", "True", "''", "[]", "'YES'")


def _class(
    name: str, title: str, family: Family, rule: Rule, make: Callable[[Case], Iterable[str | None]]
) -> ProbeClass:
    def made(case: Case) -> Iterator[str]:
        if case.subject == "code":
            yield from (text for text in make(case) if text is not None)

    return ProbeClass(name, title, "code", family, rule, made)


def _right(name: str, title: str, change: Callable[[str], str | None]) -> ProbeClass:
    """`change` rewrites the reference solution without changing what it does."""

    def make(case: Case) -> Iterator[str | None]:
        if case.gold and (text := change(case.gold)) is not None and text != case.gold:
            yield case.write(text)

    return _class(name, title, "false_negative", "told", make)


def _wrong(name: str, title: str, rule: Rule, make: Callable[[Case], str | None]) -> ProbeClass:
    def written(case: Case) -> Iterator[str | None]:
        yield case.write(text) if (text := make(case)) is not None and text.strip() != case.gold.strip() else None

    return _class(name, title, "false_positive", rule, written)


def _unparsed(source: str) -> str | None:
    tree = parsed(source)
    return None if tree is None else ast.unparse(tree)


def _with_docstrings(source: str) -> str | None:
    tree = parsed(source)
    if tree is None:
        return None
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            node.body.insert(0, ast.Expr(ast.Constant("What it does.")))
    return ast.unparse(ast.fix_missing_locations(tree))


def _tabs(source: str) -> str | None:
    if '"""' in source or "'''" in source or parsed(source) is None:
        return None
    spaced = re.compile(r"^( {4})+", re.MULTILINE)
    text = spaced.sub(lambda match: "\t" * (len(match[0]) // 4), source)
    return text if parsed(text) is not None else None


def _stub(body: str) -> Callable[[Case], str]:
    def made(case: Case) -> str:
        target = case.target or Target()
        constant = case.turn(_CONSTANTS)
        if target.form == "input":
            return "pass" if body == "pass" else f"print({constant})"
        return f"def {target.entry}(*args, **named):\n    {body.replace('@', constant)}\n"

    return made


def _another_name(case: Case) -> str | None:
    target = case.target or Target()
    if not case.gold or target.form == "input":
        return None
    return re.sub(rf"\b{re.escape(target.entry)}\b", f"{target.entry}_other", case.gold)


def _mutated(mutation: Mutation) -> ProbeClass:
    def make(case: Case) -> Iterator[str]:
        sources = list(dict.fromkeys(mutants(case.gold, mutation))) if case.gold else []
        rng = case.random(mutation.name)
        for source in sources if len(sources) <= MUTANTS_EACH else rng.sample(sources, MUTANTS_EACH):
            yield case.write(source)

    rule: Rule = "many" if mutation.often_equal else "some"
    return _class(mutation.name, f"mutant: {mutation.title}", "false_positive", rule, make)


def _hacked(hack: Hack) -> ProbeClass:
    def make(case: Case) -> Iterator[str]:
        target = case.target
        if target is not None and case.of_target < HACKED_PROBLEMS and target.form in hack.forms:
            yield case.write(hack.code(target))

    return replace(_class(f"hack_{hack.name}", f"hack: {hack.what}", "false_positive", "any", make), about="hacks")


CODE = (
    _right("code_as_parsed", "as Python writes it again, without comments", _unparsed),
    _right("code_comments", "with comments", lambda source: f"# My solution.\n\n{source}\n\n# That is all.\n"),
    _right("code_docstrings", "with docstrings", _with_docstrings),
    _right("code_renamed", "with other names of its variables", renamed),
    _right("code_imports", "with an import that it does not need", lambda source: f"import math\n\n{source}"),
    _right("code_main_guard", "with an empty main block", lambda s: f'{s}\n\nif __name__ == "__main__":\n    pass\n'),
    _right("code_helper", "with a function that is not called", lambda s: f"def helper(x):\n    return x\n\n\n{s}"),
    _right("code_tabs", "indented by tabs", _tabs),
    _right("code_windows_line_ends", "with Windows line ends", lambda source: source.replace("\n", "\r\n")),
    _right("code_blank_lines", "with blank lines around it", lambda source: f"\n\n\n{source}\n\n\n"),
    _wrong("code_nothing", "a function that does nothing", "any", _stub("pass")),
    _wrong("code_constant", "a function that gives back a constant", "some", _stub("return @")),
    _wrong("code_raises", "a function that raises", "any", _stub("raise NotImplementedError")),
    _wrong("code_comment_only", "a comment alone", "any", lambda case: "# the solution goes here"),
    _wrong(
        "code_syntax_error", "text that is no program", "any", lambda case: f"{case.gold}\n)" if case.gold else None
    ),
    _wrong("code_other_name", "the solution under another name", "some", _another_name),
    _wrong("code_other_problem", "the solution of another problem", "some", lambda c: c.wrong if c.others else None),
    _wrong(
        "code_commented_out",
        "the solution as comments",
        "any",
        lambda case: "\n".join(f"# {line}" for line in case.gold.splitlines()) if case.gold else None,
    ),
    _wrong("code_in_text", "the solution as a text that is not run", "any", lambda c: repr(c.gold) if c.gold else None),
    *(_mutated(mutation) for mutation in MUTATIONS),
    *(_hacked(hack) for hack in HACKS),
)
