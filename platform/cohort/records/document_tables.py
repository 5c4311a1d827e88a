"""Fields of a record whose values are shown as tables: people against the verifier, and re-scores."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

from cohort.evidence.judgements import CLASSES
from cohort.records.answers import count, kappa_text, rate_text, steps_text
from cohort.records.schema_types import Entry, Withheld


@dataclass(frozen=True)
class Table:
    """Cells as text; the first of a row names it."""

    caption: str
    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


RATES = ("agreement, 95 %", "false positives, 95 %", "false negatives, 95 %", "κ, 95 %")


def review_tables(review: Mapping[str, Any]) -> tuple[Table, ...]:
    """The value of `oversight.human_review`: people against the verifier by step and by class."""
    by_step = tuple((steps_text(row["first"], row["last"]), *_rates(row)) for row in review["by_step"])
    by_class = tuple((f"{CLASSES[row['kind']]}: {row['name']}", *_rates(row)) for row in review["by_class"])
    tables = (
        Table("People against the verifier, by step", ("Steps", *RATES), by_step),
        Table("People against the verifier, by class of completion", ("Class", *RATES), by_class),
    )
    return tuple(table for table in tables if table.rows)


def _rates(row: Mapping[str, Any]) -> tuple[str, ...]:
    shares = (rate_text(row[name]) for name in ("agreement", "false_positives", "false_negatives"))
    return (*shares, kappa_text(row["kappa"]))


def rescore_tables(rescores: Sequence[Mapping[str, Any]]) -> tuple[Table, ...]:
    """The value of `oversight.rescores`: a line a re-score, of how both rewards agree and of what each said."""
    names = [f"{row['reward']} v{row['version']}" for row in rescores]
    agreement = [
        (
            steps_text(row["steps"]["first"], row["steps"]["last"]),
            count(row["samples"]),
            rate_text(row["agreement"]),
            kappa_text(row["kappa"]),
        )
        for row in rescores
    ]
    cells = [[row["confusion"][first][second] for first, second in _CELLS] for row in rescores]
    verdicts = [
        (*map(count, counts), count(row["samples"] - sum(counts))) for row, counts in zip(rescores, cells, strict=True)
    ]
    head = (*(f"{first}, then {second}" for first, second in _CELLS), "not decided by both")
    tables = (
        ("Second reward against the first", ("Steps", "Samples", "agreement, 95 %", "κ, 95 %"), agreement),
        ("Verdicts of the first and of the second reward", head, verdicts),
    )
    return tuple(
        Table(caption, ("Second reward", *words), tuple((name, *row) for name, row in zip(names, rows, strict=True)))
        for caption, words, rows in tables
    )


_CELLS = tuple(product(("right", "wrong"), repeat=2))
"""Verdicts of the first and of the second reward, where both decide."""


def section_tables(entries: Mapping[str, Entry | Withheld]) -> tuple[Table, ...]:
    """Of a section's fields, those whose values are shown as tables."""
    tables: list[Table] = []
    reviewed, rescored = entries.get("human_review"), entries.get("rescores")
    if isinstance(reviewed, Entry) and isinstance(reviewed.value, dict):
        tables += review_tables(reviewed.value)
    rows: Any = rescored.value if isinstance(rescored, Entry) else None
    if isinstance(rows, list):
        tables += rescore_tables(rows)
    return tuple(tables)
