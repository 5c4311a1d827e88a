"""One number that a file of another tool states, and the small helpers that take statements out of it."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from cohort.evaluations.imports.bounds import BadImport
from grpo_core.text import UNSTORABLE

MOST_CHARS = 500
"""Of one stated fact; what is longer is cut, and says so by an ellipsis."""
MOST_NAME = 200


@dataclass(frozen=True)
class ToolResult:
    tool: str
    task: str
    metric: str
    value: float
    stderr: float | None
    n: int | None
    higher_is: str
    """better, worse, or empty where the file does not say."""
    facts: dict[str, Any] = field(default_factory=dict)
    samples: dict[str, Any] | None = None
    """{n, mean, sha256} over the items that came along."""


def number(value: Any, where: str) -> float:
    """A finite number; true and false are none. Raises BadImport."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise BadImport(f"{where} is {shown(value)}, not a number", code="not_a_number")
    if isinstance(value, int) and abs(value) > 2**53:
        raise BadImport(f"{where} is too large a number", code="number_too_large")
    if not math.isfinite(value):
        raise BadImport(f"{where} is {value}, which is not a finite number", code="not_finite")
    return float(value)


def finite(value: Any) -> float | None:
    """A number that can be counted with; None for anything else, and for one so large that sums of such overflow."""
    if not isinstance(value, int | float) or not -(2**53) <= value <= 2**53:
        return None
    return float(value)


def count(value: Any) -> int | None:
    """A number of items that a column holds; None for anything else."""
    return value if type(value) is int and 0 <= value < 2**31 else None


def name(value: Any, where: str) -> str:
    """Raises BadImport."""
    if not isinstance(value, str) or not value.strip() or len(value) > MOST_NAME or UNSTORABLE.search(value):
        raise BadImport(f"{where} is {shown(value)}; expected a name of 1 to {MOST_NAME} characters", code="bad_name")
    return value


def facts_of(entries: Mapping[str, Any], names: Iterable[str]) -> dict[str, Any]:
    """Of the named entries those that are a text, a number, or true or false; as the file has them."""
    kept: dict[str, Any] = {}
    for key in names:
        value = entries.get(key)
        if isinstance(value, str) and value:
            text = UNSTORABLE.sub("\ufffd", value)
            kept[key] = text if len(text) <= MOST_CHARS else text[: MOST_CHARS - 1] + "…"
        elif isinstance(value, bool) or (isinstance(value, int | float) and abs(value) < 2**53):
            kept[key] = value
    return kept


def mapping(value: Any, where: str) -> dict[str, Any]:
    """Raises BadImport for anything but an object."""
    if not isinstance(value, dict):
        raise BadImport(f"{where} is {shown(value)}, not an object", code="not_an_object")
    return value


def shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:59] + "…"
