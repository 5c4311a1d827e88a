"""Cards to take away: who may have which, what is logged, and what the page says of each."""

from collections.abc import Callable

import pytest
from django.test import Client

from cohort import artifacts
from cohort.accounts.models import Project, User
from cohort.audit.models import AuditEntry
from cohort.evidence import pyz
from cohort.evidence.record import AUDIENCES
from cohort.governance.models import Record
from cohort.governance.services import record_reissue
from cohort.runs.models import Run
from tests import sealed_run

pytestmark = pytest.mark.django_db

ClientFor = Callable[[User], Client]


@pytest.fixture
def sealed(launch: Callable[..., Run]) -> Record:
    return sealed_run.sealed(launch())


def address(record: Record, audience: str) -> str:
    return f"/p/ours/runs/{record.run_id}/record/{record.end}/{record.version}/card-{audience}.zip"


def downloads() -> list[str]:
    return list(AuditEntry.objects.filter(kind="card_downloaded").order_by("pk").values_list("actor", flat=True))


@pytest.mark.parametrize("audience", AUDIENCES)
def test_who_may_take_which(
    client_for: ClientFor, sealed: Record, bob: User, rita: User, alice: User, charlie: User, audience: str
) -> None:
    where = address(sealed, audience)
    assert Client().get(where).status_code == 302
    assert client_for(charlie).get(where).status_code == 404
    expected = 200 if audience in ("public", "downstream") else 403
    assert client_for(bob).get(where).status_code == expected
    for person in (rita, alice):
        answer = client_for(person).get(where)
        content = b"".join(answer)  # type: ignore[call-overload]
        assert content == b"".join(artifacts.read_chunks(sealed.card(audience).artifact))
        assert answer["Content-Disposition"].endswith(f'-{audience}.zip"')
        assert answer["Content-Length"] == str(len(content))


def test_without_a_name_it_is_the_widest_that_one_may_have(
    client_for: ClientFor, sealed: Record, bob: User, rita: User
) -> None:
    where = f"/p/ours/runs/{sealed.run_id}/record/card.zip"
    assert client_for(bob).get(where)["ETag"] == f'"{sealed.card("downstream").sha256}"'
    assert client_for(rita).get(where)["ETag"] == f'"{sealed.card("internal").sha256}"'


def test_every_download_is_logged_and_nothing_else(
    client_for: ClientFor, sealed: Record, rita: User, bob: User
) -> None:
    where = address(sealed, "authority")
    etag = client_for(rita).get(where)["ETag"]
    assert downloads() == ["user:rita"]
    assert client_for(rita).get(where, headers={"If-None-Match": etag}).status_code == 304
    assert client_for(rita).head(where).status_code == 200
    assert client_for(bob).get(where).status_code == 403
    assert downloads() == ["user:rita"]
    entry = AuditEntry.objects.get(kind="card_downloaded")
    assert f'"audience":"authority","issue":1,"sha256":"{sealed.card("authority").sha256}"'.encode() in bytes(
        entry.body
    )
    assert entry.subject == f"record:{sealed.pk}"


def test_what_is_not_there(client_for: ClientFor, sealed: Record, rita: User) -> None:
    base = f"/p/ours/runs/{sealed.run_id}/record"
    for where in ("1/1/card-nobody.zip", "2/1/card-public.zip", "1/2/card-public.zip", "7/card.zip",
                  "1/1/card-public.zip?issue=2"):  # fmt: skip
        assert client_for(rita).get(f"{base}/{where}").status_code == 404, where


def test_an_earlier_issue_that_was_deleted_says_why(client_for: ClientFor, sealed: Record, rita: User) -> None:
    record_reissue(record=sealed, reason="A sample was redacted.")
    old = sealed.cards.get(audience="internal", issue=1)
    artifacts.remove(old.artifact)
    answer = client_for(rita).get(address(sealed, "internal") + "?issue=1")
    assert answer.status_code == 410
    assert "A sample was redacted." in answer.content.decode()
    newest = client_for(rita).get(address(sealed, "internal"))
    assert newest["ETag"] == f'"{sealed.cards.get(audience="internal", issue=2).sha256}"'


def test_page_lists_the_cards_with_digest_and_size(
    client_for: ClientFor, sealed: Record, bob: User, rita: User, ours: Project
) -> None:
    page = f"/p/ours/runs/{sealed.run_id}/record/"
    for person, links in ((bob, ("public", "downstream")), (rita, AUDIENCES)):
        text = client_for(person).get(page).content.decode()
        for audience in AUDIENCES:
            assert sealed.card(audience).sha256 in text
            assert (f'href="{address(sealed, audience)}"' in text) is (audience in links), audience
        assert "python verify.pyz card.zip" in text


def test_checker_from_the_platform_is_the_one_in_the_card(client_for: ClientFor, sealed: Record, bob: User) -> None:
    answer = client_for(bob).get(f"/p/ours/runs/{sealed.run_id}/record/verify.pyz")
    assert answer.content == pyz.build()
