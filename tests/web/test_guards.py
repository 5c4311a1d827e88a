"""What the database itself refuses, whoever asks: states that do not follow, fences that fall, ends that are taken
back, events that are rewritten."""

from collections.abc import Callable

import pytest
from django.db import IntegrityError, connection, transaction
from django.db.models import ProtectedError

from cohort.runs.models import Attempt, Run, RunEvent, RunState
from cohort.runs.transitions import ALLOWED
from tests.factories.runs import Maker, put_in
from tests.web.control import fresh

pytestmark = pytest.mark.django_db


def refused(do: Callable[[], object], *constraints: str) -> None:
    """By one of them: which guard of several PostgreSQL meets first depends on the order the tables were made in."""
    with pytest.raises(IntegrityError) as caught, transaction.atomic():
        do()
    assert caught.value.__cause__.diag.constraint_name in constraints  # type: ignore[union-attr]


def test_the_table_in_the_database_is_the_one_in_the_code() -> None:
    with connection.cursor() as cursor:
        cursor.execute("SELECT from_state, to_state FROM runs_transition")
        stored = set(cursor.fetchall())
    assert stored == {(state.value, to.value) for state, following in ALLOWED.items() for to in following}


def test_every_state_that_does_not_follow_is_refused(maker: Maker) -> None:
    run = maker.run()
    tried = 0
    for state in RunState:
        put_in(run, state)
        for to in set(RunState) - ALLOWED[state] - {state}:
            refused(lambda to=to: Run.objects.filter(pk=run.pk).update(state=to), "runs_transition")  # type: ignore[misc]
            tried += 1
        assert fresh(run).state == state
    assert tried == 10 * 9 - sum(map(len, ALLOWED.values()))


def test_a_fence_never_falls_and_an_attempt_ends_once(maker: Maker) -> None:
    run = maker.run(state="training")
    attempt = maker.attempt(run)
    refused(lambda: maker.attempt(run), "one_running_attempt_per_run")
    refused(lambda: Run.objects.filter(pk=run.pk).update(fence=0), "runs_fence_rises")
    rows = Attempt.objects.filter(pk=attempt.pk)
    rows.update(acked_seq=7)
    refused(lambda: rows.update(acked_seq=6), "attempt_only_grows")
    refused(lambda: rows.update(fence=2), "attempt_only_grows")
    rows.update(state="lost")
    for state in ("running", "finished", "cancelled"):
        refused(lambda state=state: rows.update(state=state), "attempt_ends_once")  # type: ignore[misc]
    assert (rows.get().state, rows.get().acked_seq, rows.get().fence) == ("lost", 7, 1)


@pytest.mark.parametrize(
    "statement",
    [
        "INSERT INTO runs_transition VALUES ('succeeded', 'draft')",
        "UPDATE runs_transition SET to_state = 'draft' WHERE from_state = 'succeeded'",
        "DELETE FROM runs_transition",
        "TRUNCATE runs_transition",
    ],
)
def test_the_pairs_change_by_a_migration_alone(db: None, statement: str) -> None:
    with connection.cursor() as cursor:
        refused(lambda: cursor.execute(statement), "pairs_are_fixed")


def test_events_are_only_added_and_keep_what_they_are_of(maker: Maker) -> None:
    run = maker.run()
    event = RunEvent.objects.get(run=run)
    refused(lambda: RunEvent.objects.filter(pk=event.pk).update(actor="user:mallory"), "events_are_only_added")
    refused(lambda: event.delete(), "events_are_only_added")
    for row in (run, run.project):
        with pytest.raises(ProtectedError):
            row.delete()
    with connection.cursor() as cursor:
        cursor.execute("SET CONSTRAINTS ALL IMMEDIATE")  # no table with checks that wait is emptied, whoever asks
        refused(lambda: cursor.execute("TRUNCATE runs_runevent"), "events_are_only_added")
        refused(lambda: cursor.execute("TRUNCATE runs_run CASCADE"), "events_are_only_added", "only_added")
    assert RunEvent.objects.get(run=run).actor == "user:alice"
