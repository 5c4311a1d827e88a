"""Is record.json a record, does it have the digests it names, and are the sealed files those it lists?"""

import json
import re
from collections.abc import Callable
from importlib import resources
from itertools import islice
from typing import Any, TypeVar

from cohort.evidence.canonical import CanonicalError
from cohort.evidence.card_reader import Cannot, Rejected
from cohort.evidence.plain_text import counted, named
from cohort.evidence.record import SCHEMA, RecordFault, record_root, seal_of, shows
from cohort.evidence.schema_check import faults
from cohort.evidence.verify.opened import OUTSIDE, RECORD, OpenCard
from cohort.evidence.zip_layout import NAME

_VERSION = re.compile(r"cohort-record/([1-9][0-9]{0,5})")
_MOST_FAULTS = 10
T = TypeVar("T")
_UNSEALED = frozenset({RECORD, *OUTSIDE})


def schema() -> dict[str, Any]:
    """The JSON Schema of record.json, of the version that this release checks."""
    document: dict[str, Any] = json.loads((resources.files("cohort.evidence") / "record.schema.json").read_bytes())
    return document


def read(card: OpenCard) -> str:
    value = card.canonical(RECORD)
    stated = value.get("schema") if isinstance(value, dict) else None
    version = _VERSION.fullmatch(stated) if isinstance(stated, str) else None
    if version and int(version[1]) > int(SCHEMA.partition("/")[2]):
        raise Cannot(f"this card is {stated}, and this release checks {SCHEMA}: a newer release of cohort checks it")
    if version and stated != SCHEMA:
        raise Cannot(f"this card is {stated}: an older release of cohort checks it (version 0.1)")
    try:
        problems = list(islice(faults(value, schema()), _MOST_FAULTS + 1))
    except RecursionError:
        raise Rejected(f"{RECORD}: nested too deeply") from None
    if len(problems) > _MOST_FAULTS:
        problems[-1] = "… and more"
    if problems:
        raise Rejected(*(f"{RECORD}: {fault}" for fault in problems))
    card.document = value
    return f"canonical bytes, and as the published schema {SCHEMA} has it; for the audience {value['audience']}"


def root(card: OpenCard) -> str:
    hidden = _tested(lambda: _hidden_fields(card))
    digest = _tested(lambda: record_root(card.document))
    if digest != card.document["record_root"]:
        raise Rejected(f"the fields have the root {digest}, and the record says {card.document['record_root']}")
    total = sum(len(fields) for fields in card.document["sections"].values())
    words = f"{counted(total, 'field')} and the head have the root that the record says"
    return f"{words}; {counted(hidden, 'field')} by hash alone, withheld from this audience" if hidden else words


def _hidden_fields(card: OpenCard) -> int:
    """How many fields are withheld. Raises RecordFault for one that this audience should get and does not, or the
    other way round."""
    hidden = 0
    for section, fields in card.document["sections"].items():
        for name, entry in fields.items():
            withheld = "withheld" in entry
            if withheld is shows(card.audience, entry["audience"]):
                words = "is withheld" if withheld else "is shown"
                raise RecordFault(
                    f"{section}.{name} {words} in a card for {card.audience}, and is for {entry['audience']}"
                )
            hidden += withheld
    return hidden


def seal(card: OpenCard) -> str:
    digest = _tested(lambda: seal_of(card.document))
    if digest != card.document["seal"]:
        raise Rejected(f"root and list of files have the seal {digest}, and the record says {card.document['seal']}")
    return f"{digest} is that of the root and of the list of sealed files"


def _tested(check: Callable[[], T]) -> T:
    try:
        return check()
    except (RecordFault, CanonicalError) as error:
        raise Rejected(f"{RECORD}: {error}") from None


def files(card: OpenCard) -> str | tuple[str, ...]:
    """Sealed files have size and digest; those of a wider audience are absent."""
    listed = card.document["files"]
    paths = [entry["path"] for entry in listed]
    if paths != sorted(set(paths)):
        raise Rejected("the list of sealed files is not sorted, or names one twice")
    problems: list[str] = []
    withheld: list[str] = []
    for entry in listed:
        path = entry["path"]
        there = path in card.reader.entries
        if path in _UNSEALED or not NAME.fullmatch(path.encode(errors="replace")):
            problems.append(f"{path!a} cannot be the name of a sealed file")
        elif not shows(card.audience, entry["audience"]):
            withheld.append(path)
            if there:
                problems.append(f"{path!a} is in a card for {card.audience}, and is for {entry['audience']}")
        elif not there:
            problems.append(f"{path!a} is sealed and missing from the card")
        elif fault := _file(card, entry):
            problems.append(fault)
    if problems:
        raise Rejected(*problems[:_MOST_FAULTS])
    words = f"{counted(len(listed) - len(withheld), 'file')} with the size and sha256 that the seal covers"
    if not withheld:
        return words
    return words, f"withheld from this audience: {counted(len(withheld), 'file')} ({named(withheld)})"


def _file(card: OpenCard, entry: dict[str, Any]) -> str | None:
    path = entry["path"]
    if (size := card.reader.entries[path].size) != entry["size"]:
        return f"{path}: has {size} bytes, and {entry['size']} are sealed"
    try:
        digest = card.reader.sha256(path)
    except Rejected as fault:
        return str(fault)
    return (
        None if digest == entry["sha256"] else f"{path}: changed; its sha256 is {digest}, sealed is {entry['sha256']}"
    )
