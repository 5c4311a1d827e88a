"""The audit log: only added to, by PostgreSQL itself; numbered without gaps; gone with a change that is rolled back."""

import threading

import pytest
from django.core.exceptions import ValidationError
from django.db import DatabaseError, connection, transaction

from cohort.accounts.models import Project
from cohort.audit import services as audit
from cohort.audit.models import (
    AuditEntry,
    AuditLeaf,
    AuditPending,
    LogCheckpoint,
    LogCosignature,
    LogKey,
    TreeHead,
)
from cohort.evidence.canonical import parse
from cohort.evidence.checkpoint import parse as parse_checkpoint
from cohort.evidence.keys import parse_vkey
from cohort.evidence.merkle import EMPTY_ROOT, leaf_hash, root, verify_consistency, verify_inclusion
from cohort.evidence.note import open_note

pytestmark = pytest.mark.django_db


def add(number: int = 0, **more: object) -> AuditEntry:
    return audit.log(actor="platform", kind="thing_done", subject=f"thing:{number}", **more)  # type: ignore[arg-type]


def indices() -> list[int]:
    return list(AuditLeaf.objects.order_by("idx").values_list("idx", flat=True))


def opened(row: LogCheckpoint):
    return parse_checkpoint(open_note(row.note, [parse_vkey(vkey) for vkey in audit.public_keys()[0]]).text)


def test_an_entry_says_who_what_before_after_and_why_in_canonical_bytes(ours: Project) -> None:
    entry = audit.log(
        actor="user:alice",
        kind="member_role_changed",
        subject="user:bob",
        project=ours,
        before={"role": "viewer"},
        after={"role": "operator"},
        reason="he trains from today",
        data={"share": 0.25},
    )
    body = parse(bytes(AuditEntry.objects.get(pk=entry.pk).body))
    assert len(body.pop("nonce")) == 32
    assert body == {
        "at": entry.at.isoformat(timespec="microseconds").replace("+00:00", "Z"),
        "actor": "user:alice",
        "kind": "member_role_changed",
        "subject": "user:bob",
        "project": "ours",
        "before": {"role": "viewer"},
        "after": {"role": "operator"},
        "reason": "he trains from today",
        "data": {"share": 0.25},
    }


def test_two_entries_of_the_same_content_have_different_leaves() -> None:
    assert bytes(add().body) != bytes(add().body)
    nonces = {parse(bytes(add().body))["nonce"] for _ in range(3)}
    assert len(nonces) == 3, "the time alone could be guessed"


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"reason": "x" * (10 * 1024 * 1024)}, "10,485,760 characters long; 10,000 at most"),
        ({"data": {"text": "x" * (10 * 1024 * 1024)}}, "the audit log takes 262,144 an entry"),
        ({"after": {"loss": float("nan")}}, "after.loss is nan"),
        ({"after": [2**53]}, r"after[0] is a whole number beyond"),
        ({"reason": "\ud800"}, "reason holds half a surrogate pair"),
        ({"subject": "run:1\n"}, "cannot be the subject"),
        ({"actor": "alice"}, "cannot be the actor"),
        ({"actor": "user:" + "x" * 200}, "cannot be the actor"),
    ],
)
def test_what_cannot_be_logged_is_refused_with_its_place(wrong: dict[str, object], said: str) -> None:
    given = {"actor": "platform", "kind": "thing_done", "subject": "thing:1"} | wrong
    with pytest.raises(ValidationError) as refused:
        audit.log(**given)  # type: ignore[arg-type]
    assert said in " ".join(refused.value.messages)
    assert not AuditEntry.objects.exists()


def test_entries_are_numbered_from_zero_in_order() -> None:
    made = [add(number) for number in range(5)]
    assert not AuditLeaf.objects.exists()
    assert audit.integrate() == 5
    assert [leaf.entry_id for leaf in AuditLeaf.objects.order_by("idx")] == [entry.pk for entry in made]
    assert indices() == [0, 1, 2, 3, 4]
    assert not AuditPending.objects.exists()
    assert audit.integrate() == 0


def test_the_head_signs_the_tree_of_the_bodies() -> None:
    for number in range(1, 12):
        add(number)
        row = audit.checkpoint()
        bodies = [bytes(leaf.entry.body) for leaf in AuditLeaf.objects.select_related("entry").order_by("idx")]
        head = opened(row)
        # One more than was added here: the entry that the first key was made.
        assert (head.size, head.origin) == (number + 1, "test.example/log")
        assert head.root == root([leaf_hash(body) for body in bodies])


def test_an_empty_tree_has_a_head_too() -> None:
    assert audit.integrate() == 0
    audit.keep()
    assert not LogCheckpoint.objects.exists(), "nothing was added, so nothing is signed of itself"
    row = audit.checkpoint()
    assert opened(row).size == 1, "the key's own entry"
    assert opened(row).root != EMPTY_ROOT
    assert audit.checkpoint() == row, "nothing was added since"


def test_a_checkpoint_a_minute_and_none_without_growth() -> None:
    add()
    audit.keep()
    assert LogCheckpoint.objects.count() == 1
    add()
    audit.keep()
    assert LogCheckpoint.objects.count() == 1, "the minute is not over"
    assert not AuditPending.objects.exists(), "numbered all the same"
    ages_a_minute()
    audit.keep()
    assert LogCheckpoint.objects.count() == 2
    ages_a_minute()
    audit.keep()
    assert LogCheckpoint.objects.count() == 2, "nothing was added"


def ask(statement: str) -> None:
    with connection.cursor() as cursor:
        cursor.execute(statement)


def ages_a_minute() -> None:
    ask("SET CONSTRAINTS ALL IMMEDIATE")
    ask("ALTER TABLE audit_logcheckpoint DISABLE TRIGGER USER")
    ask("UPDATE audit_logcheckpoint SET at = at - interval '61 seconds'")
    ask("ALTER TABLE audit_logcheckpoint ENABLE TRIGGER USER")


def test_every_entry_is_proved_and_every_head_follows_from_each_before() -> None:
    heads = []
    for number in range(20):
        add(number)
        heads.append(opened(audit.checkpoint()))
    for entry in AuditEntry.objects.all():
        proof = audit.prove(entry)
        head = parse_checkpoint(open_note(proof.checkpoint, [parse_vkey(audit.public_keys()[0][0])]).text)
        assert proof.size == head.size == 21
        assert verify_inclusion(leaf_hash(proof.body), proof.index, proof.size, proof.path, head.root)
    paths = audit.consistency(to=21, sizes=[head.size for head in heads])
    for head in heads:
        assert verify_consistency(head.size, 21, paths[head.size], head.root, heads[-1].root)


def test_an_entry_that_is_not_under_a_head_yet_gets_one() -> None:
    audit.checkpoint()
    entry = add()
    assert audit.proof_of(entry) is None
    assert audit.prove(entry).index == 1
    assert LogCheckpoint.objects.count() == 2


# ---------------------------------------------------------------------- only added to

TABLES = [AuditEntry, AuditLeaf, LogKey, LogCheckpoint, LogCosignature]


@pytest.fixture
def filled() -> None:
    add()
    row = audit.checkpoint()
    LogCosignature.objects.create(checkpoint=row, witness="w", line="l", at=row.at)


@pytest.mark.parametrize("model", TABLES)
def test_postgresql_refuses_update_and_delete(filled: None, model: type) -> None:
    table = model._meta.db_table
    column = model._meta.pk.column
    for statement in (f"UPDATE {table} SET {column} = {column}", f"DELETE FROM {table}"):
        with pytest.raises(DatabaseError, match=f"{table} is only added to"), transaction.atomic():
            ask(statement)
    for change in (lambda: model.objects.all().delete(), lambda: model.objects.first().save(force_update=True)):
        with pytest.raises(Exception, match=r"only added to|protected"), transaction.atomic():
            change()
    assert model.objects.count() >= 1


@pytest.mark.parametrize("model", TABLES)
def test_postgresql_refuses_truncate(filled: None, model: type) -> None:
    ask("SET LOCAL cohort.tests_empty_tables = off")
    ask("SET CONSTRAINTS ALL IMMEDIATE")
    with pytest.raises(DatabaseError, match="only added to: TRUNCATE is refused"), transaction.atomic():
        ask(f"TRUNCATE {model._meta.db_table} CASCADE")
    assert model.objects.exists()


# ---------------------------------------------------------------------- many at once


@pytest.mark.django_db(transaction=True)
def test_a_rollback_takes_the_entry_with_it_and_leaves_no_gap() -> None:
    add(1)
    try:
        with transaction.atomic():
            add(2)
            raise KeyError
    except KeyError:
        assert AuditEntry.objects.count() == 1
    add(3)
    assert audit.integrate() == 2
    subjects = AuditLeaf.objects.order_by("idx").values_list("idx", "entry__subject")
    assert list(subjects) == [(0, "thing:1"), (1, "thing:3")]


@pytest.mark.django_db(transaction=True)
def test_numbering_inside_another_transaction_is_refused() -> None:
    add()
    with pytest.raises(RuntimeError, match="durable"), transaction.atomic():
        audit.integrate()
    with pytest.raises(RuntimeError, match="durable"), transaction.atomic():
        audit.checkpoint()


@pytest.mark.django_db(transaction=True)
def test_an_entry_committed_late_is_numbered_later_and_loses_nobody_his_place() -> None:
    """The one with the smaller id commits after the other was numbered."""
    begun, go = threading.Event(), threading.Event()

    def slow() -> None:
        try:
            with transaction.atomic():
                add(1)
                begun.set()
                assert go.wait(60)
        finally:
            connection.close()

    thread = threading.Thread(target=slow)
    thread.start()
    assert begun.wait(60)
    add(2)
    assert audit.integrate() == 1
    go.set()
    thread.join()
    assert audit.integrate() == 1
    assert [leaf.entry.subject for leaf in AuditLeaf.objects.order_by("idx")] == ["thing:2", "thing:1"]


@pytest.mark.django_db(transaction=True)
def test_threads_that_add_and_number_and_sign_at_once_leave_no_gap_and_no_double() -> None:
    audit.checkpoint()
    faults: list[BaseException] = []
    start = threading.Barrier(9)

    def adds(first: int) -> None:
        start.wait()
        for number in range(40):
            try:
                with transaction.atomic():
                    add(first + number)
                    if number % 5 == 0:
                        raise KeyError
            except KeyError:
                continue

    def numbers(_: int) -> None:
        start.wait()
        for turn in range(40):
            audit.checkpoint() if turn % 4 == 0 else audit.integrate()

    def run(act, given: int) -> None:
        try:
            act(given)
        except BaseException as error:  # noqa: BLE001  told below
            faults.append(error)
        finally:
            connection.close()

    threads = [threading.Thread(target=run, args=(adds, 1000 * one)) for one in range(6)]
    threads += [threading.Thread(target=run, args=(numbers, one)) for one in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not faults
    audit.checkpoint()
    assert AuditEntry.objects.count() == 6 * 32 + 1
    assert indices() == list(range(6 * 32 + 1))
    assert AuditLeaf.objects.values("entry").distinct().count() == 6 * 32 + 1
    assert not AuditPending.objects.exists()
    assert TreeHead.objects.get().size == 6 * 32 + 1
    heads = [opened(row) for row in LogCheckpoint.objects.order_by("size")]
    paths = audit.consistency(to=heads[-1].size, sizes=[head.size for head in heads])
    for head in heads:
        assert verify_consistency(head.size, heads[-1].size, paths[head.size], head.root, heads[-1].root)
