"""card.html: the record as one self-contained page without script, so that it opens the same from a disk, a mail or
a web server, in light, in dark and on paper."""

from django.template.loader import render_to_string
from django.utils.safestring import mark_safe

from cohort.records.cards.reading import Reading
from cohort.records.cards.svg import charts
from cohort.records.document_view import LEGEND
from cohort.records.schema_types import AUDIENCE_WORDS

FILE = "card.html"
_LEGEND = (*LEGEND, ("withheld", "for another audience; its hash is in this card's record.json"))


def card_html(reading: Reading) -> bytes:
    drawn = charts(reading)
    context = {
        "reading": reading,
        "head": reading.head,
        "for_whom": AUDIENCE_WORDS[reading.document["audience"]],
        "view": reading.view,
        # svg.py makes them from numbers and escapes the few names in them.
        "charts": [(chart, mark_safe(chart.svg)) for chart in drawn],
        "steps_withheld": reading.series is None,
        "legend": _LEGEND,
    }
    return render_to_string("cards/card.html", context).encode()
