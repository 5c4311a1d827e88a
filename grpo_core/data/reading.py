"""How a file is read, decided by its first row: the layout, and which field has which role."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from grpo_core.data.layouts import LAYOUTS, PROMPTS, Layout
from grpo_core.data.lines import MISSING, Line, inside, kind_of, names_shown
from grpo_core.data.problem import Problem
from grpo_core.data.rows import ANSWERS, Columns, Row
from grpo_core.specs.fields import DataColumns


@dataclass(frozen=True, slots=True)
class Reading:
    """How a file's rows are read, once the first of them has been seen."""

    format: str
    """Name of the layout; never auto."""
    columns: Columns
    as_list: bool
    """Whether the first row's prompt is a list of messages."""

    def problem(self, line: Line, fields: dict[str, Any]) -> Problem:
        row = Row(line, fields, self.columns)
        if row.has("prompt") and isinstance(row.value("prompt"), list) != self.as_list:
            first = "a list" if self.as_list else "text"
            line.fail(
                f"{self.columns['prompt']!r} is {kind_of(row.value('prompt'))}, and {first} in the first row; expected "
                "the same in every row"
            )
        return LAYOUTS[self.format].read(row)


def choose_reading(format: str, columns: DataColumns, line: Line, fields: dict[str, Any]) -> Reading:
    """The reading of a file whose first row this is. Raises DataError when `auto` finds no layout or several, and when
    the row lacks what the named one needs."""
    given = {role: path for role, path in columns.model_dump().items() if path is not None}
    name = _detected(line, fields, given) if format == "auto" else format
    layout = LAYOUTS[name]
    if unread := [role for role in given if role not in {*layout.columns, *layout.optional}]:
        line.fail(f"data.columns.{unread[0]} is given, and the layout {name} has no such column")
    resolved = _resolved(layout, fields, given)
    for role, names in layout.columns.items():
        if not resolved.get(role):
            line.fail(f"has no field {' or '.join(map(repr, names))}; found {names_shown(fields)}{_advice(role)}")
    if name in ("plain", "prompt_only"):
        _refuse_several(line, fields, given)
    if name == "prompt_only" and format != "auto":
        resolved.setdefault("answer", "")
    row = Row(line, fields, resolved)
    return Reading(name, resolved, row.has("prompt") and isinstance(row.value("prompt"), list))


def _advice(role: str) -> str:
    return f"; name the {role} with data.columns.{role}, or choose another data.format"


def _detected(line: Line, fields: dict[str, Any], given: Mapping[str, str]) -> str:
    fitting = [name for name, layout in LAYOUTS.items() if _fits(layout, line, fields, given)]
    if not fitting:
        line.fail(
            f"is of no known layout; found {names_shown(fields)}. Name its columns, such as data.columns.prompt and "
            f"data.columns.answer, or choose data.format: {', '.join(LAYOUTS)}"
        )
    most = max(LAYOUTS[name].rank for name in fitting)
    best = [name for name in fitting if LAYOUTS[name].rank == most]
    if len(best) > 1:
        line.fail(f"could be read as {' or '.join(best)}; choose one with data.format")
    return best[0]


def _fits(layout: Layout, line: Line, fields: dict[str, Any], given: Mapping[str, str]) -> bool:
    if not given.keys() <= {*layout.columns, *layout.optional} or not set(layout.needs) <= fields.keys():
        return False
    columns = _resolved(layout, fields, given)
    row = Row(line, fields, columns)
    return all(columns.get(role) and _there(fields, columns[role]) for role in layout.columns) and layout.fits(row)


def _resolved(layout: Layout, fields: dict[str, Any], given: Mapping[str, str]) -> dict[str, str]:
    """{role: field}: as given, else the first of the layout's names that the row has."""
    columns = {"system": "system", "id": _spelled(fields, "id") or "id"}
    for role, names in layout.columns.items():
        if (name := next(filter(None, (_spelled(fields, name) for name in names)), None)) is not None:
            columns[role] = name
    return columns | dict(given)


def _spelled(fields: dict[str, Any], name: str) -> str | None:
    """The name as the row writes it: capital letters do not matter."""
    if _there(fields, name):
        return name
    return next((field for field in fields if field.casefold() == name.casefold()), None)


def _there(fields: dict[str, Any], path: str) -> bool:
    return inside(fields, path) is not MISSING


def _refuse_several(line: Line, fields: dict[str, Any], given: Mapping[str, str]) -> None:
    for role, names in (("prompt", PROMPTS), ("answer", ANSWERS)):
        there = [name for name in names if name in fields]
        if role not in given and len(there) > 1:
            line.fail(f"has {' and '.join(map(repr, there))}, each of which may be the {role}{_advice(role)}")
