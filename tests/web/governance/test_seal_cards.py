"""The four cards of a sealed record: what each holds, that readers of other people take them, and that a failure at any
step leaves nothing half done."""

import base64
import hashlib
import json
import zipfile
from collections.abc import Callable, Iterator
from io import BytesIO
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from securesystemslib.dsse import Envelope
from securesystemslib.signer import SSlibKey

from cohort import artifacts
from cohort.audit import services as audit
from cohort.audit.models import AuditEntry
from cohort.environment import environment
from cohort.evidence.keys import parse_vkey
from cohort.evidence.record import AUDIENCES
from cohort.evidence.verify import verify_card
from cohort.governance import services
from cohort.governance.cards import attest, data_files, making
from cohort.governance.cards.making import KeysChanged
from cohort.governance.cards.pack import CardTooLarge
from cohort.governance.models import Card, Record
from cohort.governance.services import record_seal
from cohort.paths import ROOT
from cohort.runs.models import Run, RunState
from grpo_core import records
from grpo_core.commitments import commit
from tests import forged_card, sealed_run

pytestmark = pytest.mark.django_db

Launch = Callable[..., Run]
ALWAYS = {
    "CARD.md", "README.txt", "attestation.dsse.json", "bom.cdx.json", "card.html", "card.pdf", "commitments.jsonl",
    "consistency.json", "evals/after.jsonl", "evals/before.jsonl", "keys.json", "log-entry.json", "proof.tlog-proof",
    "record.json", "record.schema.json", "sheets/eu-documentation-form.md", "sheets/nist-ai-rmf.md", "verify.pyz",
    "weights.dsse.json",
}  # fmt: skip
MORE = {
    "downstream": {"config.yaml", "metrics.jsonl", "evals/texts-after.jsonl", "evals/texts-before.jsonl"},
    "authority": {"manifest.json", "outcome.json", "traces/steps-000001-000100.jsonl"},
    "internal": {"events.jsonl"},
}


@pytest.fixture
def finished(launch: Launch) -> Run:
    return sealed_run.finished(launch())


@pytest.fixture
def sealed(finished: Run) -> Record:
    return record_seal(run=finished)


def files_of(card: Card) -> dict[str, bytes]:
    with zipfile.ZipFile(BytesIO(b"".join(artifacts.read_chunks(card.artifact)))) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def cards_of(record: Record) -> dict[str, dict[str, bytes]]:
    return {audience: files_of(record.card(audience)) for audience in AUDIENCES}


def stored(run: Run) -> list[str]:
    """Files of this run's cards in the artifact store, whole or half."""
    folder = Path(environment().artifacts_url.removeprefix("file://")) / "cards"
    return sorted(path.name for path in folder.glob(f"{run.pk}-*"))


def path_of(record: Record, audience: str, folder: Path) -> Path:
    path = folder / f"{audience}.zip"
    path.write_bytes(b"".join(artifacts.read_chunks(record.card(audience).artifact)))
    return path


# ---------------------------------------------------------------------- what is in them


def test_audiences_are_nested(sealed: Record) -> None:
    cards = cards_of(sealed)
    expected: set[str] = set(ALWAYS)
    for audience in AUDIENCES:
        expected |= MORE.get(audience, set())
        assert set(cards[audience]) == expected, audience
    same = [name for name in cards["public"] if "/" in name or name in ("commitments.jsonl", "record.schema.json")]
    for name in [*same, "keys.json", "log-entry.json", "weights.dsse.json", "verify.pyz"]:
        if not name.startswith("sheets/"):
            assert {cards[audience][name] for audience in AUDIENCES} == {cards["internal"][name]}, name


def test_one_seal_and_what_is_withheld(sealed: Record) -> None:
    documents = {audience: json.loads(files["record.json"]) for audience, files in cards_of(sealed).items()}
    assert {one["seal"] for one in documents.values()} == {sealed.seal}
    assert {json.dumps(one["files"]) for one in documents.values()} == {json.dumps(documents["internal"]["files"])}
    assert documents["internal"] == json.loads(sealed.document)
    assert "withheld" in documents["downstream"]["sections"]["method"]["rationale"]
    assert documents["authority"]["sections"]["method"]["rationale"]["text"] == "not stated"
    schema = json.loads((ROOT / "docs" / "record-schema.json").read_text(encoding="utf-8"))
    for audience, document in documents.items():
        jsonschema.Draft202012Validator(schema).validate(document)
        withheld = {field["audience"] for part in document["sections"].values() for field in part.values()
                    if "withheld" in field}  # fmt: skip
        assert withheld <= set(AUDIENCES[AUDIENCES.index(audience) + 1 :])


def test_names_and_texts_stay_with_those_they_are_for(sealed: Record) -> None:
    cards = cards_of(sealed)
    for name, content in cards["public"].items():
        assert sealed_run.HOSTILE.encode() not in content, name
        assert b"<answer>1</answer>" not in content, name
    assert b"gpu-1" in cards["internal"]["events.jsonl"]
    assert not any(b"gpu-1" in content for content in cards["public"].values())
    items = [json.loads(line) for line in cards["public"]["evals/after.jsonl"].splitlines()]
    assert [item["score"] for item in items] == sealed_run.AFTER
    assert set(items[0]) == {"suite", "problem_id", "slice", "cluster", "score", "truncated", "error", "tokens"}
    texts = [json.loads(line) for line in cards["downstream"]["evals/texts-after.jsonl"].splitlines()]
    assert texts[0]["completion"] == sealed_run.HOSTILE


def test_every_kept_sample_carries_its_salt(sealed: Record) -> None:
    traces = [
        json.loads(line) for line in cards_of(sealed)["authority"]["traces/steps-000001-000100.jsonl"].splitlines()
    ]
    assert [(trace["step"], len(trace["samples"])) for trace in traces] == [(1, 4), (2, 4), (3, 4)]
    assert all(len(sample["salt"]) == 32 for trace in traces for sample in trace["samples"])
    lines = [json.loads(line) for line in cards_of(sealed)["public"]["commitments.jsonl"].splitlines()]
    assert [(line["attempt"], line["step"], line["count"], line["superseded"]) for line in lines] == [
        (1, 1, 8, False), (1, 2, 8, False), (1, 3, 8, False)]  # fmt: skip
    assert sealed.run_root == json.loads(cards_of(sealed)["public"]["log-entry.json"])["data"]["run_root"]


def test_a_completion_that_no_database_keeps_as_it_is_fits_its_commitment(launch: Launch, tmp_path: Path) -> None:
    """Byte-level tokenizers sample NUL. It is stored as U+FFFD, and that is what the trainer commits to."""
    run = launch()
    told = sealed_run.whole(run)
    at = next(place for place, one in enumerate(told) if one.kind == "commitments")
    kept = told[at + 1]
    assert isinstance(kept, records.Group)
    samples = tuple(one.model_copy(update={"completion": f"a\x00b {one.index}"}) for one in kept.samples)
    (kept, _), told[at] = commit([kept.model_copy(update={"samples": samples, "index": place}) for place in (0, 1)])
    told[at + 1] = kept
    record = record_seal(run=sealed_run.finished(run, told))
    assert verify_card(path_of(record, "internal", tmp_path)).accepted
    assert "a\ufffdb 0".encode() in files_of(record.card())["traces/steps-000001-000100.jsonl"]


# ---------------------------------------------------------------------- that they are signed


@pytest.mark.parametrize("audience", AUDIENCES)
def test_attestation_verifies_with_another_library(sealed: Record, audience: str) -> None:
    files = files_of(sealed.card(audience))
    (vkey,) = json.loads(files["keys.json"])["keys"]
    key = parse_vkey(vkey)
    known = SSlibKey(key.key_id, "ed25519", "ed25519", {"public": key.public.hex()})
    for name in ("attestation.dsse.json", "weights.dsse.json"):
        envelope = json.loads(files[name])
        signed = Envelope.from_dict(json.loads(json.dumps(envelope)))
        assert set(signed.verify([known], 1)) == {key.key_id}
    statement = json.loads(base64.b64decode(json.loads(files["attestation.dsse.json"])["payload"]))
    assert statement["predicate"] == {"seal": sealed.seal, "audience": audience, "issue": 1, "reason": ""}
    subjects = {one["name"]: one["digest"]["sha256"] for one in statement["subject"]}
    assert subjects.pop("weights/model.safetensors") == "9" * 64
    assert set(subjects) == set(files) - {attest.FILE, *attest.AFTERWARDS}


def test_weights_are_named_as_model_signing_names_them(sealed: Record) -> None:
    envelope = json.loads(files_of(sealed.card("public"))["weights.dsse.json"])
    statement = json.loads(base64.b64decode(envelope["payload"]))
    assert statement["predicateType"] == "https://model_signing/signature/v1.0"
    # one subject, the SHA-256 over the resources' digests: so model_signing 1.1 reads it
    whole = hashlib.sha256(bytes([0x99]) * 32).hexdigest()
    assert statement["subject"] == [{"name": f"run-{sealed.run_id}", "digest": {"sha256": whole}}]
    (resource,) = statement["predicate"]["resources"]
    assert resource == {"name": "model.safetensors", "algorithm": "sha256", "digest": "9" * 64}


def test_run_without_weights_has_no_statement_of_them(launch: Launch) -> None:
    run = launch()
    run = sealed_run.finish(sealed_run.claim(run), end="failed", code="model_error", message="no such model folder")
    record = record_seal(run=run)
    for files in cards_of(record).values():
        assert "weights.dsse.json" not in files
        assert not any(name.startswith("evals/") for name in files)
        assert files["commitments.jsonl"] == b""
    assert record.run_root == making.run_root_of([])


def test_verify_takes_each_and_none_that_was_changed(sealed: Record, tmp_path: Path) -> None:
    for audience in AUDIENCES:
        path = path_of(sealed, audience, tmp_path)
        report = verify_card(path)
        assert report.accepted, [check.detail for check in report.checks if check.status == "failed"]
        for name, changed in forged_card.each_changed(path):
            assert not verify_card(changed).accepted, (audience, name)


def test_a_second_card_proves_that_the_log_only_grew(sealed: Record, launch: Launch) -> None:
    second = record_seal(run=sealed_run.finished(launch(name="another")))
    consistency = json.loads(files_of(second.card("public"))["consistency.json"])
    first = sealed.card()
    assert str(first.checkpoint_size) in consistency["from"]
    assert consistency["size"] == second.card().checkpoint_size
    assert {card.checkpoint_size for card in sealed.cards.all()} == {first.checkpoint_size}


def test_log_names_every_attestation(sealed: Record) -> None:
    entry = AuditEntry.objects.get(kind="record_sealed")
    body = json.loads(bytes(entry.body))
    assert set(body["data"]["attestations"]) == set(AUDIENCES)
    assert (body["data"]["seal"], body["subject"]) == (sealed.seal, f"run:{sealed.run_id}")
    assert all(files["log-entry.json"] == bytes(entry.body) for files in cards_of(sealed).values())


def test_rows_say_what_is_stored(sealed: Record) -> None:
    for card in sealed.cards.all():
        content = b"".join(artifacts.read_chunks(card.artifact))
        assert len(content) == card.size
        assert hashlib.sha256(content).hexdigest() == card.sha256
        assert (card.issue, card.reason) == (1, "")
    assert len(stored(sealed.run)) == 4


# ---------------------------------------------------------------------- failures


class Struck(Exception):
    pass


def strike(*_: Any, **__: Any) -> Any:
    raise Struck("struck")


STEPS = [
    (services, "collect"), (services, "contents_of"), (services, "issue_cards"), (making, "_common"),
    (making.pyz, "build"), (making.markdown, "card_markdown"), (making.html, "card_html"), (making.pdf, "card_pdf"),
    (making.bom, "bom"), (making.sheets, "eu_sheet"), (making.weights, "weights_envelope"),
    (making.readme, "readme"), (making.attest, "statement"), (making, "_logged"), (making.audit, "prove"),
    (making, "_consistency"), (making.dsse, "envelope"), (making.artifacts, "put"), (services, "_store"),
    (services, "_card_rows"), (services, "run_sealed"),
]  # fmt: skip


@pytest.mark.parametrize(("module", "name"), STEPS, ids=[name for _, name in STEPS])
def test_failure_at_a_step_leaves_nothing_and_the_next_try_seals(
    finished: Run, monkeypatch: pytest.MonkeyPatch, module: Any, name: str
) -> None:
    with monkeypatch.context() as broken:
        broken.setattr(module, name, strike)
        with pytest.raises(Struck):
            record_seal(run=finished)
    finished.refresh_from_db()
    assert not Record.objects.exists()
    assert not Card.objects.exists()
    assert stored(finished) == []
    assert finished.state == RunState.SEALING
    record = record_seal(run=finished)
    assert record.cards.count() == len(stored(finished)) == 4


@pytest.mark.parametrize("cards_before", [1, 3])
def test_a_store_that_is_full_half_way_keeps_none_of_the_cards(
    finished: Run, monkeypatch: pytest.MonkeyPatch, cards_before: int
) -> None:
    real, calls = artifacts.put, []

    def until_full(key: str, chunks: Iterator[bytes]) -> artifacts.Stored:
        calls.append(key)

        def cut() -> Iterator[bytes]:
            yield next(iter(chunks))
            raise OSError(28, "No space left on device")

        return real(key, cut() if len(calls) > cards_before else chunks)

    monkeypatch.setattr(artifacts, "put", until_full)
    with pytest.raises(OSError, match="No space"):
        record_seal(run=finished)
    assert stored(finished) == []


def test_more_items_than_checking_takes_are_not_sealed(finished: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data_files, "MAX_ITEMS", 1)
    with pytest.raises(CardTooLarge, match=r"at most 1 items evaluated (before|after) training"):
        record_seal(run=finished)
    assert stored(finished) == []


def test_run_that_goes_on_meanwhile_keeps_no_card(finished: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    real = services.issue_cards

    def and_go_on(*given: Any) -> Any:
        Run.objects.filter(pk=finished.pk).update(fence=finished.fence + 1)
        return real(*given)

    monkeypatch.setattr(services, "issue_cards", and_go_on)
    with pytest.raises(services.NotEnded, match="went on"):
        record_seal(run=finished)
    assert stored(finished) == []
    assert AuditEntry.objects.filter(kind="record_sealed").count() == 1  # said in docs/card.md: it belongs to no record


def test_key_that_is_replaced_meanwhile(finished: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    told = [(["a"], []), (["a", "b"], ["a to b"])]
    monkeypatch.setattr(audit, "public_keys", lambda: told.pop(0) if told else (["a", "b"], ["a to b"]))
    monkeypatch.setattr(audit, "checkpoint", lambda: None)
    monkeypatch.setattr(audit, "prove", lambda entry: audit.Proof(b"", 0, [], "", 1))
    with pytest.raises(KeysChanged):
        record_seal(run=finished)
    assert stored(finished) == []


def test_live_run_is_not_sealed(launch: Launch) -> None:
    run = launch()
    sealed_run.claim(run)
    with pytest.raises(services.NotEnded, match="is starting"):
        record_seal(run=run)
    assert not Record.objects.exists()
