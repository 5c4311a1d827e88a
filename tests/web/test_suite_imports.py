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
from pathlib import Path
from typing import Any

import pytest
import zstandard
from django.core.files.uploadedfile import SimpleUploadedFile
from django.db import DatabaseError, connection, transaction
from django.test import Client

from cohort.accounts.models import User
from cohort.audit.models import AuditEntry
from cohort.evaluations.imports.bounds import MAX_DOCUMENT_BYTES, BadImport, ToolResult
from cohort.evaluations.services import Upload, read_uploads
from cohort.runs.models import ImportedResult, Run
from tests.factories.runs import Maker
from tests.tables import cases
from tests.web.run_page import page_of, words

HERE = Path(__file__).parent / "imported"
(RESULTS,), (SAMPLES,) = HERE.glob("results_*"), HERE.glob("samples_*")
LOG = (HERE / "sums.eval").read_bytes()
LM_EVAL = ((RESULTS.name, RESULTS.read_bytes()), (SAMPLES.name, SAMPLES.read_bytes()))
INSPECT = ("sums.eval", LOG)
STDERR = (7 / 12 * 5 / 12 / 11) ** 0.5
"""Of 7 right of 12."""


def lm_eval() -> dict[str, Any]:
    content: dict[str, Any] = json.loads(RESULTS.read_text())
    return content


def member(content: bytes, name: str) -> bytes:
    """A file of a zip that was packed by zstandard."""
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        entry = archive.getinfo(name)
    lengths = struct.unpack("<HH", content[entry.header_offset + 26 : entry.header_offset + 30])
    start = entry.header_offset + 30 + sum(lengths)
    return zstandard.ZstdDecompressor().decompressobj().decompress(content[start : start + entry.compress_size])


def zipped(members: dict[str, bytes], method: int = zipfile.ZIP_DEFLATED) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", method) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return buffer.getvalue()


def read(*files: tuple[str, bytes]) -> list[ToolResult]:
    return read_uploads([Upload(name, content) for name, content in files])[1]


def refused(*files: tuple[str, bytes]) -> BadImport:
    with pytest.raises(BadImport) as caught:
        read(*files)
    return caught.value


# ---------------------------------------------------------------------- what is read


def test_lm_eval_results_with_their_samples() -> None:
    results = read(*LM_EVAL)
    assert [(result.task, result.metric, result.n, result.higher_is) for result in results] == [
        ("sums", "acc,none", 12, "better"),
        ("sums", "acc_norm,none", 12, "better"),
    ]
    first = results[0]
    assert (first.value, first.stderr) == (pytest.approx(7 / 12), pytest.approx(STDERR))
    assert first.samples is not None
    assert (first.samples["n"], first.samples["mean"]) == (12, pytest.approx(7 / 12))
    assert first.facts["task_hash"] == lm_eval()["task_hashes"]["sums"]
    assert [first.facts[key] for key in ("lm_eval_version", "version", "n_shot")] == ["0.4.13", 1.0, 0]


def test_an_inspect_log_however_it_is_packed() -> None:
    (result,) = read(INSPECT)
    assert (result.task, result.metric, result.value, result.n) == ("sums", "match/accuracy", 0.75, 8)
    assert result.stderr == pytest.approx((0.75 * 0.25 / 7) ** 0.5)
    assert result.samples == {"n": 8, "mean": 0.75, "sha256": None}
    assert (result.facts["inspect_ai"], result.facts["task_version"]) == ("0.3.285", 3)
    members = {name: member(LOG, name) for name in ("header.json", "summaries.json")}
    for method in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        (again,) = read(("a.eval", zipped(members, method)))
        assert (again.value, again.samples) == (result.value, result.samples)
    (alone,) = read(("a.json", members["header.json"]))
    assert (alone.value, alone.samples) == (0.75, None)


def test_what_a_group_lacks_is_left_out() -> None:
    content = lm_eval()
    content["results"]["group"] = {"alias": "group", "acc,none": " ", "acc_stderr,none": "N/A"}
    content["results"]["sums"]["acc_stderr,none"] = "N/A"
    results = read(("results_1.json", json.dumps(content).encode()))
    assert [result.metric for result in results] == ["acc,none", "acc_norm,none"]
    assert (results[0].stderr, results[1].stderr) == (None, pytest.approx(STDERR))


@pytest.mark.parametrize("huge", ["1" + "0" * 400, "1e308"], ids=["integer", "float"])
def test_numbers_that_sums_cannot_hold_are_left_out(huge: str) -> None:
    results = lm_eval()
    results["results"]["sums"]["acc_stderr,none"] = "HUGE"
    lines = [json.dumps(json.loads(line) | {"acc": "HUGE"}) for line in SAMPLES.read_text().splitlines()]
    content, samples = (text.replace('"HUGE"', huge).encode() for text in (json.dumps(results), "\n".join(lines)))
    result = read((RESULTS.name, content), (SAMPLES.name, samples))[0]
    assert (result.metric, result.stderr) == ("acc,none", None)
    assert result.samples is not None
    assert (result.samples["n"], result.samples["mean"]) == (12, None)


# ---------------------------------------------------------------------- what is refused

FIELDS = ("text", "results", "log", "members", "samples", "code", "names")


@pytest.mark.parametrize(FIELDS, cases("imports/refused", *FIELDS))
def test_odd_and_hostile_files_are_refused_by_name(
    text: str | None, results: Any, log: Any, members: Any, samples: Any, code: str, names: str | None
) -> None:
    files = []
    if text is not None:
        files.append(("a.json", text.encode()))
    if results is not None:
        files.append(("a.json", json.dumps({**lm_eval(), **results}).encode()))
    if log is not None:
        files.append(("a.json", json.dumps({**json.loads(member(LOG, "header.json")), **log}).encode()))
    if members is not None:
        files.append(("a.json", zipped({name: content.encode() for name, content in members.items()})))
    files += [(f"samples_{task}_1.jsonl", lines.encode()) for task, lines in (samples or {}).items()]
    error = refused(*files)
    assert error.code == code
    assert (names or "a.json") in str(error)


@pytest.mark.parametrize(
    ("content", "code"),
    [(b"\xff\xfe{}", "not_utf8"), (b'{"a": ' * 100_000, "too_deep"), (b'{"a": ' + b"9" * 5000 + b"}", "not_json")],
    ids=["UTF-16", "deep", "digits"],
)
def test_bytes_that_are_no_document(content: bytes, code: str) -> None:
    assert refused(("a.json", content)).code == code
    assert refused(("a.json", LM_EVAL[0][1]), ("b.json", content)).code == "one_results_file"


def patched(content: bytes, *changes: tuple[bytes, int, int]) -> bytes:
    """With a byte of its own at so many bytes after the (first) mark."""
    out = bytearray(content)
    for mark, after, byte in changes:
        out[out.index(mark) + after] = byte
    return bytes(out)


LOCAL, CENTRAL = b"PK\x03\x04", b"PK\x01\x02"
EMPTY = zipped({"header.json": b"{}"})
LONG = zipped({"header.json": b"{}" + b" " * 5000})


@pytest.mark.parametrize(
    ("content", "code"),
    [
        (patched(LONG, (b"header.json", len("header.json"), 0xFF)), "damaged"),  # no block of deflate begins so
        (patched(EMPTY, (LOCAL, 6, 0x20), (CENTRAL, 8, 0x20)), "damaged"),  # a flag of patched data
        (patched(EMPTY, (CENTRAL, 10, 12)), "unknown_packing"),
        (patched(EMPTY, (CENTRAL, 8, 0x1)), "encrypted"),
    ],
    ids=["deflate", "flags", "method", "encrypted"],
)
def test_a_damaged_or_strange_zip_is_refused(content: bytes, code: str) -> None:
    assert refused(("a.eval", content)).code == code


def test_damaged_zstandard_is_refused() -> None:
    with zipfile.ZipFile(io.BytesIO(LOG)) as archive:
        start = archive.getinfo("header.json").header_offset
    damaged = bytearray(LOG)
    for at in range(start + 45, start + 60):
        damaged[at] ^= 0xFF
    assert refused(("a.eval", bytes(damaged))).code in ("damaged", "not_json", "not_utf8", "too_large_unpacked")


def test_zip_bombs_are_not_unpacked() -> None:
    """Two ways to pack a document that is far too large into a few kilobytes."""
    large = b" " * (MAX_DOCUMENT_BYTES + 1)
    bomb = zipped({"header.json": large})
    assert len(bomb) < 50_000
    assert refused(("a.eval", bomb)).code == "too_large_unpacked"
    stored = zipped({"header.json": zstandard.ZstdCompressor().compress(large * 8)}, zipfile.ZIP_STORED)
    tracemalloc.start()
    try:
        error = refused(("a.eval", patched(stored, (LOCAL, 8, 93), (CENTRAL, 10, 93))))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert error.code == "too_large_unpacked"
    assert peak < 4 * MAX_DOCUMENT_BYTES, "the other half is never unpacked"


# ---------------------------------------------------------------------- stored and shown


@pytest.fixture
def run(maker: Maker) -> Run:
    return maker.run(state="succeeded")


def send(client: Client, run: Run, *files: tuple[str, bytes], phase: str = "after") -> int:
    sent = [SimpleUploadedFile(name, content) for name, content in files]
    data = {"phase": phase, "upload": sent}
    return client.post(f"/p/ours/runs/{run.pk}/evaluations/import/", data).status_code


def test_an_import_is_stored_as_stated_and_shown_beside(operator: Client, run: Run, oscar: User) -> None:
    assert send(operator, run, *LM_EVAL) == 302
    rows = list(ImportedResult.objects.filter(run=run))
    assert [(row.tool, row.task, row.phase, row.metric) for row in rows] == [
        ("lm-evaluation-harness", "sums", "after", metric) for metric in ("acc,none", "acc_norm,none")
    ]
    assert (rows[0].value, rows[0].n, rows[0].by) == (pytest.approx(7 / 12), 12, oscar)
    page = page_of(operator, run, "evaluations/")
    assert "0.5833333333333334 0.149 12 ✓ the same over 12" in words(page)
    assert rows[0].file_sha256 in page
    entry = json.loads(bytes(AuditEntry.objects.get(kind="results_imported").body))
    assert (entry["actor"], entry["subject"], entry["after"]["results"]) == ("user:oscar", f"run:{run.pk}", 2)
    for statement in ("UPDATE runs_importedresult SET value = 1", "DELETE FROM runs_importedresult"):
        with pytest.raises(DatabaseError, match="only added"), transaction.atomic(), connection.cursor() as cursor:
            cursor.execute(statement)


def test_samples_that_say_otherwise_are_marked(operator: Client, run: Run) -> None:
    content = lm_eval()
    content["results"]["sums"]["acc,none"] = 0.9
    send(operator, run, ("results_1.json", json.dumps(content).encode()), LM_EVAL[1])
    assert "! 0.5833333333333334 over 12" in words(page_of(operator, run, "evaluations/"))


def test_a_file_is_taken_once_for_each_weights(operator: Client, run: Run) -> None:
    assert send(operator, run, ("a.json", b"{}")) == 422
    assert send(operator, run, INSPECT, phase="") == 422
    assert not ImportedResult.objects.exists()
    assert [send(operator, run, INSPECT, phase=phase) for phase in ("before", "before", "after")] == [302, 422, 302]
    assert ImportedResult.objects.count() == 2


def test_hostile_names_are_shown_harmless(operator: Client, run: Run) -> None:
    attack = "<script>alert(1)</script>\u202e"
    content = {**lm_eval(), "results": {attack: {f"{attack},none": 0.5}}, "model_name": attack}
    assert send(operator, run, ("<b>x.json", json.dumps(content).encode())) == 302
    page = page_of(operator, run, "evaluations/")
    assert "<script>alert" not in page
    assert "\u202e" not in page
    assert page.count("&lt;script&gt;alert(1)&lt;/script&gt;") >= 3
