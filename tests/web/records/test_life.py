"""What is said of a record after it was sealed: two people for two roles, nothing is edited, all of it is logged."""

import hashlib
import json
import re
import threading
from collections.abc import Callable
from datetime import UTC, date, datetime
from functools import partial
from typing import Any

import pytest
from django.core.exceptions import PermissionDenied, ValidationError
from django.db import IntegrityError, connection, transaction
from django.test import Client
from django.utils import timezone

from cohort.accounts.models import Role, User
from cohort.accounts.services import membership_set
from cohort.audit.models import AuditEntry
from cohort.records.after_seal import services
from cohort.records.after_seal.rules import State, standing_of
from cohort.records.models import Record, RecordEntry
from cohort.runs.models import Run
from cohort.runs.services import run_pause, run_resume
from cohort.web.after_seal.timeline import entries_of
from tests.factories import sealed_run
from tests.processes import DEADLINE
from tests.tables import cases
from tests.web.pages import html
from tests.web.records.conftest import World, in_thread
from tests.web.records.records import issue, logged, page_text, put

pytestmark = pytest.mark.django_db
Launch = Callable[..., Run]
ClientFor = Callable[[User], Client]
HOSTILE = '<script>alert(1)</script> \u202e "><img src=x onerror=alert(2)> {{ 7|add:7 }}'
WHEN = datetime(2026, 11, 20, 8, 30, tzinfo=UTC)
FILLED: dict[str, dict[str, str]] = {
    "sign_off": {"role": "operator", "decision": "approved", "reason": "I read all of it"},
    "incident": {"severity": "low", "when": "2026-11-20T08:30", "what": "slow answers"},
    "feedback": {"source": "support", "text": "too long"},
    "monitoring": {"first": "2026-10-01", "until": "2026-10-31", "figures": "refusals: 12 of 480\n\n", "text": "fine"},
    "override": {"what": "entropy collapse", "reason": "expected"},
    "revoke": {"reason": "the held-out set leaked", "sure": "on"},
}


@pytest.fixture
def record(launch: Launch) -> Record:
    """Of a run that alice launched."""
    return put(launch(name="adder"))


def state(record: Record) -> State:
    return standing_of(entries_of([record.pk])).state


def sign(record: Record, actor: User, role: str, decision: str = "approved", reason: str = "read it") -> RecordEntry:
    return services.sign_off(record=record, actor=actor, role=role, decision=decision, reason=reason)


def refused(record: Record, actor: User, role: str, decision: str = "approved") -> set[str]:
    """The fields that the refusal names."""
    with pytest.raises(ValidationError) as error:
        sign(record, actor, role, decision)
    return set(error.value.message_dict)


def life(record: Record, query: str = "") -> str:
    return f"/p/ours/runs/{record.run_id}/record/{record.end}/life/{query}"


# ---------------------------------------------------------------------- signing


@pytest.mark.parametrize(("signatures", "after"), cases("records/signatures", "signatures", "state"))
@pytest.mark.usefixtures("alice", "oscar", "rita", "bob")
def test_signatures_and_the_state_they_lead_to(record: Record, signatures: list[str], after: str) -> None:
    """Each as `name role decision`; one that must be refused ends in the field that the refusal names."""
    for signature in signatures:
        name, role, decision, *fault = signature.split()
        person = User.objects.get(username=name)
        if fault:
            assert refused(record, person, role, decision) == set(fault)
        else:
            sign(record, person, role, decision)
    assert state(record) == after
    assert record.entries.count() == sum(len(one.split()) == 3 for one in signatures)


def test_a_stranger_does_not_sign(record: Record, charlie: User) -> None:
    with pytest.raises(PermissionDenied):
        sign(record, charlie, "reviewer")


def test_who_put_the_run_back_into_the_queue_launched_it_too(launch: Launch, oscar: User) -> None:
    """Not who did so after the seal."""
    before, run = put(launch(name="sealed first"), sealed_at=timezone.now()), launch()
    for paused in (before.run, run):
        run_pause(run=paused, actor=oscar)
        run_resume(run=paused, actor=oscar)
    assert refused(put(run, sealed_at=timezone.now()), oscar, "reviewer") == {"role"}
    sign(before, oscar, "reviewer")
    assert state(before) == State.REVIEWER


def test_revoked_once_and_then_not_signed(record: Record, alice: User, oscar: User) -> None:
    sign(record, oscar, "operator")
    services.revoke(record=record, actor=alice, reason="the held-out set leaked")
    assert state(record) == State.REVOKED
    with pytest.raises(ValidationError, match="already"):
        services.revoke(record=record, actor=alice, reason="again")
    assert refused(record, oscar, "operator", "rejected") == {"role"}
    services.feedback(record=record, actor=alice, text="still heard of", source="a customer")  # but spoken of


# ---------------------------------------------------------------------- entries


def test_every_entry_is_logged_in_its_transaction(record: Record, oscar: User, alice: User) -> None:
    before = AuditEntry.objects.count()
    entry = sign(record, oscar, "operator", reason="looked at every item")
    (body,) = logged("record_signed_off")
    assert (body["actor"], body["subject"], body["reason"]) == ("user:oscar", f"record:{record.pk}", entry.text)
    assert (body["after"]["role"], body["data"]["seal"]) == ("operator", record.seal)
    assert AuditEntry.objects.get(pk=entry.data["log"]).kind == "record_signed_off"
    with transaction.atomic():
        services.revoke(record=record, actor=alice, reason="no")
        transaction.set_rollback(True)
    assert (AuditEntry.objects.count(), record.entries.count()) == (before + 1, 1)
    second = sign(record, oscar, "operator", "rejected", "ß" * 20_000)
    second.refresh_from_db()
    assert second.text == "ß" * 20_000, "whole here, shortened in the log"
    assert len(logged("record_signed_off")[1]["reason"]) <= 10_000
    withdrawn = sign(record, oscar, "operator", "withdrawn", "meant another record")
    assert (second.data["corrects"], withdrawn.data["corrects"]) == (entry.pk, second.pk)


def test_what_may_tell_of_people_stands_in_the_log_by_its_digest_alone(record: Record, rita: User) -> None:
    services.feedback(record=record, actor=rita, text="Ada Lovelace called twice", source="the help desk")
    (body,) = logged("feedback_added")
    assert "Lovelace" not in json.dumps(body)
    assert "help desk" not in json.dumps(body)
    # worked out by hand: canonical JSON sorts by name and leaves no space
    canonical = b'{"source":"the help desk","text":"Ada Lovelace called twice"}'
    assert body["after"]["content_sha256"] == hashlib.sha256(canonical).hexdigest()


def test_entries_of_each_kind(record: Record, alice: User) -> None:
    given: dict[str, Any] = {"record": record, "actor": alice}
    incident = services.incident(**given, severity="high", when=WHEN, what="it named a patient")
    assert incident.text == "it named a patient"
    assert (incident.data["severity"], incident.data["when"]) == ("high", "2026-11-20T08:30+00:00")
    wrong = services.feedback(**given, text="it is rude", source="a caller")
    right = services.feedback(**given, text="it was not", source="a caller", corrects=wrong.pk)
    assert right.data["corrects"] == wrong.pk
    with pytest.raises(ValidationError, match="already"):
        services.feedback(**given, text="x", source="y", corrects=wrong.pk)
    with pytest.raises(ValidationError, match="of this kind"):
        services.override(**given, what="f", reason="x", corrects=right.pk)
    period, figures = (date(2026, 10, 1), date(2026, 10, 31)), [("refusals", "12 of 480")]
    note = services.monitoring(**given, text="as expected", period=period, figures=figures)
    assert note.data["figures"] == [{"name": "refusals", "value": "12 of 480"}]
    services.override(**given, what="entropy collapse", reason="expected at this length")
    kinds = ["incident", "feedback", "feedback", "monitoring", "override"]
    assert [entry.kind for entry in record.entries.all()] == kinds
    assert state(record) == State.NONE


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({"severity": "dreadful"}, "severity"),
        ({"when": datetime(9999, 1, 1, tzinfo=UTC)}, "when"),
        ({"what": " \n "}, "what"),
        ({"what": "x" * 20_001}, "what"),
        ({"what": "a\x00b"}, "what"),
        ({"corrects": 10**9}, "corrects"),
    ],
    ids=["severity", "future", "empty", "long", "nul", "corrects"],
)
def test_a_faulty_incident_is_refused(record: Record, alice: User, given: dict[str, Any], field: str) -> None:
    with pytest.raises(ValidationError) as error:
        services.incident(record=record, actor=alice, **{"severity": "low", "when": WHEN, "what": "slow", **given})
    assert field in error.value.message_dict
    assert not record.entries.exists()


@pytest.mark.parametrize(
    ("until", "figures", "field"),
    [(date(2026, 9, 30), 0, "until"), (date(9999, 1, 1), 0, "until"), (date(2026, 10, 1), 51, "figures")],
)
def test_faulty_monitoring_is_refused(record: Record, alice: User, until: date, figures: int, field: str) -> None:
    note: dict[str, Any] = {"record": record, "actor": alice, "text": "x"}
    with pytest.raises(ValidationError) as error:
        services.monitoring(**note, period=(date(2026, 10, 1), until), figures=[("a", "1")] * figures)
    assert field in error.value.message_dict
    services.monitoring(**note, period=(date(2026, 10, 1), date(2026, 10, 1)), figures=[("a", "1")] * 50)


def test_postgresql_refuses_to_change_an_entry(record: Record, oscar: User) -> None:
    entry = sign(record, oscar, "operator")
    entry.text = "never said"
    for statement in (
        "UPDATE records_recordentry SET text = 'x'",
        "DELETE FROM records_recordentry",
        "SET CONSTRAINTS ALL IMMEDIATE; SET LOCAL cohort.tests_empty_tables = 'off'; TRUNCATE records_recordentry",
    ):
        with pytest.raises(IntegrityError), transaction.atomic(), connection.cursor() as cursor:
            cursor.execute(statement)
    for change in (entry.save, entry.delete):
        with pytest.raises(IntegrityError), transaction.atomic():
            change()
    entry.refresh_from_db()
    assert entry.text == "read it"


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize(("people", "roles"), [(6, ["operator"]), (1, ["operator", "reviewer"])])
def test_signatures_at_once_leave_one(world: World, people: int, roles: list[str]) -> None:
    """Six operators in one role, and one operator in both roles: one signs, the others are refused."""
    record = put(world.launch())
    operators = [world.make_user(f"op{n}") for n in range(people)]
    for operator in operators:
        membership_set(project=record.run.project, actor=world.alice, user=operator, role=Role.OPERATOR)
    pressed = [(operator, role) for operator in operators for role in roles]
    start = threading.Barrier(len(pressed))

    def press(person: User, role: str) -> set[str]:
        start.wait()
        try:
            sign(Record.objects.get(pk=record.pk), person, role)
        except ValidationError as error:
            return set(error.message_dict)
        return set()

    futures = [in_thread(partial(press, *one)) for one in pressed]
    outcomes = [future.result(DEADLINE) for future in futures]
    assert [fields for fields in outcomes if fields] == [{"role"}] * (len(pressed) - 1)
    assert record.entries.count() == 1


# ---------------------------------------------------------------------- the page


def test_each_entry_is_made_by_its_form_and_shown_harmless(world: World, golden: Callable[[str, Any], None]) -> None:
    record = put(sealed_run.finished(world.launch(name="adder")))
    issue(record, audience="internal")
    for action, filled in FILLED.items():
        texts = {name: f"{action} {HOSTILE}" for name in ("reason", "what", "text", "source") if name in filled}
        if action == "monitoring":
            texts["figures"] = f"{HOSTILE.replace(':', ' ')}: {HOSTILE}"
        sent = {"action": action, **filled, **texts}
        assert world.client("alice").post(life(record), sent).status_code == 302, action
    golden("pages/life.txt", page_text(world.client("bob").get(life(record))))
    run = f"/p/ours/runs/{record.run_id}/"
    for path in (life(record), run, f"{run}record/{record.end}/", "/p/ours/records/"):
        page = world.client("bob").get(path).content.decode()
        assert "revoke &lt;script&gt;" in page, "a revoked record says so, with the reason"
        assert 'class="wrong' in page or "is-wrong" in page, path
        for harmful in ("<script>alert", "<img src=x", "\u202e"):
            assert harmful not in page, path
    again = world.client("alice").post(life(record), {"action": "revoke", **FILLED["revoke"]})
    assert again.status_code == 422
    assert not {"sign_off", "revoke"} & {offer.name for offer in again.context["life"].offers}


def test_sign_off_offers_only_what_a_person_can_fill(world: World, record: Record) -> None:
    def offered(name: str) -> set[str]:
        offers = world.client(name).get(life(record)).context["life"].offers
        form = next(one.form for one in offers if one.name == "sign_off")
        fields = form.fields.values() if form else ()
        return {value for field in fields for value, _ in getattr(field, "choices", ())} - {""}

    assert offered("alice") == {"operator", "approved", "rejected"}
    sign(record, world.alice, "operator")
    assert "withdrawn" in offered("alice")
    assert not {"operator", "withdrawn"} & offered("oscar")


@pytest.mark.parametrize(("action", "changed", "field"), cases("records/life_refused", "action", "changed", "field"))
def test_a_refused_form_comes_back_with_all_that_was_typed(
    world: World, record: Record, action: str, changed: dict[str, str], field: str
) -> None:
    sent = {**FILLED[action], **changed}
    response = world.client("alice").post(life(record), {"action": action, **sent})
    assert response.status_code == 422
    form = next(one.form for one in response.context["life"].offers if one.name == action)
    assert field in form.errors
    typed = {name: bool(value) if name == "sure" else value for name, value in sent.items()}
    assert {name: form[name].value() for name in sent} == typed
    opened = [name for name in FILLED if f'id="life-{name}" open' in response.content.decode()]
    assert opened == [action]
    assert not record.entries.exists()


def test_a_version_is_signed_that_was_read(client_for: ClientFor, alice: User, record: Record) -> None:
    newer = put(record.run, version=2, supersedes=record)
    client, sent = client_for(alice), {"action": "sign_off", **FILLED["sign_off"]}
    assert client.post(life(record, "?version=1"), sent).status_code == 302
    assert (record.entries.count(), newer.entries.count()) == (1, 0)
    assert client.post(life(record), sent).status_code == 302  # without a version: the newest
    assert newer.entries.count() == 1
    assert client.get(life(record, "?version=3")).status_code == 404
    assert client.post(life(record), {"action": "unseal"}).status_code == 400
    assert client.post(life(record), {"action": "revoke", "reason": "x" * 10_000_000}).status_code == 413


def test_the_page_costs_few_queries(world: World, record: Record, django_assert_max_num_queries: Any) -> None:
    for _ in range(20):
        services.feedback(record=record, actor=world.alice, text="x", source="y")
    client = world.client("alice")
    with django_assert_max_num_queries(24):
        client.get(life(record))


def test_a_long_timeline_is_shown_by_the_page_and_its_oldest_entry_can_be_corrected(
    world: World, record: Record
) -> None:
    given = {"record": record, "actor": world.alice, "source": "support"}
    entries = [services.feedback(**given, text=f"feedback {number}.") for number in range(110)]
    client = world.client("alice")
    first, last = (html(client.get(life(record, f"?life={number}"))) for number in (1, 3))
    shown = [f'<p class="life-text">feedback {number}.</p>' for number in (109, 60, 59, 9, 0)]
    assert [text in first for text in shown] == [True, True, False, False, False]
    assert [text in last for text in shown] == [False, False, False, True, True]
    assert 'href="?life=2#life" rel="next"' in first
    assert ("Sealed: the record" in first, "Sealed: the record" in last) == (False, True)
    suggested = re.search(r'<datalist id="life-feedback-corrects-list">(.*?)</datalist>', first)
    assert suggested is not None
    assert suggested[1].count("<option") == 100
    sent = {"action": "feedback", **FILLED["feedback"], "corrects": str(entries[0].pk)}
    assert client.post(life(record), sent).status_code == 302
    correction = RecordEntry.objects.get(data__corrects=entries[0].pk)
    assert f'href="?life=3#entry-{entries[0].pk}"' in html(client.get(life(record)))
    assert f'href="?life=1#entry-{correction.pk}"' in html(client.get(life(record, "?life=3")))
