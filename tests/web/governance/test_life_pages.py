"""The page of what came after the seal: who sees which form, what a refused form keeps, and hostile text."""

import re
from collections.abc import Callable

import pytest
from django.test import Client

from cohort.accounts.models import User
from cohort.governance.life import services
from cohort.governance.models import Record
from cohort.runs.models import Run
from tests import sealed_run
from tests.web.governance.records_put import issue, put

pytestmark = pytest.mark.django_db
ClientFor = Callable[[User], Client]
HOSTILE = '<script>alert(1)</script> \u202e "><img src=x onerror=alert(2)> {{ 7|add:7 }}'
FILLED = {
    "sign_off": {"role": "reviewer", "decision": "approved", "reason": "I read all of it"},
    "revoke": {"reason": "the held-out set leaked"},
    "incident": {"severity": "low", "when": "2026-11-20T08:30", "what": "slow answers"},
    "feedback": {"source": "support", "text": "too long"},
    "monitoring": {"first": "2026-10-01", "until": "2026-10-31", "figures": "refusals: 12 of 480\n\n", "text": "fine"},
    "override": {"what": "entropy collapse", "reason": "expected"},
}
MAY = {
    "viewer": [],
    "reviewer": ["sign_off", "incident", "feedback"],
    "operator": ["sign_off", "incident", "feedback", "monitoring", "override"],
    "admin": ["sign_off", "incident", "feedback", "monitoring", "override", "revoke"],
}


@pytest.fixture
def record(launch: Callable[..., Run]) -> Record:
    return put(launch(name="adder"))


@pytest.fixture
def people(alice: User, oscar: User, rita: User, bob: User) -> dict[str, User]:
    return {"admin": alice, "operator": oscar, "reviewer": rita, "viewer": bob}


def life(record: Record, query: str = "") -> str:
    return f"/p/ours/runs/{record.run_id}/record/{record.end}/life/{query}"


def offered(page: str) -> list[str]:
    return re.findall(r'name="action" value="(\w+)"', page.split('id="public-page"')[0])


@pytest.mark.parametrize("role", MAY)
def test_forms_that_a_role_sees_and_may_send(
    client_for: ClientFor, people: dict[str, User], record: Record, role: str
) -> None:
    client = client_for(people[role])
    assert offered(client.get(life(record)).content.decode()) == MAY[role]
    for action, filled in FILLED.items():
        sent = {"role": "operator"} if role == "admin" and action == "sign_off" else {}
        response = client.post(life(record), {"action": action, **filled, **sent})
        assert response.status_code == (302 if action in MAY[role] else 403), action
    kinds = {"sign_off": "sign_off", "revoke": "revoked"}
    wanted = sorted(kinds.get(action, action) for action in MAY[role])
    assert sorted(record.entries.values_list("kind", flat=True)) == wanted


def test_strangers_and_people_who_are_not_signed_in(client_for: ClientFor, charlie: User, record: Record) -> None:
    public = life(record).replace("/life/", "/public/")
    for action, filled in FILLED.items():
        assert client_for(charlie).post(life(record), {"action": action, **filled}).status_code == 404
        assert Client().post(life(record), {"action": action, **filled}).status_code == 302
    assert client_for(charlie).post(public).status_code == 404
    assert client_for(charlie).post(life(record).replace("/ours/", "/theirs/")).status_code == 404
    assert not record.entries.exists()
    assert not record.public_links.exists()


def test_an_action_that_is_none(client_for: ClientFor, alice: User, record: Record) -> None:
    assert client_for(alice).post(life(record), {"action": "unseal"}).status_code == 400


def test_sign_off_offers_only_the_roles_that_a_person_can_fill(
    client_for: ClientFor, alice: User, oscar: User, record: Record
) -> None:
    page = client_for(alice).get(life(record)).content.decode()
    assert 'value="operator"' in page
    assert 'value="reviewer"' not in page
    assert "You launched this run, so you cannot be its independent reviewer" in page
    services.sign_off(record=record, actor=alice, role="operator", decision="approved", reason="x")
    page = client_for(alice).get(life(record)).content.decode()
    assert 'value="withdrawn"' in page
    page = client_for(oscar).get(life(record)).content.decode()
    assert "alice has signed as operator: approved. Only they can correct or withdraw it" in page
    assert 'value="withdrawn"' not in page


def test_a_refused_form_comes_back_with_all_that_was_typed(client_for: ClientFor, rita: User, record: Record) -> None:
    typed = "long " * 5_000
    response = client_for(rita).post(life(record), {"action": "sign_off", **FILLED["sign_off"], "reason": typed})
    page = response.content.decode()
    assert response.status_code == 422
    assert typed in page
    assert "The reason has 24,999 characters; at most 20,000 are kept" in page
    assert re.search(r'<details[^>]*id="life-sign_off" open>', page)
    assert not re.search(r'<details[^>]*id="life-incident" open>', page)
    assert not record.entries.exists()


@pytest.mark.parametrize(
    ("action", "changed", "words"),
    [
        ("incident", {"when": "yesterday"}, "This is no time"),
        ("incident", {"severity": ""}, "This field is required"),
        ("monitoring", {"figures": "refusals 12"}, "Line 1 is not a name and a value"),
        ("monitoring", {"until": "2026-09-01"}, "before it begins"),
        ("feedback", {"source": "x" * 201}, "201 characters; at most 200"),
        ("feedback", {"text": " \n"}, "is missing"),
        ("override", {"what": ""}, "This field is required"),
        ("revoke", {"reason": "a\x00"}, "Null characters are not allowed"),
    ],
)
def test_faults_stand_beside_their_field(
    client_for: ClientFor, alice: User, record: Record, action: str, changed: dict[str, str], words: str
) -> None:
    response = client_for(alice).post(life(record), {"action": action, **FILLED[action], **changed})
    assert response.status_code == 422
    assert words in response.content.decode()
    assert not record.entries.exists()


def test_more_than_a_form_may_hold_is_refused_before_it_is_read(
    client_for: ClientFor, alice: User, record: Record
) -> None:
    response = client_for(alice).post(life(record), {"action": "revoke", "reason": "x" * 10_000_000})
    assert response.status_code == 413
    assert "at most 1,048,576 bytes" in response.content.decode()
    assert "still there" in response.content.decode()


def test_hostile_text_is_shown_and_harmless(client_for: ClientFor, alice: User, bob: User, record: Record) -> None:
    client = client_for(alice)
    for action, filled in FILLED.items():
        sent = {**filled, **({"role": "operator"} if action == "sign_off" else {})}
        texts = {name: HOSTILE for name in sent if name in {"reason", "what", "text", "source"}}
        if action == "monitoring":
            texts["figures"] = f"{HOSTILE.replace(':', ' ')}: {HOSTILE}"
        assert client.post(life(record), {"action": action, **sent, **texts}).status_code == 302, action
    for path in (life(record), f"/p/ours/runs/{record.run_id}/record/{record.end}/", "/p/ours/records/"):
        page = client_for(bob).get(path).content.decode()
        assert "<script>alert" not in page
        assert "<img src=x" not in page
        assert "\u202e" not in page
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in client_for(bob).get(life(record)).content.decode()


def test_timeline_is_newest_first_with_who_role_and_reason(
    client_for: ClientFor, alice: User, bob: User, oscar: User, rita: User, record: Record
) -> None:
    services.sign_off(
        record=record, actor=oscar, role="operator", decision="approved", reason="numbers are as expected"
    )
    first = services.feedback(record=record, actor=rita, text="it is rude", source="a caller")
    second = services.feedback(record=record, actor=rita, text="not ours", source="a caller", corrects=first.pk)
    page = client_for(bob).get(life(record)).content.decode()
    line = page.split("timeline", 1)[1]
    places = [
        line.index(words) for words in ("not ours", "it is rude", "numbers are as expected", "Sealed: the record")
    ]
    assert places == sorted(places)
    assert f'Corrects <a href="#entry-{first.pk}">' in line
    assert f'Corrected by <a href="#entry-{second.pk}">' in line
    assert "Approved as operator" in line
    assert "oscar" in line
    assert "signed by the operator only" in page


def test_a_version_is_signed_that_was_read(client_for: ClientFor, alice: User, record: Record) -> None:
    newer = put(record.run, version=2, supersedes=record)
    client = client_for(alice)
    sent = {"action": "sign_off", **FILLED["sign_off"], "role": "operator"}
    assert client.post(life(record, "?version=1"), sent).status_code == 302
    assert (record.entries.count(), newer.entries.count()) == (1, 0)
    assert client.post(life(record), sent).status_code == 302  # without a version: the newest
    assert newer.entries.count() == 1
    assert client.get(life(record, "?version=3")).status_code == 404
    assert "Superseded by version 2" in client.get(life(record, "?version=1")).content.decode()


def test_a_revoked_record_says_so_in_red_with_the_reason(
    client_for: ClientFor, alice: User, bob: User, launch: Callable[..., Run]
) -> None:
    record = put(sealed_run.finished(launch(name="adder")))
    issue(record, audience="internal")
    services.revoke(record=record, actor=alice, reason="the held-out set leaked")
    of_run = f"/p/ours/runs/{record.run_id}/"
    for path in (life(record), f"{of_run}record/", of_run, "/p/ours/records/"):
        page = client_for(bob).get(path).content.decode()
        assert "revoked" in page, path
        assert "the held-out set leaked" in page, path
        assert 'class="wrong' in page or "is-wrong" in page, path
    assert 'value="revoke"' not in client_for(alice).get(life(record)).content.decode()
    again = client_for(alice).post(life(record), {"action": "revoke", **FILLED["revoke"]})
    assert again.status_code == 422
    assert "it was done already" in again.content.decode()


def test_page_costs_few_queries(
    client_for: ClientFor, alice: User, record: Record, django_assert_max_num_queries: Callable[[int], object]
) -> None:
    for _ in range(20):
        services.feedback(record=record, actor=alice, text="x", source="y")
    client = client_for(alice)
    with django_assert_max_num_queries(24):  # type: ignore[attr-defined]
        client.get(life(record))
