"""`cohort verify` on cards that somebody made to mislead, to crash or to exhaust it: rejected in plain words, also
where the maker holds the platform's key and could make every digest and signature right."""

import io
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

from cohort.evidence import limits
from cohort.evidence.canonical import canonical, sha256
from cohort.evidence.verify import check_card, main
from cohort.evidence.verify.check import Beside
from cohort.evidence.zip_layout import entry_info
from tests.web.governance import card_made
from tests.web.governance.card_made import Log, Sealed, card, check, faults, packed, reissued


@pytest.fixture
def log() -> Log:
    return Log()


@pytest.fixture
def files(log: Log) -> dict[str, bytes]:
    return card(log)


@pytest.fixture
def rejected(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """What is printed of a card that must be rejected: nothing that steers a terminal, and no traceback."""

    def check_and_read(content: dict[str, bytes] | bytes, status: int = 1) -> str:
        path = tmp_path / "bad.zip"
        path.write_bytes(content if isinstance(content, bytes) else packed(content))
        assert main([str(path)]) == status
        printed, errors = capsys.readouterr()
        assert errors == ""
        assert not re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e]", printed)
        assert printed.splitlines()[-1].startswith("rejected" if status == 1 else "cannot be checked")
        return printed

    return check_and_read


# ---------------------------------------------------------------------- the zip


def raw_zip(contents: dict[str, bytes], sizes: dict[str, tuple[int, int]]) -> bytes:
    """A zip laid out as a card is, with these compressed bytes; `sizes` gives (size, CRC) as its heads state them."""
    body, directory = b"", b""
    for name, content in contents.items():
        size, crc = sizes[name]
        shared = struct.pack("<HHHHLLLHH", 0, 8, 0, 33, crc, len(content), size, len(name), 0)
        directory += b"PK\x01\x02" + struct.pack("<BBH", 20, 3, 20) + shared
        directory += struct.pack("<HHHLL", 0, 0, 0, 0o644 << 16, len(body)) + name.encode()
        body += b"PK\x03\x04" + struct.pack("<H", 20) + shared + name.encode() + content
    count = len(contents)
    return body + directory + b"PK\x05\x06" + struct.pack("<HHHHLLH", 0, 0, count, count, len(directory), len(body), 0)


def deflate(content: bytes) -> bytes:
    packer = zlib.compressobj(9, zlib.DEFLATED, -15)
    return packer.compress(content) + packer.flush()


def parts(files: dict[str, bytes]) -> tuple[dict[str, bytes], dict[str, tuple[int, int]]]:
    return {n: deflate(c) for n, c in files.items()}, {n: (len(c), zlib.crc32(c)) for n, c in files.items()}


def test_bytes_behind_the_end_of_a_content(files: dict[str, bytes], rejected: Callable[..., str]) -> None:
    contents, sizes = parts(files)
    assert check_card(io.BytesIO(raw_zip(contents, sizes)), "card.zip", Beside()).accepted
    for hidden in (b"\0", b"x" * 13_000, deflate(b"another end")):
        for name in ("CARD.md", "record.json", "evals/after.jsonl", "proof.tlog-proof"):
            out = raw_zip({**contents, name: contents[name] + hidden}, sizes)
            assert f"{name}: something follows its content" in rejected(out)


def test_contents_that_are_not_what_the_heads_say(files: dict[str, bytes], rejected: Callable[..., str]) -> None:
    contents, sizes = parts(files)
    size, crc = sizes["CARD.md"]
    for wrong in ((size - 1, crc), (size + 1, crc), (size, crc ^ 1), (0, crc), (2**31, crc)):
        rejected(raw_zip(contents, {**sizes, "CARD.md": wrong}))
    for content in (b"", contents["CARD.md"][:-1], b"\xff" * 50, b"\0\0\0\xff\xff" * 9):
        rejected(raw_zip({**contents, "CARD.md": content}, sizes))


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
        rejected(out.getvalue(), 1)


def test_a_content_longer_than_the_zip(files: dict[str, bytes], rejected: Callable[..., str]) -> None:
    damaged = bytearray(packed(files))
    (directory_at,) = struct.unpack("<L", damaged[-6:-2])
    for place in (18, directory_at + 20):
        damaged[place : place + 4] = b"\xff\xff\xff\xff"
    assert "is longer than the zip" in rejected(bytes(damaged))


def test_end_records_that_ask_for_more_than_is_there(files: dict[str, bytes], rejected: Callable[..., str]) -> None:
    whole = packed(files)
    for count, length, place in ((65535, 0, 0), (1, 2**32 - 1, 0), (0, 0, 0), (65535, 2**31, 2**31), (12, 12, 12)):
        rejected(whole[:-22] + b"PK\x05\x06" + struct.pack("<HHHHLLH", 0, 0, count, count, length, place, 0))


def test_many_entries_are_refused_before_they_are_read() -> None:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        for number in range(limits.MAX_ENTRIES + 1):
            archive.writestr(entry_info(f"{number}"), b"")
    assert "more than 65,000 entries" in faults(check_card(out, "card.zip", Beside()))["layout"]


def test_another_zip(rejected: Callable[..., str]) -> None:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        archive.writestr("hello.txt", "hello")
    rejected(out.getvalue())
    assert "there is no record.json" in rejected({"hello.txt": b"hello"})


# ---------------------------------------------------------------------- bombs


def test_a_bomb_is_not_unpacked(files: dict[str, bytes]) -> None:
    huge = bytes(65 * 1024 * 1024)
    tracemalloc.start()
    for name, words in (
        ("record.json", "larger than 16,777,216 bytes"),
        ("keys.json", "larger than 16,777,216 bytes"),
        ("proof.tlog-proof", "larger than 16,777,216 bytes"),
        ("config.yaml", "larger than 2,097,152 bytes"),
    ):
        zipped = packed({**files, name: huge})
        tracemalloc.reset_peak()
        before = tracemalloc.get_traced_memory()[0]
        assert faults(check_card(io.BytesIO(zipped), "card.zip", Beside()))["layout"] == f"{name}: {words}"
        assert tracemalloc.get_traced_memory()[1] - before < 20 * 1024**2
    tracemalloc.stop()


def test_a_line_without_end_costs_no_memory(log: Log, files: dict[str, bytes]) -> None:
    for name, step in (
        ("evals/after.jsonl", "statistics"),
        ("metrics.jsonl", "steps"),
        ("commitments.jsonl", "completions"),
    ):
        bomb = packed(reissued(log, files, lambda inside, name=name: inside.update({name: bytes(100 * 1024**2)})))  # type: ignore[misc]
        tracemalloc.start()
        found = faults(check_card(io.BytesIO(bomb), "card.zip", Beside()))
        most = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert found == {step: f"{name}, line 1: longer than 20,971,520 bytes"}
        assert most < 60 * 1024**2


def test_more_than_a_card_holds_is_refused_unread(files: dict[str, bytes]) -> None:
    contents, sizes = parts(files)
    wide = {**sizes, "evals/after.jsonl": (limits.MAX_LINES_BYTES + 1, 0)}
    found = faults(check_card(io.BytesIO(raw_zip(contents, wide)), "card.zip", Beside()))
    assert found == {"layout": "evals/after.jsonl: larger than 536,870,912 bytes"}
    wide = {**sizes, "events.jsonl": (1_500_000_000, 0), "manifest.json": (1_500_000_000, 0)}
    found = faults(check_card(io.BytesIO(raw_zip(contents, wide)), "card.zip", Beside()))
    assert found == {"layout": "it would unpack to more than 2,000,000,000 bytes"}


def test_more_items_or_suites_than_there_can_be(files: dict[str, bytes], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cohort.evidence.items.MAX_ITEMS", 9)
    assert faults(check(files))["statistics"] == "evals: more than 9 items"
    monkeypatch.undo()
    monkeypatch.setattr("cohort.evidence.verify.statistics.MAX_SUITES", 0)
    assert faults(check(files))["statistics"] == "evals: more than 0 suites"


# ---------------------------------------------------------------------- numbers and text


@pytest.mark.parametrize(
    "wrong",
    ['"score":1' + "0" * 400, '"score":1e999', '"score":NaN', '"score":-1', '"score":2', '"score":"1"', '"score":true',
     '"score":1' + "0" * 5000, '"score":' + "[" * 100_000, '"problem_id":"' + "x" * 1000 + '"', '"problem_id":5',
     '"truncated":0', '"suite":"else"', '"slice":[]', '"cluster":{}'],
)  # fmt: skip
def test_items_no_evaluation_writes(
    log: Log, files: dict[str, bytes], wrong: str, rejected: Callable[..., str]
) -> None:
    field = wrong.partition(":")[0]
    rows = files["evals/after.jsonl"].decode().splitlines(keepends=True)
    rows[5] = re.sub(rf"{field}:[^,}}]*", lambda _: wrong, rows[5])
    forged = reissued(log, files, lambda inside: inside.update({"evals/after.jsonl": "".join(rows).encode()}))
    assert "FAILED  statistics: evals" in rejected(forged)


@pytest.mark.parametrize(
    "rows", [b"nonsense\n", b"[1]\n", b"{}\n", b'{"suite":"heldout"}\n', b'{"no end":1}', b"5\n", b"\n"]
)
def test_lines_that_are_no_items(log: Log, files: dict[str, bytes], rows: bytes, rejected: Callable[..., str]) -> None:
    forged = reissued(log, files, lambda inside: inside.update({"evals/after.jsonl": rows}))
    assert "FAILED  statistics: evals" in rejected(forged)


@pytest.mark.parametrize(
    "config",
    [b"!!bool foo", b"!!timestamp foo", b"!!int x", b"!!float x", b"!!binary x", b"!!set {a}", b"!!omap [a: 1]",
     b"a: 2026-01-01", b"1: 2", b"a: .nan", b"a: 123456789012345678901234567890", b"[" * 5000, b"\xff", b"a: &x [*x]",
     b"eval: {margin: \x1b[2J}", b'"\\ud800": 1', b"? [a]\n: 1", b"!!python/object:os.system x", b""],
)  # fmt: skip
def test_configs_no_run_has(log: Log, files: dict[str, bytes], config: bytes, rejected: Callable[..., str]) -> None:
    printed = rejected(reissued(log, files, lambda inside: inside.update({"config.yaml": config})))
    assert "FAILED  config: config.yaml: " in printed


@pytest.mark.parametrize("suites", [5, "ab", {"a": 1}, [1], [{"name": ["heldout"]}], [{"name": {}, "margin": 1}]])
def test_suites_of_a_config_that_are_none(log: Log, suites: Any) -> None:
    config = canonical({**card_made.CONFIG, "eval": {"margin": 0.05, "suites": suites}})

    def named(document: Any) -> None:
        document["sections"]["method"]["config"]["value"] = {"sha256": sha256(config)}

    files = {**card_made.data_files(), "config.yaml": ("downstream", config)}
    assert check(card(log, Sealed(files=files, change=named))).accepted


@pytest.mark.parametrize("numbers", [[1, 3], [2, 3], [1, 1, 2, 3], [1, 3, 2], [1, 2, 3, 4], [3], [], ["1", 2, 3],
                                     [True, 2, 3], [1.5, 2, 3], [None, 2, 3]], ids=repr)  # fmt: skip
def test_every_step_has_its_line(log: Log, files: dict[str, bytes], numbers: list[Any]) -> None:
    rows = card_made.lines({"step": number, "metrics": {"reward": 0.5}} for number in numbers)
    found = faults(check(reissued(log, files, lambda inside: inside.update({"metrics.jsonl": rows}))))
    assert set(found) == {"steps"}


@pytest.mark.parametrize("first", [b"null\n", b"0\n", b"[]\n", b"{}\n", b'""\n'])
def test_an_empty_first_line_is_not_passed_over(log: Log, files: dict[str, bytes], first: bytes) -> None:
    rows = first + files["metrics.jsonl"]
    found = faults(check(reissued(log, files, lambda inside: inside.update({"metrics.jsonl": rows}))))
    assert found == {"steps": "metrics.jsonl, line 1: is not the line of step 1"}


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
    document[wipe] = 1  # the names of unknown fields are told too
    assert "\\x1b" in rejected({**made, "record.json": canonical(document)})
    document = json.loads(made["record.json"]) | {
        "files": [{"path": wipe, "sha256": "0" * 64, "size": 1, "audience": "public"}]
    }
    rejected({**made, "record.json": canonical(document)})


VALUES: list[Any] = [2**60, 10**400, -1, 1.5, "1", None, [], {}, True, 1e308, "\ud800"]


@pytest.mark.parametrize("value", VALUES, ids=repr)
def test_numbers_of_the_record_that_are_none(files: dict[str, bytes], value: Any, rejected: Callable[..., str]) -> None:
    for path in ("problems", "margin", "before.correct", "before.truncated", "change.mde", "change.fixed", "suite"):
        document = json.loads(files["record.json"])
        here = document["sections"]["behaviour"]["performance"]["value"][0]
        *way, last = path.split(".")
        for name in way:
            here = here[name]
        here[last] = value
        content = json.dumps(document, sort_keys=True, separators=(",", ":")).encode()
        rejected({**files, "record.json": content})


@pytest.mark.parametrize(
    "content",
    [b"", b"[]", b"{}", b"null", b"\xff", b"[" * 100_000, b'{"schema":"cohort-record/x"}', b'{"schema":2}',
     b'{"schema":"cohort-record/2"}'],
)  # fmt: skip
def test_records_that_are_none(files: dict[str, bytes], content: bytes, rejected: Callable[..., str]) -> None:
    assert "FAILED  record.json: record.json: " in rejected({**files, "record.json": content})


@pytest.mark.parametrize("depth", [80, 300, 900, 50_000])
def test_nested_values(log: Log, files: dict[str, bytes], depth: int, rejected: Callable[..., str]) -> None:
    deep = b"[" * depth + b"]" * depth
    changed = files["record.json"].replace(b'"value":null', b'"value":' + deep, 1)
    assert changed != files["record.json"]
    rejected({**files, "record.json": changed})
    for name in ("keys.json", "log-entry.json", "consistency.json", "attestation.dsse.json"):
        rejected({**files, name: deep})


def test_a_sealed_file_may_not_have_the_name_of_a_proof(log: Log) -> None:
    for name in ("record.json", "log-entry.json", "../evil", "a//b"):

        def change(document: dict[str, Any], name: str = name) -> None:
            document["files"] = sorted(
                [*document["files"], {"path": name, "sha256": "0" * 64, "size": 0, "audience": "internal"}],
                key=lambda one: one["path"],
            )

        assert "cannot be the name of a sealed file" in faults(check(card(log, Sealed(change=change))))["sealed files"]


def test_lists_of_files_that_are_not_sorted_or_name_one_twice(log: Log) -> None:
    for order in (lambda files: files[::-1], lambda files: [*files, files[-1]]):

        def change(document: dict[str, Any], order: Any = order) -> None:
            document["files"] = order(document["files"])

        assert "is not sorted, or names one twice" in faults(check(card(log, Sealed(change=change))))["sealed files"]


def test_fields_and_files_of_a_wider_audience(log: Log) -> None:
    made = card_made.cards(log)
    document = json.loads(made["public"]["record.json"])
    inner = json.loads(made["internal"]["record.json"])["sections"]["handling"]["inventory"]
    assert document["sections"]["handling"]["inventory"]["withheld"]
    document["sections"]["handling"]["inventory"] = inner
    found = faults(check({**made["public"], "record.json": canonical(document)}))
    assert "handling.inventory is shown in a card for public, and is for internal" in found["record root"]
    found = faults(check({**made["public"], "events.jsonl": made["internal"]["events.jsonl"]}))
    assert "'events.jsonl' is in a card for public, and is for internal" in found["sealed files"]
    document = json.loads(made["internal"]["record.json"])
    public = document["sections"]["method"]["kl"]
    document["sections"]["method"]["kl"] = {"withheld": "0" * 64, "audience": public["audience"]}
    found = faults(check({**made["internal"], "record.json": canonical(document)}))
    assert "method.kl is withheld in a card for internal" in found["record root"]


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
        if check_card(io.BytesIO(bent), "card.zip", Beside()).accepted:  # a bit behind the last code of a stream
            with zipfile.ZipFile(io.BytesIO(bent)) as archive:
                assert {name: archive.read(name) for name in archive.namelist()} == files
        else:
            rejected(bytes(bent))


def test_random_bytes_in_any_file(files: dict[str, bytes]) -> None:
    dice = random.Random(20261122)
    for _ in range(200):
        name = dice.choice(sorted(files))
        content = bytearray(files[name])
        place = dice.randrange(len(content))
        content[place : place + dice.choice((0, 1, 4))] = dice.randbytes(dice.choice((0, 1, 4)))
        if bytes(content) != files[name]:
            assert check({**files, name: bytes(content)}).exit_status in (1, 2), name
