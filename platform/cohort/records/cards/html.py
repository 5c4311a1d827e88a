"""card.html: the record as one page without any reference to elsewhere and without script, so that it opens the same
from a disk, a mail or a web server, in light, in dark and on paper."""

from datetime import datetime

from django.template.loader import render_to_string
from django.utils.safestring import mark_safe

from cohort.records.cards.blocks import blocks, counted
from cohort.records.cards.charts import charts
from cohort.records.cards.reading import Reading
from cohort.records.schema_types import AUDIENCE_WORDS, EVIDENCE_WORDS

FILE = "card.html"
_LEGEND = (
    ("recomputable", EVIDENCE_WORDS["recomputable"]),
    ("reported", EVIDENCE_WORDS["reported"]),
    ("config", EVIDENCE_WORDS["declared"]),
    ("stated by …", EVIDENCE_WORDS["stated"]),
    ("not stated", EVIDENCE_WORDS["none"]),
    ("withheld", "for another audience; its hash stands in this card's record.json"),
)


def card_html(reading: Reading) -> bytes:
    stated, total = counted(reading)
    drawn = charts(reading)
    context = {
        "reading": reading,
        "head": reading.head,
        "for_whom": AUDIENCE_WORDS[reading.document["audience"]],
        "stated": stated,
        "total": total,
        "blocks": blocks(reading),
        # svg.py makes them from numbers and escapes the few names that stand in them.
        "charts": [(chart, mark_safe(chart.svg)) for chart in drawn],
        "steps_withheld": reading.series is None,
        "sealed_at": datetime.fromisoformat(reading.head["sealed_at"]),
        "legend": _LEGEND,
    }
    return render_to_string("cards/card.html", context).encode()
