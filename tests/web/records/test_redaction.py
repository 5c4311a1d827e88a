"""Texts of samples that are shown alone, or deleted: what becomes of cards and proofs."""

import json
import logging
import threading
from datetime import timedelta
from pathlib import Path

import pytest
from django.core.exceptions import ValidationError
from django.db import connection, transaction
from django.db.models.functions import Now

from cohort.audit import services as audit
from cohort.background.tasks import expire_traces
from cohort.base import artifacts
from cohort.evidence.verify.command import main as verify
from cohort.evidence.verify.opened import ATTESTATION
from cohort.records.cards.download import write_download
from cohort.records.models import Card, Record
from cohort.records.services import record_reissue, record_seal
from cohort.records.status.services import status_issue
from cohort.records.traces import redaction
from cohort.records.traces.disclosure import NoProof, disclose
from cohort.records.traces.redaction import cards_renew, retention_set, runs_to_renew, samples_redact, traces_expire
from cohort.review.models import Sample
from cohort.runs.models import Run
from tests.factories import sealed_run
from tests.processes import DEADLINE, wait_for
from tests.web.records.conftest import World, in_thread
from tests.web.records.records import TRACES, accepted, cards_of, files_of, lines, logged

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("quick_pdf")]


def sample_of(record: Record, step: int = 2, index: int = 1) -> Sample:
    return Sample.objects.select_related("group__run").get(group__run=record.run, group__step=step, index=index)


def redact(record: Record, world: World, *samples: Sample) -> int:
    chosen = samples or [sample_of(record)]
    return samples_redact(run=record.run, samples=chosen, actor=world.alice, reason="a person asked")


def test_a_sample_shown_alone_fits_the_public_card(world: World, tmp_path: Path) -> None:
    run = sealed_run.finished(world.launch())
    sample = Sample.objects.select_related("group__run").earliest("pk")
    with pytest.raises(NoProof):
        disclose(sample=sample, actor=world.alice)  # before there is a record
    record = record_seal(run=run)
    shown = disclose(sample=sample, actor=world.alice)
    status_issue(record=record)
    proof, card = tmp_path / "proof.json", tmp_path / "card.zip"
    write_download(record.card("public"), card)
    for added, status in (("", 0), (".", 1)):
        shown["sample"]["completion"] += added
        proof.write_text(json.dumps(shown))
        known = ["--offline", "--key", audit.public_keys()[0][-1]]
        assert verify([str(card), "--trace", str(proof), *known]) == status
    assert len(logged("sample_disclosed")) == 1


def test_deleted_texts_are_in_no_card_and_every_proof_still_holds(sealed: Record, world: World, tmp_path: Path) -> None:
    other = sample_of(sealed, index=2)
    before, proof = cards_of(sealed), json.loads(json.dumps(disclose(sample=other, actor=world.alice)))
    gone = [sample_of(sealed, index=index) for index in (0, 1)]
    words = gone[0].completion.encode()
    earlier = [card.artifact for card in Card.objects.all()]
    assert redact(sealed, world, *gone) == 2
    assert logged("samples_redacted")[0]["reason"] == "a person asked"
    assert runs_to_renew() == [sealed.run_id]
    assert cards_renew(run=sealed.run) == 1
    assert (runs_to_renew(), cards_renew(run=sealed.run)) == ([], 0)
    assert not any(map(artifacts.exists, earlier))
    after = cards_of(sealed)
    for audience, files in after.items():
        assert accepted(sealed.card(audience), tmp_path)
        assert not any(words in content for content in files.values())
        kept = ("record.json", *(file["path"] for file in json.loads(sealed.document)["files"]))
        assert all(content == before[audience][name] for name, content in files.items() if name in kept)
    assert after["internal"][ATTESTATION] != before["internal"][ATTESTATION]
    samples = lines(after["internal"][TRACES])[1]["samples"]
    assert samples[:2] == [{"index": 0, "redacted": True}, {"index": 1, "redacted": True}]
    assert [sample.get("redacted") for sample in samples] == [True, True, None, None]
    newest, first = (sealed.cards.get(audience="internal", issue=issue) for issue in (2, 1))
    assert newest.reason
    assert newest.checkpoint_size > first.checkpoint_size
    assert disclose(sample=other, actor=world.alice) == proof
    with pytest.raises(NoProof):
        disclose(sample=sample_of(sealed, index=0), actor=world.alice)
    assert record_seal(run=sealed.run) == sealed  # nothing new to say, so no other version


def test_what_a_score_quotes_goes_with_the_text(sealed: Record, world: World) -> None:
    sample = sample_of(sealed)
    error = "ValueError: no number in 'Ada Lovelace'"
    sample.components = {"a": {"value": 1.0, "detail": "Ada", "error": None}, "b": {"detail": "", "error": error}}
    sample.save(update_fields=["components"])
    redact(sealed, world, sample)
    sample.refresh_from_db()
    left = {"a": {"value": 1.0, "detail": "", "error": None}, "b": {"detail": "", "error": "ValueError"}}
    assert sample.components == left


def test_texts_are_deleted_of_one_run_and_with_a_reason_that_can_be_kept(sealed: Record, world: World) -> None:
    samples, other = list(Sample.objects.all()), Run(pk=sealed.run_id + 1)
    for run, reason, field in (
        *((sealed.run, reason, "reason") for reason in ("", "   ", "x" * 10_001)),
        (other, "r", "samples"),
    ):
        with pytest.raises(ValidationError) as fault:
            samples_redact(run=run, samples=samples, actor=world.alice, reason=reason)
        assert field in fault.value.message_dict
    assert not Sample.objects.exclude(redacted_at=None).exists()


def test_texts_are_kept_for_so_many_days_after_the_end(sealed: Record, world: World, tmp_path: Path) -> None:
    retention_set(project=world.ours, actor=world.alice, days=30)
    goes_on = world.launch()
    sealed_run.ingest(sealed_run.claim(goes_on), sealed_run.whole(goes_on)[:-1])
    assert traces_expire() == 0
    Run.objects.filter(pk=sealed.run_id).update(ended_at=Now() - timedelta(days=31))
    assert (traces_expire(), traces_expire()) == (12, 0)
    assert cards_renew(run=sealed.run) == 1
    assert accepted(sealed.card(), tmp_path)
    for days in (0, 36_501):
        with pytest.raises(ValidationError):
            retention_set(project=world.ours, actor=world.alice, days=days)


def test_zips_that_a_cut_process_left_are_deleted_by_the_hourly_task(
    sealed: Record, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    earlier = [card.artifact for card in Card.objects.all()]
    redact(sealed, world)
    with monkeypatch.context() as cut:
        cut.setattr(redaction, "_earlier_zips", lambda _: [])
        assert cards_renew(run=sealed.run) == 1
    assert all(map(artifacts.exists, earlier))
    expire_traces()
    assert not any(map(artifacts.exists, earlier))
    assert sealed.card().issue == 2, "nothing is issued once more"
    assert runs_to_renew() == []


def test_a_lost_card_of_one_run_holds_up_no_other(
    sealed: Record, world: World, caplog: pytest.LogCaptureFixture
) -> None:
    second = sealed_run.sealed(world.launch())
    for record in (sealed, second):
        redact(record, world)
    artifacts.remove(sealed.card().artifact)
    with caplog.at_level(logging.ERROR), pytest.raises(RuntimeError, match=rf"\[{sealed.run_id}\]"):
        expire_traces()
    assert "no longer stored" in caplog.text
    assert second.card().issue == 2
    assert runs_to_renew() == [sealed.run_id]


@pytest.mark.django_db(transaction=True)
def test_a_card_waits_for_a_redaction_that_has_begun(sealed: Record, world: World) -> None:
    """It would read a text whose deletion it cannot see."""
    begun, go = threading.Event(), threading.Event()

    @transaction.atomic
    def slow() -> None:
        redact(sealed, world)
        begun.set()
        assert go.wait(DEADLINE)

    def waits() -> bool:
        with connection.cursor() as cursor:
            cursor.execute("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted")
            return bool(cursor.fetchone()[0])

    deleting = in_thread(slow)
    try:
        assert begun.wait(DEADLINE)
        issuing = in_thread(lambda: record_reissue(record=sealed, reason="meanwhile"))
        wait_for(waits, "nobody waits for the redaction")
        assert not Card.objects.filter(issue=2).exists()
    finally:
        go.set()
    for future in (deleting, issuing):
        future.result(DEADLINE)
    assert Card.objects.filter(record=sealed, audience="internal").count() == 2
    assert b'"redacted":true' in files_of(sealed.card())[TRACES]


# ---------------------------------------------------------------------- pages


def test_the_pages_of_texts(sealed: Record, world: World) -> None:
    sample, client = sample_of(sealed), world.client("alice")
    group = f"/p/ours/runs/{sealed.run_id}/groups/{sample.group_id}"
    assert client.get(f"{group}/samples/1/proof.json").json()["sample"]["completion"] == sample.completion
    faulty = client.post(f"{group}/redact/", {"reason": "because"})
    assert (faulty.status_code, "because" in faulty.content.decode()) == (422, True)
    assert "samples" in faulty.context["form"].errors
    done = client.post(f"{group}/redact/", {"reason": "because", "samples": [sample.pk]}, follow=True)
    assert "Text deleted on" in done.content.decode()
    sample.refresh_from_db()
    assert sample.completion == ""
    assert client.get(f"{group}/samples/1/proof.json").status_code == 302, "there is none of a deleted text"
    assert client.post("/p/ours/retention/", {"days": "0"}).status_code == 422
    client.post("/p/ours/retention/", {"days": "3"})
    world.ours.refresh_from_db()
    assert world.ours.traces_keep_days == 3
