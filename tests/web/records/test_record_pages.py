"""Pages of records: one of them, and their list. Who may do what: tests/cases/access/."""

import re
from collections.abc import Callable
from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils.html import escape

from cohort.accounts.models import User
from cohort.background.tasks import seal
from cohort.records.after_seal import services
from cohort.records.fields import COMMON_FIELDS
from cohort.records.models import Record
from cohort.records.services import record_seal
from cohort.records.statements.services import statement_make
from cohort.records.status.services import status_issue
from cohort.runs.models import Run
from cohort.runs.services import run_cancel
from cohort.web.records import listing
from tests.factories.documents import comparison, document, entry
from tests.tables import cases
from tests.web.pages import html
from tests.web.records.attempts import retried
from tests.web.records.conftest import World
from tests.web.records.records import issue, page_text, put
from tests.web.records.scenarios import suites

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("quick_pdf")]
ClientFor = Callable[[User], Client]
Launch = Callable[..., Run]


# ---------------------------------------------------------------------- one record


def test_the_page_of_a_record(world: World, golden: Callable[..., None]) -> None:
    run = suites(world)
    Run.objects.filter(pk=run.pk).update(name="<b>bold</b> run")
    record = record_seal(run=run)
    client, url = world.client("bob"), f"/p/ours/runs/{run.pk}/record/"
    response = client.get(url)
    page = html(response)
    golden("pages/record.txt", page_text(response))
    assert "<b>bold" not in page
    assert 'href="/p/ours/records/" aria-current="page"' in page
    assert 'href="/p/ours/runs/" aria-current' not in page
    for section, fields in COMMON_FIELDS.items():
        assert f'id="{section}"' in page
        assert all(f"<dt>{escape(facts.label)}</dt>" in page for facts in fields.values())
    for audience in ("public", "downstream", "authority", "internal"):
        card = f'href="{url}1/1/card-{audience}.zip"'
        assert record.card(audience).sha256 in page
        assert card in html(world.client("rita").get(url))
        assert (card in page) == (audience in ("public", "downstream")), audience
    link = f'href="/p/ours/runs/{run.pk}/statements/#reward-domain">answer</a>'
    assert link not in page, "who may state nothing is not asked to"
    assert link in html(world.client("rita").get(url))
    with CaptureQueriesContext(connection) as queries:
        client.get(url)
    assert len(queries) <= 38


def test_a_further_version_is_asked_for_and_shown_in_place_of_the_first(sealed: Record, world: World) -> None:
    client, url = world.client("rita"), f"/p/ours/runs/{sealed.run_id}/record/"
    ask = f'action="{url}1/seal-version/"'
    assert ask not in html(client.get(url)), "nothing new"
    statement_make(run=sealed.run, actor=world.alice, field="method.rationale", text="it is the demo's")
    response = client.get(url)
    assert (len(response.context["news"].changes), ask in html(response)) == (1, True)
    client.post(f"{url}1/seal-version/", {"reason": ""})
    seal(sealed.run_id)
    assert Record.objects.count() == 1
    response = client.post(f"{url}1/seal-version/", {"reason": "stated\0 at last"}, follow=True)
    assert "stated\N{REPLACEMENT CHARACTER} at last" in html(response)
    seal(sealed.run_id)
    page = html(client.get(url))
    for text in (Record.objects.get(version=2).seal, "it is the demo&#x27;s", f"{url}1/?version=1"):
        assert text in page
    first = html(client.get(f"{url}1/?version=1"))
    assert (sealed.seal in first, "superseded" in first) == (True, True)
    assert client.get(f"{url}1/?version=3").status_code == 404


def test_each_end_has_a_page_and_a_card(world: World) -> None:
    run = retried(world)
    client, url = world.client("oscar"), f"/p/ours/runs/{run.pk}/record/"
    assert "has been resumed since" in html(client.get(url))
    second, first = record_seal(run=run), Record.objects.get(end=1)
    page = html(client.get(url))
    assert (second.seal in page, f"{url}1/?version=1" in page) == (True, True)
    assert first.seal in html(client.get(f"{url}1/"))
    for card_url, record in ((f"{url}1/card.zip", first), (f"{url}card.zip", second)):
        status_issue(record=record)
        response = client.get(card_url)
        assert response["ETag"].startswith(f'"{record.card("public").sha256}-')
        assert ("-end-2-" in response["Content-Disposition"]) == (record == second)
    assert "after attempt 1, superseded" in html(client.get("/p/ours/records/"))


def test_a_run_without_a_record_that_can_be_shown_says_why(world: World) -> None:
    run, client = world.launch(), world.client("bob")
    url = f"/p/ours/runs/{run.pk}/record/"
    assert "Sealed when the run ends" in html(client.get(url))
    run_cancel(run=run, actor=world.alice)
    assert "before a worker had it" in html(client.get(url))


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
        "revoked one": put(launch(name="revoked one"), judged("not worse")),
    }
    for record in made.values():
        issue(record, audience="internal")
    signed = ("good adder", oscar, "operator"), ("good adder", rita, "reviewer"), ("harmful adder", oscar, "operator")
    for name, person, role in signed:
        services.sign_off(record=made[name], actor=person, role=role, decision="approved", reason="x")
    services.revoke(record=made["revoked one"], actor=alice, reason="the held-out set leaked")
    return made


def names(client: Client, query: str) -> list[str]:
    """In the order of the rows."""
    page = html(client.get(f"/p/ours/records/{query}"))
    return re.findall(r'<th scope="row" data-label="Run"><a href="[^"]*">([^<]*)</a>', page)


@pytest.mark.usefixtures("records")
def test_filters(client_for: ClientFor, bob: User, golden: Callable[[str, Any], None]) -> None:
    client = client_for(bob)
    for query, wanted in (case.values for case in cases("records/record_filters", "query", "names")):
        assert names(client, query) == wanted, query
    golden("pages/records.txt", page_text(client.get("/p/ours/records/")))


@pytest.mark.usefixtures("records")
def test_paging_keeps_the_filter(client_for: ClientFor, bob: User, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listing, "PAGE", 1)
    client = client_for(bob)
    page = html(client.get("/p/ours/records/?verdict=better"))
    following = re.search(r'href="(\?[^"]*before=\d+)"', page)
    assert following is not None
    assert names(client, "?verdict=better") == ["harmful adder"]
    older = following[1].replace("&amp;", "&")
    assert names(client, older) == ["good adder"]
    assert "before=" not in html(client.get(f"/p/ours/records/{older}"))


def test_an_earlier_version_is_marked_superseded(client_for: ClientFor, bob: User, records: dict[str, Record]) -> None:
    first = records["good adder"]
    issue(put(first.run, judged("better"), version=2, supersedes=first), audience="internal")
    page = html(client_for(bob).get("/p/ours/records/?q=good"))
    assert page.count("superseded") == 1
    for text in ("?version=1", "signed off by both", "not signed off"):  # the second is signed anew
        assert text in page


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
