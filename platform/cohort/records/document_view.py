"""A record arranged for reading: what pages, card.html, card.pdf and CARD.md show, in one order and in the same words.

Takes the document of any audience; a withheld field becomes a row that is marked so.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from cohort.evidence.canonical import dig
from cohort.evidence.plain_text import MINUS, change_points, percent, points, side_text
from cohort.records.answers import count, decided_by, judged_by, number
from cohort.records.document_tables import Table, section_tables
from cohort.records.fields import FIELDS, TITLES
from cohort.records.schema import Document
from cohort.records.schema_types import (
    AUDIENCE_WORDS,
    EVIDENCE_WORDS,
    Clean,
    Comparison,
    Entry,
    FileEntry,
    Slice,
    Withheld,
)
from cohort.records.statements.questions import BY_FIELD
from grpo_core.config.evaluation import HELDOUT
from grpo_core.stats.inferiority import MEANINGS, UNSURE

NOT_PROVEN = (
    "That the training ran as stated: the record holds what the trainer reported, not that it told the truth.",
    "That entries were true when they were written, above all a person's words.",
    "Anything about behaviour that was not evaluated, or beyond the problems and the protocol that were.",
    "That nobody held the signing key who should not have.",
)
CHECKED = (
    "The command needs no network. It computes every digest and the statistics again from the files in the card, "
    "checks the signature and that the audit log holds the record, and prints the seal, one digest over all of it. "
    "Compare that with the seal on the record's page, or with one you were given."
)
LEGEND = (
    ("recomputable", EVIDENCE_WORDS["recomputable"]),
    ("reported", EVIDENCE_WORDS["reported"]),
    ("estimated", "computed from what was reported, in the way that its note says"),
    ("config", EVIDENCE_WORDS["declared"]),
    ("stated by …", EVIDENCE_WORDS["stated"]),
    ("not stated", EVIDENCE_WORDS["none"]),
)
"""Meaning of the marks next to the values."""


@dataclass(frozen=True)
class Row:
    label: str
    path: str
    """section.field"""
    entry: Entry | Withheld

    @property
    def withheld(self) -> bool:
        return isinstance(self.entry, Withheld)

    @property
    def missing(self) -> bool:
        return isinstance(self.entry, Entry) and self.entry.missing

    @property
    def text(self) -> str:
        if isinstance(self.entry, Withheld):
            return f"withheld: for {AUDIENCE_WORDS[self.entry.audience]}"
        return self.entry.text

    @property
    def note(self) -> str:
        return "" if isinstance(self.entry, Withheld) else self.entry.note

    @property
    def link(self) -> str:
        """Address that a person gave as the value; empty for any other value."""
        value = None if isinstance(self.entry, Withheld) else self.entry.value
        return str(value["link"]) if isinstance(value, dict) and "link" in value else ""

    @property
    def mark(self) -> str:
        """Source and evidence, as the small mark next to the value."""
        if isinstance(self.entry, Withheld):
            return "withheld"
        if self.entry.evidence in ("none", "stated", "declared"):
            return self.entry.source
        return f"{self.entry.source}, {self.entry.evidence}"

    @property
    def audience(self) -> str:
        return self.entry.audience

    @property
    def anchor(self) -> str:
        """Of its question on the page of statements."""
        return self.path.replace(".", "-")

    @property
    def is_question(self) -> bool:
        """Whether a person can state it."""
        return self.path in BY_FIELD


@dataclass(frozen=True)
class Figures:
    """A suite, or a part of it, as cells of a table; every one as text, a dash where there is nothing."""

    name: str
    problems: str
    before: str
    after: str
    difference: str
    visible_from: str
    """Smallest detectable difference, in points."""


@dataclass(frozen=True)
class Compared(Figures):
    """One suite as a line of the table."""

    suite: str
    category: str
    verdict: str
    margin: str
    """As `answers.judged_by`."""
    paired: bool
    """The same problems under the same protocol both times."""
    tone: str
    """Class of the verdict's badge, which is never without its word."""
    decided_by: str
    """How many items would decide it; empty where it is decided, or no number would."""
    details: tuple[str, ...]
    """Sentences about how the numbers came about."""
    parts: tuple[Figures, ...]
    """Its slices, and then the clean subset."""

    @property
    def cells(self) -> tuple[str, ...]:
        """The line of the table in a card; the verdict with the margin that it was judged by."""
        judged = self.verdict + (f" ({self.margin})" if self.margin else "")
        judged += f"; {self.decided_by}" if self.decided_by else ""
        return (self.name, self.problems, self.before, self.after, self.difference, self.visible_from, judged)


def _judged(document: Document, comparison: Comparison) -> str:
    """By what, where held-out problems were judged by the training reward; empty elsewhere."""
    entry = document.entry("behaviour.protocol")
    value = entry.value if isinstance(entry, Entry) and comparison.suite == HELDOUT else None
    return str(dig(value, "training_reward_judges", "text") or "")


def compared(comparison: Comparison, judged: str = "") -> Compared:
    """`judged`: by what, to be shown with the name."""
    parts = [_figures(part.slice, part, comparison.margin) for part in comparison.slices]
    if (clean := comparison.clean) is not None:
        name = f"without the {count(clean.touched)} items found in the training file"
        parts.append(_figures(name, clean, comparison.margin))
    return Compared(
        **vars(_figures(", ".join(filter(None, (comparison.title, judged))), comparison, comparison.margin)),
        suite=comparison.suite,
        category=comparison.category.replace("_", " "),
        verdict=comparison.verdict,
        margin=judged_by(comparison.verdict, comparison.non_inferiority, comparison.margin),
        paired=comparison.change is not None,
        tone=tone(comparison.verdict),
        decided_by=decided_by(comparison),
        details=tuple(_details(comparison)),
        parts=tuple(parts),
    )


def _figures(name: str, part: Comparison | Slice | Clean, margin: float) -> Figures:
    before, after, change = part.before, part.after, part.change
    difference, *bounds = change_points(change.model_dump(), margin) if change else ("–", "", "")
    interval = f"[{', '.join(bounds)}]"
    return Figures(
        name=name,
        problems=count(part.problems),
        before=side_text(before.model_dump()) if before else "–",
        after=side_text(after.model_dump()) if after else "–",
        difference=f"{difference} {interval}" if change else "–",
        visible_from=f"{100 * change.mde:.1f}" if change else "–",
    )


def _details(comparison: Comparison) -> list[str]:
    lines = []
    for when, side in (("before", comparison.before), ("after", comparison.after)):
        if side is not None:
            line = f"{when.capitalize()}: {number(side.correct)} of {count(side.scored)} scored, 95 % Wilson interval "
            line += f"{percent(side.interval.low)} to {percent(side.interval.high)}"
            lines.append(f"{line}; {count(side.truncated)} truncated, {count(side.errors)} unscored.")
    change = comparison.change
    if change is None:
        return lines
    line = f"{count(change.fixed)} scored higher after, {count(change.broken)} lower; "
    lines.append(f"{line}{count(change.both_right)} right and {count(change.both_wrong)} wrong both times.")
    ways = {
        "tango": "Tango's score interval for paired shares",
        "clustered": f"errors clustered over {count(change.clusters or 0)} groups of related items",
        "bootstrap": "bootstrap over items",
    }
    line = f"95 % interval of this suite by itself: {ways[change.method]}."
    if change.unscored:
        line += (
            f" Of {count(change.items)} items scored both times; it reaches over all that the "
            f"{count(change.unscored)} others could be worth."
        )
    if change.p_mcnemar is not None:
        line += f" Exact McNemar p {_p(change.p_mcnemar)}"
        line += f", {_p(change.p_holm)} after Holm over the safety suites." if change.p_holm is not None else "."
    lines.append(line)
    if change.bootstrap is not None:
        low, high = points(change.bootstrap.low), points(change.bootstrap.high)
        lines.append(
            f"Bootstrap: {low} to {high}, {count(change.bootstrap.resamples)} resamples, seed {change.bootstrap.seed}."
        )
    if comparison.higher_is == "worse":
        lines.append("A higher score is worse here.")
    if comparison.non_inferiority is not None:
        line = f"By the margin of {number(100 * comparison.margin)} points, fixed before the run, and this interval: "
        lines.append(f"{line}{comparison.verdict}. {comparison.undecided_because}".rstrip())
    return lines


def _p(value: float) -> str:
    return "below 0.0001" if value < 1e-4 else f"{value:.2g}".replace("-", MINUS)


def tone(verdict: str) -> str:
    """Class of the badge that a verdict is shown in."""
    if verdict in ("better", "regressed"):
        return "is-right" if verdict == "better" else "is-wrong"
    return "is-suspect" if verdict.startswith(UNSURE) else ""


@dataclass(frozen=True)
class Block:
    key: str
    """Name of the section."""
    title: str
    rows: tuple[Row, ...]
    comparisons: tuple[Compared, ...]
    """For the table of the section about behaviour; empty elsewhere."""
    tables: tuple[Table, ...] = ()
    """Further tables, of the section about oversight."""

    @property
    def caption(self) -> str:
        if any(row.paired for row in self.comparisons):
            return (
                "Before and after. A difference is of the same problems with the same seeds and decoding, in "
                "percentage points."
            )
        return "Evaluated once, or not alike both times: there is no difference to state."

    @property
    def by_category(self) -> list[tuple[str, list[Compared]]]:
        """The comparisons in the order in which categories first come."""
        groups: dict[str, list[Compared]] = {}
        for row in self.comparisons:
            groups.setdefault(row.category, []).append(row)
        return list(groups.items())

    @property
    def stated(self) -> int:
        return sum(not row.missing for row in self.rows if not row.withheld)

    @property
    def total(self) -> int:
        """Fields that this audience gets."""
        return sum(not row.withheld for row in self.rows)


@dataclass(frozen=True)
class DocumentView:
    document: Document
    blocks: tuple[Block, ...]
    stated: int
    total: int
    """Fields that this audience gets."""
    not_proven: tuple[str, ...] = NOT_PROVEN
    legend: tuple[tuple[str, str], ...] = LEGEND
    verdicts: tuple[tuple[str, str], ...] = MEANINGS
    checked: str = CHECKED

    @property
    def title(self) -> str:
        return self.document.head.title

    @property
    def state(self) -> str:
        return self.document.head.state

    @property
    def sealed_at(self) -> datetime:
        return datetime.fromisoformat(self.document.head.sealed_at)

    @property
    def short_digest(self) -> str:
        """The seal's first 16 digits in groups of four, to be read out and compared."""
        return " ".join(self.document.seal[at : at + 4] for at in range(0, 16, 4))

    @property
    def files(self) -> Sequence[FileEntry]:
        return self.document.files

    @property
    def raised(self) -> list[dict[str, Any]]:
        """Flags of the monitors, with overrides and their reasons; none where this audience does not get them."""
        flags, overrides = (self._value(f"oversight.{name}") or [] for name in ("flags", "overrides"))
        why = {override["monitor"]: override for override in overrides}
        return [{"text": flag["text"], **why.get(flag["monitor"], {})} for flag in flags if flag["raised"]]

    def _value(self, path: str) -> Any:
        entry = self.document.entry(path)
        return entry.value if isinstance(entry, Entry) else None

    @property
    def to_ask(self) -> tuple[Row, ...]:
        """Missing fields that a person can state."""
        return tuple(row for block in self.blocks for row in block.rows if row.missing and row.is_question)


def view_document(document: Document | Mapping[str, Any]) -> DocumentView:
    if not isinstance(document, Document):
        document = Document.model_validate(document)
    blocks = []
    for section, fields in FIELDS.items():
        if (entries := document.sections.get(section)) is None:
            continue  # an optional one, of other kinds of run
        rows = tuple(Row(facts.label, facts.path, entries[name]) for name, facts in fields.items() if name in entries)
        comparisons = document.comparisons if section == "behaviour" else []
        suites = tuple(compared(comparison, _judged(document, comparison)) for comparison in comparisons)
        blocks.append(Block(section, TITLES[section], rows, suites, section_tables(entries)))
    return DocumentView(document, tuple(blocks), *document.counts())
