"""The audit log: only added to, by PostgreSQL itself; numbered without gaps; gone with a change that is rolled back."""

import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path

import pytest
from django.core.exceptions import ValidationError
from django.db import DatabaseError, connection, transaction

from cohort.accounts.models import Project
from cohort.audit import services as audit
from cohort.audit.models import AuditEntry, AuditLeaf, AuditPending, LogCheckpoint, LogCosignature, LogKey, TreeHead
from cohort.cli.embedded.home import Home
from cohort.evidence.canonical import parse
from cohort.evidence.checkpoint import Checkpoint
from cohort.evidence.checkpoint import parse as parse_checkpoint
from cohort.evidence.keys import generate, parse_vkey
from cohort.evidence.merkle import EMPTY_ROOT, leaf_hash, root, verify_consistency, verify_inclusion
from cohort.evidence.note import open_note
from tests.processes import DEADLINE, clean_environment
from tests.web.records.conftest import in_thread

pytestmark = pytest.mark.django_db


def add(number: int = 0, **more: object) -> AuditEntry:
    return audit.log(actor="platform", kind="thing_done", subject=f"thing:{number}", **more)  # type: ignore[arg-type]


def indices() -> list[int]:
    return list(AuditLeaf.objects.order_by("idx").values_list("idx", flat=True))


def opened(note: str) -> Checkpoint:
    return parse_checkpoint(open_note(note, [parse_vkey(vkey) for vkey in audit.public_keys()[0]]).text)


def each_head_follows(heads: list[Checkpoint]) -> None:
    newest = heads[-1]
    paths = audit.consistency(to=newest.size, sizes=[head.size for head in heads])
    for head in heads:
        assert verify_consistency(head.size, newest.size, paths[head.size], head.root, newest.root)


def execute(*statements: str) -> None:
    with connection.cursor() as cursor:
        for statement in statements:
            cursor.execute(statement)


def test_an_entry_says_who_what_before_after_and_why_in_canonical_bytes(ours: Project) -> None:
    said = {"actor": "user:alice", "kind": "member_role_changed", "subject": "user:bob", "before": {"role": "viewer"}}
    said |= {"after": {"role": "operator"}, "reason": "he trains from today", "data": {"share": 0.25}}
    entry = audit.log(**said, project=ours)
    body = parse(bytes(AuditEntry.objects.get(pk=entry.pk).body))
    nonces = {parse(bytes(add().body))["nonce"] for _ in range(3)} | {body.pop("nonce")}
    assert [len(nonce) for nonce in nonces] == [32] * 4, "the time alone could be guessed"
    at = entry.at.isoformat(timespec="microseconds").replace("+00:00", "Z")
    assert body == {**said, "at": at, "project": "ours"}


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"reason": "x" * (10 * 1024 * 1024)}, "10,485,760 characters long; 10,000 at most"),
        ({"data": {"text": "x" * (10 * 1024 * 1024)}}, "takes 262,144 an entry"),
        ({"after": {"loss": float("nan")}}, "after.loss is nan"),
        ({"after": [2**53]}, "after[0] is a whole number beyond"),
        ({"reason": "\ud800"}, "reason holds half a surrogate pair"),
        ({"subject": "run:1\n"}, "cannot be the subject"),
        ({"actor": "alice"}, "cannot be the actor"),
        ({"actor": "user:" + "x" * 200}, "cannot be the actor"),
    ],
    ids=range(8),
)
def test_what_cannot_be_logged_is_refused_with_its_place(wrong: dict[str, object], words: str) -> None:
    given = {"actor": "platform", "kind": "thing_done", "subject": "thing:1"} | wrong
    with pytest.raises(ValidationError) as refused:
        audit.log(**given)  # type: ignore[arg-type]
    assert words in " ".join(refused.value.messages)
    assert not AuditEntry.objects.exists()


def test_entries_are_numbered_from_zero_in_order() -> None:
    made = [add(number) for number in range(5)]
    assert not AuditLeaf.objects.exists()
    assert audit.integrate() == 5
    assert [leaf.entry_id for leaf in AuditLeaf.objects.order_by("idx")] == [entry.pk for entry in made]
    assert indices() == [0, 1, 2, 3, 4]
    assert not AuditPending.objects.exists()
    assert audit.integrate() == 0


def test_an_empty_tree_has_a_head_too() -> None:
    assert audit.integrate() == 0
    audit.keep()
    assert not LogCheckpoint.objects.exists(), "nothing was added, so nothing is signed of itself"
    row = audit.checkpoint()
    assert opened(row.note).size == 1, "the key's own entry"
    assert opened(row.note).root != EMPTY_ROOT
    assert audit.checkpoint() == row, "nothing was added since"


def test_a_checkpoint_a_minute_and_none_without_growth() -> None:
    counts = []
    for grows, ages in ((True, False), (True, False), (False, True), (False, True)):
        if grows:
            add()
        if ages:
            execute(
                "SET CONSTRAINTS ALL IMMEDIATE",
                "ALTER TABLE audit_logcheckpoint DISABLE TRIGGER USER",
                "UPDATE audit_logcheckpoint SET at = at - interval '61 seconds'",
                "ALTER TABLE audit_logcheckpoint ENABLE TRIGGER USER",
            )
        audit.keep()
        counts.append(LogCheckpoint.objects.count())
        assert not AuditPending.objects.exists(), "numbered all the same"
    assert counts == [1, 1, 2, 2]


def test_every_entry_is_proved_and_every_head_follows_from_each_before() -> None:
    heads = []
    for number in range(20):
        add(number)
        heads.append(opened(audit.checkpoint().note))
        bodies = [bytes(leaf.entry.body) for leaf in AuditLeaf.objects.select_related("entry").order_by("idx")]
        # one more than was added here: the entry that the first key was made
        assert (heads[-1].size, heads[-1].origin) == (number + 2, "test.example/log")
        assert heads[-1].root == root([leaf_hash(body) for body in bodies])
    for entry in AuditEntry.objects.all():
        proof = audit.prove(entry)
        head = opened(proof.checkpoint)
        assert proof.size == head.size == 21
        assert verify_inclusion(leaf_hash(proof.body), proof.index, proof.size, proof.path, head.root)
    each_head_follows(heads)
    entry = add()
    assert audit.proof_of(entry) is None
    assert audit.prove(entry).index == 21, "gets a head of its own"
    assert LogCheckpoint.objects.count() == 21


# ---------------------------------------------------------------------- only added to


@pytest.mark.parametrize("model", [AuditEntry, AuditLeaf, LogKey, LogCheckpoint, LogCosignature])
def test_postgresql_refuses_update_delete_and_truncate(model: type) -> None:
    add()
    row = audit.checkpoint()
    LogCosignature.objects.create(checkpoint=row, witness="w", line="l", at=row.at)
    table, column = model._meta.db_table, model._meta.pk.column
    execute("SET LOCAL cohort.tests_empty_tables = off", "SET CONSTRAINTS ALL IMMEDIATE")
    changes = (f"UPDATE {table} SET {column} = {column}", f"DELETE FROM {table}", f"TRUNCATE {table} CASCADE")
    for statement in changes:
        with pytest.raises(DatabaseError, match="only added to"), transaction.atomic():
            execute(statement)
    for change in (lambda: model.objects.all().delete(), lambda: model.objects.first().save(force_update=True)):
        with pytest.raises(Exception, match=r"only added to|protected"), transaction.atomic():
            change()
    assert model.objects.exists()


# ---------------------------------------------------------------------- many at once


@pytest.mark.django_db(transaction=True)
def test_rollbacks_leave_no_gap_and_numbering_needs_a_transaction_of_its_own() -> None:
    add(1)
    with suppress(KeyError), transaction.atomic():
        add(2)
        raise KeyError
    add(3)
    for number in (audit.integrate, audit.checkpoint):
        with pytest.raises(RuntimeError, match="durable"), transaction.atomic():
            number()
    assert audit.integrate() == 2
    subjects = AuditLeaf.objects.order_by("idx").values_list("idx", "entry__subject")
    assert list(subjects) == [(0, "thing:1"), (1, "thing:3")]


@pytest.mark.django_db(transaction=True)
def test_an_entry_committed_late_is_numbered_later_and_loses_nobody_his_place() -> None:
    """The one with the smaller id commits after the other was numbered."""
    begun, go = threading.Event(), threading.Event()

    @transaction.atomic
    def slow() -> None:
        add(1)
        begun.set()
        assert go.wait(DEADLINE)

    future = in_thread(slow)
    assert begun.wait(DEADLINE)
    add(2)
    assert audit.integrate() == 1
    go.set()
    future.result(DEADLINE)
    assert audit.integrate() == 1
    assert [leaf.entry.subject for leaf in AuditLeaf.objects.order_by("idx")] == ["thing:2", "thing:1"]


@pytest.mark.django_db(transaction=True)
def test_threads_that_add_and_number_and_sign_at_once_leave_no_gap_and_no_double() -> None:
    audit.checkpoint()
    start = threading.Barrier(6)

    def adds() -> None:
        start.wait()
        for number in range(20):
            with suppress(KeyError), transaction.atomic():
                add(number)
                if number % 5 == 0:
                    raise KeyError

    def numbers() -> None:
        start.wait()
        for turn in range(20):
            audit.checkpoint() if turn % 4 == 0 else audit.integrate()

    for future in [in_thread(act) for act in (adds, adds, adds, adds, numbers, numbers)]:
        future.result(DEADLINE)
    audit.checkpoint()
    whole = 4 * 16 + 1
    assert AuditEntry.objects.count() == AuditLeaf.objects.values("entry").distinct().count() == whole
    assert indices() == list(range(whole))
    assert not AuditPending.objects.exists()
    assert TreeHead.objects.get().size == whole
    each_head_follows([opened(row.note) for row in LogCheckpoint.objects.order_by("size")])


# ---------------------------------------------------------------------- who needs the private key

PRODUCTION = {
    "COHORT_MODE": "production",
    "COHORT_SECRET_KEY": "secret" * 10,
    "COHORT_DATABASE_URL": "postgresql://cohort:password@127.0.0.1:9/none",
    "COHORT_BROKER_URL": "amqp://cohort:password@127.0.0.1:9",
    "COHORT_PUBLIC_URL": "https://cohort.example.org",
    "COHORT_TRUSTED_PROXY": "true",
}


def ran(words: list[str], home: Path, seconds: float = DEADLINE) -> subprocess.CompletedProcess[str]:
    """In production, where no service answers."""
    more = {"COHORT_HOME": str(home), "DJANGO_SETTINGS_MODULE": "cohort.settings"}
    return subprocess.run(
        [sys.executable, *words],
        env=clean_environment() | PRODUCTION | more,
        cwd="/",
        capture_output=True,
        text=True,
        check=False,
        timeout=seconds,
    )


@pytest.mark.slow
@pytest.mark.parametrize("queue", ["platform", "platform.seal"])
def test_in_production_no_platform_worker_starts_without_the_key(tmp_path: Path, queue: str) -> None:
    words = ["-m", "celery", "-A", "cohort.background.worker", "worker", "--queues", queue, "--pool", "threads"]
    refused = ran(words, tmp_path)
    assert (refused.returncode, "cohort audit make-key" in refused.stderr) == (1, True)
    (tmp_path / "signing-key.pem").write_text("not a key")
    assert "holds no Ed25519 key" in ran(words, tmp_path).stderr
    (tmp_path / "signing-key.pem").unlink()
    generate("cohort.example.org/log").write(tmp_path / "signing-key.pem")
    with pytest.raises(subprocess.TimeoutExpired):  # it starts, and looks for its broker
        ran(words, tmp_path, seconds=12)


@pytest.mark.slow
def test_the_web_server_needs_no_key_and_the_command_that_makes_one_no_database(tmp_path: Path) -> None:
    loaded = ran(["-c", "import django; django.setup(); import cohort.server.wsgi"], tmp_path)
    assert loaded.returncode == 0, loaded.stderr
    words, home = ["-m", "cohort.cli.main", "audit", "make-key"], tmp_path / "new"
    made = ran(words, home)
    assert made.returncode == 0, made.stderr
    assert made.stdout.splitlines()[-1].startswith("cohort.example.org/log+")
    assert (home / "signing-key.pem").stat().st_mode & 0o777 == 0o600
    assert ran(words, home).returncode == 2


def test_a_trainers_worker_is_not_told_where_the_key_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COHORT_SIGNING_KEY_FILE", "/somewhere/key.pem")
    assert "COHORT_SIGNING_KEY_FILE" not in Home(tmp_path).worker_environment("http://127.0.0.1:8400")
    assert Home(tmp_path).platform_environment("postgresql:///x")["COHORT_SIGNING_KEY_FILE"] == "/somewhere/key.pem"
