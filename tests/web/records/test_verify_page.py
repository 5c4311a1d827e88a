"""Anyone checks a card on the page, without signing in; what is too large or slow for it is told, with the command."""

import hashlib
from pathlib import Path

import pytest
from django.core.files.uploadedfile import SimpleUploadedFile
from django.test import Client
from django.urls import reverse

from cohort.base.environment import environment
from cohort.evidence import pyz
from cohort.web.records import verify_page
from tests.factories.small_cards import Log, Sealed, card, cards, key, packed

pytestmark = pytest.mark.django_db
HOSTILE = "<script>alert(1)</script> \u202e <img src=x onerror=alert(2)>"


def upload(files: dict[str, bytes] | bytes, **beside: object) -> tuple[int, str]:
    """(status, page)."""
    content = files if isinstance(files, bytes) else packed(files)
    given = {"card": SimpleUploadedFile("card.zip", content, "application/zip"), **beside}
    response = Client().post(reverse("verify_page"), given)
    return response.status_code, response.content.decode()


def test_the_page_gives_verify_pyz_with_its_digest() -> None:
    response = Client().get(reverse("verify_pyz"))
    digest = hashlib.sha256(response.content).hexdigest()
    assert response.content == pyz.build()
    assert f'id="pyz-sha256">{digest}</p>' in Client().get("/verify/").content.decode()
    assert response["Content-Disposition"] == 'attachment; filename="verify.pyz"'


def test_good_and_changed_cards_with_an_older_one_and_the_key() -> None:
    log = Log(notes=4)
    older = card(log, Sealed(head={**Sealed().head, "run": 6, "title": HOSTILE}))
    newer = cards(log)["public"]
    beside = {"older": SimpleUploadedFile("older.zip", packed(older)), "key": f" {log.keys[0].vkey} "}
    status, page = upload(newer, **beside)
    assert (status, "accepted: the card" in page) == (200, True)
    assert page.count("Does not prove: ") == 15  # of 17; config.yaml and metrics.jsonl are withheld from the public
    assert "the older card holds" in page
    assert "the key that you gave" in page
    for files, more in ((newer, {"key": key("other").vkey}), ({**newer, "CARD.md": b"else"}, {})):
        status, page = upload(files, **more)
        assert (status, "rejected: this is not the card" in page) == (200, True)
        assert "Seal, to compare" not in page  # a changed card may well carry the right one
    _, page = upload(older)
    assert "&lt;script&gt;alert(1)" in page
    for raw in ("<script>alert", "<img src=x", "\u202e"):
        assert raw not in page


def test_what_is_no_card_and_no_key() -> None:
    assert Client().post(reverse("verify_page"), {}).status_code == 400
    for content, words in ((b"hello", "no zip file"), (b"PK", "the zip is damaged")):
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


def test_no_more_than_two_at_once() -> None:
    held = [verify_page._AT_ONCE.acquire(blocking=False) for _ in range(2)]
    assert held == [True, True]
    try:
        status, _ = upload(card(Log()))
    finally:
        for _ in held:
            verify_page._AT_ONCE.release()
    assert status == 503
    assert "accepted" in upload(card(Log()))[1]


def test_nothing_of_an_upload_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not of this one, and not of one whose process was killed."""
    monkeypatch.setattr(environment(), "home", tmp_path / "home")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
    left = tmp_path / "home" / "scratch" / "verify" / "killed"
    left.mkdir(parents=True)
    (left / "card.zip").write_bytes(b"a card")
    assert "accepted" in upload(card(Log()))[1]
    assert [path for path in tmp_path.rglob("*") if path.name != ".lock" and path not in left.parents] == []
