"""What is said of a record after it was sealed: who may say what, two people for two roles, and nothing is edited."""

import hashlib
import json
import threading
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta

import pytest
from django.core.exceptions import PermissionDenied, ValidationError
from django.db import IntegrityError, connection, transaction
from django.utils import timezone

from cohort.accounts.models import Role, User
from cohort.accounts.services import membership_set
from cohort.audit.models import AuditEntry
from cohort.governance.life import services
from cohort.governance.life.rules import State, standing_of
from cohort.governance.life.shown import entries_of
from cohort.governance.models import Record, RecordEntry
from cohort.runs.models import Run
from cohort.runs.services import run_pause, run_resume
from tests.web.governance.records_put import put
from tests.web.run_page import freeze

pytestmark = pytest.mark.django_db


@pytest.fixture
def record(launch: Callable[..., Run]) -> Record:
    """Of a run that alice launched."""
    return put(launch())


def state(record: Record) -> State:
    return standing_of(entries_of([record.pk])).state


def sign(record: Record, actor: User, role: str, decision: str = "approved", reason: str = "read it") -> RecordEntry:
    return services.sign_off(record=record, actor=actor, role=role, decision=decision, reason=reason)


def said(error: pytest.ExceptionInfo[ValidationError]) -> str:
    return " ".join(error.value.messages)


def test_two_people_sign_and_the_state_follows(record: Record, oscar: User, rita: User) -> None:
    assert state(record) == State.NONE
    sign(record, oscar, "operator")
    assert state(record) == State.OPERATOR
    sign(record, rita, "reviewer")
    assert state(record) == State.APPROVED
    sign(record, rita, "reviewer", "rejected", "the margin was not kept")
    assert state(record) == State.REJECTED


def test_reviewer_alone(record: Record, rita: User) -> None:
    sign(record, rita, "reviewer")
    assert state(record) == State.REVIEWER


def test_one_person_does_not_fill_both_roles(record: Record, oscar: User) -> None:
    sign(record, oscar, "operator")
    with pytest.raises(ValidationError) as error:
        sign(record, oscar, "reviewer")
    assert "You have signed as operator. The two roles need two different people." in said(error)
    assert record.entries.count() == 1


def test_who_launched_is_no_independent_reviewer(record: Record, alice: User, oscar: User) -> None:
    with pytest.raises(ValidationError) as error:
        sign(record, alice, "reviewer")
    assert "You launched this run" in said(error)
    sign(record, alice, "operator")  # but answers for it
    sign(record, oscar, "reviewer")  # an operator who did not launch it is independent enough
    assert state(record) == State.APPROVED


def test_who_put_the_run_back_into_the_queue_launched_it_too(launch: Callable[..., Run], oscar: User) -> None:
    run = launch()
    run_pause(run=run, actor=oscar)
    run_resume(run=run, actor=oscar)
    record = put(run, sealed_at=timezone.now())
    with pytest.raises(ValidationError) as error:
        sign(record, oscar, "reviewer")
    assert "You launched this run" in said(error)


def test_what_is_done_after_the_seal_makes_nobody_a_launcher(launch: Callable[..., Run], oscar: User) -> None:
    run = launch()
    record = put(run, sealed_at=timezone.now())
    run_pause(run=run, actor=oscar)
    run_resume(run=run, actor=oscar)
    sign(record, oscar, "reviewer")
    assert state(record) == State.REVIEWER


def test_roles_of_the_project_bound_who_signs_as_what(record: Record, bob: User, rita: User, charlie: User) -> None:
    with pytest.raises(ValidationError) as error:
        sign(record, rita, "operator")
    assert "needs the role operator" in said(error)
    for role in ("operator", "reviewer"):
        with pytest.raises(ValidationError):
            sign(record, bob, role)
        with pytest.raises(PermissionDenied):
            sign(record, charlie, role)
    assert not record.entries.exists()


def test_only_the_signer_corrects_a_sign_off(record: Record, oscar: User, alice: User) -> None:
    first = sign(record, oscar, "operator")
    with pytest.raises(ValidationError) as error:
        sign(record, alice, "operator", "rejected")
    assert "oscar has signed as operator: approved. Only they can correct or withdraw it" in said(error)
    second = sign(record, oscar, "operator", "rejected", "read it again")
    assert second.data["corrects"] == first.pk
    withdrawn = sign(record, oscar, "operator", "withdrawn", "meant another record")
    assert withdrawn.data["corrects"] == second.pk
    assert state(record) == State.NONE
    sign(record, alice, "operator")  # the role is free again
    assert state(record) == State.OPERATOR
    assert record.entries.count() == 4


def test_nothing_to_withdraw(record: Record, oscar: User) -> None:
    with pytest.raises(ValidationError) as error:
        sign(record, oscar, "operator", "withdrawn")
    assert "Nothing to withdraw" in said(error)


def test_revoked_once_and_then_not_signed(record: Record, alice: User, oscar: User) -> None:
    sign(record, oscar, "operator")
    services.revoke(record=record, actor=alice, reason="the held-out set leaked")
    assert state(record) == State.REVOKED
    with pytest.raises(ValidationError) as error:
        services.revoke(record=record, actor=alice, reason="again")
    assert "was revoked already" in said(error)
    with pytest.raises(ValidationError) as error:
        sign(record, oscar, "operator", "rejected")
    assert "A revoked record is not signed" in said(error)
    services.feedback(record=record, actor=alice, text="still heard of", source="a customer")  # but spoken of


def test_every_entry_is_logged_in_its_transaction(record: Record, oscar: User, alice: User) -> None:
    before = AuditEntry.objects.count()
    entry = sign(record, oscar, "operator", reason="looked at every item")
    row = AuditEntry.objects.get(pk=entry.data["log"])
    body = json.loads(bytes(row.body))
    assert (row.actor, row.kind, row.subject) == ("user:oscar", "record_signed_off", f"record:{record.pk}")
    assert body["reason"] == "looked at every item"
    assert body["after"]["role"] == "operator"
    assert body["data"]["seal"] == record.seal
    with transaction.atomic():
        services.revoke(record=record, actor=alice, reason="no")
        transaction.set_rollback(True)
    assert AuditEntry.objects.count() == before + 1
    assert record.entries.count() == 1


def test_what_may_tell_of_people_stands_in_the_log_by_its_digest_alone(record: Record, rita: User) -> None:
    entry = services.feedback(record=record, actor=rita, text="Ada Lovelace called twice", source="the help desk")
    body = bytes(AuditEntry.objects.get(pk=entry.data["log"]).body).decode()
    assert "Lovelace" not in body
    assert "help desk" not in body
    # worked out by hand: canonical JSON sorts by name and leaves no space
    canonical = b'{"source":"the help desk","text":"Ada Lovelace called twice"}'
    assert json.loads(body)["after"]["content_sha256"] == hashlib.sha256(canonical).hexdigest()


def test_incident_feedback_monitoring_override(record: Record, alice: User) -> None:
    when = datetime(2026, 11, 20, 8, 30, tzinfo=UTC)
    one = services.incident(record=record, actor=alice, severity="high", when=when, what="it named a patient")
    assert (one.text, one.data["severity"], one.data["when"]) == (
        "it named a patient", "high", "2026-11-20T08:30+00:00",
    )  # fmt: skip
    services.feedback(record=record, actor=alice, text="too long answers", source="support")
    note = services.monitoring(
        record=record,
        actor=alice,
        text="as expected",
        period=(date(2026, 10, 1), date(2026, 10, 31)),
        figures=[("refusals", "12 of 480")],
    )
    assert note.data["figures"] == [{"name": "refusals", "value": "12 of 480"}]
    services.override(record=record, actor=alice, what="entropy collapse", reason="expected at this length")
    assert [entry.kind for entry in record.entries.all()] == ["incident", "feedback", "monitoring", "override"]
    assert state(record) == State.NONE


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"severity": "dreadful"}, "Choose how severe it was"),
        ({"when": datetime.now(UTC) + timedelta(days=1)}, "lies in the future"),
        ({"what": " \n "}, "What happened is missing"),
        ({"what": "x" * 20_001}, "has 20,001 characters; at most 20,000 are kept"),
        ({"what": "a\x00b"}, "a character that cannot be stored"),
        ({"corrects": 10**9}, "no such entry"),
    ],
)
def test_a_faulty_incident_is_refused(record: Record, alice: User, given: dict[str, object], words: str) -> None:
    whole = {"severity": "low", "when": datetime(2026, 11, 1, tzinfo=UTC), "what": "slow", **given}
    with pytest.raises(ValidationError) as error:
        services.incident(record=record, actor=alice, **whole)  # type: ignore[arg-type]
    assert words in said(error)
    assert not record.entries.exists()


def test_faulty_monitoring_is_refused(record: Record, alice: User) -> None:
    def note(first: date, last: date, figures: int = 0) -> RecordEntry:
        return services.monitoring(
            record=record, actor=alice, text="x", period=(first, last), figures=[("a", "1")] * figures
        )

    now = datetime.now(UTC)
    today = now.date()
    with pytest.raises(ValidationError, match="before it begins"):
        note(today, today - timedelta(days=1))
    with freeze(now), pytest.raises(ValidationError, match="yet to come"):
        note(today, today + timedelta(days=1))  # not at midnight, when this day has come
    with pytest.raises(ValidationError, match="51 figures; at most 50"):
        note(today, today, figures=51)
    note(today, today, figures=50)


def test_20_000_characters_fit_and_are_kept_whole(record: Record, oscar: User) -> None:
    text = "ß" * 20_000
    entry = sign(record, oscar, "operator", reason=text)
    entry.refresh_from_db()
    assert entry.text == text
    body = json.loads(bytes(AuditEntry.objects.get(pk=entry.data["log"]).body))
    assert len(body["reason"]) <= 10_000
    assert "20,000 characters; all of it stands at the record" in body["reason"]


def test_ten_megabytes_are_refused(record: Record, oscar: User) -> None:
    with pytest.raises(ValidationError, match="10,000,000 characters"):
        sign(record, oscar, "operator", reason="x" * 10_000_000)


def test_a_wrong_entry_is_corrected_once_by_one_of_its_kind(record: Record, alice: User) -> None:
    wrong = services.feedback(record=record, actor=alice, text="it is rude", source="a caller")
    right = services.feedback(
        record=record, actor=alice, text="another model was rude", source="a caller", corrects=wrong.pk
    )
    assert right.data["corrects"] == wrong.pk
    with pytest.raises(ValidationError, match="was corrected already"):
        services.feedback(record=record, actor=alice, text="x", source="y", corrects=wrong.pk)
    with pytest.raises(ValidationError, match="no such entry of this kind"):
        services.override(record=record, actor=alice, what="f", reason="x", corrects=right.pk)
    wrong.refresh_from_db()
    assert wrong.text == "it is rude"


@pytest.mark.parametrize(
    "statement", ["UPDATE governance_recordentry SET text = 'x'", "DELETE FROM governance_recordentry"]
)
def test_postgresql_refuses_to_change_an_entry(record: Record, oscar: User, statement: str) -> None:
    entry = sign(record, oscar, "operator")
    with pytest.raises(IntegrityError, match="only added to"), transaction.atomic(), connection.cursor() as cursor:
        cursor.execute(statement)
    entry.text = "never said"
    with pytest.raises(IntegrityError, match="only added to"), transaction.atomic():
        entry.save()
    with pytest.raises(IntegrityError, match="only added to"), transaction.atomic():
        entry.delete()
    entry.refresh_from_db()
    assert entry.text == "read it"


def test_an_entry_table_is_not_emptied_by_others_than_tests(record: Record, oscar: User) -> None:
    sign(record, oscar, "operator")
    emptied = (
        "SET CONSTRAINTS ALL IMMEDIATE; SET LOCAL cohort.tests_empty_tables = 'off'; TRUNCATE governance_recordentry"
    )
    with pytest.raises(IntegrityError, match="only added to"), transaction.atomic(), connection.cursor() as cursor:
        cursor.execute(emptied)


@pytest.mark.django_db(transaction=True)
def test_two_people_signing_one_role_at_once(
    launch: Callable[..., Run], oscar: User, alice: User, make_user: Callable[[str], User]
) -> None:
    """Six operators press at the same moment: one signs, five are told who was first."""
    run = launch()
    record = put(run)
    people = [oscar, alice, *(make_user(f"op{n}") for n in range(4))]
    for one in people[2:]:
        membership_set(project=run.project, actor=alice, user=one, role=Role.OPERATOR)
    start, refused = threading.Barrier(len(people)), []

    def press(person: User) -> None:
        try:
            start.wait()
            sign(Record.objects.get(pk=record.pk), person, "operator")
        except ValidationError as error:
            refused.append(" ".join(error.messages))
        finally:
            connection.close()

    threads = [threading.Thread(target=press, args=[one]) for one in people]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert record.entries.count() == 1
    assert len(refused) == 5
    assert all("has signed as operator" in words for words in refused)


@pytest.mark.django_db(transaction=True)
def test_one_person_in_two_windows_does_not_get_both_roles(launch: Callable[..., Run], oscar: User) -> None:
    record = put(launch())
    start, refused = threading.Barrier(2), []

    def press(role: str) -> None:
        try:
            start.wait()
            sign(Record.objects.get(pk=record.pk), oscar, role)
        except ValidationError as error:
            refused.append(" ".join(error.messages))
        finally:
            connection.close()

    threads = [threading.Thread(target=press, args=[role]) for role in ("operator", "reviewer")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert record.entries.count() == 1
    assert ["two different people" in words for words in refused] == [True]
