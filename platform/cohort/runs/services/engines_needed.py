"""Refuses a run whose engine no node has: when it is submitted, with the fix, and not after an hour in the queue."""

from collections.abc import Iterable

from cohort.runs.selectors.engines import FIELDS, WORDS, no_node_has
from grpo_core.errors import ConfigError, FieldProblem


def engines_demanded(packages: Iterable[str]) -> None:
    """Raises ConfigError at the field that asks for what no registered node has."""
    problems = []
    for name in packages:
        if why := no_node_has(name):
            problems.append(FieldProblem(FIELDS[name], f"no node has {WORDS[name]}. {why}"))
    if problems:
        raise ConfigError("no node can run this engine", tuple(problems))
