"""STATUS.html and STATUS.pdf: the status for people. Their digests are under its signature."""

from typing import Any

from django.template.loader import render_to_string

from cohort.evidence.status import PAGE, PAPER
from cohort.records.cards.typesetting import NUMBERED, Plain, typeset
from cohort.records.status.document import plain_moment, rows

_TONES = {"revoked": "is-wrong", "rejected": "is-wrong", "superseded": "is-suspect", "signed off": "is-right"}
NOT_PROVEN = (
    "That nothing happened to the record after the moment of this page: ask the platform for a newer one.",
    "That what people wrote is true, or that everything that happened with the model was reported.",
)


def render(document: dict[str, Any]) -> dict[str, bytes]:
    """Both copies by their file's name."""
    seal = document["record"]["seal"]
    view = {
        "words": document["state"]["words"],
        "tone": _TONES.get(document["state"]["name"], "is-suspect"),
        "title": document["record"]["title"],
        "short": " ".join(seal[at : at + 4] for at in range(0, 16, 4)),
        "issued_at": plain_moment(document["issued_at"]),
        "valid_until": plain_moment(document["valid_until"]),
        "address": document["issuer"]["address"],
        "seal": seal,
        "rows": rows(document),
        "not_proven": NOT_PROVEN,
    }
    return {PAGE: render_to_string("cards/status.html", view).encode(), PAPER: _paper(view)}


def _paper(view: dict[str, Any]) -> bytes:
    def contents(plain: Plain, numbered: bool) -> dict[str, Any]:
        return {
            **{name: plain(text) for name, text in view.items() if isinstance(text, str)},
            "rows": [[label, plain(text)] for label, text in view["rows"]],
            "not_proven": list(view["not_proven"]),
            "plainer": f"{NUMBERED}; STATUS.html shows them." if numbered else "",
        }

    return typeset(__package__, ("status.typ",), contents)
