"""The signed status of a record: what it says, when another is issued, and that no card leaves without it."""

import zipfile
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
from django.urls import reverse

from cohort.audit import services as audit
from cohort.evidence.canonical import canonical
from cohort.evidence.verify.command import main
from cohort.records.after_seal.services import revoke
from cohort.records.models import Record
from cohort.records.status.services import status_issue
from tests.web.records.conftest import World

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("quick_pdf")]


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    path = tmp_path / "keys.json"
    path.write_bytes(canonical(audit.keys_file()))
    return path


def body(response: Any) -> bytes:
    return b"".join(response.streaming_content) if response.streaming else response.content


def card_url(record: Record, audience: str = "internal") -> str:
    return reverse("card_for", args=["ours", record.run_id, record.end, record.version, audience])


def files(content: bytes) -> dict[str, bytes]:
    with zipfile.ZipFile(BytesIO(content)) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def verify(content: bytes, folder: Path, keys: Path, *options: str) -> int:
    (folder / "card.zip").write_bytes(content)
    return main([str(folder / "card.zip"), f"--key={keys}", "--offline", *options])


def test_every_download_carries_the_status_that_verify_reads(
    sealed: Record, world: World, tmp_path: Path, keys: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    status_issue(record=sealed)
    response = world.client("rita").get(card_url(sealed))
    content = body(response)
    assert int(response["Content-Length"]) == len(content)
    assert {"status.json", "STATUS.html", "STATUS.pdf"} < set(files(content))
    assert verify(content, tmp_path, keys) == 0
    shown = capsys.readouterr().out
    assert "ok      status: Not signed off" in shown
    revoke(record=sealed, actor=world.alice, reason="The reward paid for wrong answers.")
    waiting = world.client("rita").get(card_url(sealed))
    assert (waiting.status_code, waiting["Retry-After"]) == (503, "3")
    status_issue(record=sealed)
    content = body(world.client("rita").get(card_url(sealed)))
    assert b"Revoked on" in files(content)["STATUS.html"]
    assert verify(content, tmp_path, keys) == 4
    assert capsys.readouterr().out.startswith("revoked: ")
