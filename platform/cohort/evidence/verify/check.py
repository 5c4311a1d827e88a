"""All checks of a card, in their order."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, ClassVar

from cohort.evidence.card_reader import CardReader
from cohort.evidence.keys import PublicKey
from cohort.evidence.verify import completions, numbers, older, opened, record, signed
from cohort.evidence.verify.opened import OpenCard
from cohort.evidence.verify.report import Report
from grpo_core.errors import GrpoError


class CannotRead(GrpoError):
    """There is no card to check: no such file, or no zip. Not a judgement on a card."""

    code: ClassVar[str] = "cannot_read"
    exit_status: ClassVar[int] = 2


@dataclass(frozen=True)
class References:
    """What a card is checked against; each may be missing."""

    key: PublicKey | None = None
    """Of the platform, from somebody other than the card."""
    older: IO[bytes] | None = None
    older_name: str = ""
    sample: Any = None
    """A sample shown alone, with its proof."""


def verify_card(path: Path, references: References | None = None) -> Report:
    """Check the card at `path`. Raises CannotRead when there is none; every other fault is in the report."""
    try:
        with path.open("rb") as handle:
            return check_card(handle, str(path), references or References())
    except OSError as error:
        raise CannotRead(f"cannot read {path}: {error.strerror}") from None


def check_card(handle: IO[bytes], name: str, references: References) -> Report:
    """Check the card in `handle`, a seekable file. Raises CannotRead when it is no zip."""
    for file, label in ((handle, name), (references.older, references.older_name)):
        if file is not None:
            file.seek(0)
            if file.read(2) != b"PK":
                raise CannotRead(f"{label} is not a card: it is no zip file")
    report = Report(name)
    _check(report, OpenCard(CardReader(handle)), references)
    return report


def _check(report: Report, card: OpenCard, references: References) -> None:
    for step in steps(card, references):
        good = report.run(step.name, step.check, step.not_proven)
        report.document = card.document or None
        if not good and step.needed:
            return


@dataclass(frozen=True)
class Step:
    name: str
    check: Callable[[], str | tuple[str, ...]]
    not_proven: str
    needed: bool = False
    """Without it no later check means anything."""


def steps(card: OpenCard, references: References) -> list[Step]:
    """Every check, in order: what it looks at, and what it does not prove."""
    checks = [
        Step(
            "layout",
            card.reader.open,
            "That the contents are unchanged; only that nothing is hidden between them.",
            needed=True,
        ),
        Step(
            "record.json",
            lambda: record.read(card),
            "That what it says is true: above all a person's words, and what was not evaluated.",
            needed=True,
        ),
        Step(
            "record root",
            lambda: record.root(card),
            "Anything about a withheld field, but that it is the one of the sealed record.",
        ),
        Step(
            "seal",
            lambda: record.seal(card),
            "That this is the record the platform sealed: the signature and the log below speak of that.",
        ),
        Step(
            "sealed files",
            lambda: record.files(card),
            "That the run did what they say; they hold what the trainer reported.",
        ),
        Step(
            "key",
            lambda: signed.keys(card, references.key),
            signed.NOT_WHOSE if references.key is None else signed.NOT_HOLDER,
        ),
        Step(
            "attestation",
            lambda: signed.attestation(card),
            "That CARD.md, card.html and card.pdf say what record.json says; only that they were issued with it.",
        ),
        Step(
            "log entry",
            lambda: opened.entry(card),
            "That the moment and the person in it are right: the platform wrote them.",
        ),
        Step(
            "inclusion",
            lambda: opened.inclusion(card),
            "That others are shown the same log; an older card or the platform's page of checkpoints tells.",
        ),
        Step(
            "checkpoint",
            lambda: opened.signature(card),
            "That the log holds everything that happened, or anything about the time before its first checkpoint.",
        ),
        Step(
            "earlier sizes",
            lambda: older.proofs(card),
            "That these are the sizes other cards hold: give an older card with --against.",
        ),
    ]
    if (file := references.older) is not None:
        checks.append(
            Step(
                "older card",
                lambda: older.against(card, file, references.older_name),
                "Anything about entries before the older card was issued; it holds the log only as it was then.",
            )
        )
    checks += [
        Step(
            "completions",
            lambda: completions.commitments(card),
            "That the policy really sampled them, or that completions which are not shown were like those that are.",
        ),
        Step("config", lambda: numbers.config(card), "That the trainer followed it."),
        Step("steps", lambda: numbers.steps(card), "That the metrics of a step were measured as named."),
        Step(
            "statistics",
            lambda: numbers.statistics(card),
            "That the scores of the items are right, or say anything about tasks that were not evaluated.",
        ),
        Step("completeness", lambda: numbers.completeness(card), "That what is stated is enough, or true."),
    ]
    if references.sample is not None:
        checks.append(
            Step("sample", lambda: completions.one_sample(card, references.sample), "That it is typical of the run.")
        )
    return checks
