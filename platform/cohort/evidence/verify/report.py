"""What was checked, in order, with what each check found and what it does not prove."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

from cohort.evidence.canonical import dig
from cohort.evidence.card_reader import Cannot, Rejected
from cohort.evidence.plain_text import one_line
from cohort.evidence.policy.judge import EXIT_STATUS as POLICY_STATUS
from cohort.evidence.policy.judge import Judgement
from cohort.evidence.status import FINAL, Status, written

_REASON = 300
"""Characters of why a record was revoked, in the first lines."""
STATUS = "status"
"""Name of the check of what happened to the record after its seal."""
Outcome = Literal["ok", "failed", "cannot", "unknown", "withheld"]
"""ok: as it must be. failed: changed. cannot: something is missing for it. unknown: nobody vouches for the signer, or
what happened since the seal is not known. withheld: not for this card's audience."""
Verdict = Literal[
    "accepted",
    "changed",
    "cannot check",
    "unknown signer",
    "revoked",
    "superseded",
    "status unknown",
    "rejected",
]
EXIT_STATUS: dict[Verdict, int] = {
    "accepted": 0,
    "changed": 1,
    "cannot check": 2,
    "unknown signer": 3,
    "revoked": 4,
    "superseded": 5,
    "status unknown": 6,
    "rejected": 7,
}
VERDICTS: dict[Verdict, str] = {
    "accepted": "the card is as it was issued, and signed by a known key",
    "changed": "this is not the card, or not its status, as issued: do not rely on it, and download the zip again from "
    "its issuer",
    "cannot check": "nothing was found changed, and something is missing for a judgement",
    "unknown signer": "the card is whole in itself, and anyone can make one that is: nothing says whose key signed it. "
    "Get the platform's public key from its operator, not from the card, and check again with it",
    "revoked": "the card is as it was issued, and its record was revoked since: do not rely on it",
    "superseded": "the card is as it was issued, and a later version of its record superseded it: use that one",
    "status unknown": "the card is as it was issued, and whether its record was revoked or superseded since is not "
    "known: do not rely on it before you know",
    "rejected": "the card is as it was issued, and who had to sign the record off rejected it",
}
"""What each verdict means, in words."""


def verdict_of(state: str) -> Verdict:
    """On a card that is as it was issued, by the state of its record."""
    verdicts: dict[str, Verdict] = {"revoked": "revoked", "superseded": "superseded", "rejected": "rejected"}
    return verdicts.get(state, "accepted")


def _shortened(text: str) -> str:
    return text if len(text) <= _REASON else f"{text[:_REASON]}… (all of it is in STATUS.html)"


class UnknownSigner(Exception):
    """The card's signer is none that is known here. One fact a line."""

    def __init__(self, *lines: str) -> None:
        super().__init__("\n".join(lines))
        self.lines = lines


class StatusUnknown(Exception):
    """What happened to the record after its seal is not known. One fact a line."""

    def __init__(self, *lines: str) -> None:
        super().__init__("\n".join(lines))
        self.lines = lines


class Withheld(Exception):
    """A check has nothing to look at because this card's audience does not get it."""


@dataclass(frozen=True)
class Check:
    name: str
    status: Outcome
    lines: tuple[str, ...]
    not_proven: str
    """What a reader must not take from it."""

    @property
    def detail(self) -> str:
        return "\n".join(self.lines)


@dataclass
class Report:
    """Checks after the first that makes others impossible are missing. Lines are safe to print, not to put in HTML."""

    name: str
    """Of the card's file."""
    checks: list[Check] = field(default_factory=list)
    document: dict[str, Any] | None = None
    """record.json, or pipeline.json, when it has the format's shape."""
    judgement: Judgement | None = None
    """Of an accepted card, by the policy that was given."""
    life: Status | None = None
    """The newest status of the record that is known."""
    answered: bool = False
    """Whether the issuing platform was asked, and gave a status of its own."""

    @property
    def verdict(self) -> Verdict:
        statuses = {check.status for check in self.checks}
        if "failed" in statuses:
            return "changed"
        if "cannot" in statuses or self.document is None:
            return "cannot check"
        unknown = {check.name for check in self.checks if check.status == "unknown"}
        if unknown - {STATUS}:
            return "unknown signer"
        verdict = "accepted" if self.life is None else verdict_of(self.life.state)
        return verdict if not unknown or verdict in FINAL else "status unknown"

    @property
    def why(self) -> tuple[str, ...]:
        """For the reader of the first lines alone: what decided the verdict."""
        verdict = self.verdict
        if verdict in ("changed", "cannot check"):
            wanted = "failed" if verdict == "changed" else "cannot"
            return tuple(f"{check.name}: {check.lines[0]}" for check in self.checks if check.status == wanted)[:3]
        if self.life is None or verdict in ("unknown signer", "status unknown"):
            unknown = (check for check in self.checks if check.status == "unknown")
            return tuple(check.lines[0] for check in unknown)[:1]
        known_by = "the platform was asked" if self.answered else "without an answer of the platform"
        lines = [self.life.words, f"as of {written(self.life.issued_at)}, {known_by}"]
        if verdict == "revoked" and (reason := dig(self.life.document, "revoked", "reason")):
            lines.append(f"the reason given: {_shortened(str(reason))}")
        return tuple(map(one_line, lines))

    @property
    def exit_status(self) -> int:
        """Of the verdict; of an accepted card that of the policy, where one was given."""
        if self.judgement is not None and self.accepted:
            return POLICY_STATUS[self.judgement.verdict]
        return EXIT_STATUS[self.verdict]

    @property
    def accepted(self) -> bool:
        return self.verdict == "accepted"

    @property
    def whole(self) -> bool:
        """Whether the card is as it was issued and of a known signer, whatever happened to its record since."""
        return self.verdict not in ("changed", "cannot check", "unknown signer")

    @property
    def seal(self) -> str | None:
        return str(self.document["seal"]) if self.document else None

    def run(self, name: str, check: Callable[[], str | tuple[str, ...]], not_proven: str) -> bool:
        """Make one check; whether it is as it must be."""
        status: Outcome = "ok"
        lines: tuple[str, ...]
        try:
            outcome = check()
            lines = (outcome,) if isinstance(outcome, str) else outcome
        except Rejected as fault:
            status, lines = "failed", fault.lines
        except Cannot as fault:
            status, lines = "cannot", fault.lines
        except (UnknownSigner, StatusUnknown) as fault:
            status, lines = "unknown", fault.lines
        except Withheld as fault:
            status, lines = "withheld", (str(fault),)
        self.checks.append(Check(name, status, tuple(one_line(line) for line in lines), not_proven))
        return status == "ok"

    def as_dict(self) -> dict[str, Any]:
        return {
            "card": one_line(self.name),
            "verdict": self.verdict,
            "exit_status": self.exit_status,
            "accepted": self.accepted,
            "why": list(self.why),
            "status": dict(self.life.document) if self.life is not None else None,
            "seal": self.seal,
            "about": one_line(about(self.document)) if self.document else "",
            "checks": [
                {
                    "name": check.name,
                    "status": check.status,
                    "lines": list(check.lines),
                    "does_not_prove": check.not_proven,
                }
                for check in self.checks
            ],
            "policy": _policy(self.judgement),
        }


def _policy(judgement: Judgement | None) -> dict[str, Any] | None:
    if judgement is None:
        return None
    return {
        "name": one_line(judgement.policy.name),
        "digest": judgement.policy.digest,
        "verdict": judgement.verdict,
        "rules": [judged.as_dict() | {"words": one_line(judged.words)} for judged in judgement.rules],
    }


def about(document: dict[str, Any]) -> str:
    """What the record, or the pipeline, is of, in one line; may hold foreign text."""
    if "head" not in document:
        names = ", ".join(str(stage["name"]) for stage in document["stages"])
        return f"pipeline {document['title']}, stages {names}, made {document['made_at']}"
    head = document["head"]
    label = f"run {head['run']}, end {head['end']}, version {head['version']}"
    return f"record of {head['title']} ({label}), sealed {head['sealed_at']}; the run {head['state']}"
