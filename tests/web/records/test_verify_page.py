"""Anyone checks a card on the page, without signing in; what is too large or slow for it is told, with the command."""

import hashlib
import re
from pathlib import Path

import pytest
from django.core.files.uploadedfile import SimpleUploadedFile
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from cohort.audit.models import LogKey
from cohort.base.environment import environment
from cohort.evidence import pyz
from cohort.records.after_seal.services import revoke, sign_off
from cohort.web.records import verify_page
from tests.factories import sealed_run
from tests.factories.small_cards import Log, Sealed, card, cards, key, packed
from tests.factories.statuses import downloaded
from tests.web.records.conftest import World
from tests.web.records.records import content_of, put

pytestmark = pytest.mark.django_db
VERDICT = re.compile(r'id="verdict".*?</span> ([^<]*)</h2>', re.DOTALL)
HOSTILE = "<script>alert(1)</script> \u202e <img src=x onerror=alert(2)>"


@pytest.fixture
def own_log() -> None:
    """This platform's log, with the key of the cards here."""
    LogKey.objects.create(vkey=key("first").vkey, since_size=0, at=timezone.now())


def upload(files: dict[str, bytes] | bytes, **more: object) -> tuple[int, str]:
    """(status, page)."""
    content = files if isinstance(files, bytes) else packed(files)
    given = {"card": SimpleUploadedFile("card.zip", content, "application/zip"), **more}
    response = Client().post(reverse("verify_page"), given)
    return response.status_code, response.content.decode()


def verdict(page: str) -> str:
    (shown,) = VERDICT.findall(page)
    return str(shown)


def test_the_page_gives_verify_pyz_with_its_digest() -> None:
    response = Client().get(reverse("verify_pyz"))
    digest = hashlib.sha256(response.content).hexdigest()
    assert response.content == pyz.build()
    assert f'id="pyz-sha256">{digest}</p>' in Client().get("/verify/").content.decode()
    assert response["Content-Disposition"] == 'attachment; filename="verify.pyz"'


@pytest.mark.usefixtures("own_log")
def test_good_and_changed_cards_with_an_older_one() -> None:
    log = Log(notes=4)
    older = card(log, Sealed(head={**Sealed().head, "run": 6, "title": HOSTILE}))
    newer = downloaded(log, cards(log)["public"])
    status, page = upload(newer, older=SimpleUploadedFile("older.zip", packed(older)))
    assert (status, verdict(page)) == (200, "Accepted")
    assert page.count("Does not prove: ") == 21  # of 23; config.yaml and metrics.jsonl are withheld from the public
    assert "the older card holds" in page
    assert f"a known key: {log.keys[0].vkey}" in page
    status, page = upload({**newer, "CARD.md": b"else"})
    assert (status, verdict(page)) == (200, "Changed")
    assert "Seal, to compare" not in page  # a changed card may well carry the right one
    _, page = upload(older)
    assert "&lt;script&gt;alert(1)" in page
    for raw in ("<script>alert", "<img src=x", "\u202e"):
        assert raw not in page


@pytest.mark.usefixtures("own_log")
def test_the_page_knows_the_keys_of_its_own_log() -> None:
    """A card whose every digest and signature is right, by somebody who has another key."""
    forged = upload(card(Log("forger")))[1]
    assert verdict(forged) == "Changed"
    assert "signed by none of the keys that this log ever had" in forged
    assert verdict(upload(card(Log("forger")), key=key("forger").vkey)[1]) == "Changed"
    elsewhere = Log("theirs", origin="other.example/log")
    unknown = upload(card(elsewhere))[1]
    assert verdict(unknown) == "Unknown signer"
    assert "and check again with it." in unknown
    assert "--against" not in unknown, "an option of the command"
    given = f" {elsewhere.keys[0].vkey} "
    bare = card(elsewhere)
    page = upload(bare, key=given)[1]
    assert (verdict(page), "this page asks no other platform" in page) == ("Status unknown", True)
    for state, words in (("signed off", "Accepted"), ("revoked", "Revoked"), ("superseded", "Superseded")):
        assert verdict(upload(downloaded(elsewhere, bare, state), key=given)[1]) == words


def test_what_happened_since_the_seal_is_known_by_the_database(world: World) -> None:
    """Of this platform's own records, whatever status the zip holds; rejected, superseded and revoked."""
    record = sealed_run.sealed(world.launch())
    content = content_of(record.card("public"))
    page = upload(content)[1]
    assert (verdict(page), "Not signed off" in page) == ("Accepted", True)
    sign_off(record=record, actor=world.oscar, role="operator", decision="rejected", reason="It cheats.")
    assert verdict(upload(content)[1]) == "Rejected"
    put(record.run, version=2, supersedes=record)
    page = upload(content)[1]
    assert (verdict(page), "Superseded by version 2" in page) == ("Superseded", True)
    revoke(record=record, actor=world.oscar, reason="SECRET-REASON")
    page = upload(content)[1]
    assert (verdict(page), "Revoked on" in page) == ("Revoked", True)
    assert "SECRET-REASON" not in page


def test_what_is_no_card_and_no_key() -> None:
    assert Client().post(reverse("verify_page"), {}).status_code == 400
    for content, words in ((b"hello", "The uploaded card is not a card: it is no zip"), (b"PK", "the zip is damaged")):
        status, page = upload(content)
        assert (status, words in page, "/tmp" in page) == (200, True, False)
    for text in ("/etc/passwd", "hello", "a+00000000+AAAA", "--json"):
        status, page = upload(card(Log()), key=text)
        assert (status, "is not a public key" in page, "root:" in page) == (400, True, False)


def test_what_is_beyond_the_limits_names_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verify_page, "MAX_CARD_BYTES", 2 * 1024**2)
    status, page = upload(b"PK" + bytes(2 * 1024**2))
    assert (status, "cohort verify CARD.zip" in page) == (400, True)
    kind, length = "multipart/form-data; boundary=a", "140000000"
    response = Client().post(reverse("verify_page"), b"x", content_type=kind, CONTENT_LENGTH=length)
    assert (response.status_code, b"cohort verify CARD.zip" in response.content) == (413, True)


def test_a_check_that_takes_too_long_or_too_much(monkeypatch: pytest.MonkeyPatch) -> None:
    made = card(Log())
    monkeypatch.setattr(verify_page, "_BOUNDED", "import time\ntime.sleep(600)\n")
    monkeypatch.setattr(verify_page, "MAX_SECONDS", -5)  # and five more
    assert "takes longer than" in upload(made)[1]
    monkeypatch.setattr(verify_page, "MAX_SECONDS", 600)
    monkeypatch.setattr(verify_page, "_BOUNDED", "x = bytearray(10**18)\n")
    assert "needs more time or memory" in upload(made)[1]


@pytest.mark.usefixtures("own_log")
def test_no_more_than_two_at_once() -> None:
    held = [verify_page._AT_ONCE.acquire(blocking=False) for _ in range(2)]
    assert held == [True, True]
    try:
        status, _ = upload(card(Log()))
    finally:
        for _ in held:
            verify_page._AT_ONCE.release()
    assert status == 503
    assert verdict(upload(downloaded(log := Log(), card(log)))[1]) == "Accepted"


def test_nothing_of_an_upload_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not of this one, and not of one whose process was killed."""
    monkeypatch.setattr(environment(), "home", tmp_path / "home")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
    left = tmp_path / "home" / "scratch" / "verify" / "killed"
    left.mkdir(parents=True)
    (left / "card.zip").write_bytes(b"a card")
    assert verdict(upload(card(Log()))[1]) == "Unknown signer"
    assert [path for path in tmp_path.rglob("*") if path.name != ".lock" and path not in left.parents] == []
