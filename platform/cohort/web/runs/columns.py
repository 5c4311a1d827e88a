"""Columns of the list of runs: those that are always offered, and any field of the search language."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from django.db.models import F
from django.db.models.fields.json import KeyTransform

from cohort.base.formatting import exact, minus, num
from cohort.base.storable import storable
from cohort.runs.models import Run
from cohort.runs.run_values import VARIANT
from cohort.runs.search.fields import Field, Fields, UnknownField, short_names

MOST = 30
"""Columns of one table."""


@dataclass(frozen=True)
class Column:
    name: str
    """As the address has it."""
    label: str
    sort: str = ""
    """Field that it is sorted by; empty where it has no order."""
    number: bool = False
    field: Field | None = None
    """Whose value it shows; the others have their own cell (web.runs.cells)."""

    @property
    def stored(self) -> Any:
        """Expression of the field's value of a run; None for a usual column, and for scores and the variant, which are
        in `RunValue`."""
        field = self.field
        if field is None or field.scored or field.key == VARIANT:
            return None
        match field.source:
            case "column":
                return F(field.key)
            case "metric":
                return KeyTransform(field.key, "latest_metrics")
            case _:
                value: Any = F("config")
                for piece in field.key.split("."):
                    value = KeyTransform(piece, value)
                return value


def _usual() -> dict[str, Column]:
    columns = (
        Column("state", "State", "state"),
        Column("step", "Step", "step"),
        Column("reward", "Last reward", "reward", number=True),
        Column("trend", "Trend"),
        Column("scores", "Before → after", "eval.heldout", number=True),
        Column("model", "Model", "model"),
        Column("recipe", "Recipe", "preset"),
        Column("tags", "Tags", "tag"),
        Column("person", "Started by", "person"),
        Column("when", "When", "created"),
    )
    return {column.name: column for column in columns}


USUAL = _usual()
"""Shown where the address names no columns, in this order. The name of the run is before them in every table."""


@dataclass
class Columns:
    shown: list[Column]
    unknown: list[str]
    """What is wrong with names in the address."""

    @property
    def names(self) -> list[str]:
        return [column.name for column in self.shown]

    @property
    def usual(self) -> bool:
        return self.names == list(USUAL)


def columns_of(given: Sequence[str], fields: Fields) -> Columns:
    """Of the parameter `columns`, given once or more, with commas within."""
    names = list(dict.fromkeys(name.strip() for text in given for name in storable(text).split(",") if name.strip()))
    if not names:
        return Columns(list(USUAL.values()), [])
    shown, unknown = [], []
    for name in names[:MOST]:
        if name in USUAL:
            shown.append(USUAL[name])
            continue
        try:
            shown.append(_of_field(fields.field(name)))
        except UnknownField as error:
            unknown.append(str(error))
    if len(names) > MOST:
        unknown.append(f"The address names {len(names)} columns; {MOST} are shown at most.")
    return Columns(shown, unknown)


def _of_field(field: Field) -> Column:
    return Column(field.name, field.name, field.name, field.kind == "number", field)


def cell_text(field: Field, value: Any) -> str:
    """The field's value of one run; empty where it has none."""
    if field.scored:
        return "" if value is None else percent(value)
    match field.source:
        case "metric":
            return "" if value is None else num(float(value))
        case "column":
            return _column_text(field, value)
        case _:
            return setting_text(value)


def percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def _column_text(field: Field, value: Any) -> str:
    match field.kind:
        case "time" | "archived":
            return f"{value:%Y-%m-%d %H:%M}" if value else ""
        case "tag":
            return " ".join(value)
        case "number":
            return num(value)
    return "" if value is None else str(value)  # a run may have no sweep


def setting_text(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int | float):
        return exact(value)
    return "" if value is None else minus(value) if value.startswith("-") else value if isinstance(value, str) else ""


# ---------------------------------------------------------------------- what is offered


_OF_SUITES = "eval.suites."
"""Begins the settings of chosen suites, which are known by their place in a list: their scores are offered instead."""


@dataclass(frozen=True)
class Offer:
    title: str
    names: list[str]


def offers(runs: Sequence[Run], scores: Iterable[str], chosen: Sequence[str]) -> list[Offer]:
    """Columns to choose from: the usual ones, settings that differ between the runs shown, scores, metrics. What was
    chosen is among them."""
    by_path = {field.key: name for name, field in short_names().items() if field.source == "value"}
    settings = [by_path.get(path, path) for path in differing(runs) if not path.startswith(_OF_SUITES)]
    metrics = sorted({name for run in runs for name in run.latest_metrics} - {"reward"})
    groups = [
        Offer("Usual", list(USUAL)),
        Offer("Settings that differ between these runs", settings),
        Offer("Scores on suites", [name for score in scores for name in (score, f"{score}.before", f"{score}.after")]),
        Offer("Newest metrics", metrics),
    ]
    for group in groups:  # a name that no page can show as it is can still be written
        group.names[:] = filter(str.isprintable, group.names)
    offered = {name for group in groups for name in group.names}
    others = [name for name in chosen if name not in offered]
    columns = [
        name
        for name in ("kind", "note", "verifier", "dataset", "sweep", "created", "started", "ended")
        if name not in others
    ]
    return [*(group for group in groups if group.names), Offer("More", [*others, *columns])]


def differing(runs: Sequence[Run]) -> list[str]:
    """Paths of settings that have two values or more among the runs, in the order of the config."""
    values: dict[str, set[Any]] = {}
    counts: dict[str, int] = {}
    sections = [  # most are the same in all runs, which takes less to see than to walk through them
        name
        for name in (runs[0].config if runs else {})
        if any(run.config.get(name) != runs[0].config[name] for run in runs)
    ]
    for run in runs:
        for path, value in leaves({name: run.config[name] for name in sections if name in run.config}):
            values.setdefault(path, set()).add(value)
            counts[path] = counts.get(path, 0) + 1
    paths = [path for path, different in values.items() if len(different) > 1 or counts[path] < len(runs)]
    return [path for path in paths if path != "name"]


def leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Path and value of every number, text and truth value of a config."""
    parts = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else None
    if parts is not None:
        for name, part in parts:
            yield from leaves(part, f"{path}.{name}" if path else str(name))
    elif value is not None:
        yield path, value
