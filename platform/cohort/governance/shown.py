"""A record arranged for reading: what pages, card.html and CARD.md show, in one order and in one set of words.

CARD.md is made from this again when a card is checked: what it gives for a record belongs to the format `SCHEMA`.
"""

from dataclasses import dataclass

from cohort.governance.schema import EVIDENCE_WORDS, Comparison, Entry, Record, title_of
from cohort.governance.words import count, percent, points

NOT_PROVEN = (
    "Nothing is signed yet: whoever holds the platform could have sealed another record. Compare the seal with the "
    "one on the record's page, or with one you were given.",
    "That the training ran as stated: it shows what the trainer reported, not that it told the truth.",
    "That entries were true when they were written, above all a person's words.",
    "Anything about behaviour that was not evaluated.",
)
CHECKED = (
    "It works without a network, computes every digest and the accuracy table again from the files in the card, and "
    "prints the seal, one digest over all of it: compare that with the seal on the record's page."
)
LEGEND = (
    ("recomputable", EVIDENCE_WORDS["recomputable"]),
    ("reported", EVIDENCE_WORDS["reported"]),
    ("config", EVIDENCE_WORDS["declared"]),
    ("stated by …", EVIDENCE_WORDS["stated"]),
    ("not stated", EVIDENCE_WORDS["none"]),
)
"""What the marks beside the values mean."""


@dataclass(frozen=True)
class Row:
    label: str
    entry: Entry

    @property
    def mark(self) -> str:
        """Source and evidence, as the small mark beside the value."""
        if self.entry.evidence in ("none", "stated", "declared"):
            return self.entry.source
        return f"{self.entry.source}, {self.entry.evidence}"


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
    paired: bool
    """The same problems were answered alike both times."""
    tone: str
    """Class of the verdict's badge; the word always stands beside it."""


def compared(found: Comparison) -> Compared:
    change = found.change
    interval = f"[{points(change.interval.low)}, {points(change.interval.high)}]" if change else ""
    return Compared(
        suite=found.suite,
        problems=count(found.problems),
        before=percent(found.before.share) if found.before else "–",
        after=percent(found.after.share) if found.after else "–",
        difference=f"{points(change.difference)} {interval}" if change else "–",
        visible_from=f"{100 * change.mde:.1f}" if change else "–",
        verdict=found.verdict,
        paired=change is not None,
        tone=tone(found.verdict),
    )


def tone(verdict: str) -> str:
    """Class of the badge that a verdict is shown in."""
    if verdict in ("better", "regressed"):
        return "is-right" if verdict == "better" else "is-wrong"
    return "is-suspect" if verdict.startswith(("undecided", "worse", "not comparable")) else ""


@dataclass(frozen=True)
class Block:
    title: str
    rows: tuple[Row, ...]
    comparisons: tuple[Compared, ...]
    """For the table of the section about behaviour; empty elsewhere."""

    @property
    def caption(self) -> str:
        if any(row.paired for row in self.comparisons):
            return (
                "Before and after. A difference is of the same problems with the same seeds and decoding, in "
                "percentage points."
            )
        return "Evaluated once, or not alike both times: there is no difference to state."

    @property
    def stated(self) -> int:
        return sum(not row.entry.missing for row in self.rows)


@dataclass(frozen=True)
class Shown:
    record: Record
    blocks: tuple[Block, ...]
    stated: int
    total: int
    missing: tuple[str, ...]
    """Labels of the fields that nobody filled."""
    not_proven: tuple[str, ...] = NOT_PROVEN
    legend: tuple[tuple[str, str], ...] = LEGEND
    checked: str = CHECKED


def shown(record: Record) -> Shown:
    blocks = []
    for section in record.sections():
        rows = tuple(Row(label, entry) for _, label, entry in section.entries())
        found = (record.behaviour.performance.value or ()) if section is record.behaviour else ()
        blocks.append(Block(title_of(section), rows, tuple(compared(one) for one in found)))
    stated, total = record.counts()
    missing = tuple(row.label for block in blocks for row in block.rows if row.entry.missing)
    return Shown(record, tuple(blocks), stated, total, missing)
