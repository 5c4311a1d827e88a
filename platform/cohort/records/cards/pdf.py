"""card.pdf: the record to print, set by Typst. It carries the seal, the short digest and how to check; it is a copy to
read, and the zip that holds it is the evidence."""

from importlib import resources
from typing import Any

from cohort.records.cards import svg
from cohort.records.cards.reading import Reading
from cohort.records.cards.svg import charts
from cohort.records.cards.typesetting import settable, typeset
from cohort.records.document_view import Block, Row
from cohort.records.schema_types import AUDIENCE_WORDS

FILE = "card.pdf"
_TEXT = 4_000
"""Characters of one field on paper; record.json has all of it, and the page notes the cut."""
_CHECK = (
    "How to check: unpack nothing; run `python verify.pyz CARD.zip --key keys.json` on the zip that this file came in, "
    "with any Python that has the package cryptography, and the public keys that the platform's operator gives you. It "
    "prints the seal: compare it with this one and with the platform's."
)

_PLAINER = "Characters beyond ASCII are written as their numbers here, because no font has them; card.html shows them."


def card_pdf(reading: Reading) -> bytes:
    """The file's bytes. Text that Typst cannot set (it fails on some sequences of rare signs) is set with every sign
    beyond ASCII written as its number, and the page notes it."""
    template = resources.files(__package__).joinpath("card.typ").read_bytes()
    return typeset(template, "card", _card(reading), {"check": f"{_CHECK} {_PLAINER}"})


def _card(reading: Reading) -> dict[str, Any]:
    """What the template reads; all text without characters that cannot be printed."""
    head = reading.head
    return {
        "title": f"Record of {_plain(head['title'])}",
        "subtitle": f"The run {head['state']}. Sealed {head['sealed_at']}, end {head['end']}, version "
        f"{head['version']}. {reading.view.stated} of {reading.view.total} fields shown here are stated. "
        f"For {AUDIENCE_WORDS[reading.document['audience']]}.",
        "seal": reading.seal,
        "short": reading.short_digest,
        "check": _CHECK,
        "charts": [{"svg": svg.standalone(chart.svg), "alt": _plain(chart.title)} for chart in charts(reading)],
        "sections": [_section(block) for block in reading.view.blocks],
    }


def _section(block: Block) -> dict[str, Any]:
    return {
        "title": block.title,
        "stated": f"{block.stated} of {block.total} fields",
        "caption": block.caption,
        "compared": [[_plain(cell) for cell in row.cells] for row in block.comparisons],
        "rows": [_row(row) for row in block.rows],
        "tables": [
            {
                "caption": table.caption,
                "head": list(table.head),
                "rows": [[_plain(cell) for cell in row] for row in table.rows],
            }
            for table in block.tables
        ],
    }


def _row(row: Row) -> dict[str, Any]:
    return {
        "label": row.label,
        "text": _plain(row.text),
        "note": _plain(row.note),
        "mark": _plain(row.mark),
        "muted": row.missing or row.withheld,
    }


def _plain(text: str) -> str:
    clean = settable(text)
    return clean if len(clean) <= _TEXT else f"{clean[:_TEXT]}… (cut here; whole in record.json)"
