"""The suites that come with Cohort: where they are and what their files declare. Loads no torch, and no config,
which imports this.

One folder each: `suite.json` (fields of a SuiteConfig; `limits`, what the suite cannot show; `licence`, `source`),
`items.jsonl`, `README.md`.
"""

import hashlib
import json
from functools import cache
from pathlib import Path
from typing import Any

from grpo_core.errors import ConfigError

PREFIX = "builtin:"
_HERE = Path(__file__).resolve().parent


@cache
def names() -> tuple[str, ...]:
    """Of all starter suites."""
    return tuple(sorted(path.parent.name for path in _HERE.glob("*/suite.json")))


def items_path(name: str) -> Path:
    """The suite's items. Raises ConfigError for an unknown name."""
    return _folder(name) / "items.jsonl"


def definition(name: str) -> dict[str, Any]:
    """Fields of its SuiteConfig, with path and sha256. Raises ConfigError for an unknown name."""
    fields = {field: value for field, value in about(name).items() if field not in ("limits", "licence", "source")}
    return {"name": name, **fields, "path": PREFIX + name, "sha256": _sha256(name)}


def about(name: str) -> dict[str, Any]:
    """All of its suite.json."""
    fields: dict[str, Any] = json.loads((_folder(name) / "suite.json").read_text(encoding="utf-8"))
    return fields


@cache
def _sha256(name: str) -> str:
    return hashlib.sha256(items_path(name).read_bytes()).hexdigest()


def _folder(name: str) -> Path:
    if name not in names():
        raise ConfigError(f"there is no starter suite {name!r}; there are {', '.join(names())}")
    return _HERE / name
