"""All checks of a card, in their order."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import IO, Any, ClassVar

from cohort.evidence import status
from cohort.evidence.card_reader import CardReader
from cohort.evidence.cosignature import WitnessKey
from cohort.evidence.policy.judge import judge
from cohort.evidence.policy.text import Policy
from cohort.evidence.policy.view import RecordView, life_of_status
from cohort.evidence.verify import (
    bundles,
    completions,
    life,
    numbers,
    older,
    opened,
    pipeline,
    policy,
    record,
    registration,
    signed,
)
from cohort.evidence.verify.life import StatusQuery
from cohort.evidence.verify.opened import OpenCard
from cohort.evidence.verify.report import EXIT_STATUS, STATUS, Report
from cohort.evidence.verify.signed import KnownKeys
from grpo_core.errors import GrpoError


class CannotRead(GrpoError):
    """There is no card to check: no such file, or no zip. Not a judgement on a card."""

    code: ClassVar[str] = "cannot_read"
    exit_status: ClassVar[int] = EXIT_STATUS["cannot check"]


_AS_DOWNLOADED = "Give the zip as it was downloaded; CARD.md, card.html and card.pdf in it are for reading"


@dataclass(frozen=True)
class References:
    """What a card is checked against; each may be missing."""

    known: tuple[KnownKeys, ...] = ()
    """Keys of platforms, from a source other than the card. Without them the signer of every card is unknown."""
    older: IO[bytes] | None = None
    older_name: str = ""
    sample: Any = None
    """A sample shown alone, with its proof."""
    witnesses: tuple[WitnessKey, ...] = ()
    """Of the log, whose signatures under checkpoints are checked."""
    policy: Policy | None = None
    """Rules that an accepted card's record is judged by."""
    status: StatusQuery | None = None
    """How to find out what happened to the record after its seal. None: the card alone is judged, and a status in the
    zip only by whether it is as it was signed."""


def verify_card(path: Path, references: References | None = None) -> Report:
    """Check the card at `path`. Raises CannotRead when there is none; every other fault is in the report."""
    try:
        with path.open("rb") as handle:
            return check_card(handle, str(path), references or References())
    except IsADirectoryError:
        raise CannotRead(f"{path} is a folder. {_AS_DOWNLOADED}") from None
    except OSError as error:
        raise CannotRead(f"cannot read {path}: {error.strerror}") from None


def check_card(handle: IO[bytes], name: str, references: References) -> Report:
    """Check the card in `handle`, a seekable file: of a run, or of a pipeline with those of its stages. Raises
    CannotRead when it is no zip."""
    for file, label in ((handle, name), (references.older, references.older_name)):
        if file is not None:
            file.seek(0)
            if file.read(2) != b"PK":
                raise CannotRead(f"{label} is not a card: it is no zip file. {_AS_DOWNLOADED}")
    if pipeline.holds_pipeline(handle):
        if references.policy is not None or references.older is not None or references.sample is not None:
            raise CannotRead(
                f"{name} is the card of a pipeline: a policy, an older card and a sample are of one stage's card, "
                "which is in its folder stages/"
            )
        return pipeline.check_pipeline(handle, name, references, check_card)
    report, card = Report(name), OpenCard(CardReader(handle), witnesses=references.witnesses)
    for what, check in checks(card, references).items():
        good = report.run(what, check, NOT_PROVEN[what])
        report.document = card.document or None
        if not good and what in _NEEDED:
            return report
    if references.status is not None or status.FILES & set(card.reader.entries):
        query = references.status or StatusQuery(datetime.now(UTC), needed=False)
        look = partial(life.check, card, query, references.known, report.accepted)
        report.run(STATUS, look, NOT_PROVEN[STATUS])
        report.life, report.answered = card.life, card.answered
    if references.policy is not None and report.accepted:
        known_life = life_of_status(card.life.document) if card.life else None
        report.judgement = judge(references.policy, RecordView(card.document, known_life))
    return report


NOT_PROVEN = {
    "layout": "That the contents are unchanged; only that nothing is hidden between them.",
    "record.json": "That what it says is true: above all a person's words, and what was not evaluated.",
    "record root": "Anything about a withheld field, but that it is the one of the sealed record.",
    "seal": "That this is the record the platform sealed: the signature and the log below speak of that.",
    "sealed files": "That the run did what they say; they hold what the trainer reported.",
    "key": "That its holder is who they say, or that nobody else has the key.",
    "attestation": "That CARD.md, card.html and card.pdf say what record.json says; only that they were issued "
    "with it.",
    "model signing": "That the weights somebody hands you are these: compare them with model.sig. Nor what they do.",
    "log entry": "That the moment and the person in it are right: the platform wrote them.",
    "inclusion": "That others are shown the same log; compare an older card or the platform's page of checkpoints.",
    "checkpoint": "That the log holds everything that happened, or anything about the time before its first "
    "checkpoint.",
    "earlier sizes": "That these are the sizes other cards hold: compare an older card.",
    "older card": "Anything about entries before the older card was issued; it holds the log only as it was then.",
    "completions": "That the policy really sampled them, or that completions which are not shown were like those "
    "that are.",
    "config": "That the trainer followed it.",
    "steps": "That the metrics of a step were measured as named.",
    "statistics": "That the scores of the items are right, or say anything about tasks that were not evaluated.",
    "human review": "That the people judged rightly, or that what they chose to look at is like the rest.",
    "re-scores": "That a worker scored as the record counts, or that the second reward is right where they differ.",
    "registration": "That nothing was tried before it elsewhere, or that nobody knew the outcome.",
    "policy": "That the rules are the right ones to ask for, or that they were met after the seal.",
    "completeness": "That what is stated is enough, or true.",
    "sample": "That it is typical of the run.",
    STATUS: "That nothing happened to the record after the moment that it names, or that what people wrote is true.",
}
"""What a check that found nothing wrong does not prove, by the check's name."""
_NEEDED = ("layout", "record.json")
"""Without them no later check means anything."""


def checks(card: OpenCard, references: References) -> dict[str, Callable[[], str | tuple[str, ...]]]:
    """Every check by its name, in order."""
    by_name: dict[str, Callable[[], str | tuple[str, ...]]] = {
        "layout": card.reader.open,
        "record.json": partial(record.read, card),
        "record root": partial(record.root, card),
        "seal": partial(record.seal, card),
        "sealed files": partial(record.files, card),
        "key": partial(signed.keys, card, references.known),
        "attestation": partial(signed.attestation, card),
        "model signing": partial(bundles.bundles, card),
        "log entry": partial(opened.entry, card),
        "inclusion": partial(opened.inclusion, card),
        "checkpoint": partial(opened.signature, card),
        "earlier sizes": partial(older.proofs, card),
    }
    if references.older is not None:
        by_name["older card"] = partial(older.against, card, references.older, references.older_name)
    by_name |= {
        "completions": partial(completions.commitments, card),
        "config": partial(numbers.config, card),
        "steps": partial(numbers.steps, card),
        "statistics": partial(numbers.statistics, card),
        "human review": partial(numbers.human_review, card),
        "re-scores": partial(numbers.rescores, card),
        "registration": partial(registration.registration, card),
        "policy": partial(policy.sealed, card),
        "completeness": partial(numbers.completeness, card),
    }
    if references.sample is not None:
        by_name["sample"] = partial(completions.one_sample, card, references.sample)
    return by_name
