"""A record on one page, for officers: what was trained, from what, on what reward, what changed, what is not stated,
what it does not prove, who signed. Page, PDF and the first page of card.pdf show the same of it.

Takes the document of any audience: what that audience does not get is listed as withheld. Nothing here is new: every
text is one of the record's, and one that is cut says so.
"""

import unicodedata
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import accumulate

from cohort.evidence.plain_text import counted, named
from cohort.records.after_seal.rules import (
    Decision,
    SignRole,
    Standing,
    counted_reports,
    counts_of,
    standing_of,
)
from cohort.records.document_view import Compared, DocumentView, Row
from cohort.records.models import RecordEntry
from cohort.records.schema_types import AUDIENCE_WORDS, Audience, Entry
from grpo_core.text import printable

LONGEST = 125
"""Widths of a small letter that a text may have: two lines of an A4 page. What is longer ends with `MORE`."""
NAME = 88
"""The same of a suite's name, which says what judged it: two lines of its column."""
MORE = "… more in the record"
SUITES = 5
"""Suites on the page; of more, those whose verdicts a reader must not miss."""
NAMES = 12
"""Names of fields that are listed as not stated, and as withheld."""
_GRAVE = ("regressed", "worse", "undecided", "not comparable")
"""How verdicts begin that a reader must not miss, the gravest first."""
_NAMES_SHOWN: tuple[str, ...] = ("authority", "internal")
"""Audiences that get the names of who signed, and the counts of what was reported."""

_BEFORE_SUITES: dict[str, tuple[str, ...]] = {
    "What was trained": (
        "subject.outcome",
        "subject.training_method",
        "subject.base_model",
        "subject.trained_policy",
        "budget.compute",
    ),
    "From what data": ("data.prompts", "data.provenance", "data.decontamination"),
    "On what reward": ("reward.source", "reward.rule_or_model", "reward.domain", "reward.brittleness"),
}
_STAGE = "What the stage did"
"""Of another kind of run than GRPO."""
_STAGE_LINES = 4
_AFTER_SUITES = ("behaviour.safety_regressions", "oversight.flags", "oversight.human_review")

AS_SEALED = (
    "As of the seal: nobody can have signed yet. The status in the download has what was signed or revoked since."
)


def clamp(text: str, longest: int = LONGEST) -> str:
    """The text on one line; what is wider than `longest` small letters is cut and ends with `MORE` within them."""
    line = " ".join(text.split())
    ends = list(accumulate(map(_width, line)))
    if not ends or ends[-1] <= longest:
        return line
    return f"{line[: bisect_right(ends, longest - len(MORE))].rstrip()}{MORE}"


def _width(sign: str) -> float:
    """Of a character in small letters, generously: a sign that cannot be seen is written as its number."""
    if unicodedata.category(sign) == "Cn" or printable(sign) != sign:
        return len(ascii(sign)) - 2
    if unicodedata.east_asian_width(sign) in "WF":
        return 2
    return 1.6 if sign in "MWmw@%…—" or ord(sign) > 0x2000 else 1.25 if sign.isupper() else 1


@dataclass(frozen=True)
class Line:
    """A field of the record."""

    label: str
    text: str
    """Whole; with why, where nothing is stated. `clamp` cuts it for the page."""
    mark: str
    muted: bool
    """Whether it says nothing: not stated, or withheld from this audience."""

    @property
    def short(self) -> str:
        return clamp(self.text)


@dataclass(frozen=True)
class Signature:
    role: str
    text: str
    tone: str


@dataclass(frozen=True)
class SignOff:
    """What had come after the seal when this was made."""

    as_of: datetime
    headline: str
    tone: str
    signatures: tuple[Signature, ...]
    reported: str
    """How many incidents and other entries there are, for who gets their counts."""

    @property
    def short(self) -> str:
        return clamp(self.headline)


@dataclass(frozen=True)
class Summary:
    view: DocumentView
    parts: tuple[tuple[str, tuple[Line, ...]], ...]
    """(heading, lines) before the table of suites."""
    suites: tuple[Compared, ...]
    left_out: str
    """Verdicts of the suites that have no room; empty for none."""
    findings: tuple[Line, ...]
    """After the table of suites."""
    not_stated: str
    """How many fields and which; names end with how many more there are."""
    withheld: str
    """The same of those that are not for this audience; empty for none."""
    sign_off: SignOff | None
    """None in what is made with the seal itself."""

    @property
    def audience(self) -> Audience:
        return self.view.document.audience

    @property
    def for_whom(self) -> str:
        return AUDIENCE_WORDS[self.audience]

    @property
    def seal(self) -> str:
        return self.view.document.seal

    @property
    def short_digest(self) -> str:
        return self.view.short_digest

    @property
    def named_suites(self) -> tuple[tuple[str, Compared], ...]:
        """Each suite with its name as the page has room for it."""
        return tuple((clamp(suite.name, NAME), suite) for suite in self.suites)

    @property
    def suite_cells(self) -> tuple[tuple[str, ...], ...]:
        """Rows of the table: suite, n, before, after, difference with its interval, verdict with its margin."""
        return tuple((*suite.cells[:5], suite.cells[-1]) for suite in self.suites)

    @property
    def as_sealed(self) -> str:
        """In place of signatures, where there can be none yet; empty where there can."""
        return AS_SEALED if self.sign_off is None else ""


def summarise(view: DocumentView, sign_off: SignOff | None = None) -> Summary:
    rows = {row.path: row for block in view.blocks for row in block.rows}
    suites = [row for block in view.blocks for row in block.comparisons]
    shown = sorted(sorted(range(len(suites)), key=lambda at: _gravity(suites[at]))[:SUITES])
    rest = [suites[at] for at in range(len(suites)) if at not in shown]
    missing = [row.label for row in rows.values() if row.missing]
    withheld = [row.label for row in rows.values() if row.withheld]
    return Summary(
        view=view,
        parts=tuple(_parts(rows)),
        suites=tuple(suites[at] for at in shown),
        left_out=_left_out(rest),
        findings=_lines(rows, _AFTER_SUITES),
        not_stated=_counted_names(missing, f"of {view.total} fields"),
        withheld=_counted_names(withheld, "") if withheld else "",
        sign_off=sign_off,
    )


def _parts(rows: dict[str, Row]) -> Iterator[tuple[str, tuple[Line, ...]]]:
    """Headings with their lines. A heading whose lines all do not apply to the kind of run is left out."""
    for title, paths in _BEFORE_SUITES.items():
        if any(not _inapplicable(rows[path]) for path in paths if path in rows):
            yield title, _lines(rows, paths)
    if own := [path for path in rows if path.startswith("stage.") and path != "stage.kind"]:
        yield _STAGE, _lines(rows, own[:_STAGE_LINES])


def _inapplicable(row: Row) -> bool:
    return isinstance(row.entry, Entry) and row.entry.source == "not applicable"


def signed_off(entries: Sequence[RecordEntry], *, audience: str, superseded: str, as_of: datetime) -> SignOff:
    """`entries`: all that were added to the record, in their order. `superseded`: a sentence about the record that took
    this one's place; empty for none. Names of who signed and counts of what was reported are for authorities and the
    project itself."""
    standing = standing_of(entries)
    signatures = tuple(_signature(standing, role, named=audience in _NAMES_SHOWN) for role in SignRole)
    revoked = standing.revocation
    if revoked is not None:
        headline = f"Revoked on {revoked.at:%Y-%m-%d}: {revoked.text}"
    else:
        headline = " ".join(filter(None, (superseded, f"{standing.words[:1].upper()}{standing.words[1:]}.")))
    tone = "is-suspect" if superseded and revoked is None else standing.tone
    return SignOff(
        as_of=as_of, headline=headline, tone=tone, signatures=signatures, reported=_reported(entries, audience)
    )


def _reported(entries: Sequence[RecordEntry], audience: str) -> str:
    if audience not in _NAMES_SHOWN:
        return "Incidents and other reports since the seal: not in the copy for this audience."
    return f"Since the seal: {', '.join(f'{what} {many}' for what, many in counted_reports(counts_of(entries)))}."


def _signature(standing: Standing, role: SignRole, *, named: bool) -> Signature:
    entry = standing.of(role)
    if entry is None:
        return Signature(role.value, "not signed", "suspect")
    text = f"{entry.decision} on {entry.at:%Y-%m-%d}" + (f" by {entry.by.username}" if named else "")
    return Signature(role.value, text, "right" if entry.decision == Decision.APPROVED else "wrong")


def _lines(rows: dict[str, Row], paths: Sequence[str]) -> tuple[Line, ...]:
    return tuple(_line(rows[path]) for path in paths if path in rows)


def _line(row: Row) -> Line:
    text = f"{row.text}: {row.note}" if row.missing and row.note else row.text
    return Line(row.label, text, row.mark, row.missing or row.withheld)


def _gravity(suite: Compared) -> int:
    return next((rank for rank, kind in enumerate(_GRAVE) if suite.verdict.startswith(kind)), len(_GRAVE))


def _left_out(rest: Sequence[Compared]) -> str:
    if not rest:
        return ""
    verdicts = Counter(suite.verdict for suite in rest)
    which = named([f"{count} {verdict}" for verdict, count in verdicts.items()], 3)
    return f"{counted(len(rest), 'more suite')} in the record: {which}."


def _counted_names(labels: Sequence[str], of: str) -> str:
    which = f": {named(list(labels), NAMES)}." if labels else "."
    return " ".join(filter(None, (f"{len(labels)}", of))) + which
