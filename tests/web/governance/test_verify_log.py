"""What a log's owner can do with its key and its database, and which older card tells: `cohort verify --against`."""

import io
from pathlib import Path

import pytest

from cohort.evidence import tlog_proof
from cohort.evidence.canonical import canonical
from cohort.evidence.merkle import EMPTY_ROOT
from cohort.evidence.note import sign_note
from cohort.evidence.verify import main
from cohort.evidence.verify.check import Beside
from cohort.evidence.verify.report import Report
from tests.web.governance import card_made
from tests.web.governance.card_made import Log, Sealed, card, cards, check, faults, key, packed


def against(newer: dict[str, bytes], older: dict[str, bytes]) -> Report:
    return check(newer, Beside(older=io.BytesIO(packed(older)), older_name="older.zip"))


def judged(newer: dict[str, bytes], older: dict[str, bytes]) -> tuple[int, str]:
    """(status of the report, what the check against the older card says)."""
    report = against(newer, older)
    return report.exit_status, next(one.detail for one in report.checks if one.name == "older card")


def head(**changed: object) -> Sealed:
    return Sealed(head={**Sealed().head, **changed})


# ---------------------------------------------------------------------- an honest log


@pytest.mark.parametrize("before", range(1, 9))
@pytest.mark.parametrize("between", [0, 1, 2, 5])
def test_a_log_that_only_grew(before: int, between: int) -> None:
    log = Log(notes=before - 1)
    older = card(log, head(run=6))
    for number in range(between):
        log.note(f"between {number}")
    status, said = judged(card(log), older)
    assert status == 0
    size = "1 entry" if before == 1 else f"{before} entries"
    assert f"{size} that the older card holds is the beginning of this one of {before + 1 + between}" in said
    assert "different runs: 6 and 7" in said


def test_how_the_two_records_belong_together() -> None:
    log = Log(notes=3)
    both = cards(log)
    assert "the same record" in judged(both["internal"], both["public"])[1]
    second = card(log, head(version=2))
    assert "an earlier record of this run: end 1, version 1" in judged(second, both["public"])[1]
    third = card(log, head(end=2))
    assert "an earlier record of this run: end 1, version 2" in judged(third, second)[1]
    assert "a later version" in judged(card(log, head(version=1, title="sums")), second)[1]
    status, said = judged(card(log, head(title="other")), both["public"])
    assert (status, "with different seals" in said) == (1, True)


def test_a_card_of_a_key_that_was_replaced_since() -> None:
    log = Log(notes=3)
    older = card(log, head(run=6))
    log.rotate("second")
    newer = card(log)
    assert against(newer, older).accepted
    assert check(newer, Beside(key=key("second").public_key, older=io.BytesIO(packed(older)))).accepted
    assert judged(older, newer) == (2, judged(older, newer)[1])
    assert "give the two the other way" in judged(older, newer)[1]


def test_from_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = Log(notes=3)
    (tmp_path / "older.zip").write_bytes(packed(card(log, head(run=6))))
    (tmp_path / "newer.zip").write_bytes(packed(card(log)))
    older, newer = str(tmp_path / "older.zip"), str(tmp_path / "newer.zip")
    assert main([newer, "--against", older]) == 0
    assert "ok      older card: " in capsys.readouterr().out
    assert main([older, "--against", newer]) == 2
    assert "CANNOT  older card: " in capsys.readouterr().out
    assert main([newer, "--against", newer]) == 0


# ---------------------------------------------------------------------- a log written anew


@pytest.mark.parametrize("place", [0, 2, 5])
def test_a_log_written_anew_is_caught_by_an_older_card(place: int) -> None:
    """One entry is another, every hash and signature is right again."""
    log = Log(notes=6)
    older = card(log, head(run=6))
    bodies = list(log.bodies)
    bodies[place] = card_made.entry("member_added", "user:mallory", {})
    newer = card(Log(entries=bodies, sizes=log.sizes))
    assert check(newer).accepted  # alone it cannot be told from an honest one: key, proofs and numbers are right
    status, said = judged(newer, older)
    assert (status, "written anew: its first 7 entries" in said) == (1, True)


def test_an_entry_taken_out_of_the_log_is_caught() -> None:
    log = Log(notes=6)
    older = card(log, head(run=6))
    shorter = Log(entries=log.bodies[:2] + log.bodies[3:], sizes=[3])
    newer = card(shorter)
    assert check(newer).accepted
    assert against(newer, older).exit_status == 1  # of the same size, with another root
    shorter.sizes = [len(log.nodes)]
    shorter.note("more")
    assert against(card(shorter), older).exit_status == 1


def test_a_log_cut_short_and_grown_again_is_caught() -> None:
    log = Log(notes=6)
    older = card(log, head(run=6))
    cut = Log(entries=log.bodies[:4])
    newer = card(cut)
    assert check(newer).accepted
    status, said = judged(newer, older)
    assert (status, "of a later log" in said) == (2, True)  # all that can be said is that it ends before
    for number in range(5):
        cut.note(f"again {number}")
    cut.sizes = [len(log.nodes)]
    assert against(card(cut), older).exit_status == 1


def test_older_cards_that_say_nothing() -> None:
    log = Log(notes=6)
    older = card(log, head(run=6))
    log.sizes = []
    status, said = judged(card(log), older)
    assert (status, "no proof from the older card's size 7" in said) == (2, True)
    log.sizes = [7]
    newer = card(log)
    for changed in ({**older, "CARD.md": b"else"}, {**older, "record.json": b"{}"}, {"a": b""}):
        status, said = judged(newer, changed)
        assert (status, "does not check itself" in said) == (2, True)


def test_another_platform_or_another_key() -> None:
    log = Log(notes=3)
    status, said = judged(card(log), card(Log(origin="other.example/log")))
    assert (status, "'other.example/log'" in said) == (1, True)
    older = card(log, head(run=6))
    fresh = Log("somebody else", entries=log.bodies, sizes=log.sizes)
    status, said = judged(card(fresh), older)
    assert (status, "no statement leads" in said) == (1, True)


# ---------------------------------------------------------------------- proofs


def proof_with(files: dict[str, bytes], **changed: object) -> dict[str, bytes]:
    found = tlog_proof.parse(files["proof.tlog-proof"].decode())
    facts = {"index": found.index, "path": found.path, "checkpoint_note": found.checkpoint, **changed}
    return {**files, "proof.tlog-proof": tlog_proof.write(**facts).encode()}  # type: ignore[arg-type]


def test_proofs_that_lead_elsewhere() -> None:
    made = card(Log(notes=3))
    found = tlog_proof.parse(made["proof.tlog-proof"].decode())
    one = found.index, found.path
    for index, path in ((one[0] - 1, one[1]), (one[0], one[1][1:]), (one[0], (*one[1], bytes(32))), (one[0], ())):
        assert "does not lead" in faults(check(proof_with(made, index=index, path=path)))["inclusion"]
    assert "nothing signs" in faults(check(proof_with(made, extra=b"x")))["inclusion"]


def text_of(files: dict[str, bytes]) -> str:
    """What the card's checkpoint signs."""
    return tlog_proof.parse(files["proof.tlog-proof"].decode()).checkpoint.partition("\n\n")[0] + "\n"


def test_checkpoints_that_nobody_signed() -> None:
    log = Log(notes=3)
    made = card(log)
    text = text_of(made)
    other = proof_with(made, checkpoint_note=sign_note(text, [key("other")]))
    assert "by no key that is known" in faults(check(other))["checkpoint"]
    moved = proof_with(made, checkpoint_note=sign_note(text.replace("cohort", "else"), [log.keys[0]]))
    assert "the keys are of 'cohort.example/log'" in faults(check(moved))["checkpoint"]
    empty = sign_note(f"{card_made.ORIGIN}\n0\n{card_made.base64.b64encode(EMPTY_ROOT).decode()}\n", [log.keys[0]])
    assert "does not lead" in faults(check(proof_with(made, checkpoint_note=empty)))["inclusion"]
    both = proof_with(made, checkpoint_note=sign_note(text, [log.keys[0], key("witness", "witness.example")]))
    report = check(both)
    assert report.accepted
    assert any("signatures not checked: witness.example+" in one.detail for one in report.checks)


def test_a_spoilt_signature_of_the_key_before() -> None:
    log = Log(notes=3)
    earlier = sign_note(text_of(card(log)), [log.keys[0]]).rstrip("\n").split("\n")[-1]
    log.rotate("second")
    newer = card(log)
    two = sign_note(text_of(newer), log.keys[::-1])
    assert check(proof_with(newer, checkpoint_note=two)).accepted
    forged = two.replace(two.rstrip("\n").split("\n")[-1], earlier)
    for beside in (Beside(), Beside(key=log.keys[1].public_key)):
        found = faults(check(proof_with(newer, checkpoint_note=forged), beside))
        assert "does not fit its text" in found["checkpoint"]  # of the key before, whoever is trusted


def test_keys_that_are_followed_by_more() -> None:
    made = card(Log())
    assert "key" in faults(check({**made, "keys.json": made["keys.json"] + canonical({})}))
