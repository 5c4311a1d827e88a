"""The public page: open to anyone with its address, and to nobody else; nothing in it but the public part."""

import json
from collections.abc import Callable

import pytest
from django.conf import settings
from django.core.exceptions import ValidationError
from django.test import Client
from django.urls import reverse

from cohort.accounts.models import User
from cohort.audit.models import AuditEntry
from cohort.governance.fields import FIELDS
from cohort.governance.life import public, services
from cohort.governance.models import PublicLink, Record
from cohort.runs.models import Run
from tests.web.governance.made_reading import document, entry
from tests.web.governance.records_put import issue, put

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
    return public.public_link_make(record=record, actor=oscar)


def page(link: PublicLink) -> str:
    return reverse("public_card", args=[link.token])


def download(link: PublicLink) -> str:
    return reverse("public_card_download", args=[link.token])


def test_anyone_with_the_address_reads_it(
    record: Record, link: PublicLink, charlie: User, client_for: ClientFor
) -> None:
    issue(record)
    assert Client().get(page(link)).content == client_for(charlie).get(page(link)).content, "the page knows nobody"
    for client in (Client(), client_for(charlie)):
        response = client.get(page(link))
        shown = response.content.decode()
        assert response.status_code == 200
        for words in ("PUBLIC-WORDS", record.seal, record.short_digest, "cohort verify card-", "not signed off"):
            assert words in shown


def test_nothing_that_is_not_public_is_in_it(record: Record, link: PublicLink, oscar: User, rita: User) -> None:
    services.sign_off(record=record, actor=oscar, role="operator", decision="approved", reason="SECRET-REASON")
    services.sign_off(record=record, actor=rita, role="reviewer", decision="approved", reason="SECRET-REASON")
    services.feedback(record=record, actor=rita, text="SECRET-FEEDBACK", source="SECRET-SOURCE")
    response = Client().get(page(link))
    shown = response.content.decode()
    assert "signed off by both" in shown
    for words in ("SECRET", "/ours", "Our project", "oscar", "rita", "alice"):
        assert words not in shown, words
    hidden = sum(facts.audience != "public" for part in FIELDS.values() for facts in part.values()) + 1  # data.prompts
    assert f"withheld from the public: {hidden} fields" in shown


def test_headers(record: Record, link: PublicLink) -> None:
    issue(record)
    for path in (page(link), download(link), f"/c/{WRONG}/"):
        response = Client().get(path)
        assert response["X-Robots-Tag"] == "noindex, nofollow, noarchive"
        assert response["Referrer-Policy"] == "no-referrer"
        assert "private" in response["Cache-Control"]
        assert "Set-Cookie" not in response
    assert Client().get(page(link))["Cache-Control"] == "private, no-store"
    assert 'name="robots" content="noindex' in Client().get(page(link)).content.decode()


def test_hostile_text_is_harmless(link: PublicLink) -> None:
    shown = Client().get(page(link)).content.decode()
    assert "<script>alert" not in shown
    assert "<img src=x" not in shown
    assert "\u202e" not in shown
    assert "<b>adder" not in shown
    assert "&lt;b&gt;adder&lt;/b&gt;" in shown


def test_wrong_ended_and_impossible_tokens_are_told_apart_by_nothing(
    record: Record, link: PublicLink, oscar: User, alice: User, client_for: ClientFor
) -> None:
    issue(record)
    public.public_link_end(record=record, actor=oscar)
    tokens = [
        link.token,
        WRONG,
        "x",
        "%00",
        "..",
        "A" * 5000,
        link.token[:-1],
        link.token + "A",
        "%E2%80%AE",
        "card.zip",
    ]
    for client in (Client(), client_for(alice)):
        answers = {}
        for token in tokens:
            for end in ("", "card.zip"):
                response = client.get(f"/c/{token}/{end}")
                headers = {name: value for name, value in response.items() if name != "Date"}
                answers[token, end] = (response.status_code, response.content, tuple(sorted(headers.items())))
        assert set(answers.values()) == {answers[WRONG, ""]}
        assert answers[WRONG, ""][0] == 404
    for method in ("post", "put", "patch", "delete"):
        codes = {getattr(Client(), method)(f"/c/{token}/").status_code for token in (WRONG, link.token)}
        assert codes == {405}, "never a redirect to sign in"


def test_tokens_cannot_be_guessed(record: Record, oscar: User) -> None:
    seen = set()
    for _ in range(20):
        link = public.public_link_make(record=record, actor=oscar)
        assert len(link.token) == 43  # 32 bytes in base64 without padding
        seen.add(link.token)
        public.public_link_end(record=record, actor=oscar)
    assert len(seen) == 20
    for row in AuditEntry.objects.filter(kind__in=["public_link_made", "public_link_ended"]):
        assert not any(token in bytes(row.body).decode() for token in seen), "the log holds no key"


def test_made_and_taken_back_by_operators_and_logged(
    client_for: ClientFor, record: Record, alice: User, oscar: User, rita: User, bob: User
) -> None:
    path = f"/p/ours/runs/{record.run_id}/record/1/public/"
    for person in (rita, bob):
        assert client_for(person).post(path, {"action": "make"}).status_code == 403
    assert not record.public_links.exists()
    assert client_for(oscar).post(path, {"action": "make"}).status_code == 302
    link = record.public_links.get()
    life = f"/p/ours/runs/{record.run_id}/record/1/life/"
    shown = client_for(bob).get(life).content.decode()
    assert settings.ENV.public_url.rstrip("/") + page(link) in shown
    assert "Take it back" not in shown
    assert "Take it back" in client_for(oscar).get(life).content.decode()
    assert client_for(alice).post(path, {"action": "end"}).status_code == 302
    assert Client().get(page(link)).status_code == 404
    logged = AuditEntry.objects.filter(subject=f"record:{record.pk}").order_by("pk")
    assert [(row.kind, row.actor) for row in logged] == [
        ("public_link_made", "user:oscar"),
        ("public_link_ended", "user:alice"),
    ]
    shown = client_for(bob).get(life).content.decode()
    assert "Public page made" in shown
    assert "Public page taken back" in shown


def test_one_at_a_time_and_none_twice(record: Record, link: PublicLink, oscar: User) -> None:
    with pytest.raises(ValidationError, match="has a public page already"):
        public.public_link_make(record=record, actor=oscar)
    public.public_link_end(record=record, actor=oscar)
    with pytest.raises(ValidationError, match="has no public page"):
        public.public_link_end(record=record, actor=oscar)
    another = public.public_link_make(record=record, actor=oscar)
    assert Client().get(page(another)).status_code == 200
    assert Client().get(page(link)).status_code == 404


def test_a_record_without_audiences_has_no_public_part(launch: Callable[..., Run], oscar: User) -> None:
    made = put(launch())
    made.schema_version = "cohort-record/1"
    with pytest.raises(ValidationError, match="before fields had audiences"):
        public.public_link_make(record=made, actor=oscar)


def test_download_is_the_newest_public_card(record: Record, link: PublicLink) -> None:
    assert Client().get(download(link)).status_code == 404, "none was issued"
    issue(record, b"the internal one", audience="internal")
    issue(record, b"first issue")
    issue(record, b"second issue", number=2)
    response = Client().get(download(link))
    content = b"".join(response)  # type: ignore[arg-type]
    assert content == b"second issue"
    assert response["Content-Disposition"] == f'attachment; filename="card-{record.seal[:16]}.zip"'
    assert (response["Content-Type"], response["Content-Length"]) == ("application/zip", "12")
    assert Client().get(download(link), headers={"if-none-match": response["ETag"]}).status_code == 304
    assert Client().head(download(link)).status_code == 200
    row = AuditEntry.objects.get(kind="card_downloaded")
    assert row.actor == "anonymous"
    body = json.loads(bytes(row.body))
    assert (body["data"]["audience"], body["data"]["issue"]) == ("public", 2)
    assert link.token not in bytes(row.body).decode()


def test_downloads_without_end_do_not_fill_the_log(
    record: Record, link: PublicLink, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cohort.governance.life.public_views.MOST", 3)
    issue(record, b"the card")
    assert [Client().get(download(link)).status_code for _ in range(6)] == [200] * 6
    assert AuditEntry.objects.filter(kind="card_downloaded").count() == 3
    flooded = AuditEntry.objects.get(kind="card_downloads_flooded")
    assert flooded.project == record.run.project.slug
    assert "more than 3 times within 10 minutes" in bytes(flooded.body).decode()


def test_revoked_says_so_with_the_reason_and_its_card_still_downloads(
    record: Record, link: PublicLink, alice: User
) -> None:
    issue(record)
    services.revoke(record=record, actor=alice, reason=f"the held-out set leaked {HOSTILE}")
    shown = Client().get(page(link)).content.decode()
    assert "This record was revoked on" in shown
    assert "the held-out set leaked" in shown
    assert "<script>alert" not in shown
    assert 'class="wrong"' in shown
    assert Client().get(download(link)).status_code == 200


def test_superseded_says_so(record: Record, link: PublicLink) -> None:
    newer = put(record.run, version=2, supersedes=record)
    shown = Client().get(page(link)).content.decode()
    assert "supersedes this one (version 2)" in shown
    assert newer.short_digest in shown
    last = put(record.run, end=2)
    shown = Client().get(page(link)).content.decode()
    assert "after the run went on (end 2)" in shown
    assert last.short_digest in shown
