"""record.json: its digests, and the parts of it that each audience is shown.

Every field is a salted leaf of a Merkle tree, so that a card for a smaller audience leaves a field's hash where the
field was and has the same root and the same seal.
"""

from typing import Any

from cohort.evidence.canonical import canonical, sha256
from cohort.evidence.merkle import HASH_BYTES, leaf_hash, root

SCHEMA = "cohort-record/2"
AUDIENCES = ("public", "downstream", "authority", "internal")
"""Nested: a card for one shows what is for it and for all before it."""
SALT_BYTES = 16


class RecordFault(ValueError):
    """A document that is no record. The message names the field."""


def shows(card: str, field: str) -> bool:
    """Whether a card for the audience `card` shows what is for the audience `field`."""
    return AUDIENCES.index(card) >= AUDIENCES.index(field)


def field_leaf(section: str, field: str, entry: dict[str, Any]) -> bytes:
    """Leaf hash of an entry with its salt, or the hash in place of a withheld entry. Raises RecordFault."""
    where = f"{section}.{field}"
    if "withheld" in entry:
        if set(entry) != {"withheld", "audience"}:
            raise RecordFault(f"{where}: a withheld field holds its hash and its audience, and nothing else")
        return _bytes(entry["withheld"], HASH_BYTES, f"{where}: what stands for it")
    salt = _bytes(entry.get("salt"), SALT_BYTES, f"{where}: its salt")
    body = {name: value for name, value in entry.items() if name != "salt"}
    return leaf_hash(salt + canonical({"entry": body, "field": field, "section": section}))


def record_root(document: dict[str, Any]) -> str:
    """Hex root over the head and all fields, sorted by section and name. Raises RecordFault, CanonicalError."""
    leaves = [leaf_hash(canonical(document["head"]))]
    for section in sorted(document["sections"]):
        fields = document["sections"][section]
        leaves += [field_leaf(section, field, fields[field]) for field in sorted(fields)]
    return root(leaves).hex()


def seal_of(document: dict[str, Any]) -> str:
    """Hex digest over the root of the fields and the list of sealed files: the same for every audience."""
    return sha256(canonical({name: document[name] for name in ("files", "record_root", "schema")}))


def redact(document: dict[str, Any], audience: str) -> dict[str, Any]:
    """The record as `audience` gets it. Raises RecordFault for an unknown audience, or one that would see more than
    the document holds."""
    if audience not in AUDIENCES:
        raise RecordFault(f"{audience!a} is no audience; there are {', '.join(AUDIENCES)}")
    if not shows(document["audience"], audience):
        raise RecordFault(f"a record for {document['audience']} does not hold what is for {audience}")
    sections = {
        section: {
            field: entry
            if "withheld" in entry or shows(audience, entry["audience"])
            else withheld(section, field, entry)
            for field, entry in fields.items()
        }
        for section, fields in document["sections"].items()
    }
    return {**document, "audience": audience, "sections": sections}


def withheld(section: str, field: str, entry: dict[str, Any]) -> dict[str, str]:
    """What a card holds in place of an entry that its audience does not get."""
    return {"withheld": field_leaf(section, field, entry).hex(), "audience": entry["audience"]}


def _bytes(text: Any, length: int, what: str) -> bytes:
    try:
        decoded = bytes.fromhex(text)
        if len(decoded) != length or decoded.hex() != text:
            raise ValueError
    except (TypeError, ValueError):
        raise RecordFault(f"{what} is not {2 * length} hex digits") from None
    return decoded
