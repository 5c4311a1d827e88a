"""The starter suites as values: what the platform offers and `grpo suite list` shows. Loads no torch."""

from dataclasses import dataclass
from functools import cache

from grpo_core.config import builtin_suites
from grpo_core.config.evaluation import Category, HigherIs, ScorerConfig, SuiteConfig


@dataclass(frozen=True, slots=True)
class Starter:
    """A suite that comes with Cohort."""

    name: str
    title: str
    category: Category
    scorer: ScorerConfig
    higher_is: HigherIs
    sensitive: bool
    version: int
    items: int
    limits: str
    """What it cannot show, in a sentence or two."""
    licence: str
    source: str
    content: bytes
    """Its items as JSONL."""
    sha256: str
    """Of `content`."""


@cache
def starters() -> tuple[Starter, ...]:
    """All of them, by name."""
    return tuple(_starter(name) for name in builtin_suites.names())


def _starter(name: str) -> Starter:
    config = SuiteConfig.model_validate(builtin_suites.definition(name))
    about, content = builtin_suites.about(name), builtin_suites.items_path(name).read_bytes()
    assert config.sha256 is not None
    return Starter(
        name=name,
        title=config.title,
        category=config.category,
        scorer=config.scorer,
        higher_is=config.higher_is,
        sensitive=config.sensitive,
        version=config.version,
        items=sum(1 for line in content.splitlines() if line.strip()),
        limits=about["limits"],
        licence=about["licence"],
        source=about["source"],
        content=content,
        sha256=config.sha256,
    )
