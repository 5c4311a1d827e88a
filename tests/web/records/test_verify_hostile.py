"""`cohort verify` on zips and texts made to mislead, to crash or to exhaust it: rejected in plain words."""

import io
import json
import random
import struct
import tracemalloc
import warnings
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from cohort.evidence import zip_layout
from cohort.evidence.canonical import canonical, sha256
from cohort.evidence.verify import main
from tests.factories import small_cards
from tests.factories.card_zips import Packer, deflate
from tests.factories.small_cards import (
    UNSAFE,
    Log,
    Sealed,
    card,
    check,
    check_zip,
    entry_info,
    faults,
    packed,
    reissued,
)
from tests.web.records.test_verify_forged import put

LARGE = 16 * 1024**2 + 1


@pytest.fixture
def log() -> Log:
    return Log()


@pytest.fixture
def files(log: Log) -> dict[str, bytes]:
    return card(log)


@pytest.fixture
def rejected(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """What is printed of a card that must be rejected: nothing that steers a terminal, and no traceback."""

    def check_and_read(content: dict[str, bytes] | bytes | io.BytesIO) -> str:
        path = tmp_path / "bad.zip"
        content = packed(content) if isinstance(content, dict) else content
        path.write_bytes(content.getvalue() if isinstance(content, io.BytesIO) else content)
        assert main([str(path)]) == 1
        printed, errors = capsys.readouterr()
        assert errors == ""
        assert not UNSAFE.search(printed)
        assert printed.startswith("changed: ")
        return printed

    return check_and_read


def layout_fault(content: bytes | io.BytesIO) -> str:
    problems = faults(check_zip(content))
    assert list(problems) == ["layout"]
    return problems["layout"]


# ---------------------------------------------------------------------- the zip


def test_contents_that_are_not_what_the_heads_say(files: dict[str, bytes], rejected: Callable[..., str]) -> None:
    packer, content = Packer(files), files["CARD.md"]
    size = len(content)
    for claimed in ({"size": size - 1}, {"size": size + 1}, {"crc": 7}, {"size": 0}, {"size": 2**31 - 1}):
        rejected(packer.zip("CARD.md", content, **claimed))
    for body in (b"", deflate(content)[:-1], b"\xff" * 50, b"\0\0\0\xff\xff" * 9):
        rejected(packer.zip("CARD.md", content, body))
    for hidden in (b"\0", b"x" * 13_000, deflate(b"another end")):
        for name in ("CARD.md", "record.json", "evals/after.jsonl", "proof.tlog-proof"):
            out = packer.zip(name, files[name], deflate(files[name]) + hidden)
            assert f"{name}: something follows its content" in rejected(out)


def test_sizes_beyond_32_bits(rejected: Callable[..., str]) -> None:
    for size, compress_size in ((2**32, 10), (10, 2**32 + 5), (2**33, 2**33), (2**32 - 1, 10)):
        info = zipfile.ZipInfo("record.json")
        info.compress_type, info.header_offset = zipfile.ZIP_DEFLATED, 0
        info.CRC, info.file_size, info.compress_size = 0, size, compress_size
        out = io.BytesIO()
        out.write(info.FileHeader(zip64=max(size, compress_size) >= 2**32))
        archive = zipfile.ZipFile(out, "w")
        archive.filelist.append(info)
        archive._didModify = True  # type: ignore[attr-defined]
        archive.start_dir = out.tell()
        archive.close()
        rejected(out)


def zips_that_are_none(files: dict[str, bytes]) -> Iterator[bytes | io.BytesIO]:
    whole = packed(files)
    ends = ((65535, 0, 0), (1, 2**32 - 1, 0), (0, 0, 0), (65535, 2**31, 2**31), (12, 12, 12))
    for count, length, place in ends:
        yield whole[:-22] + b"PK\x05\x06" + struct.pack("<HHHHLLH", 0, 0, count, count, length, place, 0)
    yield from (whole[:10], whole[:100], whole[:5000])
    yield from (whole + b"\0", whole[:-2] + struct.pack("<H", 3) + b"abc", whole + whole)
    longer = bytearray(whole)
    (directory_at,) = struct.unpack("<L", whole[-6:-2])
    for place in (18, directory_at + 20):
        longer[place : place + 4] = b"\xff\xff\xff\xff"
    yield bytes(longer)
    for comment in (b"hidden", None):
        out = io.BytesIO()
        with zipfile.ZipFile(out, "w") as archive:
            for name, content in files.items():
                info = entry_info(name)
                info.comment = comment or b""
                archive.writestr(info if comment else name, content)
        yield out
    yield packed({"hello.txt": b"hello"})


def test_zips_that_are_not_laid_out_as_a_card(files: dict[str, bytes]) -> None:
    for content in zips_that_are_none(files):
        layout_fault(content)
    out = io.BytesIO(packed(files))
    with zipfile.ZipFile(out, "a") as archive, warnings.catch_warnings(action="ignore"):
        archive.writestr(entry_info("CARD.md"), b"another")
    assert "'CARD.md' is there twice" in layout_fault(out)


def test_any_flipped_byte_of_the_zip_outside_its_contents(files: dict[str, bytes]) -> None:
    whole = packed(files)
    with zipfile.ZipFile(io.BytesIO(whole)) as archive:
        inside: set[int] = set()
        for info in archive.infolist():
            start = info.header_offset + 30 + len(info.filename)
            inside |= set(range(start, start + info.compress_size))
    for place in sorted(set(range(2, len(whole))) - inside):  # the first two say that it is a zip
        bent = bytearray(whole)
        bent[place] ^= 0x10
        assert check_zip(bytes(bent)).exit_status == 1, place


def test_repacking_unchanged_files_is_the_same_card(files: dict[str, bytes]) -> None:
    for level in (0, 1, 9):
        assert check_zip(packed(dict(reversed(files.items())), level)).accepted


# ---------------------------------------------------------------------- bombs


def test_what_is_more_or_larger_than_its_kind_is_refused_unread(files: dict[str, bytes]) -> None:
    most = dict.fromkeys(("record.json", "keys.json", "proof.tlog-proof"), 16_777_216)
    for name, size in {**most, "config.yaml": 2_097_152, "evals/after.jsonl": 536_870_912}.items():
        out = Packer(files).zip(name, files[name], size=size + 1)
        assert layout_fault(out) == f"{name}: larger than {size:,} bytes"
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        for number in range(zip_layout.MAX_ENTRIES + 1):
            archive.writestr(entry_info(f"{number}"), b"")
    assert "more than 65,000 entries" in layout_fault(out)


def measured(content: bytes) -> tuple[dict[str, str], int]:
    """(faults of the card, most bytes of memory that checking it took)."""
    tracemalloc.start()
    problems = faults(check_zip(content))
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return problems, most


def test_a_bomb_is_not_unpacked(files: dict[str, bytes], monkeypatch: pytest.MonkeyPatch) -> None:
    problems, most = measured(packed({**files, "record.json": bytes(LARGE)}))
    assert list(problems) == ["layout"]
    assert most < 4 * 1024**2
    monkeypatch.setattr("cohort.evidence.card_reader.MAX_CARD_BYTES", 1000)
    assert "it would unpack to more than 1,000 bytes" in layout_fault(packed(files))


@pytest.mark.parametrize(
    ("name", "step"),
    [("evals/after.jsonl", "statistics"), ("metrics.jsonl", "steps"), ("commitments.jsonl", "completions")],
)
def test_a_line_without_end_costs_no_memory(
    log: Log, files: dict[str, bytes], monkeypatch: pytest.MonkeyPatch, name: str, step: str
) -> None:
    monkeypatch.setattr("cohort.evidence.card_reader.MAX_LINE_BYTES", 2 * 1024**2)
    problems, most = measured(packed(reissued(log, files, lambda inside: inside.update({name: bytes(LARGE)}))))
    assert problems == {step: f"{name}, line 1: longer than 2,097,152 bytes"}
    assert most < 12 * 1024**2


def test_more_items_or_suites_than_there_can_be(files: dict[str, bytes], monkeypatch: pytest.MonkeyPatch) -> None:
    for limit, most in (("items.MAX_ITEMS", 9), ("verify.numbers.MAX_SUITES", 0)):
        with monkeypatch.context() as patch:
            patch.setattr(f"cohort.evidence.{limit}", most)
            assert f"more than {most}" in faults(check(files))["statistics"]


# ---------------------------------------------------------------------- numbers and text


@pytest.mark.parametrize(
    ("name", "content", "step"),
    [
        ("evals/after.jsonl", b'{"score":1' + b"0" * 5000 + b"}\n", "statistics"),
        ("evals/after.jsonl", b'{"score":' + b"[" * 100_000 + b"}\n", "statistics"),
        ("config.yaml", b"[" * 5000, "config"),
        ("config.yaml", b"\xff", "config"),
    ],
    ids=["a long number", "deep items", "a deep config", "no text"],
)
def test_contents_that_break_readers(
    log: Log, files: dict[str, bytes], rejected: Callable[..., str], name: str, content: bytes, step: str
) -> None:
    printed = rejected(reissued(log, files, lambda inside: inside.update({name: content})))
    assert f"FAILED  {step}: " in printed


@pytest.mark.parametrize("suites", [5, "ab", {"a": 1}, [1], [{"name": ["heldout"]}], [{"name": {}, "margin": 1}]])
def test_suites_of_a_config_that_are_none(log: Log, suites: Any) -> None:
    config = canonical({**small_cards.CONFIG, "eval": {"margin": 0.05, "suites": suites}})

    def named(document: Any) -> None:
        document["sections"]["method"]["config"]["value"] = {"sha256": sha256(config)}

    files = {**small_cards.data_files(), "config.yaml": ("downstream", config)}
    assert check(card(log, Sealed(files=files, change=named))).accepted


def test_text_out_of_a_card_does_not_steer_the_terminal(log: Log, rejected: Callable[..., str]) -> None:
    wipe = "\x1b[2J\x1b[1;1H\r\x9b2K\u202eaccepted\nok      seal: fine\n"

    def steer(document: dict[str, Any]) -> None:
        comparison = document["sections"]["behaviour"]["performance"]["value"][0]
        comparison |= {"suite": wipe, "verdict": wipe}

    made = card(log, Sealed(head={**Sealed().head, "title": wipe}, change=steer))
    printed = rejected(made)
    assert "\\x1b[2J" in printed
    assert not any(line.startswith(("accepted", "ok      seal: fine")) for line in printed.splitlines())
    document = json.loads(made["record.json"])
    listed = {"path": wipe, "sha256": "0" * 64, "size": 1, "audience": "public"}
    for changed in ({**document, wipe: 1}, {**document, "files": [listed]}):
        rejected({**made, "record.json": canonical(changed)})


@pytest.mark.parametrize("value", [2**60, 10**400, -1, 1.5, "1", None, [], {}, True, 1e308, "\ud800"], ids=ascii)
def test_numbers_of_the_record_that_are_none(files: dict[str, bytes], rejected: Callable[..., str], value: Any) -> None:
    for path in ("problems", "margin", "before/correct", "before/truncated", "change/mde", "change/fixed", "suite"):
        document = json.loads(files["record.json"])
        put(document["sections"]["behaviour"]["performance"]["value"][0], {path: value})
        content = json.dumps(document, sort_keys=True, separators=(",", ":")).encode()
        rejected({**files, "record.json": content})


@pytest.mark.parametrize("depth", [80, 300, 900, 50_000])
def test_nested_values(files: dict[str, bytes], rejected: Callable[..., str], depth: int) -> None:
    deep = b"[" * depth + b"]" * depth
    changed = files["record.json"].replace(b'"value":null', b'"value":' + deep, 1)
    assert changed != files["record.json"]
    rejected({**files, "record.json": changed})
    for name in ("record.json", "keys.json", "log-entry.json", "consistency.json", "attestation.dsse.json"):
        rejected({**files, name: deep})
    rejected({**files, "record.json": deep[:depth]})


def test_sealed_files_with_names_of_proofs_or_in_disorder(log: Log) -> None:
    def refusal(change: Callable[[list[Any]], list[Any]]) -> str:
        changed = Sealed(change=lambda document: document.update(files=change(document["files"])))
        return faults(check(card(log, changed)))["sealed files"]

    for name in ("record.json", "log-entry.json", "../evil", "a//b"):
        one = {"path": name, "sha256": "0" * 64, "size": 0, "audience": "internal"}
        assert "cannot be the name" in refusal(lambda files, one=one: sorted([*files, one], key=lambda of: of["path"]))  # type: ignore[misc]
    assert "not sorted" in refusal(lambda files: files[::-1])
    assert "names one twice" in refusal(lambda files: [*files, files[-1]])


# ---------------------------------------------------------------------- anything


def test_random_damage_is_always_told_plainly(files: dict[str, bytes], rejected: Callable[..., str]) -> None:
    """Flipped, lost, doubled and moved bytes of the zip."""
    dice, whole = random.Random(20261122), packed(files)
    for _ in range(150):
        bent = bytearray(whole)
        place, length = dice.randrange(2, len(bent)), dice.choice((1, 2, 50, 5000))
        match dice.randrange(4):
            case 0:
                bent[place] ^= 1 << dice.randrange(8)
            case 1:
                del bent[place : place + length]
            case 2:
                bent[place:place] = bent[place : place + length]
            case 3:
                bent[place:place] = dice.randbytes(length)
        if bytes(bent) == whole:
            continue
        if check_zip(bytes(bent)).accepted:  # a bit behind the last code of a stream
            with zipfile.ZipFile(io.BytesIO(bent)) as archive:
                assert {name: archive.read(name) for name in archive.namelist()} == files
        else:
            rejected(bytes(bent))
