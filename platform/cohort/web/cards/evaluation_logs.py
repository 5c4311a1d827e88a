"""A record's evaluations to take away as logs of Inspect, for who may take the card of that audience."""

from collections.abc import Iterator

from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest
from django.http.response import HttpResponseBase
from django.views.decorators.http import require_safe

from cohort.accounts.models import Role
from cohort.base import artifacts
from cohort.base.zip_stream import zip_chunks
from cohort.evidence.card_reader import CardReader
from cohort.records.cards.inspect_logs import evaluation_logs
from cohort.records.models import Audience, Card, EntryKind, Record
from cohort.web.access import role_in, run_for, streamed
from cohort.web.accounts.views import person
from cohort.web.audit.selectors import downloaded
from cohort.web.cards.views import may_download


@require_safe
def evaluations_download(
    request: HttpRequest, slug: str, run_id: int, end: int, version: int, audience: str
) -> HttpResponseBase:
    """A zip of one log for each suite and side, from the newest card of that audience."""
    run = run_for(request, slug, run_id)
    if audience not in Audience.values:
        raise Http404(f"there is no audience {audience}")
    role = role_in(run.project, person(request))
    if not may_download(role, audience):
        raise PermissionDenied(f"Texts that are for {audience} need the role {Role.REVIEWER.value}; yours is {role}.")
    card = (
        Card.objects.filter(record__run=run, record__end=end, record__version=version, audience=audience)
        .select_related("record")
        .order_by("-issue")
        .first()
    )
    if card is None or not artifacts.exists(card.artifact):
        raise Http404("there is no stored card of that record for that audience")
    data = {"audience": audience, "issue": card.issue, "sha256": card.sha256}
    subject = f"record:{card.record_id}"
    downloaded(request, kind="evaluations_downloaded", subject=subject, project=run.project, data=data)
    name = f"evaluations-run-{run.pk}-end-{end}-version-{version}-{audience}.zip"
    return streamed(_zipped(card), "application/zip", name)


def _zipped(card: Card) -> Iterator[bytes]:
    with artifacts.open_read(card.artifact) as handle:
        reader = CardReader(handle)
        reader.open()
        yield from zip_chunks(evaluation_logs(reader, {"revoked": _revoked(card.record)}))


def _revoked(record: Record) -> str | None:
    """Why the record was revoked; None where it was not."""
    texts = record.entries.filter(kind=EntryKind.REVOKED).values_list("text", flat=True)
    reason: str | None = texts.first()
    return reason
