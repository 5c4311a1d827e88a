"""Results of lm-evaluation-harness and Inspect, from files that those tools wrote themselves: stored as stated, shown
beside the run's own, and what is odd refused by name.

tests/web/imported holds what lm-evaluation-harness 0.4.13 (its dummy model on 12 sums; configs and environment taken
out) and Inspect 0.3.285 (a mock model on 8 sums) wrote. Inspect packs its zip by zstandard.
"""

import io
import json
import struct
import tracemalloc
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import zstandard
from django.core.files.uploadedfile import SimpleUploadedFile
from django.db import DatabaseError, connection, transaction
from django.test import Client

from cohort.accounts.models import User
from cohort.audit.models import AuditEntry
from cohort.runs.imports import BadImport, Found, Upload, read_uploads
from cohort.runs.imports.bounds import MAX_DOCUMENT_BYTES
from cohort.runs.models import ImportedResult, Run
from tests.web.run_page import page_of, words
from tests.web.run_rows import Maker

ClientFor = Callable[[User], Client]
HERE = Path(__file__).parent / "imported"
RESULTS, SAMPLES = sorted(HERE.glob("results_*")), sorted(HERE.glob("samples_*"))
STDERR = 0.1486470975026408
"""√(7/12 · 5/12 / 11) of 7 right of 12, as the harness has it."""


def lm_eval() -> dict[str, Any]:
    content: dict[str, Any] = json.loads(RESULTS[0].read_text())
    return content


def inspect_header() -> dict[str, Any]:
    header: dict[str, Any] = json.loads(member((HERE / "sums.eval").read_bytes(), "header.json"))
    return header


def member(content: bytes, name: str) -> bytes:
    """A file of a zip that was packed by zstandard."""
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        entry = archive.getinfo(name)
    lengths = struct.unpack("<HH", content[entry.header_offset + 26 : entry.header_offset + 30])
    start = entry.header_offset + 30 + sum(lengths)
    packed = content[start : start + entry.compress_size]
    return zstandard.ZstdDecompressor().decompressobj().decompress(packed)


def zipped(method: int = zipfile.ZIP_DEFLATED, **members: bytes) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", method) as archive:
        for name, content in members.items():
            archive.writestr(name.replace("_json", ".json"), content)
    return buffer.getvalue()


def read(*files: tuple[str, bytes]) -> list[Found]:
    return read_uploads([Upload(name, content) for name, content in files])[1]


def as_json(content: Any) -> bytes:
    return json.dumps(content).encode()


def send(client: Client, run: Run, *files: tuple[str, bytes], phase: str = "after") -> Any:
    sent = [SimpleUploadedFile(name, content) for name, content in files]
    return client.post(f"/p/ours/runs/{run.pk}/evaluations/import/", {"phase": phase, "upload": sent})


@pytest.fixture
def run(maker: Maker) -> Run:
    return maker.run(state="succeeded")


# ---------------------------------------------------------------------- what is read


def test_lm_eval_results_with_their_samples() -> None:
    found = read((RESULTS[0].name, RESULTS[0].read_bytes()), (SAMPLES[0].name, SAMPLES[0].read_bytes()))
    assert [(one.task, one.metric, one.n, one.higher_is) for one in found] == [
        ("sums", "acc,none", 12, "better"),
        ("sums", "acc_norm,none", 12, "better"),
    ]
    assert found[0].value == pytest.approx(7 / 12)
    assert found[0].stderr == pytest.approx((7 / 12 * 5 / 12 / 11) ** 0.5)
    assert found[0].samples is not None
    assert (found[0].samples["n"], found[0].samples["mean"]) == (12, pytest.approx(7 / 12))
    assert found[0].facts["lm_eval_version"] == "0.4.13"
    assert found[0].facts["task_hash"] == lm_eval()["task_hashes"]["sums"]
    assert (found[0].facts["version"], found[0].facts["n_shot"]) == (1.0, 0)


def test_an_inspect_log_packed_by_zstandard() -> None:
    (found,) = read(("sums.eval", (HERE / "sums.eval").read_bytes()))
    assert (found.task, found.metric, found.value, found.n) == ("sums", "match/accuracy", 0.75, 8)
    assert found.stderr == pytest.approx((0.75 * 0.25 / 7) ** 0.5)
    assert found.samples == {"n": 8, "mean": 0.75, "sha256": None}
    assert (found.facts["inspect_ai"], found.facts["task_version"]) == ("0.3.285", 3)


def test_an_inspect_log_packed_otherwise_and_as_json() -> None:
    header = as_json(inspect_header())
    summaries = member((HERE / "sums.eval").read_bytes(), "summaries.json")
    for method in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        (found,) = read(("a.eval", zipped(method, header_json=header, summaries_json=summaries)))
        assert (found.value, found.samples) == (0.75, {"n": 8, "mean": 0.75, "sha256": None})
    (found,) = read(("a.json", header))
    assert (found.value, found.samples) == (0.75, None)


def test_what_a_group_lacks_is_left_out() -> None:
    content = lm_eval()
    content["results"]["group"] = {"alias": "group", "acc,none": " ", "acc_stderr,none": "N/A"}
    content["results"]["sums"]["acc_stderr,none"] = "N/A"
    found = read(("results_1.json", as_json(content)))
    assert [one.metric for one in found] == ["acc,none", "acc_norm,none"]
    assert (found[0].stderr, found[1].stderr) == (None, pytest.approx(STDERR))


# ---------------------------------------------------------------------- what is refused


def changed(**parts: Any) -> bytes:
    return as_json({**lm_eval(), **parts})


def logged(**parts: Any) -> bytes:
    return as_json({**inspect_header(), **parts})


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ([("a.json", b"not json")], "a.json is not JSON"),
        ([("a.json", b"\xff\xfe{}")], "a.json is not UTF-8"),
        ([("a.json", b"[1]")], "is JSON, but not an object"),
        ([("a.json", b'{"results": {}}')], "neither a log of Inspect"),
        ([("a.json", b'{"a": 1, "a": 2}')], "the field 'a' is given twice"),
        ([("a.json", b'{"a": ' * 100_000)], "nested too deep"),
        ([("a.json", b'{"a": ' + b"9" * 5000 + b"}")], "is not JSON that can be taken"),
        ([("a.json", changed(results={}))], "holds no metric"),
        ([("a.json", changed(results=[1]))], r"results in a.json is \[1\], not an object"),
        ([("a.json", changed(results={"t": {"acc,none": "high"}}))], "acc,none of results.t in a.json is 'high'"),
        ([("a.json", changed(results={"t": {"acc,none": True}}))], "is True, not a number"),
        ([("a.json", changed(results={"t": {"acc,none": 10**30}}))], "is too large a number"),
        ([("a.json", changed(results={"t" * 300: {"acc,none": 1}}))], "expected a name of 1 to 200 characters"),
        ([("a.json", b'{"versions": {}, "results": {"t": {"acc,none": NaN}}}')], "is nan, which is not a finite"),
        ([("a.json", logged(status="error"))], "its status is 'error'"),
        ([("a.json", logged(status="started", results=None))], "its status is 'started'"),
        ([("a.json", logged(version=3))], "version 3 of Inspect's log"),
        ([("a.json", logged(results={"scores": []}))], "holds no scores"),
        ([("a.json", logged(results={"scores": [{"name": "x", "metrics": {"m": {"value": None}}}]}))], "m of results"),
        ([("a.eval", b"PK\x03\x04 nothing more")], "is not a zip that can be read"),
        ([("a.eval", zipped(other_json=b"{}"))], "holds no header.json: it is no log of Inspect"),
        ([("a.eval", zipped(**{"_journal/start_json": b"{}"}))], "the log was not finished"),
        ([("a.eval", zipped(header_json=b"[]"))], "header.json in a.eval is JSON, but not an object"),
        ([("a.json", changed()), ("b.json", changed())], "files that state results here: a.json, b.json"),
        ([("samples_sums_1.jsonl", b"{}")], "files that state results here: none"),
        ([("a.json", logged()), ("samples_sums_1.jsonl", b"{}")], "is of lm-evaluation-harness and a.json is a log"),
        ([("a.json", changed()), ("samples_other_1.jsonl", b"{}")], "is of no task in the results; there are sums"),
        ([("a.json", changed()), ("samples_sums_1.jsonl", b'{"x": 1}')], "line 1 has no doc_id"),
        ([("a.json", changed()), ("samples_sums_1.jsonl", b'{"doc_id": 0}\n')], "holds 1 items of filter none; the"),
        ([("a.json", changed()), ("samples_sums_1.jsonl", b'{"doc_id": 0}\nx')], "line 2 is not JSON"),
    ],
)
def test_odd_and_hostile_files_are_refused_by_name(files: list[tuple[str, bytes]], words: str) -> None:
    with pytest.raises(BadImport, match=words):
        read(*files)


def test_zip_bombs_are_not_unpacked() -> None:
    """Two ways to pack a document that is far too large into a few kilobytes."""
    large = b" " * (MAX_DOCUMENT_BYTES + 1)
    bomb = zipped(header_json=large)
    assert len(bomb) < 50_000
    with pytest.raises(BadImport, match="is more than 33,554,432 bytes when unpacked"):
        read(("a.eval", bomb))
    packed = zstandard.ZstdCompressor().compress(large * 8)
    stored = bytearray(zipped(zipfile.ZIP_STORED, header_json=packed))
    for place, at in ((b"PK\x03\x04", 8), (b"PK\x01\x02", 10)):  # the method, in both headers
        here = stored.index(place) + at
        stored[here : here + 2] = struct.pack("<H", 93)
    tracemalloc.start()
    try:
        with pytest.raises(BadImport, match="is more than 33,554,432 bytes when unpacked"):
            read(("a.eval", bytes(stored)))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 4 * MAX_DOCUMENT_BYTES, "the other half is never unpacked"


def test_a_damaged_or_strange_zip_is_refused() -> None:
    content = (HERE / "sums.eval").read_bytes()
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        entry = archive.getinfo("header.json")
    damaged = bytearray(content)
    for place in range(entry.header_offset + 45, entry.header_offset + 60):
        damaged[place] ^= 0xFF
    with pytest.raises(BadImport, match=r"header\.json in a\.eval is (damaged|not)"):
        read(("a.eval", bytes(damaged)))
    strange = bytearray(zipped(header_json=b"{}"))
    strange[strange.index(b"PK\x01\x02") + 10] = 12
    with pytest.raises(BadImport, match="packed by method 12"):
        read(("a.eval", bytes(strange)))


def test_a_zip_whose_data_or_places_are_wrong_is_refused() -> None:
    content = bytearray(zipped(header_json=b"{}" + b" " * 5000))
    start = content.index(b"header.json") + len("header.json")
    content[start] = 0xFF  # no block of deflate begins so
    with pytest.raises(BadImport, match="is damaged"):
        read(("a.eval", bytes(content)))
    patched = bytearray(zipped(header_json=b"{}"))
    patched[patched.index(b"PK\x03\x04") + 6] |= 0x20
    patched[patched.index(b"PK\x01\x02") + 8] |= 0x20
    with pytest.raises(BadImport, match="is damaged"):
        read(("a.eval", bytes(patched)))


@pytest.mark.parametrize("huge", ["1" + "0" * 400, "1e308"])
def test_numbers_that_sums_cannot_hold_are_left_out(huge: str) -> None:
    results = lm_eval()
    results["results"]["sums"]["acc_stderr,none"] = "HUGE"
    content = json.dumps(results).replace('"HUGE"', huge).encode()
    lines = [json.loads(line) for line in SAMPLES[0].read_text().splitlines()]
    samples = "\n".join(json.dumps(line | {"acc": "HUGE"}) for line in lines).replace('"HUGE"', huge).encode()
    found = read((RESULTS[0].name, content), (SAMPLES[0].name, samples))[0]
    assert found.metric == "acc,none"
    assert found.stderr is None
    assert found.samples is not None
    assert (found.samples["n"], found.samples["mean"]) == (12, None)


# ---------------------------------------------------------------------- stored and shown


def test_an_import_is_stored_as_stated_and_shown_beside(
    client_for: ClientFor, run: Run, oscar: User, bob: User
) -> None:
    client = client_for(oscar)
    files = [(one.name, one.read_bytes()) for one in (*RESULTS, *SAMPLES)]
    assert send(client, run, *files).status_code == 302
    rows = list(ImportedResult.objects.filter(run=run))
    assert [(row.tool, row.task, row.phase, row.metric) for row in rows] == [
        ("lm-evaluation-harness", "sums", "after", "acc,none"),
        ("lm-evaluation-harness", "sums", "after", "acc_norm,none"),
    ]
    assert (rows[0].value, rows[0].n, rows[0].by) == (pytest.approx(7 / 12), 12, oscar)
    page = page_of(client_for(bob), run, "evaluations/")
    text = words(page)
    assert "Imported, not run here" in text
    assert "0.5833333333333334 0.149 12 ✓ the same over 12" in text
    assert rows[0].file_sha256 in page
    assert "import results" not in text, "a viewer cannot"
    entry = json.loads(bytes(AuditEntry.objects.get(kind="results_imported").body))
    assert (entry["actor"], entry["subject"], entry["after"]["results"]) == ("user:oscar", f"run:{run.pk}", 2)


def test_samples_that_say_otherwise_are_marked(client_for: ClientFor, run: Run, oscar: User) -> None:
    content = lm_eval()
    content["results"]["sums"]["acc,none"] = 0.9
    client = client_for(oscar)
    send(client, run, ("results_1.json", as_json(content)), (SAMPLES[0].name, SAMPLES[0].read_bytes()))
    assert "! 0.5833333333333334 over 12" in words(page_of(client, run, "evaluations/"))


def test_a_refused_file_stores_nothing_and_says_why(client_for: ClientFor, run: Run, oscar: User) -> None:
    client = client_for(oscar)
    response = send(client, run, ("a.json", logged(status="error")))
    assert response.status_code == 422
    assert "a.json tells of an evaluation that did not succeed" in response.content.decode()
    assert send(client, run, ("a.json", changed()), phase="").status_code == 422
    assert not ImportedResult.objects.exists()


def test_the_same_file_is_taken_once_for_each_weights(client_for: ClientFor, run: Run, oscar: User) -> None:
    client = client_for(oscar)
    log = ("sums.eval", (HERE / "sums.eval").read_bytes())
    assert send(client, run, log, phase="before").status_code == 302
    again = send(client, run, log, phase="before")
    assert again.status_code == 422
    assert "was imported by oscar" in again.content.decode()
    assert send(client, run, log, phase="after").status_code == 302
    assert ImportedResult.objects.count() == 2


def test_what_was_imported_stays(client_for: ClientFor, run: Run, oscar: User) -> None:
    send(client_for(oscar), run, ("sums.eval", (HERE / "sums.eval").read_bytes()))
    for statement in ("UPDATE runs_importedresult SET value = 1", "DELETE FROM runs_importedresult"):
        with pytest.raises(DatabaseError, match="only added"), transaction.atomic(), connection.cursor() as cursor:
            cursor.execute(statement)
    assert ImportedResult.objects.get().value == 0.75


def test_only_operators_import(client_for: ClientFor, run: Run, bob: User, rita: User, charlie: User) -> None:
    log = ("sums.eval", (HERE / "sums.eval").read_bytes())
    assert send(client_for(bob), run, log).status_code == 403
    assert send(client_for(rita), run, log).status_code == 403
    assert send(client_for(charlie), run, log).status_code == 404
    assert not ImportedResult.objects.exists()


def test_hostile_names_are_shown_harmless(client_for: ClientFor, run: Run, oscar: User) -> None:
    content = lm_eval()
    attack = "<script>alert(1)</script>\u202e"
    content["results"] = {attack: {f"{attack},none": 0.5}}
    content["model_name"] = attack
    client = client_for(oscar)
    assert send(client, run, ("<b>x.json", as_json(content))).status_code == 302
    page = page_of(client, run, "evaluations/")
    assert "<script>alert" not in page
    assert "\u202e" not in page
    assert page.count("&lt;script&gt;alert(1)&lt;/script&gt;") >= 3
