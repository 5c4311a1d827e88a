"""Entries added to a record after it was sealed, and its public page. Every function checks, appends one entry, and
logs it.

Nothing is edited: PostgreSQL refuses it. A wrong entry is corrected by a further one of its kind that names it
(`corrects`); a sign-off by another of the same person in the same role. Raises ValidationError by field, with what to
do about it, and then nothing is written.
"""

import re
import secrets
from collections.abc import Sequence
from datetime import UTC, date, datetime
from typing import Any

from django.core.exceptions import PermissionDenied, ValidationError
from django.db import transaction
from django.utils import timezone

from cohort.accounts.models import Membership, User
from cohort.audit import services as audit
from cohort.evidence.canonical import canonical, sha256
from cohort.records.after_seal.rules import SEVERITIES, Decision, SignRole, may_not_sign, standing_of
from cohort.records.models import EntryKind, PublicLink, Record, RecordEntry
from cohort.records.policies.judged import gate_of
from cohort.runs.dispatch import status_on_commit
from cohort.runs.models import Run, RunState
from cohort.runs.transitions import run_lock
from grpo_core.text import UNSTORABLE

# The address at which anyone reads the public part of a record: made, withdrawn, and looked up.
#
# The token is the only key: 256 random bits. The audit log does not hold it.

_TOKEN = re.compile(r"[A-Za-z0-9_-]{43}")


@transaction.atomic
def public_link_make(*, record: Record, actor: User) -> PublicLink:
    """Raises ValidationError while the record has one, and where the project demands a policy that it does not meet."""
    _lock(record)
    if record.public_links.filter(ended_at=None).exists():
        raise ValidationError("This record has a public page already. Withdraw it first to get another address.")
    gate = gate_of(record, standing_of(record.entries.select_related("by")))
    if gate is not None and gate.closed:
        faults = [
            f"{judged.rule.name} ({judged.in_words}: {judged.words})"
            for judged in (*gate.judgement.failed, *gate.judgement.open)
        ]
        raise ValidationError(
            f"The project demands its policy {gate.judgement.policy.name!r}, version {gate.version.number}, before a "
            f"record may be public, and this record does not meet it: {'; '.join(faults)}."
        )
    link = PublicLink.objects.create(record=record, token=secrets.token_urlsafe(32), by=actor)
    _log(link, actor, "public_link_made")
    return link


@transaction.atomic
def public_link_end(*, record: Record, actor: User) -> None:
    """Every address of the record's public page answers 404 from now on. Raises ValidationError when it has none."""
    _lock(record)
    ended = list(record.public_links.filter(ended_at=None))
    if not ended:
        raise ValidationError("This record has no public page; it was withdrawn before.")
    for link in ended:
        link.ended_at = timezone.now()
        link.save(update_fields=["ended_at"])
        _log(link, actor, "public_link_ended")


def public_record(token: str) -> Record | None:
    """The record that this token opens; None for a wrong or ended token."""
    if not _TOKEN.fullmatch(token):
        return None
    link = (
        PublicLink.objects.filter(token=token, ended_at=None)
        .select_related("record__run__project", "record__superseded_by")
        .first()
    )
    return link.record if link is not None else None


def _log(link: PublicLink, actor: User, kind: str) -> None:
    audit.log(
        actor=audit.who(actor),
        kind=kind,
        subject=f"record:{link.record_id}",
        project=link.record.run.project,
        data={"link": link.pk, "run": link.record.run_id, "seal": link.record.seal},
    )


TEXT_CHARS = 20_000
SHORT_CHARS = 200
FIGURES = 50


@transaction.atomic
def sign_off(*, record: Record, actor: User, role: str, decision: str, reason: str) -> RecordEntry:
    """Approve or reject the record as its operator or its reviewer, or withdraw one's own earlier sign-off.

    Two different people fill the two roles (`rules.may_not_sign`). Raises PermissionDenied for non-members of the
    project.
    """
    text = checked_text(reason, field="reason", what="The reason")
    if role not in SignRole.values:
        raise ValidationError({"role": "Choose the role in which you sign: operator or reviewer."})
    if decision not in Decision.values:
        raise ValidationError({"decision": "Choose what you decide: approve or reject."})
    _lock(record)
    member = Membership.objects.filter(project=record.run.project_id, user=actor).first()
    if member is None:
        raise PermissionDenied("Only members of the project sign its records.")
    standing = standing_of(record.entries.select_related("by"))
    launched = has_launched(record, actor)
    if refused := may_not_sign(
        SignRole(role), standing=standing, user_id=actor.pk, member=member.role, launched=launched
    ):
        raise ValidationError({"role": refused})
    earlier = standing.of(role)
    if decision == Decision.WITHDRAWN and earlier is None:
        raise ValidationError({"decision": f"Nothing to withdraw: nobody has signed as {role}."})
    data = {"member": member.role, **({"corrects": earlier.pk} if earlier is not None else {})}
    return _append(record, actor, EntryKind.SIGN_OFF, text, data, role=role, decision=decision)


@transaction.atomic
def revoke(*, record: Record, actor: User, reason: str) -> RecordEntry:
    """Mark the record as no longer to be relied on. It cannot be undone; another version can be sealed."""
    text = checked_text(reason, field="reason", what="The reason")
    _lock(record)
    earlier = record.entries.filter(kind=EntryKind.REVOKED).first()
    if earlier is not None:
        raise ValidationError(f"This record was revoked already, on {earlier.at:%Y-%m-%d}.")
    return _append(record, actor, EntryKind.REVOKED, text, {})


@transaction.atomic
def incident(
    *, record: Record, actor: User, severity: str, when: datetime, what: str, corrects: int | None = None
) -> RecordEntry:
    """Something went wrong with the model. `when`: aware, not after now."""
    text = checked_text(what, field="what", what="What happened")
    if severity not in SEVERITIES:
        raise ValidationError({"severity": f"Choose how severe it was: {', '.join(SEVERITIES)}."})
    if when > timezone.now():
        raise ValidationError({"when": "This lies in the future. Give the time in UTC at which it happened."})
    data = {"severity": severity, "when": when.astimezone(UTC).isoformat(timespec="minutes")}
    return _append(record, actor, EntryKind.INCIDENT, text, data, corrects=corrects)


@transaction.atomic
def feedback(*, record: Record, actor: User, text: str, source: str, corrects: int | None = None) -> RecordEntry:
    """Feedback on the model from somebody outside, with its source."""
    text = checked_text(text, field="text", what="The feedback")
    from_whom = checked_text(source, field="source", what="The source", most=SHORT_CHARS)
    return _append(record, actor, EntryKind.FEEDBACK, text, {"source": from_whom}, corrects=corrects)


@transaction.atomic
def monitoring(
    *,
    record: Record,
    actor: User,
    text: str,
    period: tuple[date, date],
    figures: Sequence[tuple[str, str]] = (),
    corrects: int | None = None,
) -> RecordEntry:
    """Observations of the model in use. `period`: first and last day; `figures`: name and value, as text."""
    text = checked_text(text, field="text", what="The note")
    first, last = period
    if last < first:
        raise ValidationError({"until": f"The period ends on {last}, before it begins on {first}."})
    if last > timezone.now().date():
        raise ValidationError({"until": f"The period ends on {last}, which is yet to come."})
    if len(figures) > FIGURES:
        raise ValidationError({"figures": f"{len(figures):,} figures; at most {FIGURES} fit. Add another note."})
    kept = [
        {
            "name": checked_text(name, field="figures", what="A figure's name", most=SHORT_CHARS),
            "value": checked_text(value, field="figures", what=f"The value of {name[:40]}", most=SHORT_CHARS),
        }
        for name, value in figures
    ]
    data = {"from": first.isoformat(), "until": last.isoformat(), "figures": kept}
    return _append(record, actor, EntryKind.MONITORING, text, data, corrects=corrects)


@transaction.atomic
def override(*, record: Record, actor: User, what: str, reason: str, corrects: int | None = None) -> RecordEntry:
    """Give the reason why a monitor's flag does not count against the record. The flag itself stays in it."""
    flag = checked_text(what, field="what", what="The flag", most=SHORT_CHARS)
    text = checked_text(reason, field="reason", what="The reason")
    return _append(record, actor, EntryKind.OVERRIDE, text, {"what": flag}, corrects=corrects)


def has_launched(record: Record, user: User) -> bool:
    """Whether the person made the run, or put it into the queue (again) before this record was sealed."""
    run: Run = record.run
    if run.created_by_id == user.pk:
        return True
    theirs = run.events.filter(kind="state", actor=f"user:{user.username}", at__lte=record.sealed_at)
    return theirs.filter(data__to=RunState.QUEUED).exists()


def checked_text(text: str, *, field: str, what: str, most: int = TEXT_CHARS) -> str:
    """The text, stripped, with one kind of line end. Raises ValidationError on `field`."""
    text = text.replace("\r\n", "\n").strip()
    if not text:
        raise ValidationError({field: f"{what} is missing."})
    if len(text) > most:
        raise ValidationError(
            {field: f"{what} has {len(text):,} characters; at most {most:,} are kept. Shorten it, or add several."}
        )
    if UNSTORABLE.search(text):
        raise ValidationError({field: f"{what} holds a character that cannot be stored (NUL or half a surrogate)."})
    return text


def _lock(record: Record) -> None:
    """One change of a record at a time, so that two people cannot fill one role at once."""
    run_lock(run=record.run)  # a record is only added to, so that no role may lock its row


_LOGGED = {
    EntryKind.SIGN_OFF: "record_signed_off",
    EntryKind.REVOKED: "record_revoked",
    EntryKind.INCIDENT: "incident_reported",
    EntryKind.FEEDBACK: "feedback_added",
    EntryKind.MONITORING: "monitoring_noted",
    EntryKind.OVERRIDE: "flag_overridden",
}
"""Kinds of the audit log's entries."""
_WHOLE = "all of it is at the record, and its digest in content_sha256"
_TEXT_LOGGED = (EntryKind.SIGN_OFF, EntryKind.REVOKED, EntryKind.OVERRIDE)
"""Their text is a reason and is written to the log itself. Of texts that may concern people outside (incidents,
feedback, monitoring) the log has only the digest."""


def _append(
    record: Record,
    actor: User,
    kind: EntryKind,
    text: str,
    data: dict[str, Any],
    *,
    role: str = "",
    decision: str = "",
    corrects: int | None = None,
) -> RecordEntry:
    """Log first: the entry keeps the log entry's number, and neither can be changed afterwards."""
    if corrects is not None:
        _lock(record)
        if not record.entries.filter(pk=corrects, kind=kind).exists():
            raise ValidationError({"corrects": "There is no such entry of this kind on this record."})
        if record.entries.filter(data__corrects=corrects).exists():
            raise ValidationError({"corrects": "That entry was corrected already. Correct the one that did so."})
        data = {**data, "corrects": corrects}
    signed = {"role": role, "decision": decision} if role else {}
    after = {"entry": kind.value, "content_sha256": sha256(canonical({"text": text, **data})), **signed}
    logged = {"after": after | data, "reason": audit.fitted(text, _WHOLE)} if kind in _TEXT_LOGGED else {"after": after}
    row = audit.log(
        actor=audit.who(actor),
        kind=_LOGGED[kind],
        subject=f"record:{record.pk}",
        project=record.run.project,
        data={"run": record.run_id, "seal": record.seal},
        **logged,
    )
    data = {**data, "log": row.pk}
    status_on_commit(record_id=record.pk)
    return RecordEntry.objects.create(
        record=record, kind=kind, role=role, decision=decision, text=text, data=data, by=actor
    )
