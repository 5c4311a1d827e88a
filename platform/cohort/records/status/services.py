"""Issues a record's status, and gives the one that a download carries. Only the platform's workers can sign: the web
server serves what is stored, and requests what is not."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Any

from django.db import connection, transaction
from django.db.models import DateTimeField, Exists, OuterRef, Subquery, Value
from django.db.models.functions import Coalesce, Least, Now

from cohort.audit import services as audit
from cohort.audit.entries import clock
from cohort.audit.keys import origin
from cohort.audit.models import AuditEntry
from cohort.base.environment import environment
from cohort.base.storable import Refused
from cohort.evidence import dsse, merkle
from cohort.evidence.canonical import canonical, sha256
from cohort.evidence.status import ENTRY_KIND, MAX_BYTES, PAGE, PAPER, bundle, payload_of
from cohort.records.models import Card, Record, RecordEntry, RecordStatus
from cohort.records.status import copies
from cohort.records.status.document import AUDIENCE_OF, life_of, whole
from cohort.runs.dispatch import STATUS_TASK, UNCLAIMED, republish, request_status
from grpo_core.protocol.queues import PLATFORM_QUEUE

AUDIENCES = tuple(dict.fromkeys(str(audience) for audience in AUDIENCE_OF.values()))
_HANDED_OUT = 64
"""Statuses under cosigned checkpoints that a process keeps."""
RECENT = timedelta(hours=1)
"""What happened to a record within it may have been committed after a status that was issued later: it is compared
again, however new the status."""


class StatusPending(Refused, code="status_pending"):
    """The record's status is being signed at this moment; it is there a few seconds later."""


class StatusTooLarge(Refused, code="status_too_large"):
    """A file of the status would be larger than `cohort verify` accepts."""


def status_issue(*, record: Record) -> None:
    """Log, sign and store the record's statuses, unless the stored ones say the same and are not half over. May be
    called twice. Call it outside of any transaction.

    Raises StatusTooLarge, KeyFault and LogFault; then no status is stored.
    """
    with _alone(record.pk):
        record = Record.objects.select_related("run__project").get(pk=record.pk)
        if all(_fresh(newest(record, audience)) for audience in AUDIENCES):
            return
        audit.checkpoint()  # before anything is signed: the log's key is there, and known to the log
        key, log_name, issued = audit.signing_key(), origin(), clock()
        until = issued + timedelta(days=environment().status_days)
        lives = {audience: life_of(record, audience, log_name) for audience in AUDIENCES}
        title = str(json.loads(record.document)["head"]["title"])
        documents = {audience: whole(life, title, issued, until) for audience, life in lives.items()}
        rendered = {audience: copies.render(document) for audience, document in documents.items()}
        payloads = {audience: payload_of(documents[audience], rendered[audience]) for audience in AUDIENCES}
        proof = audit.prove(_logged(record, documents, payloads))
        sizes = set(record.cards.filter(checkpoint_size__lt=proof.size).values_list("checkpoint_size", flat=True))
        made = {
            audience: bundle(
                document=documents[audience],
                envelope=dsse.envelope(payloads[audience], dsse.PAYLOAD_TYPE, key),
                log_entry=proof.body,
                proof=merkle.write(proof.index, proof.path, proof.checkpoint),
                consistency=audit.consistency(to=proof.size, sizes=[size for size in sizes if size]),
                listed_keys=audit.keys_file(),
            )
            for audience in AUDIENCES
        }
        for content in (*made.values(), *(copy for files in rendered.values() for copy in files.values())):
            if len(content) > MAX_BYTES:
                raise StatusTooLarge(f"a file of the status of record {record.pk} has over {MAX_BYTES:,} bytes")
        RecordStatus.objects.bulk_create(
            RecordStatus(
                record=record,
                audience=audience,
                life_sha256=_digest(lives[audience]),
                bundle=made[audience].decode(),
                page=rendered[audience][PAGE].decode(),
                paper=rendered[audience][PAPER],
                log_index=proof.index,
                issued_at=issued,
                valid_until=until,
            )
            for audience in AUDIENCES
        )


@transaction.atomic(durable=True)
def _logged(record: Record, documents: dict[str, dict[str, object]], payloads: dict[str, bytes]) -> AuditEntry:
    document = next(iter(documents.values()))
    return audit.log(
        actor="platform",
        kind=ENTRY_KIND,
        subject=f"record:{record.pk}",
        project=record.run.project,
        data={
            "seal": record.seal,
            "state": document["state"],
            "valid_until": document["valid_until"],
            "statuses": {audience: sha256(payload) for audience, payload in payloads.items()},
        },
    )


def newest(record: Record, audience: str) -> RecordStatus | None:
    """The newest status for cards of this audience, whatever happened since."""
    kind = AUDIENCE_OF.get(audience, audience)  # type: ignore[call-overload]
    return RecordStatus.objects.filter(record=record, audience=kind).order_by("-log_index").first()


def current_status(record: Record, audience: str) -> RecordStatus:
    """The status that a download for this audience carries today. Requests another one when half of its time is over.
    Raises StatusPending when the stored one no longer says what happened, or none is stored; it is then requested."""
    row = newest(record, audience)
    if row is None or not is_current(row):
        request_status(record_id=record.pk)
        raise StatusPending(
            "The signed status of this record is being made: something happened to it, or the last one ended. Nothing "
            "is handed out without it. Try again in a few seconds."
        )
    if not _fresh(row):
        request_status(record_id=record.pk)
    return row


def statuses_republish() -> list[int]:
    """Request again the statuses of records to which something happened a while ago that the newest one does not say.
    Returns their ids. A status that only ended is issued anew when somebody wants it: nobody waits for the others."""
    issued = RecordStatus.objects.filter(record=OuterRef("pk")).order_by("-log_index").values("issued_at")[:1]
    never = Value(datetime.min.replace(tzinfo=UTC), DateTimeField())
    since, ripe = OuterRef("since"), Now() - UNCLAIMED
    happened = (
        Exists(RecordEntry.objects.filter(record=OuterRef("pk"), at__gt=since, at__lt=ripe))
        | Exists(Card.objects.filter(record=OuterRef("pk"), issued_at__gt=since, issued_at__lt=ripe))
        | Exists(Record.objects.filter(run=OuterRef("run"), sealed_at__gt=since, sealed_at__lt=ripe))
    )
    records = Record.objects.annotate(since=Least(Coalesce(Subquery(issued), never), Now() - RECENT))
    behind = (
        record.pk
        for record in records.filter(happened).defer("document").order_by("pk")
        if not all((row := newest(record, audience)) and says_all(row) for audience in AUDIENCES)
    )
    return republish(STATUS_TASK, dict.fromkeys(behind, PLATFORM_QUEUE))


def handed_out(row: RecordStatus) -> str:
    """status.json: as it was signed; once a witness has cosigned a checkpoint over its entry, which comes minutes
    later, with the proof under that one. No signature of the status is over its proof."""
    keys = json.loads(row.bundle)["keys"]["keys"]
    cosigned = audit.cosigned_checkpoint(row.log_index, key=keys[-1])
    return row.bundle if cosigned is None else _under(row.bundle, row.log_index, *cosigned)


@lru_cache(maxsize=_HANDED_OUT)
def _under(content: str, index: int, size: int, note: str) -> str:
    """The bundle with the proofs to the checkpoint `note`. Kept, since it takes reading the log's tree."""
    parts = json.loads(content)
    return bundle(
        document=parts["status"],
        envelope=canonical(parts["envelope"]),
        log_entry=canonical(parts["log_entry"]),
        proof=merkle.write(index, audit.inclusion(index, size=size), note),
        consistency=audit.consistency(to=size, sizes=map(int, parts["consistency"])),
        listed_keys=parts["keys"],
    ).decode()


def is_current(row: RecordStatus) -> bool:
    """Whether it says what happened, and has not ended."""
    return says_all(row) and clock() < row.valid_until


def _fresh(row: RecordStatus | None) -> bool:
    """Whether it says what happened, and not half of its time is over."""
    return row is not None and says_all(row) and clock() < row.issued_at + (row.valid_until - row.issued_at) / 2


def says_all(row: RecordStatus) -> bool:
    """Whether nothing happened to the record that it does not say."""
    return row.life_sha256 == _digest(life_of(row.record, row.audience, origin()))


def _digest(life: dict[str, Any]) -> str:
    """Of what it says of the record. Without the issuer: web server and worker may be given different addresses."""
    return sha256(canonical({name: value for name, value in life.items() if name != "issuer"}))


@contextmanager
def _alone(record_id: int) -> Iterator[None]:
    """One process at a time issues the status of a record; another waits, and then sees what the first one stored."""
    lock = [f"cohort status {record_id}"]
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_advisory_lock(hashtextextended(%s, 0))", lock)
    try:
        yield
    finally:
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_advisory_unlock(hashtextextended(%s, 0))", lock)
