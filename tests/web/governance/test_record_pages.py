"""Pages of records: one of them, their list, and who may do what on any page of this area."""

import re
from collections.abc import Callable
from typing import Any

import pytest
from django.db import connection, transaction
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils.html import escape

from cohort.accounts.models import User
from cohort.governance.fields import FIELDS
from cohort.governance.life import listing, public, services
from cohort.governance.models import Record
from cohort.governance.services import record_seal
from cohort.governance.statements.services import statement_make
from cohort.governance.tasks import seal
from cohort.review.models import Sample
from cohort.runs.models import Run
from cohort.runs.services import run_cancel
from tests.factories import sealed_run
from tests.factories.documents import comparison, document, entry
from tests.tables import cases
from tests.web.governance.conftest import World
from tests.web.governance.records import issue, page_text, put, put_first_schema
from tests.web.governance.scenarios import retried, suites

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("quick_pdf")]
ClientFor = Callable[[User], Client]
Launch = Callable[..., Run]
ROLES = {"admin": "alice", "operator": "oscar", "reviewer": "rita", "viewer": "bob", "stranger": "charlie"}


def test_who_may_open_and_send_what(world: World) -> None:
    """tests/cases/records/access.yaml, for what needs a form: each request on the same sealed run, undone after it. All
    addresses are in tests/cases/access/."""
    record = sealed_run.sealed(world.launch())
    sample = Sample.objects.select_related("group__run").get(group__step=1, index=0)
    statement_make(run=record.run, actor=world.rita, field="method.rationale", text="as in the demo")
    token = public.public_link_make(record=record, actor=world.alice).token
    ids = {"run": record.run_id, "group": sample.group_id, "record": record.pk, "token": token}
    clients = {role: world.client(name) for role, name in ROLES.items()} | {"anonymous": Client()}
    wrong = []
    for case in cases("records/access", "method", "url", "data", *clients):
        method, url, data, *statuses = case.values
        for (role, client), status in zip(clients.items(), statuses, strict=True):
            if status is None:  # which role it is decides nothing there
                continue
            with transaction.atomic():
                answer = getattr(client, method)(url.format(**ids), data)
                transaction.set_rollback(True)
            if answer.status_code != status:
                wrong.append(f"{role} {method} {url} {data}: {answer.status_code}, not {status}")
    assert wrong == []


# ---------------------------------------------------------------------- one record


def test_the_page_of_a_record(world: World, golden: Callable[..., None]) -> None:
    run = suites(world)
    Run.objects.filter(pk=run.pk).update(name="<b>bold</b> run")
    record = record_seal(run=run)
    place = f"/p/ours/runs/{run.pk}/record/"
    client = world.client("bob")
    response = client.get(place)
    page = response.content.decode()
    golden("pages/record.txt", page_text(response))
    assert "<b>bold" not in page
    for section, fields in FIELDS.items():
        assert f'id="{section}"' in page
        assert all(f"<dt>{escape(facts.label)}</dt>" in page for facts in fields.values())
    for audience in ("public", "downstream", "authority", "internal"):
        card = f'href="{place}1/1/card-{audience}.zip"'
        assert record.card(audience).sha256 in page
        assert card in world.client("rita").get(place).content.decode()
        assert (card in page) == (audience in ("public", "downstream")), audience
    asked = f'href="/p/ours/runs/{run.pk}/statements/#reward-domain">state it</a>'
    assert asked not in page, "who may state nothing is not asked to"
    assert asked in world.client("rita").get(place).content.decode()
    with CaptureQueriesContext(connection) as queries:
        client.get(place)
    assert len(queries) <= 32


def test_a_further_version_is_asked_for_and_shown_in_place_of_the_first(world: World) -> None:
    record = sealed_run.sealed(world.launch())
    client, place = world.client("rita"), f"/p/ours/runs/{record.run_id}/record/"
    ask = f'action="{place}1/seal-version/"'
    assert ask not in client.get(place).content.decode(), "nothing new"
    statement_make(run=record.run, actor=world.alice, field="method.rationale", text="it is the demo's")
    assert client.get(place).context["said_since"] == 1
    assert ask in client.get(place).content.decode()
    client.post(f"{place}1/seal-version/", {"reason": ""})
    seal(record.run_id)
    assert Record.objects.count() == 1
    assert (
        "stated at last"
        in client.post(f"{place}1/seal-version/", {"reason": "stated at last"}, follow=True).content.decode()
    )
    seal(record.run_id)
    second = Record.objects.get(version=2)
    page = client.get(place).content.decode()
    assert second.seal in page
    assert "it is the demo&#x27;s" in page
    assert f"{place}1/?version=1" in page
    first = client.get(f"{place}1/?version=1").content.decode()
    assert record.seal in first
    assert "superseded" in first
    assert client.get(f"{place}1/?version=3").status_code == 404


def test_each_end_has_a_page_and_a_card(world: World) -> None:
    run = retried(world)
    client, place = world.client("oscar"), f"/p/ours/runs/{run.pk}/record/"
    assert "has gone on since" in client.get(place).content.decode()
    second, first = record_seal(run=run), Record.objects.get(end=1)
    page = client.get(place).content.decode()
    assert second.seal in page
    assert f"{place}1/?version=1" in page
    assert first.seal in client.get(f"{place}1/").content.decode()
    for where, record in ((f"{place}1/card.zip", first), (f"{place}card.zip", second)):
        answer = client.get(where)
        assert answer["ETag"] == f'"{record.card().sha256}"'
        assert ("-end-2-" in answer["Content-Disposition"]) == (record == second)
    listed = client.get("/p/ours/records/").content.decode()
    assert "after attempt 1, superseded" in listed


@pytest.mark.parametrize(
    ("cancelled", "words"), [(False, "Sealed when the run ends"), (True, "before a worker had it")]
)
def test_a_run_without_a_record_says_why(world: World, cancelled: bool, words: str) -> None:
    run = world.launch()
    if cancelled:
        run_cancel(run=run, actor=world.alice)
    assert words in world.client("alice").get(f"/p/ours/runs/{run.pk}/record/").content.decode()


def test_a_record_of_the_first_schema_is_not_shown_but_its_card_is_offered(world: World) -> None:
    run = world.launch()
    Run.objects.filter(pk=run.pk).update(state="failed", ends=1, ended_at="2026-01-01T00:00:00Z")
    issue(put_first_schema(run), audience="internal")
    page = world.client("bob").get(f"/p/ours/runs/{run.pk}/record/").content.decode()
    assert "cohort-record/1" in page
    assert f"/p/ours/runs/{run.pk}/record/1/card.zip" in page
    assert 'id="subject"' not in page


# ---------------------------------------------------------------------- the list


def judged(*verdicts: str) -> dict[str, Any]:
    compared = [{**comparison(f"suite {n}"), "verdict": words} for n, words in enumerate(verdicts)]
    return document(text="x", behaviour__performance=entry("as compared", compared or None))


@pytest.fixture
def records(launch: Launch, alice: User, oscar: User, rita: User) -> dict[str, Record]:
    """One of each: good and signed by both; regressed in its second suite, signed by one; failed and never evaluated;
    revoked."""
    regressed = judged("better", "regressed", "undecided at margin 5", "regressed")
    made = {
        "good adder": put(launch(name="good adder"), judged("better")),
        "harmful adder": put(launch(name="harmful adder"), regressed),
        "broken": put(launch(name="broken"), judged(), state="failed"),
        "revoked one": put(launch(name="revoked one"), judged("no change seen")),
    }
    for record in made.values():
        issue(record, audience="internal")
    for name, person, role in (
        ("good adder", oscar, "operator"),
        ("good adder", rita, "reviewer"),
        ("harmful adder", oscar, "operator"),
    ):
        services.sign_off(record=made[name], actor=person, role=role, decision="approved", reason="x")
    services.revoke(record=made["revoked one"], actor=alice, reason="the held-out set leaked")
    return made


def names(client: Client, query: str) -> list[str]:
    """In the order of the rows."""
    page = client.get(f"/p/ours/records/{query}").content.decode()
    return re.findall(r'<th scope="row" data-label="Run"><a href="[^"]*">([^<]*)</a>', page)


@pytest.mark.usefixtures("records")
def test_filters(client_for: ClientFor, bob: User, golden: Callable[[str, Any], None]) -> None:
    client = client_for(bob)
    for case in cases("governance/record_filters", "query", "names"):
        query, wanted = case.values
        assert names(client, query) == wanted, query
    golden("pages/records.txt", page_text(client.get("/p/ours/records/")))


@pytest.mark.usefixtures("records")
def test_paging_keeps_the_filter(client_for: ClientFor, bob: User, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listing, "PAGE", 1)
    client = client_for(bob)
    page = client.get("/p/ours/records/?verdict=better").content.decode()
    following = re.search(r'href="(\?[^"]*before=\d+)"', page)
    assert following is not None
    assert names(client, "?verdict=better") == ["harmful adder"]
    older = following[1].replace("&amp;", "&")
    assert names(client, older) == ["good adder"]
    assert "before=" not in client.get(f"/p/ours/records/{older}").content.decode()


def test_an_earlier_version_is_marked_superseded(client_for: ClientFor, bob: User, records: dict[str, Record]) -> None:
    first = records["good adder"]
    issue(put(first.run, judged("better"), version=2, supersedes=first), audience="internal")
    page = client_for(bob).get("/p/ours/records/?q=good").content.decode()
    assert page.count("superseded") == 1
    assert "?version=1" in page
    assert "signed off by both" in page  # of the first; the second is signed anew
    assert "not signed off" in page


def test_records_of_the_first_schema_are_listed_too(client_for: ClientFor, bob: User, launch: Launch) -> None:
    performance = {"value": [{**comparison(), "verdict": "regressed"}]}
    told = {"title": "old", "state": "cancelled", "behaviour": {"performance": performance}}
    put_first_schema(launch(name="old"), {"record": told})
    assert names(client_for(bob), "?verdict=regressed&state=cancelled") == ["old"]


def test_queries_do_not_grow_with_the_rows(client_for: ClientFor, bob: User, launch: Launch) -> None:
    client, counts = client_for(bob), []
    names(client, "")
    for rows in (1, 6):
        for n in range(rows):
            put(launch(name=f"more {n}"), judged("better"))
        with CaptureQueriesContext(connection) as queries:
            assert names(client, "?signed=none&verdict=better")
        counts.append(len(queries))
    assert counts[0] == counts[1]
