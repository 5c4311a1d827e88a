"""Which cards of a record a person may take away, and what is in each."""

from dataclasses import dataclass

from cohort.accounts.models import Membership, Project, Role, User, reaches
from cohort.records.models import Audience, Card, Record
from cohort.records.schema_types import AUDIENCE_WORDS
from cohort.records.services import has_news, newest, version_pending
from cohort.runs.transitions import ENDED

HOLDS = {
    Audience.PUBLIC: "What anyone may see: the record's public fields, every item's score, the commitments.",
    Audience.DOWNSTREAM: "Also the config, the numbers of every step, and the texts of items that are not sensitive.",
    Audience.AUTHORITY: "Also the trainer's manifest and totals, the kept traces, and the texts of sensitive items.",
    Audience.INTERNAL: "Everything: also what happened to the run, with the names of who did it.",
}
_FOR_WHOM = {Audience(name): words for name, words in AUDIENCE_WORDS.items()}
_FOR_EVERY_MEMBER = (Audience.PUBLIC, Audience.DOWNSTREAM)


@dataclass(frozen=True)
class Download:
    audience: Audience
    for_whom: str
    holds: str
    card: Card
    allowed: bool
    """This person may take it."""

    @property
    def title(self) -> str:
        return str(self.audience.label)


@dataclass(frozen=True)
class Downloads:
    record: Record
    cards: tuple[Download, ...]
    may_seal: bool
    """This person may ask for a further version, and something was stated that this one does not hold."""
    pending: str
    """Reason of a further version that was requested and is not sealed yet; empty when there is none."""

    @property
    def fullest(self) -> Download | None:
        """The card with most in it that this person may take."""
        return next((download for download in reversed(self.cards) if download.allowed), None)


def role_in(project: Project, user: User) -> str:
    """Empty for who does not belong to it."""
    return Membership.objects.filter(project=project, user=user).values_list("role", flat=True).first() or ""


def may_download(role: str, audience: str) -> bool:
    """Members take the public card and the one for downstream; the others need a reviewer's role."""
    return bool(role) and (audience in _FOR_EVERY_MEMBER or reaches(role, Role.REVIEWER))


def downloads(record: Record, role: str) -> Downloads:
    """The newest issue for each audience that the record has a card for."""
    cards: dict[str, Card] = {}
    for card in record.cards.order_by("issue"):
        cards[card.audience] = card
    listed = tuple(
        Download(audience, _FOR_WHOM[audience], HOLDS[audience], cards[audience], may_download(role, audience))
        for audience in Audience
        if audience in cards
    )
    current = newest(record.run)
    is_newest = current is not None and current.pk == record.pk and record.run.state in ENDED
    pending = version_pending(record.run) if is_newest else None
    may = is_newest and pending is None and bool(role) and reaches(role, Role.REVIEWER) and has_news(record)
    return Downloads(record, listed, may, pending.reason if pending else "")
