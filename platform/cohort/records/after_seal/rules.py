"""What a record's later entries come to: its sign-off state, who may sign it, how many incidents were reported. Pure:
reads no database, so that services, pages and the list all decide the same way."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from django.db.models import TextChoices

from cohort.accounts.models import Role, reaches
from cohort.records.models import EntryKind, RecordEntry


class SignRole(TextChoices):
    OPERATOR = "operator", "operator: answers for the run"
    REVIEWER = "reviewer", "reviewer: independent of who launched it"


class Decision(TextChoices):
    APPROVED = "approved", "Approve"
    REJECTED = "rejected", "Reject"
    WITHDRAWN = "withdrawn", "Withdraw my earlier sign-off"


SEVERITIES = {
    "low": "low: no harm, worth knowing",
    "moderate": "moderate: harm was possible or slight",
    "high": "high: somebody or something was harmed",
    "critical": "critical: serious or lasting harm",
}
"""Of an incident, the least first."""
REPORTED = {
    EntryKind.INCIDENT: ("incidents", "incidents"),
    EntryKind.FEEDBACK: ("feedback", "feedback"),
    EntryKind.MONITORING: ("monitoring", "monitoring notes"),
    EntryKind.OVERRIDE: ("overrides", "overrides of flags"),
}
"""Entries that are counted in a record's status: (name there, in words)."""

NEEDED = {SignRole.OPERATOR: Role.OPERATOR, SignRole.REVIEWER: Role.REVIEWER}
"""The least role in the project that each signer must have."""


class State(TextChoices):
    """Sign-off state of a record."""

    NONE = "none", "not signed off"
    OPERATOR = "operator", "signed by the operator only"
    REVIEWER = "reviewer", "signed by the reviewer only"
    APPROVED = "approved", "signed off by both"
    REJECTED = "rejected", "rejected"
    REVOKED = "revoked", "revoked"


_SHOWN = {
    State.NONE: ("is-plain", "○"),
    State.OPERATOR: ("is-suspect", "◐"),
    State.REVIEWER: ("is-suspect", "◑"),
    State.APPROVED: ("is-right", "✓"),
    State.REJECTED: ("is-wrong", "✕"),
    State.REVOKED: ("is-wrong", "⊘"),
}


@dataclass(frozen=True)
class Standing:
    operator: RecordEntry | None = None
    """The sign-off that holds in this role: the newest, unless it was withdrawn."""
    reviewer: RecordEntry | None = None
    revocation: RecordEntry | None = None

    def of(self, role: str) -> RecordEntry | None:
        return self.operator if role == SignRole.OPERATOR else self.reviewer

    @property
    def signed(self) -> list[RecordEntry]:
        return [entry for entry in (self.operator, self.reviewer) if entry is not None]

    @property
    def state(self) -> State:
        if self.revocation is not None:
            return State.REVOKED
        if any(entry.decision == Decision.REJECTED for entry in self.signed):
            return State.REJECTED
        if self.operator is not None and self.reviewer is not None:
            return State.APPROVED
        if self.operator is not None:
            return State.OPERATOR
        return State.REVIEWER if self.reviewer is not None else State.NONE

    @property
    def words(self) -> str:
        return str(self.state.label)

    @property
    def tone(self) -> str:
        """Class of the badge, which always contains the words."""
        return _SHOWN[self.state][0]

    @property
    def sign(self) -> str:
        return _SHOWN[self.state][1]


def standing_of(entries: Iterable[RecordEntry]) -> Standing:
    """Sign-off state of a record, from all its entries in the order in which they were written."""
    newest: dict[str, Any] = {}
    for entry in entries:
        if entry.kind == EntryKind.SIGN_OFF:
            newest[entry.role] = None if entry.decision == Decision.WITHDRAWN else entry
        elif entry.kind == EntryKind.REVOKED:
            newest["revocation"] = entry
    return Standing(**newest)


def counts_of(entries: Sequence[RecordEntry]) -> dict[str, Any]:
    """Entries that no later one corrects, by their name in the status; and incidents by severity, the gravest first."""
    corrected = {entry.data.get("corrects") for entry in entries}
    kept = [entry for entry in entries if entry.pk not in corrected]
    kinds = [entry.kind for entry in kept]
    grades = [entry.data["severity"] for entry in kept if entry.kind == EntryKind.INCIDENT]
    severities = {grade: grades.count(grade) for grade in reversed(SEVERITIES) if grade in grades}
    return {name: kinds.count(kind) for kind, (name, _) in REPORTED.items()} | {"severities": severities}


def counted_reports(counts: dict[str, Any]) -> list[tuple[str, str]]:
    """(what, how many) in words, of `counts_of`; incidents with their severities."""
    graded = ", ".join(f"{count} {grade}" for grade, count in counts["severities"].items())
    return [
        (words, f"{counts[name]}{f' ({graded})' if graded and kind == EntryKind.INCIDENT else ''}")
        for kind, (name, words) in REPORTED.items()
    ]


def may_not_sign(role: SignRole, *, standing: Standing, user_id: int, member: str, launched: bool) -> str:
    """Why this person may not sign in this role, as a sentence for them; empty when they may.

    `member`: their role in the project, or empty. `launched`: they put the run into the queue before it was sealed.
    """
    if standing.revocation is not None:
        return "The record was revoked. A revoked record is not signed; seal another version and sign that."
    if not member or not reaches(member, NEEDED[role]):
        return f"Signing as {role.value} needs the role {NEEDED[role].value} in the project."
    if role == SignRole.REVIEWER and launched:
        return "You launched this run, so you cannot be its independent reviewer. Ask somebody who did not."
    other = SignRole.REVIEWER if role == SignRole.OPERATOR else SignRole.OPERATOR
    elsewhere = standing.of(other)
    if elsewhere is not None and elsewhere.by_id == user_id:
        return f"You have signed as {other.value}. The two roles need two different people."
    earlier = standing.of(role)
    if earlier is not None and earlier.by_id != user_id:
        return (
            f"{earlier.by.username} has signed as {role.value}: {earlier.decision}. Only they can correct or withdraw "
            "it; another version of the record is signed anew."
        )
    return ""
