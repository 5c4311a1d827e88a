"""The four cards of a sealed record: what each holds, that others can check it, downloads, and what becomes of cards
and proofs when texts are deleted."""

import base64
import hashlib
import json
import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from django.core.exceptions import ValidationError
from django.db import connection, transaction
from django.db.models.functions import Now
from django.test import Client
from securesystemslib.dsse import Envelope
from securesystemslib.signer import SSlibKey

from cohort import artifacts
from cohort.accounts.models import Project, User
from cohort.evidence import pyz
from cohort.evidence.keys import parse_vkey
from cohort.evidence.record import AUDIENCES
from cohort.evidence.verify import verify_card
from cohort.evidence.verify.command import main as verify
from cohort.governance import services
from cohort.governance.cards import again, attest, making
from cohort.governance.models import Card, Record
from cohort.governance.services import NotToBeIssued, record_reissue, record_seal
from cohort.governance.tasks import expire_traces
from cohort.governance.traces import redaction
from cohort.governance.traces.disclosure import NoProof, disclose
from cohort.governance.traces.redaction import cards_renew, runs_to_renew, samples_redact
from cohort.governance.traces.retention import retention_set, traces_expire
from cohort.review.models import Sample
from cohort.runs.models import Run
from grpo_core import records
from grpo_core.commitments import commit
from tests.factories import forged, sealed_run
from tests.processes import DEADLINE, wait_for
from tests.web.governance.conftest import World
from tests.web.governance.records import accepted, content_of, files_of, lines, logged, put_first_schema, saved, stored
from tests.web.governance.scenarios import never_began

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("quick_pdf")]
Launch = Callable[..., Run]
ClientFor = Callable[[User], Client]
TRACES = "traces/steps-000001-000100.jsonl"


@pytest.fixture
def launched(launch: Launch) -> Run:
    return launch()


@pytest.fixture
def sealed(launched: Run) -> Record:
    return sealed_run.sealed(launched)


def cards_of(record: Record) -> dict[str, dict[str, bytes]]:
    return {audience: files_of(record.card(audience)) for audience in AUDIENCES}


def sample_of(record: Record, step: int = 2, index: int = 1) -> Sample:
    return Sample.objects.select_related("group__run").get(group__run=record.run, group__step=step, index=index)


def redact(record: Record, actor: User, *samples: Sample) -> int:
    return samples_redact(run=record.run, samples=samples or [sample_of(record)], actor=actor, reason="a person asked")


# ---------------------------------------------------------------------- what they hold


def test_each_audience_gets_what_is_for_it(sealed: Record, golden: Callable[[str, Any], None]) -> None:
    cards = cards_of(sealed)
    golden("records/card_files.json", {audience: sorted(files) for audience, files in cards.items()})
    public, internal = cards["public"], cards["internal"]
    alike = [name for name in public if name.startswith("evals/")]
    for name in (*alike, "commitments.jsonl", "record.schema.json", "keys.json", "log-entry.json", "weights.dsse.json"):
        assert {cards[audience][name] for audience in AUDIENCES} == {internal[name]}, name
    documents = {audience: json.loads(files["record.json"]) for audience, files in cards.items()}
    assert {one["seal"] for one in documents.values()} == {sealed.seal}
    assert documents["internal"] == json.loads(sealed.document)
    for audience, document in documents.items():
        assert document["files"] == documents["internal"]["files"]
        fields = [field for part in document["sections"].values() for field in part.values()]
        withheld = {field["audience"] for field in fields if "withheld" in field}
        assert withheld <= set(AUDIENCES[AUDIENCES.index(audience) + 1 :])  # type: ignore[arg-type]
    for file in documents["internal"]["files"]:
        content = internal[file["path"]]
        assert (len(content), hashlib.sha256(content).hexdigest()) == (file["size"], file["sha256"])


def test_names_and_texts_stay_with_those_they_are_for(sealed: Record) -> None:
    cards = cards_of(sealed)
    for name, content in cards["public"].items():
        for text in (sealed_run.HOSTILE.encode(), b"<answer>1</answer>", b"gpu-1"):
            assert text not in content, name
    assert b"gpu-1" in cards["internal"]["events.jsonl"]
    items = lines(cards["public"]["evals/after.jsonl"])
    assert [item["score"] for item in items] == sealed_run.AFTER
    assert set(items[0]) == {"suite", "problem_id", "slice", "cluster", "score", "truncated", "error", "tokens"}
    assert lines(cards["downstream"]["evals/texts-after.jsonl"])[0]["completion"] == sealed_run.HOSTILE
    traces = lines(cards["authority"][TRACES])
    assert [(trace["step"], len(trace["samples"])) for trace in traces] == [(1, 4), (2, 4), (3, 4)]
    assert traces[0]["samples"][1]["completion"] == f"{sealed_run.HOSTILE} 1.1"
    assert all(len(sample["salt"]) == 32 for trace in traces for sample in trace["samples"])
    committed = [(one["attempt"], one["step"], one["count"]) for one in lines(cards["public"]["commitments.jsonl"])]
    assert committed == [(1, 1, 8), (1, 2, 8), (1, 3, 8)]


def test_rows_and_the_log_name_what_is_stored(sealed: Record) -> None:
    for card in sealed.cards.all():
        content = content_of(card)
        assert (len(content), hashlib.sha256(content).hexdigest()) == (card.size, card.sha256)
        assert (card.issue, card.reason) == (1, "")
    (body,) = logged("record_sealed")
    assert set(body["data"]["attestations"]) == set(AUDIENCES)
    assert (body["data"]["seal"], body["subject"]) == (sealed.seal, f"run:{sealed.run_id}")
    entry = json.loads(files_of(sealed.card("public"))["log-entry.json"])
    assert entry == body
    assert sealed.run_root == entry["data"]["run_root"]
    whole = json.loads(sealed.document)
    fields = [field for part in whole["sections"].values() for field in part.values()]
    stated = sum(field["source"] != "not stated" for field in fields)
    assert (sealed.fields_stated, sealed.fields_total) == (stated, len(fields))
    assert (sealed.seal, sealed.record_root) == (whole["seal"], whole["record_root"])


def test_a_completion_that_no_database_keeps_as_it_is_fits_its_commitment(launched: Run, tmp_path: Path) -> None:
    """Byte-level tokenizers sample NUL. It is stored as U+FFFD, and that is what the trainer commits to."""
    told = sealed_run.whole(launched)
    at = next(place for place, one in enumerate(told) if one.kind == "commitments")
    group = told[at + 1]
    assert isinstance(group, records.Group)
    samples = tuple(one.model_copy(update={"completion": f"a\x00b {one.index}"}) for one in group.samples)
    (told[at + 1], _), told[at] = commit(
        [group.model_copy(update={"samples": samples, "index": place}) for place in (0, 1)]
    )
    record = record_seal(run=sealed_run.finished(launched, told))
    assert accepted(record.card(), tmp_path)
    assert "a\ufffdb 0".encode() in files_of(record.card())[TRACES]


def test_a_run_without_weights_has_no_statement_of_them(launched: Run) -> None:
    record = record_seal(run=never_began(launched))
    for files in cards_of(record).values():
        assert "weights.dsse.json" not in files
        assert not any(name.startswith("evals/") for name in files)
        assert files["commitments.jsonl"] == b""
    assert record.run_root == making.run_root_of([])


# ---------------------------------------------------------------------- that they can be checked


def test_attestations_verify_with_another_library(sealed: Record) -> None:
    for audience, files in cards_of(sealed).items():
        (vkey,) = json.loads(files["keys.json"])["keys"]
        key = parse_vkey(vkey)
        known = SSlibKey(key.key_id, "ed25519", "ed25519", {"public": key.public.hex()})
        for name in ("attestation.dsse.json", "weights.dsse.json"):
            assert set(Envelope.from_dict(json.loads(files[name])).verify([known], 1)) == {key.key_id}
        statement = json.loads(base64.b64decode(json.loads(files["attestation.dsse.json"])["payload"]))
        assert statement["predicate"] == {"seal": sealed.seal, "audience": audience, "issue": 1, "reason": ""}
        subjects = {one["name"]: one["digest"]["sha256"] for one in statement["subject"]}
        assert subjects.pop("weights/model.safetensors") == "9" * 64
        assert set(subjects) == set(files) - {attest.FILE, *attest.AFTERWARDS}
    # the weights as model_signing names them: one subject, the SHA-256 over the resources' digests, as 1.1 reads it
    statement = json.loads(base64.b64decode(json.loads(files["weights.dsse.json"])["payload"]))
    assert statement["predicateType"] == "https://model_signing/signature/v1.0"
    whole = hashlib.sha256(bytes([0x99]) * 32).hexdigest()
    assert statement["subject"] == [{"name": f"run-{sealed.run_id}", "digest": {"sha256": whole}}]
    (resource,) = statement["predicate"]["resources"]
    assert resource == {"name": "model.safetensors", "algorithm": "sha256", "digest": "9" * 64}


@pytest.mark.parametrize(
    "audience", [pytest.param(one, marks=[] if one == "internal" else pytest.mark.slow) for one in AUDIENCES]
)
def test_verify_takes_the_card_and_none_that_was_changed(sealed: Record, tmp_path: Path, audience: str) -> None:
    path = saved(sealed.card(audience), tmp_path)
    assert verify_card(path).accepted
    for name, changed in forged.each_changed(path):
        assert not verify_card(changed).accepted, name


def test_a_second_card_proves_that_the_log_only_grew(sealed: Record, launch: Launch) -> None:
    second = sealed_run.sealed(launch(name="another"))
    consistency = json.loads(files_of(second.card("public"))["consistency.json"])
    assert str(sealed.card().checkpoint_size) in consistency["from"]
    assert consistency["size"] == second.card().checkpoint_size
    assert {card.checkpoint_size for card in sealed.cards.all()} == {sealed.card().checkpoint_size}


# ---------------------------------------------------------------------- downloads (who may: test_record_access.py)


def test_downloads_are_logged_and_cached(client_for: ClientFor, sealed: Record, rita: User, bob: User) -> None:
    base = f"/p/ours/runs/{sealed.run_id}/record"
    where = f"{base}/1/1/card-authority.zip"
    answer = client_for(rita).get(where)
    content = b"".join(answer)  # type: ignore[call-overload]
    assert content == content_of(sealed.card("authority"))
    assert answer["Content-Disposition"].endswith('-authority.zip"')
    assert answer["Content-Length"] == str(len(content))
    assert client_for(rita).get(where, headers={"If-None-Match": answer["ETag"]}).status_code == 304
    assert client_for(rita).head(where).status_code == 200
    (body,) = logged("card_downloaded")
    assert (body["actor"], body["subject"]) == ("user:rita", f"record:{sealed.pk}")
    assert body["data"] == {"audience": "authority", "issue": 1, "sha256": sealed.card("authority").sha256}
    for person, widest in ((bob, "downstream"), (rita, "internal")):
        assert client_for(person).get(f"{base}/card.zip")["ETag"] == f'"{sealed.card(widest).sha256}"'
    assert client_for(bob).get(f"{base}/verify.pyz").content == pyz.build()


def test_an_earlier_issue_that_was_deleted_says_why(client_for: ClientFor, sealed: Record, rita: User) -> None:
    record_reissue(record=sealed, reason="A sample was redacted.")
    artifacts.remove(sealed.cards.get(audience="internal", issue=1).artifact)
    where = f"/p/ours/runs/{sealed.run_id}/record/1/1/card-internal.zip"
    answer = client_for(rita).get(f"{where}?issue=1")
    assert answer.status_code == 410
    assert "A sample was redacted." in answer.content.decode()
    newest = sealed.cards.get(audience="internal", issue=2)
    assert client_for(rita).get(where)["ETag"] == f'"{newest.sha256}"'


# ---------------------------------------------------------------------- issued again


def test_issuing_again_that_fails_leaves_the_earlier_cards(sealed: Record, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as broken:
        broken.setattr(services, "_card_rows", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            record_reissue(record=sealed, reason="x")
    assert len(stored(sealed.run)) == sealed.cards.count() == 4
    made = record_reissue(record=sealed, reason="x")
    assert [card.issue for card in made] == [2, 2, 2, 2]


def test_rows_that_were_stored_keep_their_files(sealed: Record, monkeypatch: pytest.MonkeyPatch) -> None:
    """The answer to COMMIT was lost: the cards are issued."""

    @contextmanager
    def and_cut() -> Iterator[None]:
        with transaction.atomic():
            yield
        raise ConnectionError("cut")

    monkeypatch.setattr(services, "transaction", SimpleNamespace(atomic=and_cut))
    made = record_reissue(record=sealed, reason="x")
    assert [card.issue for card in made] == [2, 2, 2, 2]
    assert all(artifacts.exists(card.artifact) for card in made)


def test_what_a_killed_process_left_is_removed_by_the_next(launched: Run) -> None:
    run = sealed_run.finished(launched)
    other = f"cards/{run.pk}1-0123456789abcdef-1-01234567-internal.zip"
    left = [f"cards/{run.pk}-0123456789abcdef-{issue}-01234567-internal.zip" for issue in (1, 2)]
    half = f"{left[0]}.0123456789abcdef0123456789abcdef.part"
    for key in (left[0], other, half):
        artifacts.put(key, [b"a completion"])
    record = record_seal(run=run)
    assert [artifacts.exists(key) for key in (half, left[0], other)] == [False, False, True]
    artifacts.put(left[1], [b"a completion"])
    made = record_reissue(record=record, reason="x")
    assert not artifacts.exists(left[1])
    assert all(artifacts.exists(card.artifact) for card in (*record.cards.all(), *made))
    artifacts.remove(other)


def test_a_stored_card_that_was_changed_is_not_issued_again(sealed: Record) -> None:
    key = sealed.card().artifact
    artifacts.remove(key)
    with pytest.raises(NotToBeIssued):
        record_reissue(record=sealed, reason="x")
    artifacts.put(key, artifacts.read_chunks(sealed.card("public").artifact))
    with pytest.raises(Exception, match=r"config\.yaml"):
        record_reissue(record=sealed, reason="x")
    assert sealed.cards.count() == 4


def test_parts_of_traces_are_read_in_their_order() -> None:
    blocks = ("000001-000100", "000001-000100-2", "000001-000100-10", "000101-000200", "1000001-1000100")
    names = [f"traces/steps-{block}.jsonl" for block in blocks]
    assert sorted(sorted(names), key=again._place) == names
    assert sorted(names) != names


# ---------------------------------------------------------------------- texts that are shown alone, or deleted


def test_a_sample_shown_alone_fits_the_public_card(launched: Run, alice: User, tmp_path: Path) -> None:
    run = sealed_run.finished(launched)
    sample = Sample.objects.select_related("group__run").earliest("pk")
    with pytest.raises(NoProof):
        disclose(sample=sample, actor=alice)  # before there is a record
    sealed = record_seal(run=run)
    told = disclose(sample=sample, actor=alice)
    proof, card = tmp_path / "proof.json", str(saved(sealed.card("public"), tmp_path))
    proof.write_text(json.dumps(told))
    assert verify([card, "--trace", str(proof)]) == 0
    told["sample"]["completion"] += "."
    proof.write_text(json.dumps(told))
    assert verify([card, "--trace", str(proof)]) == 1
    assert len(logged("sample_disclosed")) == 1


def test_deleted_texts_are_in_no_card_and_every_proof_still_holds(sealed: Record, alice: User, tmp_path: Path) -> None:
    other = sample_of(sealed, index=2)
    before, proof = cards_of(sealed), json.loads(json.dumps(disclose(sample=other, actor=alice)))
    gone = [sample_of(sealed, index=index) for index in (0, 1)]
    words = gone[0].completion.encode()
    earlier = [card.artifact for card in Card.objects.all()]
    assert redact(sealed, alice, *gone) == 2
    assert logged("samples_redacted")[0]["reason"] == "a person asked"
    assert runs_to_renew() == [sealed.run_id]
    assert cards_renew(run=sealed.run) == 1
    assert (runs_to_renew(), cards_renew(run=sealed.run)) == ([], 0)
    assert not any(map(artifacts.exists, earlier))
    after = cards_of(sealed)
    for audience, files in after.items():
        assert accepted(sealed.card(audience), tmp_path)
        assert not any(words in content for content in files.values())
        kept = ("record.json", *(one["path"] for one in json.loads(sealed.document)["files"]))
        assert all(content == before[audience][name] for name, content in files.items() if name in kept)
    assert after["internal"][attest.FILE] != before["internal"][attest.FILE]
    shown = lines(after["internal"][TRACES])[1]["samples"]
    assert shown[:2] == [{"index": 0, "redacted": True}, {"index": 1, "redacted": True}]
    assert [one.get("redacted") for one in shown] == [True, True, None, None]
    newest, first = (sealed.cards.get(audience="internal", issue=issue) for issue in (2, 1))
    assert newest.reason
    assert newest.checkpoint_size > first.checkpoint_size
    assert disclose(sample=other, actor=alice) == proof
    with pytest.raises(NoProof):
        disclose(sample=sample_of(sealed, index=0), actor=alice)
    assert record_seal(run=sealed.run) == sealed  # nothing new to say, so no other version


def test_what_a_score_quotes_goes_with_the_text(sealed: Record, alice: User) -> None:
    sample = sample_of(sealed)
    error = "ValueError: no number in 'Ada Lovelace'"
    sample.components = {"a": {"value": 1.0, "detail": "Ada", "error": None}, "b": {"detail": "", "error": error}}
    sample.save(update_fields=["components"])
    redact(sealed, alice, sample)
    sample.refresh_from_db()
    assert sample.components == {
        "a": {"value": 1.0, "detail": "", "error": None},
        "b": {"detail": "", "error": "ValueError"},
    }


@pytest.mark.parametrize("reason", ["", "   ", "x" * 10_001])
def test_no_text_is_deleted_without_a_reason_that_can_be_kept(launched: Run, alice: User, reason: str) -> None:
    run = sealed_run.finished(launched)
    with pytest.raises(ValidationError) as fault:
        samples_redact(run=run, samples=list(Sample.objects.all()), actor=alice, reason=reason)
    assert "reason" in fault.value.message_dict
    with pytest.raises(ValidationError) as fault:
        samples_redact(run=Run(pk=run.pk + 1), samples=list(Sample.objects.all()), actor=alice, reason="r")
    assert "samples" in fault.value.message_dict
    assert not Sample.objects.exclude(redacted_at=None).exists()


def test_texts_are_kept_for_so_many_days_after_the_end(world: World, sealed: Record, tmp_path: Path) -> None:
    retention_set(project=world.ours, actor=world.alice, days=30)
    assert traces_expire() == 0
    Run.objects.update(ended_at=Now() - timedelta(days=31))
    assert (traces_expire(), traces_expire()) == (12, 0)
    assert cards_renew(run=sealed.run) == 1
    assert accepted(sealed.card(), tmp_path)
    for days in (0, 36_501):
        with pytest.raises(ValidationError):
            retention_set(project=world.ours, actor=world.alice, days=days)


def test_a_run_that_goes_on_keeps_its_texts(launched: Run, alice: User, ours: Project) -> None:
    attempt = sealed_run.claim(launched)
    sealed_run.ingest(attempt, sealed_run.whole(launched)[:-1])
    retention_set(project=ours, actor=alice, days=1)
    assert traces_expire() == 0


def test_zips_that_a_cut_process_left_are_deleted_by_the_hourly_task(
    world: World, sealed: Record, monkeypatch: pytest.MonkeyPatch
) -> None:
    earlier = [card.artifact for card in Card.objects.all()]
    redact(sealed, world.alice)
    with monkeypatch.context() as cut:
        cut.setattr(redaction, "_earlier_zips", lambda _: [])
        assert cards_renew(run=sealed.run) == 1
    assert all(map(artifacts.exists, earlier))
    expire_traces()
    assert not any(map(artifacts.exists, earlier))
    assert sealed.card().issue == 2, "nothing is issued once more"
    assert runs_to_renew() == []


def test_a_lost_card_of_one_run_holds_up_no_other(world: World, caplog: pytest.LogCaptureFixture) -> None:
    first, second = (sealed_run.sealed(world.launch()) for _ in range(2))
    for one in (first, second):
        redact(one, world.alice)
    artifacts.remove(first.card().artifact)
    with caplog.at_level(logging.ERROR), pytest.raises(RuntimeError, match=rf"\[{first.run_id}\]"):
        expire_traces()
    assert "no longer stored" in caplog.text
    assert second.card().issue == 2
    assert runs_to_renew() == [first.run_id]


def test_a_card_that_cannot_be_issued_again_is_told_before_a_text_is_deleted(world: World, sealed: Record) -> None:
    """Of the first schema: sealed before an upgrade, with texts in its one card."""
    sample = sample_of(sealed)
    page = f"/p/ours/runs/{sealed.run_id}/groups/{sample.group_id}/redact/"
    warns = "will keep the texts"
    assert warns not in world.client("alice").get(page).content.decode()
    put_first_schema(sealed.run, end=2)
    assert warns in world.client("alice").get(page).content.decode()
    redact(sealed, world.alice)
    expire_traces()
    assert runs_to_renew() == []
    assert sealed.card().issue == 2, "the others are issued again all the same"


@pytest.mark.django_db(transaction=True)
def test_a_card_waits_for_a_redaction_that_has_begun(launch: Launch, alice: User) -> None:
    """It would read a text whose deletion it cannot see."""
    record = sealed_run.sealed(launch())
    begun, go = threading.Event(), threading.Event()

    def in_a_thread(work: Callable[[], Any]) -> threading.Thread:
        def and_close() -> None:
            try:
                work()
            finally:
                connection.close()

        thread = threading.Thread(target=and_close)
        thread.start()
        return thread

    @transaction.atomic
    def slow() -> None:
        redact(record, alice)
        begun.set()
        go.wait()

    def waits() -> bool:
        with connection.cursor() as cursor:
            cursor.execute("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted")
            return bool(cursor.fetchone()[0])

    deleting = in_a_thread(slow)
    try:
        assert begun.wait(DEADLINE)
        issuing = in_a_thread(lambda: record_reissue(record=record, reason="meanwhile"))
        wait_for(waits, "nobody waits for the redaction")
        assert not Card.objects.filter(issue=2).exists()
    finally:
        go.set()
    deleting.join()
    issuing.join()
    assert Card.objects.filter(record=record, audience="internal").count() == 2
    assert b'"redacted":true' in files_of(record.card())[TRACES]


# ---------------------------------------------------------------------- pages


def test_the_pages_of_texts(sealed: Record, alice: User, client_for: ClientFor) -> None:
    sample, client = sample_of(sealed), client_for(alice)
    group = f"/p/ours/runs/{sealed.run_id}/groups/{sample.group_id}"
    assert client.get(f"{group}/samples/1/proof.json").json()["sample"]["completion"] == sample.completion
    faulty = client.post(f"{group}/redact/", {"reason": "because"})
    assert faulty.status_code == 422
    assert "samples" in faulty.context["form"].errors
    assert "because" in faulty.content.decode()
    done = client.post(f"{group}/redact/", {"reason": "because", "samples": [sample.pk]}, follow=True)
    assert "Text deleted on" in done.content.decode()
    sample.refresh_from_db()
    assert sample.completion == ""
    assert client.get(f"{group}/samples/1/proof.json").status_code == 302, "there is none of a deleted text"
    assert client.post("/p/ours/retention/", {"days": "0"}).status_code == 422
    client.post("/p/ours/retention/", {"days": "3"})
    assert Project.objects.get(slug="ours").traces_keep_days == 3
