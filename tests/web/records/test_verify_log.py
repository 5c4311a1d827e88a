"""What a log's owner can do with its key and its database, and which older card tells: `cohort verify --against`."""

import io
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cohort.evidence import merkle
from cohort.evidence.canonical import canonical
from cohort.evidence.merkle import EMPTY_ROOT
from cohort.evidence.note import sign_note
from cohort.evidence.verify import main
from cohort.evidence.verify.check import References
from cohort.evidence.verify.report import Report
from tests.factories import small_cards
from tests.factories.small_cards import OWN, Log, Sealed, card, cards, check, faults, key, known, packed
from tests.factories.statuses import downloaded
from tests.tables import cases


def against(newer: dict[str, bytes], older: dict[str, bytes]) -> Report:
    return check(newer, replace(OWN, older=io.BytesIO(packed(older)), older_name="older.zip"))


def judged(newer: dict[str, bytes], older: dict[str, bytes]) -> tuple[int, str]:
    """(status of the report, what the check against the older card says)."""
    report = against(newer, older)
    return report.exit_status, next(one.detail for one in report.checks if one.name == "older card")


def sealed(head: dict[str, Any]) -> Sealed:
    return Sealed(head={**small_cards.HEAD, **head})


# ---------------------------------------------------------------------- an honest log


@pytest.mark.parametrize("before", range(1, 9))
@pytest.mark.parametrize("between", [0, 1, 2, 5])
def test_a_log_that_only_grew(before: int, between: int) -> None:
    log = Log(notes=before - 1)
    older = card(log, sealed({"run": 6}))
    for number in range(between):
        log.note(f"between {number}")
    status, words = judged(card(log), older)
    assert status == 0
    size = "1 entry" if before == 1 else f"{before} entries"
    assert f"{size} that the older card holds is the beginning of this one of {before + 1 + between}" in words
    assert "different runs: 6 and 7" in words


def story(log: Log, events: list[dict[str, Any]]) -> Log:
    """The log after these events, of an honest owner and of others; where it is written anew, another one."""
    for event in events:
        match event:
            case {"notes": count}:
                for _ in range(count):
                    log.note(f"note {len(log.bodies)}")
            case {"card": head}:
                log.cards.append(card(log, sealed(head)))
            case {"rotate": seed}:
                log.rotate(seed)
            case {"sizes": sizes}:
                log.sizes = sizes
            case {"anew": change}:
                log = anew(log, **change)
    return log


def anew(
    log: Log, *, seed: str = "first", replace: int | None = None, drop: int | None = None, cut: int | None = None
) -> Log:
    """Rebuilt by its owner, or by who has another key: every hash and signature is right again."""
    bodies = list(log.bodies[:cut])
    if replace is not None:
        bodies[replace] = small_cards.entry("member_added", "user:mallory", {})
    if drop is not None:
        del bodies[drop]
    other = Log(seed, entries=bodies, sizes=[size for size in log.sizes if size <= len(bodies)])
    other.cards = log.cards
    return other


@pytest.mark.parametrize(
    ("events", "newer", "status", "says"), cases("verify/log_stories", "events", "newer", "status", "says")
)
def test_what_an_older_card_tells_of_a_log(
    events: list[dict[str, Any]], newer: dict[str, Any] | None, status: int, says: str
) -> None:
    """The newer card alone is accepted: key, proofs and numbers are right."""
    log = story(Log(notes=3), events)
    made = card(log, sealed(newer or {}))
    assert check(made, known(log.keys[0].public_key)).accepted
    actual, words = judged(made, log.cards[0])
    assert actual == status
    assert says in words


def test_two_audiences_another_platform_and_the_other_way_round() -> None:
    log = Log(notes=3)
    both = cards(log)
    assert "the same record" in judged(both["internal"], both["public"])[1]
    status, words = judged(both["public"], card(Log(origin="other.example/log")))
    assert (status, "'other.example/log'" in words) == (1, True)
    log.rotate("second")
    newer = card(log, sealed({"run": 8}))
    assert check(newer, replace(known(key("second").public_key), older=io.BytesIO(packed(both["public"])))).accepted
    status, words = judged(both["public"], newer)
    assert (status, "give the two the other way" in words) == (2, True)


def test_an_older_card_that_does_not_check_itself_says_nothing() -> None:
    log = Log(notes=3)
    older, newer = card(log), card(log, sealed({"version": 2}))
    for changed in ({**older, "CARD.md": b"else"}, {**older, "record.json": b"{}"}, {"a": b""}):
        status, words = judged(newer, changed)
        assert (status, "does not check itself" in words) == (2, True)


def test_from_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = Log(notes=3)
    older, newer = tmp_path / "older.zip", tmp_path / "newer.zip"
    older.write_bytes(packed(card(log, sealed({"run": 6}))))
    newer.write_bytes(packed(downloaded(log, card(log))))
    for first, second, status, words in (
        (newer, older, 0, "ok     "),
        (older, newer, 2, "CANNOT "),
        (newer, newer, 0, ""),
    ):
        assert main([str(first), "--against", str(second), "--key", log.keys[0].vkey]) == status
        assert f"{words} older card: " in capsys.readouterr().out
    assert main([str(newer), "--against", str(newer)]) == 3  # who made both may be the same stranger


# ---------------------------------------------------------------------- proofs


def proof_with(files: dict[str, bytes], **changed: object) -> dict[str, bytes]:
    proof = merkle.parse(files["proof.tlog-proof"].decode())
    facts = {"index": proof.index, "path": proof.path, "checkpoint_note": proof.checkpoint, **changed}
    return {**files, "proof.tlog-proof": merkle.write(**facts).encode()}  # type: ignore[arg-type]


def test_proofs_that_lead_elsewhere() -> None:
    made = card(Log(notes=3))
    proof = merkle.parse(made["proof.tlog-proof"].decode())
    at, whole = proof.index, proof.path
    for index, path in ((at - 1, whole), (at, whole[1:]), (at, (*whole, bytes(32))), (at, ())):
        assert "does not lead" in faults(check(proof_with(made, index=index, path=path)))["inclusion"]
    assert "nothing signs" in faults(check(proof_with(made, extra=b"x")))["inclusion"]


def text_of(files: dict[str, bytes]) -> str:
    """What the card's checkpoint signs."""
    return merkle.parse(files["proof.tlog-proof"].decode()).checkpoint.partition("\n\n")[0] + "\n"


def test_checkpoints_that_nobody_signed() -> None:
    log = Log(notes=3)
    made = card(log)
    text = text_of(made)
    other = proof_with(made, checkpoint_note=sign_note(text, [key("other")]))
    assert "by no key that is known" in faults(check(other))["checkpoint"]
    moved = proof_with(made, checkpoint_note=sign_note(text.replace("cohort", "else"), [log.keys[0]]))
    assert "the keys are of 'cohort.example/log'" in faults(check(moved))["checkpoint"]
    empty = sign_note(f"{small_cards.ORIGIN}\n0\n{small_cards.base64.b64encode(EMPTY_ROOT).decode()}\n", [log.keys[0]])
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
    for references in (References(), known(log.keys[1].public_key)):
        problems = faults(check(proof_with(newer, checkpoint_note=forged), references))
        assert "does not fit its text" in problems["checkpoint"]  # of the key before, whoever is trusted


def test_keys_that_are_followed_by_more() -> None:
    made = card(Log())
    assert "key" in faults(check({**made, "keys.json": made["keys.json"] + canonical({})}))
