"""Texts of samples after the seal: one shown alone with its proof, some deleted, all kept only so long."""

import json
import zipfile
from collections.abc import Callable
from datetime import timedelta
from io import BytesIO
from pathlib import Path

import pytest
from django.core.exceptions import ValidationError
from django.db.models.functions import Now
from django.test import Client

from cohort import artifacts
from cohort.accounts.models import Project, User
from cohort.audit.models import AuditEntry
from cohort.evidence.verify.command import main as verify
from cohort.governance.models import Card, Record
from cohort.governance.services import record_seal
from cohort.governance.tasks import seal
from cohort.governance.traces.disclosure import NoProof, disclose
from cohort.governance.traces.redaction import cards_renew, runs_to_renew, samples_redact
from cohort.governance.traces.retention import retention_set, traces_expire
from cohort.governance.traces.tree import step_leaves
from cohort.review.models import Sample
from cohort.runs.models import Run
from tests import sealed_run

ClientFor = Callable[[User], Client]

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def launched(launch: Callable[[], Run]) -> Run:
    return launch()


@pytest.fixture
def record(launched: Run) -> Record:
    return sealed_run.sealed(launched)


def card_of(record: Record, folder: Path, audience: str = "internal") -> Path:
    path = folder / f"{audience}.zip"
    path.write_bytes(b"".join(artifacts.read_chunks(record.card(audience).artifact)))
    return path


def trace_lines(card: Path) -> list[dict[str, object]]:
    with zipfile.ZipFile(card) as archive:
        names = [name for name in archive.namelist() if name.startswith("traces/")]
        return [json.loads(line) for name in names for line in archive.read(name).splitlines()]


def test_every_completion_is_in_the_tree_kept_or_not(record: Record) -> None:
    """Three steps of two groups of four; one group a step was kept."""
    told = list(step_leaves(record.run))
    assert [(one.step, one.count, len(one.leaves)) for one in told] == [(n, 8, 256) for n in (1, 2, 3)]
    assert Sample.objects.count() == 12


def test_a_sample_shown_alone_fits_the_public_card(record: Record, alice: User, tmp_path: Path) -> None:
    sample = Sample.objects.select_related("group__run").get(group__step=2, index=1)
    proof = tmp_path / "proof.json"
    proof.write_text(json.dumps(disclose(sample=sample, actor=alice)))
    card = card_of(record, tmp_path, "public")
    assert verify([str(card), "--trace", str(proof)]) == 0
    told = json.loads(proof.read_text())
    told["sample"]["completion"] += "."
    proof.write_text(json.dumps(told))
    assert verify([str(card), "--trace", str(proof)]) == 1
    assert AuditEntry.objects.filter(kind="sample_disclosed").count() == 1


def test_deleted_texts_are_in_no_card_and_every_proof_still_holds(record: Record, alice: User, tmp_path: Path) -> None:
    other = Sample.objects.select_related("group__run").get(group__step=2, index=2)
    before = json.loads(json.dumps(disclose(sample=other, actor=alice)))
    gone = list(Sample.objects.filter(group__step=2, index__in=[0, 1]))
    words = gone[0].completion
    earlier = {card.audience: card.artifact for card in Card.objects.all()}
    assert samples_redact(run=record.run, samples=gone, actor=alice, reason="names a person") == 2
    assert runs_to_renew() == [record.run_id]
    assert cards_renew(run=record.run) == 1
    assert runs_to_renew() == []
    assert cards_renew(run=record.run) == 0
    assert not any(artifacts.exists(artifact) for artifact in earlier.values())
    for audience in earlier:
        card = card_of(record, tmp_path, audience)
        assert verify([str(card)]) == 0
        with zipfile.ZipFile(card) as archive:
            assert not any(words.encode() in archive.read(name) for name in archive.namelist())
    shown = [line for line in trace_lines(card_of(record, tmp_path)) if line["step"] == 2]
    assert shown[0]["samples"][:2] == [{"index": 0, "redacted": True}, {"index": 1, "redacted": True}]  # type: ignore[index]
    assert disclose(sample=other, actor=alice) == before
    with pytest.raises(NoProof, match="its text was deleted"):
        disclose(sample=Sample.objects.select_related("group__run").get(pk=gone[0].pk), actor=alice)
    entry = AuditEntry.objects.get(kind="samples_redacted")
    assert json.loads(bytes(entry.body))["reason"] == "names a person"
    again = Record.objects.get(pk=record.pk)
    assert (again.seal, again.document) == (record.seal, record.document)


@pytest.mark.parametrize("reason", ["", "   ", "x" * 10_001])
def test_no_text_is_deleted_without_a_reason_that_can_be_kept(record: Record, alice: User, reason: str) -> None:
    with pytest.raises(ValidationError) as fault:
        samples_redact(run=record.run, samples=list(Sample.objects.all()), actor=alice, reason=reason)
    assert "reason" in fault.value.message_dict
    assert not Sample.objects.exclude(redacted_at=None).exists()


def test_samples_of_another_run_are_refused(record: Record, alice: User) -> None:
    other = Run(pk=record.run_id + 1)
    with pytest.raises(ValidationError, match="samples of this run"):
        samples_redact(run=other, samples=list(Sample.objects.all()), actor=alice, reason="r")


def test_kept_for_so_many_days_after_the_end(record: Record, alice: User, ours: Project, tmp_path: Path) -> None:
    retention_set(project=ours, actor=alice, days=30)
    assert traces_expire() == 0
    Run.objects.update(ended_at=Now() - timedelta(days=31))
    assert traces_expire() == 12
    assert traces_expire() == 0
    assert cards_renew(run=record.run) == 1
    assert verify([str(card_of(record, tmp_path))]) == 0
    for days in (0, 36_501):
        with pytest.raises(ValidationError):
            retention_set(project=ours, actor=alice, days=days)


def test_a_run_that_goes_on_keeps_its_texts(launched: Run, alice: User, ours: Project) -> None:
    attempt = sealed_run.claim(launched)
    sealed_run.ingest(attempt, sealed_run.whole(launched)[:-1])
    retention_set(project=ours, actor=alice, days=1)
    assert traces_expire() == 0


def test_no_proof_before_there_is_a_record(launched: Run, alice: User) -> None:
    sealed_run.finished(launched)
    sample = Sample.objects.select_related("group__run").first()
    assert sample is not None
    with pytest.raises(NoProof, match="no record"):
        disclose(sample=sample, actor=alice)
    seal(launched.pk)
    assert disclose(sample=sample, actor=alice)["sample"]["completion"] == sample.completion


def test_the_pages(
    record: Record, alice: User, bob: User, rita: User, client_for: ClientFor, make_user: Callable[[str], User]
) -> None:
    sample = Sample.objects.select_related("group").get(group__step=1, index=0)
    group = f"/p/ours/runs/{record.run_id}/groups/{sample.group_id}"
    answers = {user: client_for(user).get(f"{group}/samples/0/proof.json").status_code for user in (alice, rita, bob)}
    assert answers == {alice: 200, rita: 200, bob: 403}
    assert client_for(make_user("stranger")).get(f"{group}/samples/0/proof.json").status_code == 404
    assert client_for(rita).get(f"{group}/redact/").status_code == 403
    client = client_for(alice)
    faulty = client.post(f"{group}/redact/", {"reason": "because"})
    assert faulty.status_code == 422
    assert "Choose at least one sample" in faulty.content.decode()
    assert "because" in faulty.content.decode()
    done = client.post(f"{group}/redact/", {"reason": "because", "samples": [sample.pk]}, follow=True)
    assert "The text of 1 sample is deleted" in done.content.decode()
    assert "Text deleted on" in done.content.decode()
    proof = client.get(f"{group}/samples/0/proof.json", follow=True)
    assert "its text was deleted" in proof.content.decode()
    assert client_for(bob).post("/p/ours/retention/", {"days": "3"}).status_code == 403
    kept = client.post("/p/ours/retention/", {"days": "3"}, follow=True)
    assert "3 days after the end of a run" in kept.content.decode()
    assert client.post("/p/ours/retention/", {"days": "0"}).status_code == 422


def test_a_card_issued_again_is_another_zip_of_the_same_record(record: Record, alice: User) -> None:
    first = zipfile.ZipFile(BytesIO(b"".join(artifacts.read_chunks(record.card().artifact))))
    told = json.loads(first.read("record.json"))
    samples_redact(run=record.run, samples=[Sample.objects.earliest("pk")], actor=alice, reason="r")
    cards_renew(run=record.run)
    again = zipfile.ZipFile(BytesIO(b"".join(artifacts.read_chunks(record.card().artifact))))
    assert json.loads(again.read("record.json")) == told
    assert again.read("attestation.dsse.json") != first.read("attestation.dsse.json")
    assert record_seal(run=record.run) == record  # nothing new to say, so no other version
