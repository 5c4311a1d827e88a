"""How values, figures and their differences are written in a diff. Knows no Django."""

import json
from typing import Any

from cohort.base.formatting import minus


def one_line(value: Any) -> str:
    """A value as JSON; text as it is."""
    if isinstance(value, str):
        return value
    text = json.dumps(value, ensure_ascii=False)
    return minus(text) if isinstance(value, int | float) else text


def number(value: float) -> str:
    return minus(f"{value:,}") if isinstance(value, int) else minus(f"{value:,.6g}")


def signed(value: float | None) -> str:
    """A difference with its sign."""
    if value is None:
        return ""
    return f"+{number(value)}" if value > 0 else number(value)


def figure(value: Any, unit: str) -> str:
    """Of a suite's row: a count, a share as a percentage, a difference of shares in points, or words."""
    if value is None:
        return "–"
    if unit == "share":
        return minus(f"{100 * value:.1f} %")
    if unit in ("points", "size"):
        return minus(f"{100 * value:{'+' if unit == 'points' else ''}.1f}")
    return number(value) if unit == "count" else str(value)
