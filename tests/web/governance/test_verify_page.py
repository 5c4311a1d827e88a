"""Anyone checks a card on the page, without signing in; what is too large or slow for it is told, with the command."""

import hashlib
from pathlib import Path

import pytest
from django.core.files.uploadedfile import SimpleUploadedFile
from django.test import Client
from django.urls import reverse

from cohort.environment import environment
from cohort.evidence import pyz
from cohort.governance import verify_page
from tests.web.governance.card_made import Log, Sealed, card, cards, key, packed

pytestmark = pytest.mark.django_db
HOSTILE = "<script>alert(1)</script> \u202e <img src=x onerror=alert(2)>"


def log_of(notes: int = 4) -> Log:
    log = Log()
    for number in range(notes):
        log.note(str(number))
    return log


def upload(files: dict[str, bytes] | bytes, **beside: object) -> tuple[int, str]:
    """(status, page)."""
    content = files if isinstance(files, bytes) else packed(files)
    given = {"card": SimpleUploadedFile("card.zip", content, "application/zip"), **beside}
    response = Client().post(reverse("verify_page"), given)
    return response.status_code, response.content.decode()


def zipped(files: dict[str, bytes]) -> SimpleUploadedFile:
    return SimpleUploadedFile("older.zip", packed(files), "application/zip")


def test_the_page_is_open_and_gives_verify_pyz_with_its_digest() -> None:
    page = Client().get("/verify/")
    assert page.status_code == 200
    response = Client().get(reverse("verify_pyz"))
    digest = hashlib.sha256(response.content).hexdigest()
    assert response.content == pyz.build()
    assert f'<p class="mono anywhere" id="pyz-sha256">{digest}</p>' in page.content.decode()
    assert response["Content-Disposition"] == 'attachment; filename="verify.pyz"'


def test_a_good_card_is_accepted_with_what_each_check_does_not_prove() -> None:
    made = cards(log_of())["public"]
    status, page = upload(made)
    assert status == 200
    assert "accepted: the card is as it was issued" in page
    assert "heldout: 30.0 % before, 70.0 % after of 10 problems" in page
    assert page.count("Does not prove: ") == 14  # of 16; config.yaml and metrics.jsonl are withheld from the public
    assert "config.yaml is withheld from this audience" in page


def test_with_an_older_card_and_the_key() -> None:
    log = log_of()
    older = card(log, Sealed(head={**Sealed().head, "run": 6}))
    newer = card(log)
    status, page = upload(newer, older=zipped(older), key=f" {log.keys[0].vkey} ")
    assert (status, "accepted" in page) == (200, True)
    assert "the log of 5 entries that the older card holds is the beginning of this one of 6" in page
    assert "the key that you gave" in page
    assert "is not one of this card&#x27;s" in upload(newer, key=key("other").vkey)[1]


def test_a_changed_card_is_rejected() -> None:
    made = card(log_of())
    status, page = upload({**made, "CARD.md": b"else"})
    assert status == 200
    assert "rejected: this is not the card as it was issued" in page
    assert "CARD.md: changed" in page
    assert "Seal, to compare" not in page  # a changed card may well carry the right one


def test_hostile_text_stays_text() -> None:
    _, page = upload(card(log_of(), Sealed(head={**Sealed().head, "title": HOSTILE})))
    assert "accepted" in page
    assert "<script>alert" not in page
    assert "<img src=x" not in page
    assert "\u202e" not in page
    assert "&lt;script&gt;alert(1)" in page


@pytest.mark.parametrize(("content", "words"), [(b"hello", "it is no zip file"), (b"PK", "the zip is damaged")])
def test_what_is_no_card(content: bytes, words: str) -> None:
    status, page = upload(content)
    assert status == 200
    assert words in page
    assert "/tmp" not in page


def test_an_empty_form_and_a_key_that_is_none() -> None:
    response = Client().post(reverse("verify_page"), {})
    assert response.status_code == 400
    assert "This field is required" in response.content.decode()
    for text in ("/etc/passwd", "hello", "a+00000000+AAAA", "--json"):
        status, page = upload(card(log_of()), key=text)
        assert status == 400
        assert "is not a public key" in page
        assert "root:" not in page


def test_a_card_beyond_the_limit_is_not_checked_and_names_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verify_page, "MAX_CARD_BYTES", 2 * 1024**2)
    status, page = upload(b"PK" + bytes(2 * 1024**2))
    assert status == 400
    assert "Larger than the 2 MiB of this page" in page
    assert "cohort verify CARD.zip" in page


def test_a_request_beyond_the_limit_is_not_read() -> None:
    kind, length = "multipart/form-data; boundary=a", "140000000"
    response = Client().post(reverse("verify_page"), b"x", content_type=kind, CONTENT_LENGTH=length)
    assert response.status_code == 413
    assert "cohort verify CARD.zip" in response.content.decode()


def test_a_check_that_takes_too_long_or_too_much(monkeypatch: pytest.MonkeyPatch) -> None:
    made = card(log_of())
    monkeypatch.setattr(verify_page, "_BOUNDED", "import time\ntime.sleep(60)\n")
    monkeypatch.setattr(verify_page, "MAX_SECONDS", -4)  # and five more
    assert "takes longer than" in upload(made)[1]
    monkeypatch.setattr(verify_page, "MAX_SECONDS", 40)
    monkeypatch.setattr(verify_page, "_BOUNDED", "x = bytearray(10**18)\n")
    assert "needs more time or memory than this page has" in upload(made)[1]


def test_no_more_than_two_at_once() -> None:
    held = [verify_page._AT_ONCE.acquire(blocking=False) for _ in range(2)]
    assert held == [True, True]
    try:
        status, page = upload(card(log_of()))
    finally:
        for _ in held:
            verify_page._AT_ONCE.release()
    assert status == 503
    assert "try again in a minute" in page
    assert "accepted" in upload(card(log_of()))[1]


def test_nothing_of_an_upload_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not of this one, and not of one whose process was killed."""
    monkeypatch.setattr(environment(), "home", tmp_path / "home")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
    left = tmp_path / "home" / "scratch" / "verify" / "killed"
    left.mkdir(parents=True)
    (left / "card.zip").write_bytes(b"a card")
    assert "accepted" in upload(card(log_of()))[1]
    assert [path for path in tmp_path.rglob("*") if path.name != ".lock" and path not in left.parents] == []
