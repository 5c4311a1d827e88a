"""The public page: open to anyone with its address, and to nobody else; nothing in it but the public part."""

import json
import zipfile
from collections.abc import Callable
from io import BytesIO
from typing import Any

import pytest
from django.conf import settings
from django.core.exceptions import ValidationError
from django.test import Client
from django.urls import reverse

from cohort.accounts.models import User
from cohort.audit.models import AuditEntry
from cohort.records.after_seal import services
from cohort.records.fields import FIELDS
from cohort.records.models import PublicLink, Record
from cohort.records.status.services import status_issue
from cohort.runs.models import Run
from tests.factories.documents import document, entry
from tests.factories.small_cards import packed
from tests.web.records.conftest import World
from tests.web.records.records import issue, logged, page_text, put

pytestmark = pytest.mark.django_db
ClientFor = Callable[[User], Client]
HOSTILE = "<script>alert(1)</script> \u202e <img src=x onerror=alert(2)>"
WRONG = "A" * 43


@pytest.fixture
def record(launch: Callable[..., Run]) -> Record:
    made = document(
        text="said",
        subject__attempts=entry("SECRET-AUTHORITY", {"x": "SECRET-VALUE"}, audience="authority"),
        environment__machine=entry("SECRET-DOWNSTREAM", audience="downstream"),
        reward__source=entry(f"PUBLIC-WORDS {HOSTILE}"),
        data__prompts=entry("SECRET-INTERNAL", audience="internal"),
    )
    return put(launch(name="<b>adder</b>"), made)


@pytest.fixture
def link(record: Record, oscar: User) -> PublicLink:
    return services.public_link_make(record=record, actor=oscar)


def page(link: PublicLink) -> str:
    return reverse("public_card", args=[link.token])


def download(link: PublicLink) -> str:
    return reverse("public_card_download", args=[link.token])


def test_anyone_with_the_address_reads_what_is_public_and_no_more(
    world: World, record: Record, link: PublicLink, golden: Any
) -> None:
    issue(record)
    for person, role in ((world.oscar, "operator"), (world.rita, "reviewer")):
        services.sign_off(record=record, actor=person, role=role, decision="approved", reason="SECRET-REASON")
    services.feedback(record=record, actor=world.rita, text="SECRET-FEEDBACK", source="SECRET-SOURCE")
    response = Client().get(page(link))
    shown = response.content.decode()
    assert response.content == world.client("charlie").get(page(link)).content, "the page knows nobody"
    golden("pages/public.txt", page_text(response))
    assert record.seal in shown
    for words in ("SECRET", "/ours", "Our project", "oscar", "rita", "alice"):
        assert words not in shown, words
    for harmful in ("<script>alert", "<img src=x", "\u202e", "<b>adder"):
        assert harmful not in shown, harmful
    hidden = sum(facts.audience != "public" for part in FIELDS.values() for facts in part.values()) + 1  # data.prompts
    assert f"{hidden} fields" in shown
    assert 'name="robots" content="noindex' in shown


def test_wrong_ended_and_impossible_tokens_are_told_apart_by_nothing(
    world: World, record: Record, link: PublicLink
) -> None:
    issue(record)
    for path in (page(link), download(link), f"/c/{WRONG}/"):
        response = Client().get(path)
        assert response["X-Robots-Tag"] == "noindex, nofollow, noarchive"
        assert response["Referrer-Policy"] == "no-referrer"
        assert "private" in response["Cache-Control"]
        assert "Set-Cookie" not in response
    assert Client().get(page(link))["Cache-Control"] == "private, no-store"
    services.public_link_end(record=record, actor=world.oscar)
    near = [link.token, link.token[:-1], link.token + "A"]
    tokens = [WRONG, *near, "x", "%00", "..", "A" * 5000, "%E2%80%AE", "card.zip"]
    for client in (Client(), world.client("alice")):
        responses = [client.get(f"/c/{token}/{end}") for token in tokens for end in ("", "card.zip")]
        headers = [{name: value for name, value in response.items() if name != "Date"} for response in responses]
        assert {(response.status_code, response.content) for response in responses} == {(404, responses[0].content)}
        assert all(each == headers[0] for each in headers)
    for method in ("post", "put", "patch", "delete"):
        codes = {getattr(Client(), method)(f"/c/{token}/").status_code for token in (WRONG, link.token)}
        assert codes == {405}, "never a redirect to sign in"


def test_made_and_taken_back_on_the_page_and_logged(client_for: ClientFor, record: Record, oscar: User) -> None:
    client, url = client_for(oscar), f"/p/ours/runs/{record.run_id}/record/1/"
    client.post(f"{url}public/", {"action": "make"})
    link = record.public_links.get()
    assert settings.ENV.public_url.rstrip("/") + page(link) in client.get(f"{url}life/").content.decode()
    client.post(f"{url}public/", {"action": "end"})
    assert Client().get(page(link)).status_code == 404
    for kind in ("public_link_made", "public_link_ended"):
        (body,) = logged(kind)
        assert (body["actor"], body["subject"]) == ("user:oscar", f"record:{record.pk}")
        assert link.token not in str(body), "the log holds no key"


def test_there_is_at_most_one_at_a_time_and_none_can_be_guessed(record: Record, link: PublicLink, oscar: User) -> None:
    links = [link]
    for _ in range(9):
        with pytest.raises(ValidationError, match="already"):
            services.public_link_make(record=record, actor=oscar)
        services.public_link_end(record=record, actor=oscar)
        with pytest.raises(ValidationError, match="no public page"):
            services.public_link_end(record=record, actor=oscar)
        links.append(services.public_link_make(record=record, actor=oscar))
    assert {len(one.token) for one in links} == {43}  # 32 bytes in base64 without padding
    assert len({one.token for one in links}) == 10
    assert [Client().get(page(one)).status_code for one in links] == [404] * 9 + [200]


def test_the_download_is_the_newest_public_card(
    record: Record, link: PublicLink, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Downloads without end do not fill the log."""
    client, url = Client(), download(link)
    assert client.get(url).status_code == 404, "none was issued"
    for name, audience, number in (("internal", "internal", 1), ("first", "public", 1), ("second", "public", 2)):
        issue(record, packed({"record.json": name.encode()}), audience=audience, number=number)
    assert client.get(url).status_code == 503, "its status is not signed yet"
    status_issue(record=record)
    response = client.get(url)
    content = b"".join(response)  # type: ignore[arg-type]
    with zipfile.ZipFile(BytesIO(content)) as archive:
        assert archive.read("record.json") == b"second"
        assert sorted(archive.namelist()) == ["STATUS.html", "STATUS.pdf", "record.json", "status.json"]
    assert response["Content-Disposition"] == f'attachment; filename="card-{record.seal[:16]}.zip"'
    assert (response["Content-Type"], response["Content-Length"]) == ("application/zip", str(len(content)))
    assert client.get(url, headers={"if-none-match": response["ETag"]}).status_code == 304
    assert client.head(url).status_code == 200
    (body,) = logged("card_downloaded")
    assert (body["actor"], body["data"]["audience"], body["data"]["issue"]) == ("anonymous", "public", 2)
    assert link.token not in str(body)
    monkeypatch.setattr("cohort.web.after_seal.public_views.MOST", 3)
    assert [client.get(url).status_code for _ in range(6)] == [200] * 6
    assert len(logged("card_downloaded")) == 3
    assert AuditEntry.objects.get(kind="card_downloads_flooded").project == record.run.project.slug


def test_a_record_that_holds_no_more_says_so(record: Record, link: PublicLink, alice: User) -> None:
    """Superseded by a version, by a later end, and revoked; its card downloads with the status that says so."""
    issue(record, packed({"record.json": b"{}"}))
    for head in ({"version": 2, "supersedes": record}, {"end": 2}):
        newer = put(record.run, **head)
        assert newer.short_digest in Client().get(page(link)).content.decode()
    services.revoke(record=record, actor=alice, reason=f"the held-out set leaked {HOSTILE}")
    shown = Client().get(page(link)).content.decode()
    assert "the held-out set leaked" in shown
    assert "<script>alert" not in shown
    assert 'class="wrong"' in shown
    assert Client().get(download(link)).status_code == 503
    status_issue(record=record)
    with zipfile.ZipFile(BytesIO(b"".join(Client().get(download(link))))) as archive:  # type: ignore[arg-type]
        assert "&lt;script&gt;alert" in archive.read("STATUS.html").decode()
        assert json.loads(archive.read("status.json"))["status"]["state"]["name"] == "revoked"
