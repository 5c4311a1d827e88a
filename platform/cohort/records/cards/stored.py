"""A card that was issued, read again from the artifact store for its reading copies."""

import json
import zipfile

from cohort.base import artifacts
from cohort.records.cards.reading import Reading, Series
from cohort.records.models import Card

_STEPS = "metrics.jsonl"


def stored_reading(card: Card) -> Reading:
    """The record and the steps as this card holds them, without the weights' digests. Raises FileNotFoundError where
    the store has no such file."""
    with artifacts.open_read(card.artifact) as stored, zipfile.ZipFile(stored) as archive:
        document = json.loads(archive.read("record.json"))
        if _STEPS not in archive.namelist():
            return Reading(document)
        series = Series()
        with archive.open(_STEPS) as lines:
            for line in lines:
                step = json.loads(line)
                series.add(step["step"], step["metrics"])
    return Reading(document, series)
