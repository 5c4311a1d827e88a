"""`cohort verify`: accepts a card as it was sealed and rejects every other, without Django."""

import hashlib
import json
import struct
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import rfc8785

from cohort.governance import verify
from cohort.governance.zip_layout import entry_info
from cohort.paths import PACKAGE
from cohort.runs.models import Run
from tests import sealed_run
from tests.forged_card import contents, failed, repack, reseal, sealed_card

pytestmark = pytest.mark.django_db


@pytest.fixture
def card(tmp_path: Path, launch: Callable[..., Run]) -> Path:
    return sealed_card(launch(), tmp_path)


def test_card_as_sealed_is_accepted(card: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert verify.main([str(card)]) == 0
    printed = capsys.readouterr().out
    assert "accepted" in printed
    assert json.loads(contents(card)["record.json"])["seal"] in printed
    assert "heldout: 30.0 % before, 80.0 % after of 100 problems, +50.0 points" in printed
    assert "This does not prove:" in printed
    assert "Nothing is signed yet" in printed
    assert "compliant" not in printed


def test_json_report(card: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert verify.main([str(card), "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    sealed = json.loads(contents(card)["record.json"])
    assert report["accepted"] is True
    assert report["seal"] == sealed["seal"]
    assert [check["name"] for check in report["checks"]] == [
        "archive",
        "record.json",
        "record digest",
        "seal",
        "files",
        "data files",
        "CARD.md",
        "config",
        "steps",
        "statistics",
    ]


def test_the_digests_can_be_computed_with_a_few_lines(card: Path) -> None:
    document = json.loads(contents(card)["record.json"])
    assert hashlib.sha256(rfc8785.dumps(document["record"])).hexdigest() == document["record_digest"]
    seal = document.pop("seal")
    assert hashlib.sha256(rfc8785.dumps(document)).hexdigest() == seal


def test_repacking_unchanged_files_is_accepted(card: Path) -> None:
    assert verify.verify_card(repack(card, contents(card))).accepted


def test_list_of_files_here_is_complete(card: Path) -> None:
    assert sorted(contents(card)) == sorted(sealed_run.CARD_FILES)


@pytest.mark.parametrize("name", sealed_run.CARD_FILES)
def test_one_changed_byte_in_any_file_is_rejected(card: Path, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    files = contents(card)
    size = len(files[name])
    for place in sorted({0, 1, size // 3, size // 2, size - 2, size - 1}):
        for bit in (0x01, 0x20):
            changed = bytearray(files[name])
            changed[place] ^= bit
            assert verify.main([str(repack(card, {**files, name: bytes(changed)}))]) == 1, (place, bit)
            printed = capsys.readouterr().out
            assert "rejected" in printed
            # a change inside the record may show as a digest that does not fit
            assert name in printed or (name == "record.json" and "FAILED" in printed)


@pytest.mark.parametrize("name", [name for name in sealed_run.CARD_FILES if name != "record.json"])
def test_missing_shortened_and_lengthened_files(card: Path, name: str) -> None:
    files = contents(card)
    assert failed(repack(card, {n: c for n, c in files.items() if n != name}))["files"].startswith(
        f"'{name}' is listed"
    )
    assert failed(repack(card, {**files, name: files[name][:-1]}))["files"].startswith(f"{name}: has ")
    assert failed(repack(card, {**files, name: files[name] + b" "}))["files"].startswith(f"{name}: has ")


def test_extra_file_is_rejected(card: Path) -> None:
    assert "not listed" in failed(repack(card, {**contents(card), "extra.txt": b"hello"}))["files"]


def test_doubled_file_is_rejected(card: Path) -> None:
    with zipfile.ZipFile(card, "a") as archive, pytest.warns(UserWarning, match="Duplicate name"):
        archive.writestr(entry_info("CARD.md"), b"another")
    assert "'CARD.md' is there twice" in failed(card)["archive"]


@pytest.mark.parametrize("name", ["../evil", "/etc/evil", "a/../b", "a\\b", "a//b", "./a"])
def test_names_that_lead_elsewhere_are_rejected(card: Path, name: str) -> None:
    assert "is not the name of a file in a card" in failed(repack(card, {**contents(card), name: b"x"}))["archive"]


def test_bytes_hidden_in_the_zip_are_rejected(card: Path) -> None:
    whole = card.read_bytes()
    out = card.with_name("hidden.zip")
    for hidden in (whole + b"\0", whole[:-2] + struct.pack("<H", 3) + b"abc"):
        out.write_bytes(hidden)
        assert "archive" in failed(out)
    with zipfile.ZipFile(out, "w") as archive:
        for name, content in contents(card).items():
            info = entry_info(name)
            info.comment = b"hidden" if name == "CARD.md" else b""
            archive.writestr(info, content)
    assert "archive" in failed(out)


def test_any_flipped_byte_of_the_zip_outside_its_contents_is_rejected(card: Path) -> None:
    whole = card.read_bytes()
    with zipfile.ZipFile(card) as archive:
        inside: set[int] = set()
        for info in archive.infolist():
            start = info.header_offset + 30 + len(info.filename)
            inside |= set(range(start, start + info.compress_size))
    out = card.with_name("flipped.zip")
    for place in sorted(set(range(2, len(whole))) - inside):
        out.write_bytes(whole[:place] + bytes([whole[place] ^ 0x10]) + whole[place + 1 :])
        assert not verify.verify_card(out).accepted, place


def test_bomb_is_not_unpacked(card: Path) -> None:
    files = contents(card)
    huge = bytes(65 * 1024 * 1024)
    assert "CARD.md: has 68157440 bytes" in failed(repack(card, {**files, "CARD.md": huge}))["files"]
    assert failed(repack(card, {**files, "record.json": huge})) == {
        "archive": "record.json: larger than 16,777,216 bytes"
    }


def test_record_that_is_valid_but_not_canonical(card: Path) -> None:
    files = contents(card)
    spaced = json.dumps(json.loads(files["record.json"])).encode()
    assert "not canonical" in failed(repack(card, {**files, "record.json": spaced}))["record.json"]


@pytest.mark.parametrize("content", [b"", b"[]", b"{}", b"\xff", b"[" * 100_000, b'{"schema": "cohort-record/9"}'])
def test_record_that_is_none(card: Path, content: bytes) -> None:
    assert "record.json" in failed(repack(card, {**contents(card), "record.json": content}))


def test_forged_accuracy_is_caught_by_the_items(card: Path) -> None:
    def better(record: dict[str, Any]) -> None:
        (comparison,) = record["behaviour"]["performance"]["value"]
        comparison["after"]["share"] = 0.9

    found = failed(repack(card, reseal(contents(card), better)))
    assert found == {"statistics": "evals: heldout.after.share is 0.8 by the items, and the record says 0.9"}


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("after", "correct"), 81.0),
        (("after", "interval", "low"), 0.5),
        (("change", "difference"), 0.51),
        (("change", "interval", "low"), 0.39),
        (("change", "p_mcnemar"), 0.5),
        (("change", "broken"), 0),
        (("verdict",), "no change seen"),
        (("margin",), 0.9),
        (("problems",), 99),
    ],
)
def test_every_headline_number_is_recomputed(card: Path, path: tuple[str, ...], value: Any) -> None:
    def forge(record: dict[str, Any]) -> None:
        here = record["behaviour"]["performance"]["value"][0]
        for name in path[:-1]:
            here = here[name]
        here[path[-1]] = value

    found = failed(repack(card, reseal(contents(card), forge)))
    assert set(found) == ({"config"} if path == ("margin",) else {"statistics"})


def test_forged_items_are_caught_by_the_record(card: Path) -> None:
    files = contents(card)
    lines = files["evals/after.jsonl"].splitlines(keepends=True)
    lines[99] = lines[99].replace(b'"score":0.0', b'"score":1.0')
    found = failed(repack(card, reseal({**files, "evals/after.jsonl": b"".join(lines)})))
    assert set(found) == {"statistics"}
    dropped = failed(repack(card, reseal({**files, "evals/after.jsonl": b"".join(lines[:99])})))
    assert set(dropped) == {"statistics"}


def test_items_that_are_none_are_a_reason_to_reject_not_an_error(card: Path) -> None:
    files = contents(card)
    for lines in (b"nonsense\n", b"[1]\n", b"{}\n", b'{"suite":"heldout"}\n', b'{"no end":1}', b"5\n"):
        assert "statistics" in failed(repack(card, reseal({**files, "evals/after.jsonl": lines})))
    item = json.loads(files["evals/after.jsonl"].splitlines()[0])
    for wrong in ({"score": 2}, {"score": "1"}, {"score": True}, {"truncated": 0}):
        line = json.dumps({**item, **wrong}).encode() + b"\n"
        assert "statistics" in failed(repack(card, reseal({**files, "evals/after.jsonl": line})))


def test_forged_config_and_steps_are_caught(card: Path) -> None:
    files = contents(card)
    config = files["config.yaml"].replace(b"group_size: 4", b"group_size: 5")
    assert set(failed(repack(card, reseal({**files, "config.yaml": config})))) == {"config"}
    shorter = b"".join(files["metrics.jsonl"].splitlines(keepends=True)[:2])
    assert set(failed(repack(card, reseal({**files, "metrics.jsonl": shorter})))) == {"steps"}


def test_nothing_to_check_is_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert verify.main([str(tmp_path / "none.zip")]) == 2
    assert "No such file" in capsys.readouterr().err
    assert verify.main([str(tmp_path)]) == 2
    (tmp_path / "text.zip").write_text("hello")
    assert verify.main([str(tmp_path / "text.zip")]) == 2
    assert "it is no zip file" in capsys.readouterr().err
    (tmp_path / "empty.zip").write_bytes(b"")
    assert verify.main([str(tmp_path / "empty.zip")]) == 2
    with pytest.raises(SystemExit) as caught:
        verify.main([])
    assert caught.value.code == 2


@pytest.mark.parametrize("keep", [10, 100, 5000])
def test_half_a_card_is_damaged(card: Path, keep: int) -> None:
    card.write_bytes(card.read_bytes()[:keep])
    assert "damaged" in failed(card)["archive"]


def test_another_zip_is_rejected(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "other.zip", "w") as archive:
        archive.writestr("hello.txt", "hello")
    assert "archive" in failed(tmp_path / "other.zip")


def test_verifies_without_django_database_network_or_torch(card: Path) -> None:
    code = (
        "import sys, socket\n"
        "def refuse(*a, **k): raise AssertionError('network')\n"
        "socket.socket.connect = refuse\n"
        "from cohort.governance.verify import main\n"
        "status = main([sys.argv[1]])\n"
        "loaded = {name.partition('.')[0] for name in sys.modules}\n"
        "assert not loaded & {'django', 'torch', 'psycopg', 'celery', 'numpy'}, loaded\n"
        "sys.exit(status)\n"
    )
    root = PACKAGE.parent.parent
    environment = {"PYTHONPATH": f"{PACKAGE.parent}:{root}", "PATH": ""}
    done = subprocess.run(
        [sys.executable, "-c", code, str(card)], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "accepted" in done.stdout
