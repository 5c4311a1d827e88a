"""Every byte of a card matters: of each file's content, and of the zip around it."""

import io
import json
import struct
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cohort.evidence.card_reader import CardReader
from cohort.evidence.verify import CannotRead, check_card
from cohort.evidence.verify.check import Beside, steps
from cohort.evidence.verify.opened import OpenCard
from cohort.evidence.verify.report import Report
from cohort.evidence.zip_layout import entry_info
from tests.web.governance.card_made import Log, Packer, card, check, faults, packed, reissued


@pytest.fixture(scope="module")
def log() -> Log:
    made = Log()
    for number in range(6):
        made.note(str(number))
    made.sizes = [3, 5, 6]
    return made


@pytest.fixture(scope="module")
def files(log: Log) -> dict[str, bytes]:
    """A whole card; its copy of the schema is short, so that there are fewer bytes to try."""
    return reissued(log, card(log), lambda inside: inside.update({"record.schema.json": b"{}"}))


def flips(content: bytes) -> Iterator[bytes]:
    """The content with one bit of one byte changed, for each byte; which bit goes round."""
    bent = bytearray(content)
    for place in range(len(content)):
        bent[place] ^= 1 << place % 8
        yield bytes(bent)
        bent[place] = content[place]


def test_the_card_is_good(files: dict[str, bytes]) -> None:
    assert faults(check(files)) == {}
    assert check_card(Packer(files).zip("CARD.md", files["CARD.md"]), "card.zip", Beside()).accepted


def caught(changed: io.BytesIO, document: dict[str, Any] | None = None) -> bool:
    """Whether a check finds the card changed: those of the record alone, or, with a good `document`, those after them.
    As `check_card` makes them, but only up to the first that fails."""
    card, report = OpenCard(CardReader(changed), document or {}), Report("card.zip")
    for step in steps(card, Beside()):
        is_of_record = step.name in ("record.json", "record root", "seal")
        if step.name == "completions" or (is_of_record and document):
            continue
        if not report.run(step.name, step.check, ""):
            return report.checks[-1].status == "failed"
    return False


def test_every_byte_of_every_other_file_matters(files: dict[str, bytes]) -> None:
    packer, document = Packer(files), json.loads(files["record.json"])
    tried = 0
    for name, content in files.items():
        if name != "record.json":
            for place, changed in enumerate(flips(content)):
                assert caught(packer.zip(name, changed), document), f"{name}, byte {place}"
                tried += 1
    assert tried > 7_000
    assert not caught(packer.zip("CARD.md", files["CARD.md"]), document)


def test_every_eleventh_byte_of_the_record_matters(files: dict[str, bytes]) -> None:
    packer = Packer(files)
    for place, changed in enumerate(flips(files["record.json"])):
        if place % 11 == 0:
            assert caught(packer.zip("record.json", changed)), place
    assert not caught(packer.zip("record.json", files["record.json"]))


@pytest.mark.slow
def test_every_byte_of_the_record_matters(files: dict[str, bytes]) -> None:
    packer = Packer(files)
    for place, changed in enumerate(flips(files["record.json"])):
        assert caught(packer.zip("record.json", changed)), place


def test_what_the_proofs_of_powers_of_2_hold_is_checked_with_an_older_card() -> None:
    """consistency.json: a proof from 8 entries begins with the older root, which only a card of 8 entries has."""
    made = Log()
    for number in range(7):
        made.note(str(number))
    older = card(made)  # the eighth entry
    assert made.sizes == [8]
    for number in range(5):
        made.note(f"more {number}")
    newer = card(made)
    packer, zipped = Packer(newer), packed(older)

    def against(content: bytes) -> Report:
        return check_card(packer.zip("consistency.json", content), "card.zip", Beside(older=io.BytesIO(zipped)))

    assert against(newer["consistency.json"]).accepted
    for place, changed in enumerate(flips(newer["consistency.json"])):
        assert against(changed).exit_status in (1, 2), place


# ---------------------------------------------------------------------- missing, added, renamed


def test_no_file_can_be_missing_or_cut_or_longer(files: dict[str, bytes]) -> None:
    for name, content in files.items():
        without = {one: body for one, body in files.items() if one != name}
        assert check(without).exit_status in (1, 2), name
        for changed in (content[:-1], content + b" ", content + b"\n", b""):
            assert check({**files, name: changed}).exit_status == 1, (name, changed[-5:])


def test_no_file_can_be_added_or_renamed(files: dict[str, bytes]) -> None:
    for name in ("extra.txt", "traces/steps-000101-000200.jsonl", "weights/model.safetensors", "evals/imported.jsonl"):
        found = faults(check({**files, name: b"{}\n"}))
        assert f"'{name}' is in the card and not signed" in found["attestation"]
    for name in files:
        renamed = {(f"{one}x" if one == name else one): content for one, content in files.items()}
        assert check(renamed).exit_status in (1, 2), name


def test_files_swapped(files: dict[str, bytes]) -> None:
    swapped = {**files, "CARD.md": files["manifest.json"], "manifest.json": files["CARD.md"]}
    found = faults(check(swapped))
    assert "manifest.json: " in found["sealed files"]
    assert "CARD.md: changed" in found["attestation"]
    before, after = files["evals/before.jsonl"], files["evals/after.jsonl"]
    found = faults(check({**files, "evals/before.jsonl": after, "evals/after.jsonl": before}))
    assert {"sealed files", "attestation", "statistics"} <= set(found)


# ---------------------------------------------------------------------- the zip


def test_any_flipped_byte_of_the_zip_outside_its_contents(files: dict[str, bytes]) -> None:
    whole = packed(files)
    with zipfile.ZipFile(io.BytesIO(whole)) as archive:
        inside: set[int] = set()
        for info in archive.infolist():
            start = info.header_offset + 30 + len(info.filename)
            inside |= set(range(start, start + info.compress_size))
    for place in sorted(set(range(len(whole))) - inside):
        bent = bytearray(whole)
        bent[place] ^= 0x10
        try:
            assert check_card(io.BytesIO(bent), "card.zip", Beside()).exit_status == 1, place
        except CannotRead:
            assert place < 2  # no zip any more


def test_repacking_unchanged_files_is_the_same_card(files: dict[str, bytes]) -> None:
    for level in (0, 1, 9):
        again = packed(dict(reversed(files.items())), level)
        assert check_card(io.BytesIO(again), "card.zip", Beside()).accepted


@pytest.mark.parametrize("keep", [10, 100, 5000])
def test_half_a_card_is_damaged(files: dict[str, bytes], keep: int) -> None:
    report = check_card(io.BytesIO(packed(files)[:keep]), "card.zip", Beside())
    assert "damaged" in faults(report)["layout"]


def test_bytes_hidden_in_the_zip(files: dict[str, bytes], tmp_path: Path) -> None:
    whole = packed(files)
    for hidden in (whole + b"\0", whole[:-2] + struct.pack("<H", 3) + b"abc", whole + whole):
        assert "layout" in faults(check_card(io.BytesIO(hidden), "card.zip", Beside()))
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        for name, content in files.items():
            info = entry_info(name)
            info.comment = b"hidden" if name == "CARD.md" else b""
            archive.writestr(info, content)
    assert "layout" in faults(check_card(out, "card.zip", Beside()))


def test_a_file_that_is_there_twice(files: dict[str, bytes]) -> None:
    out = io.BytesIO(packed(files))
    with zipfile.ZipFile(out, "a") as archive, pytest.warns(UserWarning, match="Duplicate name"):
        archive.writestr(entry_info("CARD.md"), b"another")
    assert "'CARD.md' is there twice" in faults(check_card(out, "card.zip", Beside()))["layout"]


@pytest.mark.parametrize("name", ["../evil", "/etc/evil", "a/../b", "a\\b", "a//b", "./a", "a/", "é"])
def test_names_that_lead_elsewhere(files: dict[str, bytes], name: str) -> None:
    found = faults(check({**files, name: b"x"}))
    assert "is not the name of a file in a card" in found["layout"] or "not as it was written" in found["layout"]
