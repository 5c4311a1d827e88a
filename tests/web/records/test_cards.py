"""The four cards of a sealed record: what each holds, that others can check it, downloads, and issuing them reissue."""

import base64
import hashlib
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from django.db import transaction
from securesystemslib.dsse import Envelope
from securesystemslib.signer import SSlibKey

from cohort.base import artifacts
from cohort.base.environment import environment
from cohort.evidence import pyz
from cohort.evidence.keys import parse_vkey
from cohort.evidence.record import AUDIENCES
from cohort.evidence.verify import verify_card
from cohort.evidence.verify.opened import OUTSIDE
from cohort.records import services
from cohort.records.cards import issue, reissue
from cohort.records.models import Record
from cohort.records.services import record_reissue, record_seal
from cohort.records.status.services import status_issue
from grpo_core.records import types as records
from grpo_core.records.commitments import commit
from tests.factories import sealed_run
from tests.factories.forged import each_changed
from tests.factories.small_cards import faults
from tests.web.records.conftest import World
from tests.web.records.records import (
    TRACES,
    accepted,
    cards_of,
    content_of,
    files_of,
    lines,
    logged,
    platform_keys,
    saved,
    stored,
)
from tests.web.records.scenarios import never_began

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("quick_pdf")]


def fields_of(document: dict[str, Any]) -> list[dict[str, Any]]:
    return [field for part in document["sections"].values() for field in part.values()]


# ---------------------------------------------------------------------- what they hold


def test_each_audience_gets_what_is_for_it(sealed: Record, golden: Callable[[str, Any], None]) -> None:
    cards = cards_of(sealed)
    golden("records/card_files.json", {audience: sorted(files) for audience, files in cards.items()})
    public, internal = cards["public"], cards["internal"]
    alike = [name for name in public if name.startswith("evals/")]
    for name in (*alike, "commitments.jsonl", "record.schema.json", "keys.json", "log-entry.json", "model.sig"):
        assert {files[name] for files in cards.values()} == {internal[name]}, name
    documents = {audience: json.loads(files["record.json"]) for audience, files in cards.items()}
    whole = documents["internal"]
    assert whole == json.loads(sealed.document)
    assert (sealed.seal, sealed.record_root) == (whole["seal"], whole["record_root"])
    stated = sum(field["source"] != "not stated" for field in fields_of(whole))
    assert (sealed.fields_stated, sealed.fields_total) == (stated, len(fields_of(whole)))
    for audience, document in documents.items():
        assert (document["seal"], document["files"]) == (sealed.seal, whole["files"])
        withheld = {field["audience"] for field in fields_of(document) if "withheld" in field}
        assert withheld <= set(AUDIENCES[AUDIENCES.index(audience) + 1 :])  # type: ignore[arg-type]
    for file in whole["files"]:
        content = internal[file["path"]]
        assert (len(content), hashlib.sha256(content).hexdigest()) == (file["size"], file["sha256"])
    for card in sealed.cards.all():
        content = content_of(card)
        assert (len(content), hashlib.sha256(content).hexdigest()) == (card.size, card.sha256)
        assert (card.issue, card.reason, card.checkpoint_size) == (1, "", sealed.card().checkpoint_size)
    (body,) = logged("record_sealed")
    assert body == json.loads(public["log-entry.json"])
    assert set(body["data"]["attestations"]) == set(AUDIENCES)
    assert (body["data"]["seal"], body["subject"]) == (sealed.seal, f"run:{sealed.run_id}")
    assert body["data"]["run_root"] == sealed.run_root


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
    committed = [(line["attempt"], line["step"], line["count"]) for line in lines(cards["public"]["commitments.jsonl"])]
    assert committed == [(1, 1, 8), (1, 2, 8), (1, 3, 8)]


def test_a_completion_that_no_database_keeps_as_it_is_fits_its_commitment(world: World, tmp_path: Path) -> None:
    """Byte-level tokenizers sample NUL. It is stored as U+FFFD, and that is what the trainer commits to."""
    run = world.launch()
    reported = sealed_run.whole(run)
    index = next(index for index, record in enumerate(reported) if record.kind == "commitments")
    group = reported[index + 1]
    assert isinstance(group, records.Group)
    samples = tuple(sample.model_copy(update={"completion": f"a\x00b {sample.index}"}) for sample in group.samples)
    groups = [group.model_copy(update={"samples": samples, "index": number}) for number in (0, 1)]
    (reported[index + 1], _), reported[index] = commit(groups)
    record = record_seal(run=sealed_run.finished(run, reported))
    assert accepted(record.card(), tmp_path)
    assert "a\ufffdb 0".encode() in files_of(record.card())[TRACES]


def test_a_run_without_weights_has_no_statement_of_them(world: World) -> None:
    record = record_seal(run=never_began(world.launch()))
    for files in cards_of(record).values():
        assert "model.sig" not in files
        assert not any(name.startswith("evals/") for name in files)
        assert files["commitments.jsonl"] == b""
    assert record.run_root == issue.run_root_of([])


# ---------------------------------------------------------------------- that they can be checked


def test_attestations_verify_with_another_library(sealed: Record) -> None:
    for audience, files in cards_of(sealed).items():
        (vkey,) = json.loads(files["keys.json"])["keys"]
        key = parse_vkey(vkey)
        known = SSlibKey(key.key_id, "ed25519", "ed25519", {"public": key.public.hex()})
        envelope = Envelope.from_dict(json.loads(files["attestation.dsse.json"]))
        assert set(envelope.verify([known], 1)) == {key.key_id}
        statement = json.loads(base64.b64decode(json.loads(files["attestation.dsse.json"])["payload"]))
        assert statement["predicate"] == {"seal": sealed.seal, "audience": audience, "issue": 1} | {
            "reason": "",
            "platform": environment().public_url,
        }
        subjects = {subject["name"]: subject["digest"]["sha256"] for subject in statement["subject"]}
        assert subjects.pop("weights/model.safetensors") == "9" * 64
        assert set(subjects) == set(files) - OUTSIDE


@pytest.mark.parametrize(
    "audience", [pytest.param(name, marks=[] if name == "internal" else pytest.mark.slow) for name in AUDIENCES]
)
def test_verify_takes_the_card_and_none_that_was_changed(sealed: Record, tmp_path: Path, audience: str) -> None:
    path = saved(sealed.card(audience), tmp_path)
    report = verify_card(path, platform_keys())
    assert (report.exit_status, report.seal) == (0, sealed.seal), faults(report)
    (statistics,) = [check.detail for check in report.checks if check.name == "statistics"]
    assert statistics.startswith("heldout: 30.0 % before, 80.0 % after of 100 problems, +50.0 points")
    for name, changed in each_changed(path):
        assert verify_card(changed).exit_status == 1, name


def test_a_second_card_proves_that_the_log_only_grew(sealed: Record, world: World, tmp_path: Path) -> None:
    second = sealed_run.sealed(world.launch(name="another"))
    older, newer = (saved(record.card("public"), tmp_path) for record in (sealed, second))
    with older.open("rb") as first, newer.open("rb") as other:
        assert verify_card(newer, replace(platform_keys(), older=first)).exit_status == 0
        assert list(faults(verify_card(older, replace(platform_keys(), older=other)))) == ["older card"]


# ---------------------------------------------------------------------- downloads (who may: tests/cases/access/)


def test_downloads_are_logged_and_cached(sealed: Record, world: World) -> None:
    base = f"/p/ours/runs/{sealed.run_id}/record"
    url, client, card = f"{base}/1/1/card-authority.zip", world.client("rita"), sealed.card("authority")
    status_issue(record=sealed)
    response = client.get(url)
    content = b"".join(response)
    before, directory = content_of(card), content_of(card).index(b"PK\x01\x02")
    assert content[:directory] == before[:directory]
    assert response["Content-Disposition"].endswith('-authority.zip"')
    assert response["Content-Length"] == str(len(content))
    assert client.get(url, headers={"If-None-Match": response["ETag"]}).status_code == 304
    assert client.head(url).status_code == 200
    (body,) = logged("card_downloaded")
    assert (body["actor"], body["subject"]) == ("user:rita", f"record:{sealed.pk}")
    assert body["data"] == {"audience": "authority", "issue": 1, "sha256": card.sha256}
    for person in ("bob", "rita", "alice"):  # whoever names no audience gets what is for anyone
        for path in ("card.zip", "1/card.zip"):
            assert world.client(person).get(f"{base}/{path}")["ETag"].startswith(f'"{sealed.card("public").sha256}-')
    assert client.get(f"{base}/verify.pyz").content == pyz.build()


def test_an_earlier_issue_that_was_deleted_says_why(sealed: Record, world: World) -> None:
    record_reissue(record=sealed, reason="A sample was redacted.")
    artifacts.remove(sealed.cards.get(audience="internal", issue=1).artifact)
    status_issue(record=sealed)
    url, client = f"/p/ours/runs/{sealed.run_id}/record/1/1/card-internal.zip", world.client("rita")
    response = client.get(f"{url}?issue=1")
    assert (response.status_code, b"A sample was redacted." in response.content) == (410, True)
    assert client.get(url)["ETag"].startswith(f'"{sealed.cards.get(audience="internal", issue=2).sha256}-')


# ---------------------------------------------------------------------- issued again


def test_issuing_again_that_fails_leaves_the_earlier_cards(sealed: Record, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as broken:
        broken.setattr(services, "_card_rows", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            record_reissue(record=sealed, reason="x")
    assert len(stored(sealed.run_id)) == sealed.cards.count() == 4


def test_rows_that_were_stored_keep_their_files(sealed: Record, monkeypatch: pytest.MonkeyPatch) -> None:
    """The answer to COMMIT was lost: the cards are issued."""

    @contextmanager
    def and_cut() -> Iterator[None]:
        with transaction.atomic():
            yield
        raise ConnectionError("cut")

    monkeypatch.setattr(services, "transaction", SimpleNamespace(atomic=and_cut))
    issued = record_reissue(record=sealed, reason="x")
    assert [card.issue for card in issued] == [2, 2, 2, 2]
    assert all(artifacts.exists(card.artifact) for card in issued)


def test_what_a_killed_process_left_is_removed_by_the_next(sealed: Record) -> None:
    run_id = sealed.run_id
    other, left = (f"cards/{name}-0123456789abcdef-2-01234567-internal.zip" for name in (f"{run_id}1", run_id))
    half = f"{left}.0123456789abcdef0123456789abcdef.part"
    for key in (left, other, half):
        artifacts.put(key, [b"a completion"])
    issued = record_reissue(record=sealed, reason="x")
    assert [artifacts.exists(key) for key in (half, left, other)] == [False, False, True]
    assert all(artifacts.exists(card.artifact) for card in (*sealed.cards.all(), *issued))
    artifacts.remove(other)


def test_a_stored_card_that_was_changed_is_not_issued_again(sealed: Record) -> None:
    key = sealed.card().artifact
    artifacts.remove(key)
    with pytest.raises(reissue.NotToBeIssued):
        record_reissue(record=sealed, reason="x")
    artifacts.put(key, artifacts.read_chunks(sealed.card("public").artifact))
    with pytest.raises(Exception, match=r"config\.yaml"):
        record_reissue(record=sealed, reason="x")
    assert sealed.cards.count() == 4


def test_parts_of_traces_are_read_in_their_order() -> None:
    blocks = ("000001-000100", "000001-000100-2", "000001-000100-10", "000101-000200", "1000001-1000100")
    names = [f"traces/steps-{block}.jsonl" for block in blocks]
    assert sorted(sorted(names), key=reissue._steps) == names != sorted(names)
