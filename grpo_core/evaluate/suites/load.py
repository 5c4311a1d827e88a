"""From a suite's path to its items, checked. Everything that can be wrong with a suite is found here, before a model
is loaded. Loads no torch."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from grpo_core.config import builtin_suites
from grpo_core.config.evaluation import SuiteConfig
from grpo_core.config.messages import validated
from grpo_core.data.fingerprint import file_sha256
from grpo_core.errors import ConfigError, DataError
from grpo_core.evaluate.item import SuiteItem
from grpo_core.evaluate.scorer import Scorer, scorer
from grpo_core.evaluate.suites.reader import items_digest, load_items


@dataclass(frozen=True)
class Suite:
    """A suite, ready to be answered."""

    config: SuiteConfig
    scorer: Scorer
    items: tuple[SuiteItem, ...]
    sha256: str
    """Of its file."""

    @property
    def digest(self) -> str:
        """Of the items taken (`items_digest`)."""
        return items_digest(self.items)


def load_suites(configs: Sequence[SuiteConfig], *, base: Path) -> tuple[Suite, ...]:
    """Raises ConfigError for wrong settings of a scorer, by their path in the config, and DataError for a file that is
    missing, has another digest, or is invalid."""
    return tuple(load_suite(config, base=base, field=f"eval.suites.{number}") for number, config in enumerate(configs))


def load_suite(config: SuiteConfig, *, base: Path, field: str = "") -> Suite:
    """See `load_suites`; a relative path is taken from `base`. `field` is the suite's path in the config, for
    messages."""
    try:
        judge = scorer(config.scorer.kind, config.scorer.params)
    except ConfigError as error:
        raise ConfigError(f"suite {config.name}: {field}{'.' if field else ''}scorer: {error}") from None
    if config.path.startswith(builtin_suites.PREFIX):
        path = builtin_suites.items_path(config.path.removeprefix(builtin_suites.PREFIX))
    else:
        path = base / config.path
        if path.is_dir():
            raise DataError(f"suite {config.name}: {path} is a folder; give the file of items in it")
    try:
        items = tuple(load_items(path, scorer=judge, limit=config.limit))
        digest = file_sha256(path)
    except DataError as error:
        raise DataError(f"suite {config.name}: {error}") from None
    if config.sha256 not in (None, digest):
        raise DataError(
            f"suite {config.name}: {config.path} is not the file meant: its SHA-256 is {digest}, and {config.sha256} "
            "is asked for. Give the file as it was, or another version of the suite"
        )
    return Suite(config, judge, items, digest)


def suite_at(location: str) -> SuiteConfig:
    """The suite that a person names on the command line: `builtin:<name>`, or a file of items `x.jsonl` with its
    settings in `x.suite.json`. Paths come out absolute. Raises ConfigError."""
    if location.startswith(builtin_suites.PREFIX):
        return SuiteConfig.model_validate(builtin_suites.definition(location.removeprefix(builtin_suites.PREFIX)))
    path = Path(location)
    sidecar = settings_file(path)
    try:
        settings = json.loads(sidecar.read_text(encoding="utf-8"))
    except FileNotFoundError:
        if not path.is_file():
            raise ConfigError(f"no such suite: {location}; starter suites are {', '.join(_builtin())}") from None
        raise ConfigError(
            f"{sidecar} is not there, which says what {path.name} is scored by. `grpo suite convert` writes it; or "
            'write it yourself: {"name": "…", "category": "performance", "scorer": {"kind": "exact"}}'
        ) from None
    except (OSError, ValueError) as error:
        raise ConfigError(f"cannot read {sidecar}: {error}") from None
    return described(settings, source=str(sidecar), path=str(path.resolve()))


def described(settings: Any, *, source: str, path: str) -> SuiteConfig:
    """The suite with its items at `path` and these settings, read from `source`. Raises ConfigError."""
    if not isinstance(settings, dict):
        raise ConfigError(f"{source} must hold an object with name, category and scorer")
    return validated(SuiteConfig, {**settings, "path": path}, f"{source} does not describe a suite")


def settings_file(items: Path) -> Path:
    """The suite's settings, in the folder of its items."""
    return items.with_name(f"{items.name.removesuffix('.jsonl')}.suite.json")


def _builtin() -> list[str]:
    return [builtin_suites.PREFIX + name for name in builtin_suites.names()]


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
