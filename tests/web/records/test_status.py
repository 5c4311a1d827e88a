"""The signed status of a record: what it says, when another is issued, and that no card leaves without it."""

import json
import zipfile
from datetime import timedelta
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse
from pypdf import PdfReader

from cohort.audit import services as audit
from cohort.audit.entries import clock
from cohort.evidence.canonical import canonical
from cohort.evidence.verify.command import main
from cohort.records.after_seal.services import incident, public_link_make, revoke, sign_off
from cohort.records.models import Record, RecordStatus
from cohort.records.services import record_seal
from cohort.records.statements.services import statement_make
from cohort.records.status import services
from cohort.records.status.services import StatusPending, current_status, status_issue, statuses_republish
from cohort.runs import dispatch
from tests.web.records.conftest import World
from tests.web.records.records import logged

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


def test_a_status_is_issued_again_only_when_another_is_due(
    sealed: Record, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    status_issue(record=sealed)
    count = RecordStatus.objects.count()
    status_issue(record=sealed)
    assert RecordStatus.objects.count() == count, "the same is not signed twice"
    run = sealed.run
    run.name = "renamed"
    run.save(update_fields=["name"])
    assert json.loads(current_status(sealed, "public").bundle)["status"]["record"]["title"] != "renamed"
    issued = current_status(sealed, "public")
    for share, due in ((0.4, False), (0.6, True)):
        now = issued.issued_at + (issued.valid_until - issued.issued_at) * share
        monkeypatch.setattr("cohort.records.status.services.clock", lambda now=now: now)
        assert current_status(sealed, "public") == issued, "half over, it still counts"
        status_issue(record=sealed)
        assert (RecordStatus.objects.count() > count) == due
    monkeypatch.setattr("cohort.records.status.services.clock", lambda: issued.valid_until + timedelta(days=40))
    with pytest.raises(StatusPending):
        current_status(sealed, "public")


def test_a_lost_message_is_sent_again(sealed: Record, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """What happened a while ago and is not said: also by a status that was issued while it was being written down."""
    monkeypatch.setattr(dispatch, "waiting_messages", lambda name: 0)  # of other tests there may be some
    monkeypatch.setattr(dispatch, "REPEATED", 0.0)
    status_issue(record=sealed)
    recent = services.RECENT
    monkeypatch.setattr(services, "RECENT", timedelta())
    incident(record=sealed, actor=world.rita, severity="low", when=sealed.sealed_at, what="slow")
    assert statuses_republish() == [], "its own message is on its way"
    monkeypatch.setattr(services, "UNCLAIMED", -dispatch.UNCLAIMED)
    assert statuses_republish() == [sealed.pk]
    for row in RecordStatus.objects.filter(record=sealed):
        row.pk, row.log_index, row.issued_at = None, row.log_index + 1, clock()
        row.save()
    assert statuses_republish() == []
    monkeypatch.setattr(services, "RECENT", recent)
    assert statuses_republish() == [sealed.pk]
    status_issue(record=sealed)
    assert statuses_republish() == []


def test_what_the_two_audiences_learn(sealed: Record, world: World) -> None:
    """The public one as the public page: no names, no counts."""
    incident(record=sealed, actor=world.rita, severity="low", when=sealed.sealed_at, what="SECRET-INCIDENT")
    sign_off(record=sealed, actor=world.rita, role="reviewer", decision="approved", reason="SECRET-REASON")
    status_issue(record=sealed)
    public = current_status(sealed, "downstream")
    full = current_status(sealed, "internal")
    assert "rita" not in public.bundle + public.page
    assert json.loads(public.bundle)["status"]["entries"] is None
    said = json.loads(full.bundle)["status"]
    assert said["entries"] == {"incidents": 1, "feedback": 0, "monitoring": 0, "overrides": 0, "severities": {"low": 1}}
    assert said["state"]["words"].startswith("Partly signed off: by the reviewer rita on ")
    assert "SECRET" not in public.bundle + full.bundle
    entry = logged("record_status_issued")[-1]
    assert (entry["data"]["seal"], set(entry["data"]["statuses"])) == (sealed.seal, {"public", "authority"})


def test_no_address_hands_out_the_card_of_a_revoked_record_alone(sealed: Record, world: World) -> None:
    status_issue(record=sealed)
    link = public_link_make(record=sealed, actor=world.oscar)
    base = f"/p/ours/runs/{sealed.run_id}/record"
    addresses = [f"{base}/card.zip", f"{base}/{sealed.end}/card.zip", card_url(sealed), f"/c/{link.token}/card.zip"]
    addresses += [f"{card_url(sealed, audience)}?issue=1" for audience in ("public", "downstream", "authority")]
    revoke(record=sealed, actor=world.alice, reason="It cheats.")
    client = world.client("alice")
    assert {client.get(address).status_code for address in addresses} == {503}
    assert Client().get(f"/status/{sealed.seal}.json").status_code == 503
    status_issue(record=sealed)
    for address in addresses:
        said = json.loads(files(body(client.get(address)))["status.json"])["status"]
        assert (said["state"]["name"], said["revoked"]["reason"]) == ("revoked", "It cheats."), address
    answer = Client().get(f"/status/{sealed.seal}.json")
    assert json.loads(answer.content)["status"]["state"]["name"] == "revoked"
    assert Client().head(f"/status/{sealed.seal}.json").status_code == 200
    assert Client().get(f"/status/{'0' * 64}.json").status_code == 404


def test_a_further_version_supersedes_in_the_status(sealed: Record, world: World) -> None:
    status_issue(record=sealed)
    statement_make(run=sealed.run, actor=world.alice, field="method.rationale", text="it is the demo's")
    second = record_seal(run=sealed.run, reason="stated", actor=world.alice)
    with pytest.raises(StatusPending):
        current_status(sealed, "public")
    for record in (sealed, second):
        status_issue(record=record)
    said = json.loads(current_status(sealed, "public").bundle)["status"]
    assert (said["state"]["name"], said["superseded_by"]["seal"]) == ("superseded", second.seal)
    assert json.loads(current_status(second, "public").bundle)["status"]["state"]["name"] == "not signed off"


def test_the_page_and_the_files_of_the_status(sealed: Record, world: World) -> None:
    status_issue(record=sealed)
    base = f"/p/ours/runs/{sealed.run_id}/record"
    shown = world.client("bob").get(f"{base}/").content.decode()
    assert f'href="{base}/1/1/status/STATUS.html"' in shown
    assert "Not signed off: neither the operator nor a reviewer has signed." in shown
    page = world.client("bob").get(f"{base}/1/1/status/STATUS.html")
    assert page["Content-Security-Policy"].startswith("default-src 'none'")
    paper = world.client("bob").get(f"{base}/1/1/status/STATUS.pdf").content
    text = "".join(page.extract_text() for page in PdfReader(BytesIO(paper)).pages)
    assert "Not signed off" in text
    assert sealed.seal in text.replace("\n", "").replace("\u200b", "")
