"""What was checked, in order, with what each check found and what it does not prove."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

from cohort.evidence.card_reader import Cannot, Rejected
from cohort.evidence.plain_text import one_line
from cohort.evidence.policy.judge import EXIT_STATUS as POLICY_STATUS
from cohort.evidence.policy.judge import Judgement

Status = Literal["ok", "failed", "cannot", "unknown", "withheld"]
"""ok: as it must be. failed: changed. cannot: something is missing for it. unknown: nobody vouches for the signer.
withheld: not for this card's audience."""
Verdict = Literal["accepted", "changed", "cannot check", "unknown signer", "revoked"]
EXIT_STATUS: dict[Verdict, int] = {"accepted": 0, "changed": 1, "cannot check": 2, "unknown signer": 3, "revoked": 4}
VERDICTS: dict[Verdict, str] = {
    "accepted": "the card is as it was issued, and signed by a known key",
    "changed": "this is not the card as it was issued: do not rely on it, and download the zip again from its issuer",
    "cannot check": "nothing was found changed, and something is missing for a judgement",
    "unknown signer": "the card is whole in itself, and anyone can make one that is: nothing says whose key signed it. "
    "Get the platform's public key from its operator, not from the card, and check again with it",
    "revoked": "the card is as it was issued, and its record was revoked since: do not rely on it",
}
"""What each verdict means, in words. That a record was revoked shows on the platform's page, not in a card."""


class UnknownSigner(Exception):
    """The card's signer is none that is known here. One fact a line."""

    def __init__(self, *lines: str) -> None:
        super().__init__("\n".join(lines))
        self.lines = lines


class Withheld(Exception):
    """A check has nothing to look at because this card's audience does not get it."""


@dataclass(frozen=True)
class Check:
    name: str
    status: Status
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
    """record.json, when it has the format's shape."""
    judgement: Judgement | None = None
    """Of an accepted card, by the policy that was given."""

    @property
    def verdict(self) -> Verdict:
        statuses = {check.status for check in self.checks}
        if "failed" in statuses:
            return "changed"
        if "cannot" in statuses or self.document is None:
            return "cannot check"
        return "unknown signer" if "unknown" in statuses else "accepted"

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
    def seal(self) -> str | None:
        return str(self.document["seal"]) if self.document else None

    def run(self, name: str, check: Callable[[], str | tuple[str, ...]], not_proven: str) -> bool:
        """Make one check; whether it is as it must be."""
        status: Status = "ok"
        lines: tuple[str, ...]
        try:
            outcome = check()
            lines = (outcome,) if isinstance(outcome, str) else outcome
        except Rejected as fault:
            status, lines = "failed", fault.lines
        except Cannot as fault:
            status, lines = "cannot", (str(fault),)
        except UnknownSigner as fault:
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
    """What the record is of, in one line; may hold foreign text."""
    head = document["head"]
    label = f"run {head['run']}, end {head['end']}, version {head['version']}"
    return f"record of {head['title']} ({label}), sealed {head['sealed_at']}; the run {head['state']}"
