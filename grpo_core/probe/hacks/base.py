"""What a hack of a code judge is. Text only: nothing here runs one."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from grpo_core.data.problem import Problem
from grpo_core.rewards.code.cases import Form, read_cases

Group = Literal["exit", "compare", "patch", "read", "forge"]
"""exit: ends the process as if all were well. compare: returns something that equals everything. patch: changes what
the judge computes with. read: looks for the expected values. forge: writes the verdict itself."""

FUNCTION_FORMS: frozenset[Form] = frozenset({"call", "program", "asserts"})
ALL_FORMS: frozenset[Form] = FUNCTION_FORMS | {"input"}
INPUT_ALONE: frozenset[Form] = frozenset({"input"})
_FORMS = {"": FUNCTION_FORMS, "any": ALL_FORMS, "input": INPUT_ALONE}
_HEADER = re.compile(r"^## (\w+)(?: \[(\w+)\])?: (.*(?:\n##  .*)*)\n", re.MULTILINE)

BARE = "def ENTRY(*args, **named):\n    return None\n"
"""A function that solves nothing, so that the tests find a name to call."""


@dataclass(frozen=True, slots=True)
class Target:
    """What a hack may know of a problem."""

    entry: str = "solve"
    """Name that the tests call; a hack for cases of text in and text out does not need it."""
    form: Form = "call"


@dataclass(frozen=True, slots=True)
class Hack:
    name: str
    group: Group
    what: str
    """What it does, in one line."""
    source: str
    """Python, with ENTRY where the name that the tests call belongs."""
    forms: frozenset[Form] = FUNCTION_FORMS

    def code(self, target: Target) -> str:
        """The program alone."""
        whole = self.source.strip("\n") + "\n"
        if target.form != "input" and "def ENTRY" not in whole and "ENTRY =" not in whole:
            whole += "\n\n" + BARE
        return whole.replace("ENTRY", target.entry)

    def completion(self, target: Target) -> str:
        """As a model would answer: a sentence and the program in a fenced block."""
        return f"Here is my solution.\n\n```python\n{self.code(target)}```\n"

    def make(self, problem: Problem, *, tests: str = "tests", entry_point: str = "") -> str | None:
        """The completion for a problem with test cases; None where the hack makes no sense for their form. Raises
        RewardError where the cases cannot be read."""
        target = target_of(problem, tests=tests, entry_point=entry_point)
        return self.completion(target) if target.form in self.forms else None


def target_of(problem: Problem, *, tests: str = "tests", entry_point: str = "") -> Target:
    """What a hack may know of the problem. Raises RewardError where its cases cannot be read."""
    cases = read_cases(problem, tests=tests, entry_point=entry_point)
    return Target(cases.entry or "solve", cases.form)


def blocks(text: str) -> Iterator[tuple[str, str, str, str]]:
    """(name, tag, title, body) of each block of a text. A block begins with `## name [tag]: title`, where the tag may
    be left out and a long title continues in lines that begin with `##` and two spaces."""
    parts = iter(_HEADER.split(text)[1:])
    for name, tag, title, body in zip(parts, parts, parts, parts, strict=True):
        yield name, tag or "", " ".join(title.replace("\n##", "").split()), body.strip("\n")


def hacks_in(group: Group, text: str) -> tuple[Hack, ...]:
    """One for each block of the text: the tag says for which forms (any, input; none for functions), the title what it
    does, and the body is its source."""
    return tuple(Hack(name, group, what, source, _FORMS[tag]) for name, tag, what, source in blocks(text))
