"""The page that compares two records, and its files: who gets them, choosing two, hostile text."""

import json
from collections.abc import Callable

import pytest
from django.test import Client

from cohort import artifacts
from cohort.accounts.models import User
from cohort.audit.models import AuditEntry
from cohort.governance.diff import views
from cohort.governance.models import Record
from cohort.runs.models import Run
from tests import sealed_run
from tests.web.governance.made_reading import document, entry
from tests.web.governance.records_put import put

pytestmark = pytest.mark.django_db
ClientFor = Callable[[User], Client]
HOSTILE = "<script>alert(1)</script> \u202e <img src=x onerror=alert(2)>"


@pytest.fixture
def two(launch: Callable[..., Run]) -> tuple[Record, Record]:
    config = entry("the config", {"optim": {"steps": 3}, "name": HOSTILE})
    other = entry(f"another {HOSTILE}", {"optim": {"steps": 5}, HOSTILE: 1})
    first = put(launch(name="first run"), document(text="said", method__config=config))
    return first, put(launch(name="second run"), document(text="said", method__config=other))


def address(*records: Record, **more: str) -> str:
    query = "&".join([*(f"record={one.pk}" for one in records), *(f"{name}={value}" for name, value in more.items())])
    return f"/p/ours/records/compare/?{query}"


def test_members_compare_strangers_do_not(
    client_for: ClientFor, bob: User, charlie: User, two: tuple[Record, Record]
) -> None:
    for path in (address(*two), address(*two, format="json")):
        assert client_for(bob).get(path).status_code == 200
        assert client_for(charlie).get(path).status_code == 404
        assert client_for(charlie).get(path.replace("/ours/", "/theirs/")).status_code == 404
        assert Client().get(path).status_code == 302


def test_page_shows_what_differs_and_folds_what_does_not(
    client_for: ClientFor, bob: User, two: tuple[Record, Record]
) -> None:
    page = client_for(bob).get(address(*two)).content.decode()
    for words in ("first run", "second run", "optim.steps", "+2", "1 field", "only in the second"):
        assert words in page
    assert '<details class="panel diff-section" id="diff-method" open>' in page
    assert '<details class="panel diff-section" id="diff-reward">' in page
    assert "no difference, 9 fields equal" in page


def test_hostile_text_is_harmless(client_for: ClientFor, bob: User, two: tuple[Record, Record]) -> None:
    page = client_for(bob).get(address(*two)).content.decode()
    assert "<script>alert" not in page
    assert "<img src=x" not in page
    assert "\u202e" not in page
    assert "&lt;" in page


def test_files(client_for: ClientFor, bob: User, two: tuple[Record, Record]) -> None:
    found = client_for(bob).get(address(*two, format="json"))
    assert found["Content-Type"] == "application/json"
    name = f"record-diff-{two[0].seal[:8]}-{two[1].seal[:8]}"
    assert found["Content-Disposition"] == f'attachment; filename="{name}.json"'
    assert json.loads(found.content)["sections"]["method"]["fields"]["config"]["kind"] == "changed"
    text = client_for(bob).get(address(*two, format="md"))
    assert text["Content-Type"] == "text/markdown; charset=utf-8"
    assert "# Records compared: first run → second run" in text.content.decode()
    logged = AuditEntry.objects.filter(kind="diff_downloaded")
    assert [row.actor for row in logged] == ["user:bob", "user:bob"]
    for query in (address(*two, format="pdf"), address(two[0], format="json")):
        assert client_for(bob).get(query).status_code == 404


def test_choosing(client_for: ClientFor, bob: User, two: tuple[Record, Record], launch: Callable[..., Run]) -> None:
    client = client_for(bob)
    page = client.get(address(two[0])).content.decode()
    assert "At a glance" not in page
    assert f'value="{two[0].pk}" selected' in page
    page = client.get(address(two[0], two[0])).content.decode()
    assert "the same record twice" in page
    third = put(launch(name="third run"))
    page = client.get(address(*two, third)).content.decode()
    assert "3 records were chosen; two can be compared" in page
    assert client.get(f"/p/ours/records/compare/?record={10**9}").status_code == 404
    assert client.get("/p/ours/records/compare/?record=x&record=%00").status_code == 200


def test_lists_do_not_hide_how_many_there_are(
    client_for: ClientFor, bob: User, two: tuple[Record, Record], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(views, "CHOICES", 1)
    page = client_for(bob).get(address(two[0])).content.decode()
    assert "first run" in page, "what was chosen stands in the list, however old"
    assert page.count(f'<option value="{two[0].pk}"') == 2
    monkeypatch.setattr(views, "CHOICES", 200)
    assert "The lists hold" not in client_for(bob).get(address(two[0])).content.decode()


def test_with_one_record_there_is_nothing_to_compare(
    client_for: ClientFor, bob: User, launch: Callable[..., Run]
) -> None:
    put(launch())
    assert "There is nothing to compare yet" in client_for(bob).get("/p/ours/records/compare/").content.decode()


def test_two_versions_of_one_record(client_for: ClientFor, bob: User, two: tuple[Record, Record]) -> None:
    newer = put(two[0].run, version=2, supersedes=two[0])
    page = client_for(bob).get(address(two[0], newer)).content.decode()
    assert "end 1, version 1" in page
    assert "end 1, version 2" in page


@pytest.mark.django_db(transaction=True)
def test_sealed_configs_of_real_cards(client_for: ClientFor, bob: User, launch: Callable[..., Run]) -> None:
    """The record holds only the config's digest; what changed in it is read from the card."""
    first = sealed_run.sealed(launch(name="three steps"))
    longer = {**sealed_run.SETTINGS, "optim": {"steps": 3, "lr": 0.5}}
    second = sealed_run.sealed(launch(name="faster", settings=longer))
    found = json.loads(client_for(bob).get(address(first, second, format="json")).content)
    values = found["sections"]["method"]["fields"]["config"]["values"]
    assert [(one["path"], one["after"]) for one in values] == [("name", "faster"), ("optim.lr", 0.5)]
    assert "could not be read" not in client_for(bob).get(address(first, second)).content.decode()
    for card in first.cards.all():
        artifacts.remove(card.artifact)
    page = client_for(bob).get(address(first, second)).content.decode()
    assert "a card that holds the sealed config.yaml of both could not be read" in page
    assert "optim.lr" not in page.split('id="diff-method-config"')[1]
