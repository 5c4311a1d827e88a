"""The PDFs of a record, set by Typst: card.pdf, whose first page is the summary, and the summary on its own.

They carry the seal, the short digest and how to check; they are copies to read, and the zip is the evidence.
"""

from collections.abc import Callable
from typing import Any

from cohort.records.cards import svg
from cohort.records.cards.reading import Reading
from cohort.records.cards.svg import charts
from cohort.records.cards.typesetting import NUMBERED, Plain, typeset
from cohort.records.document_view import Block, Row
from cohort.records.schema_types import AUDIENCE_WORDS
from cohort.records.summary import LONGEST, NAME, Line, SignOff, Summary, clamp, summarise
from grpo_core.stats.inferiority import MEANINGS

FILE = "card.pdf"
_TEXT = 4_000
"""Characters of one field on paper; record.json has all of it, and the page notes the cut."""
_LINES = 80
"""Line ends of one field on paper."""
_TEMPLATES = ("layout.typ", "summary.typ")
_CHECK = (
    "How to check: run `python verify.pyz CARD.zip --key keys.json` on the record's zip as it was downloaded, not "
    "unpacked, with any Python that has the package cryptography, and the public keys that the platform's operator "
    "gives you. It prints the seal: compare it with this one and with the platform's."
)


def card_pdf(reading: Reading, sign_off: SignOff | None = None) -> bytes:
    """The card's bytes. `sign_off`: what had come after the seal; None in the file that is sealed with the record."""
    return _pdf("card.typ", lambda plain, check: _card(reading, sign_off, plain, check))


def summary_pdf(summary: Summary) -> bytes:
    """The bytes of one A4 page."""
    return _pdf("summary_alone.typ", lambda plain, check: {"summary": _summary(summary, plain, check)})


def _pdf(main: str, contents: Callable[[Plain, str], dict[str, Any]]) -> bytes:
    """`contents`: by what texts pass through, and how to check."""
    return typeset(
        __package__,
        (main, *_TEMPLATES),
        lambda plain, numbered: contents(plain, f"{_CHECK} {NUMBERED}; card.html shows them." if numbered else _CHECK),
    )


def _card(reading: Reading, sign_off: SignOff | None, plain: Plain, check: str) -> dict[str, Any]:
    """What card.typ reads."""
    head = reading.head

    def cut(text: str) -> str:
        clean = plain(text)
        kept = "\n".join(clean[:_TEXT].split("\n")[:_LINES])
        return clean if kept == clean else f"{kept}… (cut here; whole in record.json)"

    return {
        "summary": _summary(summarise(reading.view, sign_off), plain, check),
        "title": f"Record of {cut(head['title'])}",
        "subtitle": f"The run {head['state']}. Sealed {reading.view.sealed_at:%Y-%m-%d %H:%M} UTC, end "
        f"{head['end']}, version {head['version']}. {reading.view.stated} of {reading.view.total} fields shown here "
        f"are stated. For {AUDIENCE_WORDS[reading.document['audience']]}.",
        "seal": reading.seal,
        "short": reading.short_digest,
        "check": check,
        "charts": [{"svg": svg.standalone(chart.svg), "alt": cut(chart.title)} for chart in charts(reading)],
        "sections": [_section(block, cut) for block in reading.view.blocks],
    }


def _section(block: Block, cut: Plain) -> dict[str, Any]:
    return {
        "title": block.title,
        "stated": f"{block.stated} of {block.total} fields",
        "caption": cut(block.caption),
        "verdicts": "; ".join(f"{words}: {meaning}" for words, meaning in MEANINGS) + "." if block.comparisons else "",
        "compared": [[cut(cell) for cell in row.cells] for row in block.comparisons],
        "rows": [_row(row, cut) for row in block.rows],
        "tables": [
            {
                "caption": table.caption,
                "head": list(map(cut, table.head)),
                "rows": [[cut(cell) for cell in row] for row in table.rows],
            }
            for table in block.tables
        ],
    }


def _row(row: Row, cut: Plain) -> dict[str, Any]:
    return {
        "label": row.label,
        "text": cut(row.text),
        "note": cut(row.note),
        "mark": cut(row.mark),
        "muted": row.missing or row.withheld,
    }


def _summary(summary: Summary, plain: Plain, check: str) -> dict[str, Any]:
    """What summary.typ reads; every text cut so that the page is one."""
    head, view, sign_off = summary.view.document.head, summary.view, summary.sign_off

    def short(text: str, longest: int = LONGEST) -> str:
        return clamp(plain(text), longest)

    return {
        "title": f"Summary: {short(view.title, 62)}",
        "subtitle": f"The run {head.state}. Sealed {view.sealed_at:%Y-%m-%d %H:%M} UTC, end {head.end}, "
        f"version {head.version}. {view.stated} of {view.total} fields of this copy are stated. For {summary.for_whom}."
        + (f" State as of {sign_off.as_of:%Y-%m-%d %H:%M} UTC." if sign_off else ""),
        "headline": short(sign_off.headline if sign_off else summary.as_sealed),
        "tone": sign_off.tone.removeprefix("is-") if sign_off else "",
        "reported": short(sign_off.reported) if sign_off else "",
        "signatures": [[each.role, short(each.text), each.tone] for each in sign_off.signatures] if sign_off else [],
        "parts": [[title, [_line(line, short) for line in lines]] for title, lines in summary.parts],
        "suites": [[short(cell, NAME) for cell in row] for row in summary.suite_cells],
        "left_out": short(summary.left_out),
        "findings": [_line(line, short) for line in summary.findings],
        "not_stated": summary.not_stated,
        "withheld": summary.withheld,
        "not_proven": list(view.not_proven),
        "seal": summary.seal,
        "short": summary.short_digest,
        "check": check,
    }


def _line(line: Line, short: Plain) -> dict[str, Any]:
    return {"label": line.label, "text": short(line.text), "mark": clamp(short(line.mark), 60), "muted": line.muted}
