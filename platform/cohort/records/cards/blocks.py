"""A record's fields arranged for the reading copies: in the order of its page, each with its mark."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cohort.records.answers import count, judged_by, percent, points
from cohort.records.cards.reading import Reading
from cohort.records.fields import FIELDS, TITLES


@dataclass(frozen=True)
class Row:
    label: str
    path: str
    text: str
    note: str
    mark: str
    """Source and evidence; or for whom the field is, when it is withheld here."""
    missing: bool
    """Nobody filled it."""
    withheld: bool


@dataclass(frozen=True)
class Compared:
    """One suite as a line of the table; every cell as text, a dash where there is nothing."""

    suite: str
    problems: str
    before: str
    after: str
    difference: str
    visible_from: str
    """Smallest difference that would have been found, in points."""
    verdict: str
    """With the margin that it was judged by, in points."""
    paired: bool


@dataclass(frozen=True)
class Block:
    key: str
    title: str
    rows: tuple[Row, ...]
    compared: tuple[Compared, ...]
    """For the table of the section about behaviour; empty elsewhere."""

    @property
    def shown(self) -> int:
        return sum(not row.withheld for row in self.rows)

    @property
    def stated(self) -> int:
        return sum(not (row.missing or row.withheld) for row in self.rows)

    @property
    def caption(self) -> str:
        if any(row.paired for row in self.compared):
            return (
                "Before and after. A difference is of the same items with the same seeds and decoding, in percentage "
                "points."
            )
        return "Evaluated once, or not alike both times: there is no difference to state."


def blocks(reading: Reading) -> list[Block]:
    compared = tuple(_compared(one) for one in reading.comparisons)
    return [
        Block(
            section,
            TITLES[section],
            tuple(
                _row(facts.label, facts.path, reading.document["sections"][section][name])
                for name, facts in fields.items()
                if name in reading.document["sections"][section]
            ),
            compared if section == "behaviour" else (),
        )
        for section, fields in FIELDS.items()
    ]


def counted(reading: Reading) -> tuple[int, int]:
    """(fields that are stated, fields that this audience gets)."""
    found = blocks(reading)
    return sum(block.stated for block in found), sum(block.shown for block in found)


def _row(label: str, path: str, entry: Mapping[str, Any]) -> Row:
    if "withheld" in entry:
        return Row(label, path, f"in the card for {entry['audience']}", "", "withheld", missing=False, withheld=True)
    source, evidence = entry["source"], entry["evidence"]
    mark = source if evidence in ("none", "stated", "declared") else f"{source}, {evidence}"
    return Row(label, path, entry["text"], entry["note"], mark, missing=source == "not stated", withheld=False)


def _compared(found: Mapping[str, Any]) -> Compared:
    change = found["change"]
    interval = f"[{points(change['interval']['low'])}, {points(change['interval']['high'])}]" if change else ""
    margin = judged_by(found["verdict"], found["non_inferiority"], found["margin"])
    return Compared(
        suite=found.get("title") or found["suite"],
        problems=count(found["problems"]),
        before=percent(found["before"]["share"]) if found["before"] else "–",
        after=percent(found["after"]["share"]) if found["after"] else "–",
        difference=f"{points(change['difference'])} {interval}" if change else "–",
        visible_from=f"{100 * change['mde']:.1f}" if change else "–",
        verdict=found["verdict"] + (f" ({margin})" if margin else ""),
        paired=change is not None,
    )
