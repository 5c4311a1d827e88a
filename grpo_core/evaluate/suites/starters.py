"""The starter suites as values: what the platform offers and `grpo suite list` shows. Loads no torch."""

from functools import cache

from grpo_core.config import builtin_suites
from grpo_core.config.evaluation import SuiteConfig


class Starter(SuiteConfig):
    """A suite that comes with Cohort."""

    items: int
    limits: str
    """What it cannot show, in a sentence or two."""
    licence: str
    source: str
    content: bytes
    """Its items as JSONL, of which `sha256` is the digest."""


@cache
def starters() -> tuple[Starter, ...]:
    """All of them, by name."""
    return tuple(_starter(name) for name in builtin_suites.names())


def _starter(name: str) -> Starter:
    content = builtin_suites.items_path(name).read_bytes()
    items = sum(1 for line in content.splitlines() if line.strip())
    fields = {**builtin_suites.about(name), **builtin_suites.definition(name), "items": items, "content": content}
    return Starter.model_validate(fields)
