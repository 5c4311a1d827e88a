"""The sealed config of a record, from the card that holds it: the record itself has only its digest."""

import zipfile
from collections.abc import Mapping
from typing import Any

import yaml

from cohort.base import artifacts
from cohort.evidence.canonical import sha256
from cohort.records.models import Audience, Card, Record

NAME = "config.yaml"
MOST_BYTES = 4 * 1024 * 1024


def sealed_config(record: Record, document: Mapping[str, Any]) -> dict[str, Any] | None:
    """The config as it was sealed; None where no card with it is kept, or it is not the bytes that were sealed."""
    entry = next((listed for listed in document["files"] if listed["path"] == NAME), None)
    held = Card.objects.filter(record=record, audience__in=[Audience.DOWNSTREAM, Audience.INTERNAL])
    card = held.order_by("-issue", "audience").first()
    if entry is None or card is None or entry["size"] > MOST_BYTES:
        return None
    try:
        with artifacts.open_read(card.artifact) as stored, zipfile.ZipFile(stored) as packed, packed.open(NAME) as file:
            content = file.read(entry["size"] + 1)
    except (FileNotFoundError, zipfile.BadZipFile, KeyError):
        return None
    if sha256(content) != entry["sha256"]:
        return None
    config = yaml.safe_load(content)
    return config if isinstance(config, dict) else None
