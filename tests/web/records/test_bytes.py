"""Every byte of a card's files matters, and every file: changed, missing, added, renamed or swapped."""

import hashlib
import io
import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import rfc8785

from cohort.evidence.card_reader import CardReader
from cohort.evidence.verify.check import checks
from cohort.evidence.verify.opened import OpenCard
from cohort.evidence.verify.report import Report
from tests.factories.card_zips import Packer
from tests.factories.small_cards import OWN, Log, card, check, check_zip, faults, packed, reissued


@pytest.fixture(scope="module")
def files() -> dict[str, bytes]:
    """A whole card; its copy of the schema is short, so that there are fewer bytes to try."""
    log = Log(notes=6, sizes=(3, 5, 6))
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
    assert check_zip(Packer(files).zip("CARD.md", files["CARD.md"])).accepted


def caught(changed: io.BytesIO, document: dict[str, Any] | None = None) -> bool:
    """Whether a check finds the card changed: those of the record alone, or, with a good `document`, those after them.
    As `check_card` makes them, but only up to the first that fails."""
    card, report = OpenCard(CardReader(changed), document or {}), Report("card.zip")
    for name, check_card in checks(card, OWN).items():
        is_of_record = name in ("record.json", "record root", "seal")
        if name == "completions" or (is_of_record and document):
            continue
        if not report.run(name, check_card, ""):
            return report.checks[-1].status == "failed"
    return False


@pytest.mark.parametrize("every", [17, pytest.param(1, marks=pytest.mark.slow)])
def test_every_byte_of_every_other_file_matters(files: dict[str, bytes], every: int) -> None:
    packer, document = Packer(files), json.loads(files["record.json"])
    for name, content in files.items():
        if name != "record.json":
            for place, changed in enumerate(flips(content)):
                if place % every == 0:
                    assert caught(packer.zip(name, changed), document), f"{name}, byte {place}"
    assert not caught(packer.zip("CARD.md", files["CARD.md"]), document)


@pytest.mark.parametrize("every", [97, pytest.param(1, marks=pytest.mark.slow)])
def test_every_byte_of_the_record_matters(files: dict[str, bytes], every: int) -> None:
    packer = Packer(files)
    for place, changed in enumerate(flips(files["record.json"])):
        if place % every == 0:
            assert caught(packer.zip("record.json", changed)), place
    assert not caught(packer.zip("record.json", files["record.json"]))


@pytest.mark.parametrize("every", [11, pytest.param(1, marks=pytest.mark.slow)])
def test_what_the_proofs_of_powers_of_2_hold_is_checked_with_an_older_card(every: int) -> None:
    """consistency.json: a proof from 8 entries begins with the older root, which only a card of 8 entries has."""
    made = Log(notes=7)
    zipped = packed(card(made))  # the eighth entry
    assert made.sizes == [8]
    for number in range(5):
        made.note(f"more {number}")
    newer = card(made)
    packer = Packer(newer)

    def against(content: bytes) -> Report:
        return check_zip(packer.zip("consistency.json", content), replace(OWN, older=io.BytesIO(zipped)))

    assert against(newer["consistency.json"]).accepted
    for place, changed in enumerate(flips(newer["consistency.json"])):
        if place % every == 0:
            assert against(changed).exit_status in (1, 2), place


# ---------------------------------------------------------------------- missing, added, renamed


def test_no_file_can_be_missing_or_cut_or_longer_or_renamed(files: dict[str, bytes]) -> None:
    for name, content in files.items():
        without = {one: body for one, body in files.items() if one != name}
        assert check(without).exit_status in (1, 2), name
        assert check({**without, f"{name}x": content}).exit_status in (1, 2), name
        for changed in (content[:-1], content + b" ", content + b"\n", b""):
            assert check({**files, name: changed}).exit_status == 1, (name, changed[-5:])


def merkle_root(leaves: list[bytes]) -> bytes:
    """RFC 6962, section 2.1, written down again."""
    if len(leaves) == 1:
        return leaves[0]
    split = 1 << (len(leaves) - 1).bit_length() - 1
    return hashlib.sha256(b"\x01" + merkle_root(leaves[:split]) + merkle_root(leaves[split:])).digest()


@pytest.mark.parametrize("audience", ["public", "internal"])
def test_root_and_seal_follow_from_docs_verify_alone(audience: str) -> None:
    """By what docs/verify.md says of leaves and their order, and by nothing of ours."""
    document = json.loads(card(Log(), audience=audience)["record.json"])
    leaves = [hashlib.sha256(b"\x00" + rfc8785.dumps(document["head"])).digest()]
    for section, fields in sorted(document["sections"].items()):
        for field, entry in sorted(fields.items()):
            if "withheld" in entry:
                leaves.append(bytes.fromhex(entry["withheld"]))
            else:
                salt = bytes.fromhex(entry.pop("salt"))
                body = rfc8785.dumps({"section": section, "field": field, "entry": entry})
                leaves.append(hashlib.sha256(b"\x00" + salt + body).digest())
    assert merkle_root(leaves).hex() == document["record_root"]
    sealed = {name: document[name] for name in ("schema", "record_root", "files")}
    assert hashlib.sha256(rfc8785.dumps(sealed)).hexdigest() == document["seal"]
