"""The key that signs the log's heads. The private one is a file that only the platform's workers read; the public ones,
and the signed statements that one replaced another, are in the database and on the public page.
"""

import json
from pathlib import Path
from typing import Any

from django.db import transaction
from django.db.models.functions import Now

from cohort.audit.entries import log
from cohort.audit.keyfile import missing
from cohort.audit.models import AuditEntry, LogCheckpoint, LogKey
from cohort.base.environment import environment
from cohort.evidence.keys import KeyFault, SigningKey, load, parse_vkey
from cohort.evidence.model_signing import key_note, public_of


def origin() -> str:
    """The log's name: that of its first key, which it keeps. Raises KeyFault when COHORT_LOG_ORIGIN names another."""
    first = LogKey.objects.order_by("pk").values_list("vkey", flat=True).first()
    given = environment().log_origin
    if first is None:
        return environment().log_name
    name = parse_vkey(first).name
    if given and given != name:
        raise KeyFault(f"COHORT_LOG_ORIGIN is {given!a}, and this log is named {name!a}: a log keeps its name")
    return name


def signing_key() -> SigningKey:
    """The private key that the log is signed with now. Raises KeyFault when there is no file, or another key's."""
    path = environment().signing_key_path
    newest = LogKey.objects.order_by("-pk").values_list("vkey", flat=True).first()
    if newest is not None and (current := _file_of(newest, path, next_path(path))) is not None:
        return current
    if not path.exists():
        raise KeyFault(missing(path))
    key = load(path, origin())
    if newest is not None:
        raise KeyFault(
            f"{path} holds the key {key.key_id}, and the log is signed with {parse_vkey(newest).key_id}. Put that "
            "one's file back; `cohort audit rotate-key` is the way to another key"
        )
    return key


def signers() -> list[SigningKey]:
    """The current key, and for its first checkpoint the previous one too, while its file exists. Raises KeyFault."""
    key = signing_key()
    rows = list(LogKey.objects.order_by("-pk").values_list("pk", "vkey")[:2])
    if len(rows) < 2 or LogCheckpoint.objects.filter(key=rows[0][0]).exists():
        return [key]
    path = environment().signing_key_path
    old = _file_of(rows[1][1], path, previous_path(path))
    return [key] if old is None else [key, old]


def next_path(path: Path) -> Path:
    """Path of the next key's file."""
    return path.with_name(f"{path.name}.next")


def previous_path(path: Path) -> Path:
    """Path of the previous key's file, until it has signed for the last time."""
    return path.with_name(f"{path.name}.before")


def _file_of(vkey: str, *paths: Path) -> SigningKey | None:
    """The key of this name and number, if one of the files holds it."""
    for path in paths:
        if path.exists():
            key = load(path, origin())
            if key.vkey == vkey:
                return key
    return None


def public_keys() -> tuple[list[str], list[str]]:
    """(keys as name+hash+base64 in order of use, the statements that lead from each to the next)."""
    rows = list(LogKey.objects.order_by("pk").values_list("vkey", "rotation"))
    return [vkey for vkey, _ in rows], [statement for _, statement in rows[1:]]


def keys_file() -> dict[str, Any]:
    """keys.json, as cards have it; without an origin while the log has no key."""
    vkeys, statements = public_keys()
    return {"origin": parse_vkey(vkeys[0]).name if vkeys else None, "keys": vkeys, "rotations": statements}


@transaction.atomic
def key_row(key: SigningKey, *, size: int) -> LogKey:
    """The key's row; made, with an entry, when it is the log's first. The caller holds the lock of the tree's head."""
    row = LogKey.objects.filter(vkey=key.vkey).first()
    if row is None:
        row = LogKey.objects.create(vkey=key.vkey, since_size=size, at=Now())
        log(actor="platform", kind="log_key_made", subject=f"log:{key.name}", after={"key": key.vkey})
    return row


_MODEL_KEY_MADE = "model_signing_key_made"


@transaction.atomic(durable=True)
def model_key_recorded() -> None:
    """Log the model signing key that goes with the log's current key, with the note by which the log's key vouches for
    it, unless an entry has it already. Raises KeyFault."""
    key = signing_key()
    hint = public_of(key).hint
    subject = f"key:{hint}"
    if not AuditEntry.objects.filter(kind=_MODEL_KEY_MADE, subject=subject).exists():
        data = {"hint": hint, "note": key_note(key)}
        log(actor="platform", kind=_MODEL_KEY_MADE, subject=subject, data=data)


def model_key_notes() -> dict[str, str]:
    """Hint → note of every model signing key that was ever used, the newest first, as the log has them."""
    bodies = AuditEntry.objects.filter(kind=_MODEL_KEY_MADE).order_by("-pk").values_list("body", flat=True)
    listed = [json.loads(bytes(body))["data"] for body in bodies]
    return {data["hint"]: data["note"] for data in listed}


def rotation_finish(path: Path) -> None:
    """Replace the old key's file by the new one's. One of the two always exists; may be called again."""
    if next_path(path).exists():
        if path.exists():
            path.replace(previous_path(path))
        next_path(path).replace(path)
