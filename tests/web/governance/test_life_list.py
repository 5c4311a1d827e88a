"""The list of records: found by name, end, verdict and sign-off, a page at a time."""

import copy
import json
import re
from collections.abc import Callable

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from cohort.accounts.models import User
from cohort.governance.life import listing, services
from cohort.governance.models import Record
from cohort.runs.models import Run
from tests.web.governance.made_reading import comparison, document, entry
from tests.web.governance.records_put import issue, put

pytestmark = pytest.mark.django_db
ClientFor = Callable[[User], Client]


def judged(*verdicts: str) -> dict[str, object]:
    suites = [{**comparison(f"suite {n}"), "verdict": words} for n, words in enumerate(verdicts)]
    return document(text="x", behaviour__performance=entry("as compared", suites or None))


@pytest.fixture
def records(launch: Callable[..., Run], alice: User, oscar: User, rita: User) -> dict[str, Record]:
    """One of each: good and signed by both; regressed in its second suite, signed by one; failed and never evaluated;
    revoked."""
    runs = {name: launch(name=name) for name in ("good adder", "harmful adder", "broken", "revoked one")}
    made = {
        "good adder": put(runs["good adder"], judged("better")),
        "harmful adder": put(
            runs["harmful adder"], judged("better", "regressed", "undecided at margin 5", "regressed")
        ),
        "broken": put(runs["broken"], judged(), state="failed"),
        "revoked one": put(runs["revoked one"], judged("no change seen")),
    }
    for record in made.values():
        issue(record, audience="internal")
    for person, role in ((oscar, "operator"), (rita, "reviewer")):
        services.sign_off(record=made["good adder"], actor=person, role=role, decision="approved", reason="x")
    services.sign_off(record=made["harmful adder"], actor=oscar, role="operator", decision="approved", reason="x")
    services.revoke(record=made["revoked one"], actor=alice, reason="the held-out set leaked")
    return made


def names(page: str) -> list[str]:
    """In the order of the rows."""
    return re.findall(r'<th scope="row" data-label="Run"><a href="[^"]*">([^<]*)</a>', page)


@pytest.mark.parametrize(
    ("query", "wanted"),
    [
        ("", ["revoked one", "broken", "harmful adder", "good adder"]),
        ("?q=ADDER", ["harmful adder", "good adder"]),
        ("?state=failed", ["broken"]),
        ("?state=succeeded", ["revoked one", "harmful adder", "good adder"]),
        ("?verdict=regressed", ["harmful adder"]),
        ("?verdict=undecided", ["harmful adder"]),
        ("?verdict=better", ["harmful adder", "good adder"]),
        ("?verdict=none", ["broken"]),
        ("?signed=none", ["broken"]),
        ("?signed=operator", ["harmful adder"]),
        ("?signed=approved", ["good adder"]),
        ("?signed=revoked", ["revoked one"]),
        ("?signed=rejected", []),
        ("?verdict=better&signed=approved&q=good", ["good adder"]),
        ("?state=nonsense&verdict=%27&signed=x", ["revoked one", "broken", "harmful adder", "good adder"]),
        ("?q=%25", []),
        ("?q=%00", []),
    ],
)
def test_filters(client_for: ClientFor, bob: User, records: dict[str, Record], query: str, wanted: list[str]) -> None:
    response = client_for(bob).get(f"/p/ours/records/{query}")
    assert response.status_code == 200
    assert names(response.content.decode()) == wanted


def test_a_row_tells_what_counts(client_for: ClientFor, bob: User, records: dict[str, Record]) -> None:
    page = client_for(bob).get("/p/ours/records/?q=harmful").content.decode()
    record = records["harmful adder"]
    for words in ("30.0 %", "80.0 %", "2 regressed", "1 undecided", "4 suites", "60 of 72", record.short_digest):
        assert words in page
    assert "signed by the operator only" in page
    assert "showing 1 of 1 that fit, 4 in all" in page
    page = client_for(bob).get("/p/ours/records/?signed=revoked").content.decode()
    assert "the held-out set leaked" in page


def test_paging_keeps_the_filter(
    client_for: ClientFor, bob: User, records: dict[str, Record], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listing, "PAGE", 1)
    client = client_for(bob)
    page = client.get("/p/ours/records/?verdict=better").content.decode()
    assert names(page) == ["harmful adder"]
    following = re.search(r'href="(\?[^"]*before=\d+)"', page)
    assert following is not None
    older = client.get("/p/ours/records/" + following[1].replace("&amp;", "&")).content.decode()
    assert names(older) == ["good adder"]
    assert "Older records" not in older


def test_an_earlier_version_is_marked_superseded(client_for: ClientFor, bob: User, records: dict[str, Record]) -> None:
    first = records["good adder"]
    issue(put(first.run, judged("better"), version=2, supersedes=first), audience="internal")
    page = client_for(bob).get("/p/ours/records/?q=good").content.decode()
    assert page.count("superseded") == 1
    assert "?version=1" in page
    assert "signed off by both" in page  # of the first; the second is signed anew
    assert "not signed off" in page


def test_records_of_the_first_schema_are_listed_too(
    client_for: ClientFor, bob: User, launch: Callable[..., Run]
) -> None:
    made = {
        "schema": "cohort-record/1",
        "record": {
            "title": "old",
            "state": "cancelled",
            "behaviour": {"performance": {"value": [{**comparison(), "verdict": "regressed"}]}},
        },
    }
    old = Record(
        **{
            name: getattr(put(launch(name="old")), name)
            for name in ("fence", "seal", "record_root", "fields_stated", "fields_total", "sealed_at", "run", "end")
        }
    )
    old.version, old.schema_version, old.document = 2, made["schema"], json.dumps(copy.deepcopy(made))
    old.save()
    page = client_for(bob).get("/p/ours/records/?verdict=regressed&state=cancelled").content.decode()
    assert names(page) == ["old"]


def test_queries_do_not_grow_with_the_rows(
    client_for: ClientFor,
    bob: User,
    records: dict[str, Record],
    launch: Callable[..., Run],
) -> None:
    client = client_for(bob)
    put(launch(name="one"), judged("better"))
    with CaptureQueriesContext(connection) as few:
        assert names(client.get("/p/ours/records/?signed=none&verdict=better").content.decode()) == ["one"]
    for n in range(12):
        put(launch(name=f"more {n}"), judged("better"))
    with CaptureQueriesContext(connection) as many:
        client.get("/p/ours/records/?signed=none&verdict=better")
    assert len(many) == len(few)
