"""`cohort audit check`: whatever the owner of the database does to the rows is named; what he rebuilds wholly, key in
hand, only an older checkpoint shows."""

import json
import shutil
import zipfile
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import pytest
from django.db import connection, transaction

from cohort.audit import keys
from cohort.audit import services as audit
from cohort.audit.check import Kept, check
from cohort.audit.models import AuditEntry, AuditLeaf, LogCheckpoint, LogKey
from cohort.audit.tree import LogFault
from cohort.base.environment import environment
from cohort.cli import audit as command
from cohort.evidence import merkle
from cohort.evidence.canonical import canonical, parse
from cohort.evidence.checkpoint import follow
from cohort.evidence.checkpoint import parse as parse_checkpoint
from cohort.evidence.keys import KeyFault, generate, load, parse_vkey
from cohort.evidence.merkle import Peaks, leaf_hash, root
from cohort.evidence.note import open_note
from tests.tables import cases

pytestmark = pytest.mark.django_db(transaction=True)

TABLES = ["audit_auditentry", "audit_auditleaf", "audit_logkey", "audit_logcheckpoint", "audit_logcosignature"]


def add(number: int) -> AuditEntry:
    return audit.log(actor="platform", kind="thing_done", subject=f"thing:{number}", after={"number": number})


@pytest.fixture
def log_of_nine() -> list[str]:
    """Entries 0 to 8, checkpoints at 1, 4, 7 and 9; the notes."""
    notes = [audit.checkpoint().note]
    for number in range(1, 9):
        add(number)
        if number in (3, 6, 8):
            notes.append(audit.checkpoint().note)
    return notes


def as_owner(*statements: str) -> None:
    """What the tables' owner can do: take the triggers off, change, put them back."""
    with transaction.atomic(), connection.cursor() as cursor:
        for table in TABLES:
            cursor.execute(f"ALTER TABLE {table} DISABLE TRIGGER ALL")
        for statement in statements:
            cursor.execute(statement)
        for table in TABLES:
            cursor.execute(f"ALTER TABLE {table} ENABLE TRIGGER ALL")


def body_as(number: int) -> bytes:
    """Entry `number` with another content, canonical and in agreement with its columns."""
    content = parse(bytes(AuditLeaf.objects.get(idx=number).entry.body))
    return canonical(content | {"after": {"number": 1000}})


def test_a_good_log_is_good(request: pytest.FixtureRequest) -> None:
    assert check()[0].startswith("0 entries")
    request.getfixturevalue("log_of_nine")
    add(9)
    lines = check()
    for start in ("9 entries", "1 entries wait", "4 checkpoints"):
        assert any(line.startswith(start) for line in lines), lines


LEAF_3 = "(SELECT entry_id FROM audit_auditleaf WHERE idx = 3)"


@pytest.mark.parametrize(("statements", "names"), cases("audit/changed_rows", "statements", "names"))
def test_what_was_done_to_the_rows_is_named(log_of_nine: list[str], statements: list[str], names: str) -> None:
    as_owner(*statements)
    with pytest.raises(LogFault) as fault:
        check()
    assert names in str(fault.value)


def test_a_changed_entry_does_not_fit_its_leaf_nor_a_changed_leaf_the_checkpoint(log_of_nine: list[str]) -> None:
    body = body_as(3)
    as_owner(f"UPDATE audit_auditentry SET body = '\\x{body.hex()}' WHERE id = {LEAF_3}")
    with pytest.raises(LogFault, match="entry 3 was changed"):
        check()
    as_owner(f"UPDATE audit_auditleaf SET leaf = '\\x{leaf_hash(body).hex()}' WHERE idx = 3")
    with pytest.raises(LogFault, match="checkpoint 4 was signed over other entries"):
        check()
    add(9)
    with pytest.raises(LogFault, match="first 9 leaves"):
        audit.checkpoint()
    assert LogCheckpoint.objects.count() == 4, "nothing is signed over a tree that was rewritten"


def forge() -> None:
    """Rewrite entry 3, every leaf, the head and every checkpoint, with the real key: nothing in the database tells."""
    body = body_as(3)
    leaves = list(AuditLeaf.objects.order_by("idx").values_list("entry__body", flat=True))
    leaves[3] = body
    peaks = Peaks()
    for one in leaves:
        peaks.append(leaf_hash(bytes(one)))
    as_owner(
        f"UPDATE audit_auditentry SET body = '\\x{body.hex()}' WHERE id = {LEAF_3}",
        f"UPDATE audit_auditleaf SET leaf = '\\x{leaf_hash(body).hex()}' WHERE idx = 3",
        f"UPDATE audit_treehead SET peaks = '\\x{peaks.packed().hex()}'",
        "DELETE FROM audit_logcheckpoint",
    )
    audit.checkpoint()


def test_a_log_forged_wholly_with_the_key_is_caught_by_an_older_checkpoint_alone(log_of_nine: list[str]) -> None:
    forge()
    assert check()[0].startswith("9 entries"), "nothing in the database tells"
    assert check([Kept("kept at 1", log_of_nine[0])]), "it was signed before what was rewritten"
    for note, size in zip(log_of_nine[1:], (4, 7, 9), strict=True):
        with pytest.raises(LogFault, match=f"somewhere before index {size} "):
            check([Kept("kept", note)])


def test_a_log_forged_with_another_key_is_caught_by_an_older_checkpoint(log_of_nine: list[str], own_key: Path) -> None:
    as_owner(*(f"DELETE FROM {table}" for table in reversed(TABLES)), "DELETE FROM audit_treehead")
    replaced(own_key)
    for number in range(9):
        add(number)
    audit.checkpoint()
    assert check()
    with pytest.raises(LogFault, match="by no key that is known here"):
        check([Kept("kept", log_of_nine[1])])


def test_a_log_that_was_cut_is_caught_by_an_older_checkpoint(log_of_nine: list[str]) -> None:
    peaks = Peaks()
    for leaf in AuditLeaf.objects.filter(idx__lt=7).order_by("idx"):
        peaks.append(bytes(leaf.leaf))
    as_owner(
        "DELETE FROM audit_auditleaf WHERE idx > 6",
        "DELETE FROM audit_auditentry WHERE subject >= 'thing:7'",
        "DELETE FROM audit_logcheckpoint WHERE size > 7",
        f"UPDATE audit_treehead SET size = 7, peaks = '\\x{peaks.packed().hex()}'",
    )
    assert check()[0].startswith("7 entries")
    with pytest.raises(LogFault, match="the log was cut: 7 entries are left of the 9 of kept"):
        check([Kept("kept", log_of_nine[-1])])


# ---------------------------------------------------------------------- another key


@pytest.fixture
def own_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the tests' key, which a test may replace."""
    path = tmp_path / "key.pem"
    shutil.copy(environment().signing_key_path, path)
    monkeypatch.setattr(environment(), "signing_key_file", path)
    return path


def replaced(path: Path) -> None:
    """The file holds another key."""
    path.unlink()
    generate("test.example/log").write(path)


def test_the_next_checkpoint_is_signed_by_both_keys_and_the_ones_after_by_the_new(own_key: Path) -> None:
    add(1)
    before, old = audit.checkpoint(), load(own_key)
    new, both = audit.rotate()
    assert load(own_key).vkey == new.vkey
    assert own_key.stat().st_mode & 0o777 == 0o600
    assert [path.name for path in own_key.parent.iterdir()] == ["key.pem"], "the old key is not kept"
    vkeys, statements = audit.public_keys()
    assert vkeys == [old.vkey, new.vkey]
    assert [key.vkey for key in follow(parse_vkey(vkeys[0]), statements)] == vkeys
    assert len(open_note(both.note, [old.public_key, new.public_key]).verified) == 2
    assert open_note(before.note, [old.public_key]).unknown == ()
    add(2)
    after = open_note(audit.checkpoint().note, [new.public_key])
    assert (after.unknown, parse_checkpoint(after.text).origin) == ((), "test.example/log")
    assert AuditEntry.objects.filter(kind="log_key_rotated").count() == 1
    for _ in range(2):
        audit.rotate()
        add(1)
        audit.checkpoint()
    assert LogKey.objects.count() == 4
    assert any(line.startswith("4 keys") for line in check())


@pytest.mark.parametrize("done", range(4), ids=["new file", "statement", "old file", "file replaced"])
def test_a_rotation_that_was_cut_is_finished_by_the_next(own_key: Path, done: int) -> None:
    """After so many of its steps besides the first."""
    add(1)
    audit.checkpoint()
    old, new = load(own_key), generate("test.example/log")
    new.write(keys.next_path(own_key))
    steps = (
        lambda: audit.rotate_key(old=old, new=new),
        lambda: own_key.replace(keys.previous_path(own_key)),
        lambda: keys.next_path(own_key).replace(own_key),
    )
    for step in steps[:done]:
        step()
    if done:
        assert audit.signing_key().vkey == new.vkey, "signing continues meanwhile"
        assert len(open_note(audit.checkpoint().note, [old.public_key, new.public_key]).verified) == 2
    newest, _ = audit.rotate()
    assert audit.signing_key().vkey == newest.vkey not in (old.vkey, new.vkey)
    assert LogKey.objects.count() == (3 if done else 2)
    assert [path.name for path in own_key.parent.iterdir()] == ["key.pem"]
    assert check()


def test_the_file_of_another_key_signs_nothing_and_a_log_keeps_its_name(
    own_key: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    audit.checkpoint()
    replaced(own_key)
    add(1)
    with pytest.raises(KeyFault, match="and the log is signed with"):
        audit.checkpoint()
    own_key.unlink()
    with pytest.raises(KeyFault, match=r"there is no signing key at .*cohort audit make-key"):
        audit.checkpoint()
    assert LogCheckpoint.objects.count() == 1
    monkeypatch.setattr(environment(), "log_origin", "other.example/log")
    with pytest.raises(KeyFault, match="a log keeps its name"):
        keys.origin()


@pytest.mark.parametrize(
    ("statement", "names"),
    [
        ("UPDATE audit_logkey SET rotation = '' WHERE since_size > 0", "the log's keys: rotation 1"),
        ("UPDATE audit_logcheckpoint SET key_id = (SELECT min(id) FROM audit_logkey)", "not of the key that signed"),
    ],
)
def test_keys_and_checkpoints_of_other_keys_that_were_slipped_in(own_key: Path, statement: str, names: str) -> None:
    add(1)
    audit.checkpoint()
    audit.rotate()
    as_owner(statement)
    with pytest.raises(LogFault, match=names):
        check()


def test_a_key_replaced_between_numbering_and_signing_signs_nothing_before_its_own_entry(
    own_key: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Entries 0 and 1 are numbered, entry 1 is under no head; then the key changes before another process signs."""
    audit.checkpoint()
    add(1)
    new = generate("test.example/log")
    new.write(keys.next_path(own_key))
    numbered = audit.integrate

    def replaced_after() -> int:
        monkeypatch.setattr(audit, "integrate", numbered)
        count = numbered()
        audit.rotate_key(old=load(own_key), new=new)
        return count

    monkeypatch.setattr(audit, "integrate", replaced_after)
    row = audit.checkpoint()
    assert (row.size, row.key.since_size) == (3, 2)
    assert check()


# ---------------------------------------------------------------------- the command


@pytest.fixture
def cohort_audit(monkeypatch: pytest.MonkeyPatch) -> Callable[..., int]:
    """The command on the tests' own database, which is reached without a home."""
    monkeypatch.setattr("cohort.cli.embedded.visit.database", lambda *_: nullcontext())
    return lambda *words: command.main([str(word) for word in words])


def test_the_command_checks_against_notes_proofs_and_cards(
    log_of_nine: list[str], cohort_audit: Callable[..., int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    proof = audit.prove(AuditLeaf.objects.get(idx=2).entry)
    text = merkle.write(proof.index, proof.path, proof.checkpoint)
    note, alone, card = (tmp_path / name for name in ("checkpoint", "proof.tlog-proof", "card.zip"))
    note.write_text(log_of_nine[1], encoding="utf-8")
    alone.write_text(text, encoding="utf-8")
    with zipfile.ZipFile(card, "w") as written:
        written.writestr("proof.tlog-proof", text)
    assert cohort_audit("check", "--against", note, "--against", alone, "--against", card) == 0
    out = capsys.readouterr().out
    for kept, size in ((note, 4), (alone, 9), (card, 9)):
        assert f"good  {kept}: the log begins with the {size} entries" in out
    forge()
    with pytest.raises(LogFault) as fault:
        cohort_audit("check", "--against", card)
    assert fault.value.exit_status == 1


def test_the_export_rebuilds_the_tree_without_the_database(
    log_of_nine: list[str], cohort_audit: Callable[..., int], tmp_path: Path
) -> None:
    add(9)
    file = tmp_path / "log.jsonl"
    assert cohort_audit("export", file) == 0
    lines = file.read_bytes().splitlines()
    assert [json.loads(line)["subject"] for line in lines[1:]] == [f"thing:{number}" for number in range(1, 10)]
    note = (tmp_path / "log.jsonl.checkpoint").read_text(encoding="utf-8")
    head = parse_checkpoint(open_note(note, [parse_vkey(vkey) for vkey in audit.public_keys()[0]]).text)
    assert head.root == root([leaf_hash(line) for line in lines])
    with pytest.raises(Exception, match="is there already"):
        cohort_audit("export", file)


def test_the_command_signs_and_makes_keys(
    cohort_audit: Callable[..., int], own_key: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    add(1)
    assert cohort_audit("checkpoint") == 0
    assert capsys.readouterr().out == LogCheckpoint.objects.get().note
    assert cohort_audit("rotate-key") == 0
    assert load(own_key).vkey in capsys.readouterr().out
    made = tmp_path / "new" / "key.pem"
    assert cohort_audit("make-key", made) == 0
    assert made.stat().st_mode & 0o777 == 0o600
    with pytest.raises(KeyFault, match="never written over"):
        cohort_audit("make-key", made)
