"""What a log's owner can do with its key and its database, and which older card tells: `cohort verify --against`."""

import io
import json
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


def said(report: Report) -> str:
    return next(one.detail for one in report.checks if one.name == "older card")


def grown(notes: int = 3) -> Log:
    log = Log()
    for number in range(notes):
        log.note(str(number))
    return log


def head(**changed: object) -> Sealed:
    return Sealed(head={**Sealed().head, **changed})


# ---------------------------------------------------------------------- an honest log


@pytest.mark.parametrize("before", range(1, 9))
@pytest.mark.parametrize("between", [0, 1, 2, 5])
def test_a_log_that_only_grew(before: int, between: int) -> None:
    log = grown(before - 1)
    older = card(log, head(run=6))
    for number in range(between):
        log.note(f"between {number}")
    report = against(card(log), older)
    assert report.accepted, faults(report)
    size = "1 entry" if before == 1 else f"{before} entries"
    grown_to = before + 1 + between
    assert f"the log of {size} that the older card holds is the beginning of this one of {grown_to}" in said(report)
    assert "the cards are of different runs: 6 and 7" in said(report)


def test_how_the_two_records_belong_together() -> None:
    log = grown()
    both = cards(log)
    assert "both cards hold the same record: one seal, for public and for internal" in said(
        against(both["internal"], both["public"])
    )
    second = card(log, head(version=2))
    assert "an earlier record of this run: end 1, version 1" in said(against(second, both["public"]))
    third = card(log, head(end=2))
    assert "an earlier record of this run: end 1, version 2" in said(against(third, second))
    report = against(card(log, head(title="other")), both["public"])
    assert report.exit_status == 1
    assert "both cards are version 1 of end 1 of run 7, with different seals" in said(report)


def test_a_later_version_in_an_older_card() -> None:
    log = grown()
    second = card(log, head(version=2))
    assert "a later version of this run's record" in said(against(card(log), second))


def test_a_card_of_a_key_that_was_replaced_since() -> None:
    log = grown()
    older = card(log, head(run=6))
    log.rotate("second")
    newer = card(log)
    assert against(newer, older).accepted
    report = check(newer, Beside(key=key("second").public_key, older=io.BytesIO(packed(older))))
    assert report.accepted


def test_the_two_given_the_wrong_way_round_is_no_judgement() -> None:
    log = grown()
    first = card(log)
    log.rotate("second")
    second = card(log)
    report = check(first, Beside(older=io.BytesIO(packed(second)), older_name="second.zip"))
    assert report.exit_status == 2
    assert "give the two the other way" in faults(report)["older card"]


def test_from_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = grown()
    (tmp_path / "older.zip").write_bytes(packed(card(log, head(run=6))))
    (tmp_path / "newer.zip").write_bytes(packed(card(log)))
    older, newer = str(tmp_path / "older.zip"), str(tmp_path / "newer.zip")
    assert main([newer, "--against", older]) == 0
    assert "ok      older card: the log of 4 entries" in capsys.readouterr().out
    assert main([older, "--against", newer]) == 2
    assert "CANNOT  older card: it is of a later log" in capsys.readouterr().out
    assert main([newer, "--against", newer]) == 0


# ---------------------------------------------------------------------- a log written anew


def rewritten(log: Log, place: int) -> Log:
    """The log as its owner rebuilds it: one entry is another, every hash and signature is right again."""
    bodies = list(log.bodies)
    bodies[place] = card_made.entry("member_added", "user:mallory", {})
    other = Log(entries=bodies)
    other.sizes = list(log.sizes)
    return other


@pytest.mark.parametrize("place", [0, 2, 5])
def test_a_log_written_anew_is_caught_by_an_older_card(place: int) -> None:
    log = grown(6)
    older = card(log, head(run=6))
    newer = card(rewritten(log, place))
    assert check(newer).accepted  # alone it cannot be told from an honest one: key, proofs and numbers are right
    report = against(newer, older)
    assert report.exit_status == 1
    assert "the log was written anew: its first 7 entries are not those that the older card holds" in said(report)


def test_an_entry_taken_out_of_the_log_is_caught() -> None:
    log = grown(6)
    older = card(log, head(run=6))
    shorter = Log(entries=log.bodies[:2] + log.bodies[3:])
    shorter.sizes = [3]
    newer = card(shorter)
    assert check(newer).accepted
    assert against(newer, older).exit_status == 1  # of the same size, with another root
    shorter.sizes = [len(log.nodes)]
    shorter.note("more")
    assert against(card(shorter), older).exit_status == 1


def test_a_log_cut_short_and_grown_again_is_caught() -> None:
    log = grown(6)
    older = card(log, head(run=6))
    cut = Log(entries=log.bodies[:4])
    newer = card(cut)
    assert check(newer).accepted
    report = against(newer, older)
    assert report.exit_status == 2  # smaller than it was: all that can be said is that it ends before
    assert "it is of a later log" in said(report)
    for number in range(5):
        cut.note(f"again {number}")
    cut.sizes = [len(log.nodes)]
    assert against(card(cut), older).exit_status == 1


def test_without_a_proof_from_the_older_size_nothing_is_said() -> None:
    log = grown(6)
    older = card(log, head(run=6))
    log.sizes = []
    report = against(card(log), older)
    assert report.exit_status == 2
    assert "has no proof from the older card's size 7" in said(report)


def test_another_platforms_card() -> None:
    older = card(Log(origin="other.example/log"))
    report = against(card(grown()), older)
    assert report.exit_status == 1
    assert "is of the log 'other.example/log'" in said(report)


def test_a_new_key_without_a_statement_by_the_old_one() -> None:
    log = grown()
    older = card(log, head(run=6))
    fresh = Log("somebody else", entries=log.bodies)
    fresh.sizes = list(log.sizes)
    report = against(card(fresh), older)
    assert report.exit_status == 1
    assert "no statement leads from one to the other" in said(report)


def test_an_older_card_that_does_not_check_itself_says_nothing() -> None:
    log = grown()
    older = card(log, head(run=6))
    newer = card(log)
    for changed in ({**older, "CARD.md": b"else"}, {**older, "record.json": b"{}"}, {"a": b""}):
        report = against(newer, changed)
        assert report.exit_status == 2
        assert "the older card does not check itself" in said(report)


# ---------------------------------------------------------------------- proofs


def proof_with(files: dict[str, bytes], **changed: object) -> dict[str, bytes]:
    found = tlog_proof.parse(files["proof.tlog-proof"].decode())
    facts = {"index": found.index, "path": found.path, "checkpoint_note": found.checkpoint, **changed}
    return {**files, "proof.tlog-proof": tlog_proof.write(**facts).encode()}  # type: ignore[arg-type]


def test_proofs_that_lead_elsewhere() -> None:
    log = grown()
    made = card(log)
    found = tlog_proof.parse(made["proof.tlog-proof"].decode())
    for changed in (
        {"index": found.index - 1},
        {"path": found.path[1:]},
        {"path": (*found.path, bytes(32))},
        {"path": ()},
    ):
        assert "does not lead from log-entry.json" in faults(check(proof_with(made, **changed)))["inclusion"]
    assert "holds data that nothing signs" in faults(check(proof_with(made, extra=b"x")))["inclusion"]


def test_checkpoints_that_nobody_signed() -> None:
    log = grown()
    made = card(log)
    text = tlog_proof.parse(made["proof.tlog-proof"].decode()).checkpoint.partition("\n\n")[0] + "\n"
    other = proof_with(made, checkpoint_note=sign_note(text, [key("other")]))
    assert "by no key that is known" in faults(check(other))["checkpoint"]
    moved = proof_with(made, checkpoint_note=sign_note(text.replace("cohort", "else"), [log.keys[0]]))
    assert "and the keys are of 'cohort.example/log'" in faults(check(moved))["checkpoint"]
    empty = sign_note(f"{card_made.ORIGIN}\n0\n{card_made.base64.b64encode(EMPTY_ROOT).decode()}\n", [log.keys[0]])
    assert "does not lead" in faults(check(proof_with(made, checkpoint_note=empty)))["inclusion"]
    log.rotate("second")
    newer = card(log)
    text_now = tlog_proof.parse(newer["proof.tlog-proof"].decode()).checkpoint.partition("\n\n")[0] + "\n"
    two = sign_note(text_now, log.keys[::-1])
    assert check(proof_with(newer, checkpoint_note=two)).accepted
    first, second = two.rstrip("\n").split("\n")[-2:]
    forged = two.replace(second, sign_note(text, [log.keys[0]]).rstrip("\n").split("\n")[-1])
    for beside in (Beside(), Beside(key=log.keys[1].public_key)):
        said = faults(check(proof_with(newer, checkpoint_note=forged), beside))["checkpoint"]
        assert "does not fit its text" in said  # of the key before, whoever is trusted
    assert first != second
    both = proof_with(made, checkpoint_note=sign_note(text, [log.keys[0], key("witness", "witness.example")]))
    report = check(both)
    assert report.accepted
    assert any("signatures not checked: witness.example+" in one.detail for one in report.checks)


HASH = card_made.base64.b64encode(bytes(32)).decode()


@pytest.mark.parametrize(
    "value",
    [{}, [], {"size": 5, "from": []}, {"size": 4, "from": {}}, {"size": 5, "from": {"03": []}},
     {"size": 5, "from": {"x": []}},
     {"size": 5, "from": {"3": "x"}}, {"size": 5, "from": {"3": ["AAAA"]}}, {"size": 5, "from": {"3": []}},
     {"size": 5, "from": {"6": []}}, {"size": 5, "from": {"3": [1]}}, {"size": 5, "from": {}, "more": 1},
     {"size": 5, "from": {"5": [HASH]}}, {"size": 5, "from": {"4": []}}, {"size": 5, "from": {"4": [HASH, HASH]}},
     {"size": 5, "from": {"2": [HASH]}}],
    ids=json.dumps,
)  # fmt: skip
def test_consistency_that_is_none(value: object) -> None:
    made = card(grown(4)) | {"consistency.json": canonical(value)}
    assert "consistency.json" in faults(check(made))["earlier sizes"]


@pytest.mark.parametrize(
    "value",
    [{}, [], {"kind": "x"}, None],
    ids=json.dumps,
)
def test_log_entries_that_are_none(value: object) -> None:
    assert "is not an entry" in faults(check(card(grown()) | {"log-entry.json": canonical(value)}))["log entry"]


@pytest.mark.parametrize(
    "value",
    [{}, [], {"origin": "a", "keys": [], "rotations": []}, {"origin": "a", "keys": ["x"], "rotations": []},
     {"origin": "a", "keys": [1], "rotations": []}, {"origin": "a", "keys": [key("a").vkey] * 2, "rotations": ["x"]},
     {"origin": 1, "keys": [key("a").vkey], "rotations": []}],
    ids=lambda one: str(len(json.dumps(one))),
)  # fmt: skip
def test_keys_that_are_none(value: object) -> None:
    found = faults(check(card(grown()) | {"keys.json": canonical(value)}))
    assert "keys.json" in found["key"]
    assert "there is no key" in found["attestation"]
