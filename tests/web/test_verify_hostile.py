"""`cohort verify` on cards that somebody made to mislead, to crash or to exhaust it: rejected in plain words."""

import json
import random
import re
import struct
import tracemalloc
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import rfc8785

from cohort.governance import limits, verify
from cohort.governance.markdown import card_markdown
from cohort.governance.schema import Entry, Record, Section
from cohort.governance.zip_layout import entry_info
from cohort.runs.models import Run
from tests import sealed_run
from tests.forged_card import contents, failed, repack, reseal, sealed_card

pytestmark = pytest.mark.django_db


@pytest.fixture
def card(tmp_path: Path, launch: Callable[..., Run]) -> Path:
    return sealed_card(launch(), tmp_path)


def plainly_rejected(path: Path, capsys: pytest.CaptureFixture[str]) -> str:
    """What is printed: nothing that steers a terminal, and no traceback."""
    assert verify.main([str(path)]) == 1
    printed, errors = capsys.readouterr()
    assert errors == ""
    assert not re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e]", printed)
    assert printed.endswith("rejected: this is not the card as it was sealed\n")
    return printed


# ---------------------------------------------------------------------- what people read


def test_reading_copy_must_say_what_the_record_says(card: Path) -> None:
    files = contents(card)
    files["CARD.md"] = files["CARD.md"].replace(b"80.0 %", b"99.0 %")
    assert failed(repack(card, reseal(files, rewrite=False))) == {
        "CARD.md": "CARD.md: is not what record.json says in words"
    }


def test_a_changed_html_copy_changes_the_seal_that_is_shown(card: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = contents(card)
    seal = json.loads(files["record.json"])["seal"]
    files["card.html"] = files["card.html"].replace(b"80.0 %", b"99.0 %")
    assert verify.main([str(repack(card, reseal(files)))]) == 0
    printed = capsys.readouterr().out
    assert seal not in printed
    assert "Compare the seal with the one on the record's page." in printed
    # the digest that would have stayed the same is shown nowhere
    assert json.loads(files["record.json"])["record_digest"] not in printed + files["card.html"].decode()


LATER = {"subject": ["attempts", "steering", "earlier_records"], "budget": ["superseded"]}
"""Fields that the first records of this schema did not have."""


@pytest.mark.parametrize(("later", "digest"), [(False, "04d5923f"), (True, "ca1326b5")], ids=["first", "now"])
def test_what_a_record_reads_like_is_part_of_its_format(later: bool, digest: str) -> None:
    """A card sealed today must verify tomorrow. When this fails, CARD.md of sealed cards would differ: keep its words
    for records of this schema, or give the schema a new name."""
    fields: dict[str, Any] = {
        "title": "Run *one*",
        "sealed_at": "2026-11-05T14:02:03Z",
        "state": "succeeded",
        "data_files_digest": "0" * 64,
    }
    for section in Section.__subclasses__():
        entries = {}
        among = LATER.get(section.__name__.lower(), [])
        first = [name for name in section.model_fields if name not in among]
        for place, name in enumerate([*first, *(among if later else [])]):
            evidence = ("recomputable", "reported", "declared", "stated", "none")[place % 5]
            source = ("measured", "measured", "config", "stated by alice", "not stated")[place % 5]
            entries[name] = {"value": None, "text": f"{name} <b>", "source": source, "evidence": evidence, "note": "n."}
        fields[section.__name__.lower()] = entries
    assert Entry.model_validate(fields["reward"]["domain"])
    span = {"low": 0.5, "high": 0.9}
    side = {"correct": 7.0, "share": 0.7, "interval": span, "truncated": 0, "errors": 0}
    change = {"difference": -0.05, "interval": {"low": -0.2, "high": 0.1}, "fixed": 1, "broken": 2, "both_right": 6,
              "both_wrong": 1, "p_mcnemar": 1.0, "mde": 0.2}  # fmt: skip
    fields["behaviour"]["performance"]["value"] = [
        {"suite": "held|out", "problems": 1000, "before": side, "after": side, "change": change, "margin": 0.05,
         "verdict": "undecided at margin 5", "protocol": {}},
        {"suite": "once", "problems": 10, "before": side, "after": None, "change": None, "margin": 0.05,
         "verdict": "evaluated once only", "protocol": {}},
    ]  # fmt: skip
    made = card_markdown(Record.model_validate(fields)).encode()
    assert f"{zlib.crc32(made):08x}" == digest, made.decode()


# ---------------------------------------------------------------------- the zip


def raw_zip(path: Path, packed: dict[str, bytes], sizes: dict[str, tuple[int, int]]) -> Path:
    """A zip laid out as a card is, with these compressed bytes; `sizes` gives (size, CRC) as its heads state them."""
    body, directory = b"", b""
    for name, content in packed.items():
        size, crc = sizes[name]
        shared = struct.pack("<HHHHLLLHH", 0, 8, 0, 33, crc, len(content), size, len(name), 0)
        directory += b"PK\x01\x02" + struct.pack("<BBH", 20, 3, 20) + shared
        directory += struct.pack("<HHHLL", 0, 0, 0, 0o644 << 16, len(body)) + name.encode()
        body += b"PK\x03\x04" + struct.pack("<H", 20) + shared + name.encode() + content
    count = len(packed)
    end = b"PK\x05\x06" + struct.pack("<HHHHLLH", 0, 0, count, count, len(directory), len(body), 0)
    out = path.with_name("raw.zip")
    out.write_bytes(body + directory + end)
    return out


def deflate(content: bytes) -> bytes:
    packer = zlib.compressobj(9, zlib.DEFLATED, -15)
    return packer.compress(content) + packer.flush()


def packed_files(path: Path) -> tuple[dict[str, bytes], dict[str, tuple[int, int]]]:
    files = contents(path)
    return {n: deflate(c) for n, c in files.items()}, {n: (len(c), zlib.crc32(c)) for n, c in files.items()}


def test_bytes_behind_the_end_of_a_content_are_found(card: Path, capsys: pytest.CaptureFixture[str]) -> None:
    packed, sizes = packed_files(card)
    assert verify.verify_card(raw_zip(card, packed, sizes)).accepted
    for hidden in (b"\0", b"x" * 13_000, deflate(b"another end")):
        for name in ("CARD.md", "record.json", "evals/after.jsonl"):
            out = raw_zip(card, {**packed, name: packed[name] + hidden}, sizes)
            assert f"{name}: something follows its content" in plainly_rejected(out, capsys)


def test_contents_that_are_not_what_the_heads_say(card: Path, capsys: pytest.CaptureFixture[str]) -> None:
    packed, sizes = packed_files(card)
    size, crc = sizes["CARD.md"]
    for wrong in ((size - 1, crc), (size + 1, crc), (size, crc ^ 1), (0, crc), (2**31, crc)):
        plainly_rejected(raw_zip(card, packed, {**sizes, "CARD.md": wrong}), capsys)
    for content in (b"", packed["CARD.md"][:-1], packed["CARD.md"][:100], b"\xff" * 50, b"\0\0\0\xff\xff" * 9):
        plainly_rejected(raw_zip(card, {**packed, "CARD.md": content}, sizes), capsys)


def test_sizes_beyond_32_bits_are_rejected(card: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for size, compress_size in ((2**32, 10), (10, 2**32 + 5), (2**33, 2**33), (2**32 - 1, 10)):
        info = zipfile.ZipInfo("record.json")
        info.compress_type, info.header_offset = zipfile.ZIP_DEFLATED, 0
        info.CRC, info.file_size, info.compress_size = 0, size, compress_size
        head = info.FileHeader(zip64=max(size, compress_size) >= 2**32)
        out = card.with_name("wide.zip")
        with out.open("wb") as handle:
            handle.write(head)
            archive = zipfile.ZipFile(handle, "w")
            archive.filelist.append(info)
            archive._didModify = True  # type: ignore[attr-defined]
            archive.start_dir = handle.tell()
            archive.close()
        plainly_rejected(out, capsys)


def test_a_content_longer_than_the_zip_is_rejected(card: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Both heads of the first file agree that 4 GiB follow; the next file's place would not fit its 32 bits."""
    damaged = bytearray(card.read_bytes())
    (directory_at,) = struct.unpack("<L", damaged[-6:-2])
    for place in (18, directory_at + 20):
        damaged[place : place + 4] = b"\xff\xff\xff\xff"
    card.write_bytes(damaged)
    assert verify.main([str(card)]) == 1
    assert "is longer than the zip" in capsys.readouterr().out


def test_end_record_that_asks_for_more_than_is_there(card: Path, capsys: pytest.CaptureFixture[str]) -> None:
    whole = card.read_bytes()
    for count, length, place in ((65535, 0, 0), (1, 2**32 - 1, 0), (0, 0, 0), (65535, 2**31, 2**31), (12, 12, 12)):
        end = b"PK\x05\x06" + struct.pack("<HHHHLLH", 0, 0, count, count, length, place, 0)
        card.write_bytes(whole[:-22] + end)
        plainly_rejected(card, capsys)


def test_many_entries_are_refused_before_they_are_read(card: Path) -> None:
    out = card.with_name("many.zip")
    with zipfile.ZipFile(out, "w") as archive:
        for number in range(limits.MAX_ENTRIES + 1):
            archive.writestr(entry_info(f"{number}"), b"")
    assert "more than 65,000 entries" in failed(out)["archive"]


# ---------------------------------------------------------------------- bombs


def test_a_line_without_end_costs_neither_memory_nor_time(card: Path) -> None:
    for name, check in (("evals/after.jsonl", "statistics"), ("metrics.jsonl", "steps")):
        huge = bytes(100 * 1024**2)
        files = reseal({**contents(card), name: huge})
        out = repack(card, files)
        del huge, files
        tracemalloc.start()
        found = failed(out)
        most = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert found == {check: f"{name}, line 1: longer than 16,777,216 bytes"}
        assert most < 60 * 1024**2


def test_more_than_a_card_holds_is_refused_unread(card: Path) -> None:
    packed, sizes = packed_files(card)
    wide = {**sizes, "evals/after.jsonl": (limits.MAX_LINES_BYTES + 1, 0)}
    assert failed(raw_zip(card, packed, wide)) == {"archive": "evals/after.jsonl: larger than 536,870,912 bytes"}
    wide = {**sizes, "events.jsonl": (1_500_000_000, 0), "manifest.json": (1_500_000_000, 0)}
    assert failed(raw_zip(card, packed, wide)) == {"archive": "it would unpack to more than 2,000,000,000 bytes"}


def test_more_items_than_an_evaluation_has_are_refused(card: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cohort.governance.compare.MAX_ITEMS", 99)
    assert "more than 99 items" in failed(card)["statistics"]


# ---------------------------------------------------------------------- numbers and text


@pytest.mark.parametrize(
    "wrong",
    ['"score":1' + "0" * 400, '"score":1e999', '"score":NaN', '"score":-1', '"score":1' + "0" * 5000,
     '"score":' + "[" * 100_000, '"problem_id":"' + "x" * 1000 + '"', '"problem_id":"\\ud800"'],
)  # fmt: skip
def test_items_no_evaluation_writes(card: Path, wrong: str, capsys: pytest.CaptureFixture[str]) -> None:
    files = contents(card)
    field = wrong.partition(":")[0]
    lines = files["evals/after.jsonl"].decode().splitlines(keepends=True)
    lines[5] = re.sub(rf"{field}:[^,]*", lambda _: wrong, lines[5])
    forged = reseal({**files, "evals/after.jsonl": "".join(lines).encode()})
    printed = plainly_rejected(repack(card, forged), capsys)
    assert "FAILED  statistics" in printed


@pytest.mark.parametrize(
    "config",
    [b"!!bool foo", b"!!timestamp foo", b"!!int x", b"!!float x", b"!!binary x", b"!!set {a}", b"!!omap [a: 1]",
     b"a: 2026-01-01", b"1: 2", b"a: .nan", b"a: 123456789012345678901234567890", b"[" * 5000, b"\xff", b"a: &x [*x]",
     b"eval: {margin: \x1b[2J}", b'"\\ud800": 1', b"? [a]\n: 1", b"!!python/object:os.system x", b""],
)  # fmt: skip
def test_configs_no_run_has(card: Path, config: bytes, capsys: pytest.CaptureFixture[str]) -> None:
    printed = plainly_rejected(repack(card, reseal({**contents(card), "config.yaml": config})), capsys)
    assert "FAILED  config: config.yaml: " in printed


def test_a_needed_file_that_is_not_listed_either(card: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, check in (("config.yaml", "config"), ("CARD.md", "CARD.md"), ("metrics.jsonl", "steps")):
        files = contents(card)
        del files[name]
        printed = plainly_rejected(repack(card, reseal(files, rewrite=False)), capsys)
        assert f"FAILED  {check}: " in printed


@pytest.mark.parametrize("lines", [
    [1, 3], [2, 3], [1, 1, 2, 3], [1, 3, 2], [1, 2, 3, 4], [3], [],
    ["1", 2, 3], [True, 2, 3], [1.0, 2, 3], [None, 2, 3],
])  # fmt: skip
def test_every_step_has_its_line(card: Path, lines: list[Any]) -> None:
    files = contents(card)
    known = {line["step"]: line for line in map(json.loads, files["metrics.jsonl"].splitlines())}
    made = [known.get(step if type(step) is int else place, known[3]) | {"step": step}
            for place, step in enumerate(lines, start=1)]  # fmt: skip
    content = b"".join(json.dumps(line).encode() + b"\n" for line in made)
    assert set(failed(repack(card, reseal({**files, "metrics.jsonl": content})))) == {"steps"}


@pytest.mark.parametrize("first", [b"null\n", b"0\n", b"[]\n", b"{}\n", b'""\n'])
def test_an_empty_first_line_is_not_passed_over(card: Path, first: bytes) -> None:
    files = contents(card)
    forged = reseal({**files, "metrics.jsonl": first + files["metrics.jsonl"]})
    assert failed(repack(card, forged)) == {"steps": "metrics.jsonl, line 1: is not the line of step 1"}


def test_text_out_of_a_card_does_not_steer_the_terminal(card: Path, capsys: pytest.CaptureFixture[str]) -> None:
    wipe = "\x1b[2J\x1b[1;1H\r\x9b2K\u202eaccepted\nok      seal: fine\n"

    def steer(record: dict[str, Any]) -> None:
        record["title"] = wipe
        record["behaviour"]["performance"]["value"][0]["suite"] = wipe
        record["behaviour"]["performance"]["value"][0]["verdict"] = wipe

    files = contents(card)
    for phase in ("before", "after"):
        name = f"evals/{phase}.jsonl"
        files[name] = files[name].replace(b'"heldout"', json.dumps(wipe).encode())
    printed = plainly_rejected(repack(card, reseal(files, steer)), capsys)
    assert "\\x1b[2J" in printed
    assert not any(line.startswith(("accepted", "ok      seal: fine")) for line in printed.splitlines())
    document = json.loads(files["record.json"])
    document[wipe] = 1  # the names of unknown fields are told too
    assert "\\x1b" in plainly_rejected(repack(card, {**files, "record.json": rfc8785.dumps(document)}), capsys)


@pytest.mark.parametrize("value", [2**60, 10**400, -1, 1.5, "1", None, [], {}, True, 1e308, "\ud800"], ids=repr)
def test_numbers_of_the_record_that_are_none(card: Path, value: Any, capsys: pytest.CaptureFixture[str]) -> None:
    for path in ("problems", "margin", "before.correct", "before.truncated", "change.mde", "change.fixed", "suite"):
        document = json.loads(contents(card)["record.json"])
        here = document["record"]["behaviour"]["performance"]["value"][0]
        *way, last = path.split(".")
        for name in way:
            here = here[name]
        here[last] = value
        content = json.dumps(document, sort_keys=True, separators=(",", ":")).encode()
        plainly_rejected(repack(card, {**contents(card), "record.json": content}), capsys)


@pytest.mark.parametrize("depth", [100, 300, 900, 50_000])
def test_nested_values(card: Path, depth: int, capsys: pytest.CaptureFixture[str]) -> None:
    content = contents(card)["record.json"]
    deep = b"[" * depth + b"]" * depth
    for place in (b'"seeds":{"evidence":"declared"', b'"schema":'):
        assert place in content
    changed = re.sub(rb'("seeds":\{.*?"value":)\{[^}]*\}', lambda found: found[1] + deep, content, count=1)
    assert changed != content
    plainly_rejected(repack(card, {**contents(card), "record.json": changed}), capsys)


# ---------------------------------------------------------------------- anything


def test_random_damage_is_always_told_plainly(card: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Flipped, lost, doubled and moved bytes of the zip, its contents and its order."""
    dice, whole, files = random.Random(20261121), card.read_bytes(), contents(card)
    out = card.with_name("damaged.zip")
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
        out.write_bytes(bent)
        if verify.verify_card(out).accepted:  # a bit that no content hangs on, as behind the last code of a stream
            assert contents(out) == files
        else:
            plainly_rejected(out, capsys)
    for _ in range(150):
        name = dice.choice(sealed_run.CARD_FILES)
        content = bytearray(files[name])
        place = dice.randrange(len(content))
        content[place : place + dice.choice((0, 1, 4))] = dice.randbytes(dice.choice((0, 1, 4)))
        if bytes(content) != files[name]:
            plainly_rejected(repack(card, {**files, name: bytes(content)}), capsys)
    renamed = {("CARD.txt" if name == "CARD.md" else name): content for name, content in files.items()}
    plainly_rejected(repack(card, renamed), capsys)
    swapped = {**files, "CARD.md": files["card.html"], "card.html": files["CARD.md"]}
    plainly_rejected(repack(card, swapped), capsys)
