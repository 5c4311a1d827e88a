"""Pages of records and the card's download: who sees them, and what they show."""

import json
import zipfile
from collections.abc import Callable
from io import BytesIO

import pytest
from django.test import Client

from cohort.accounts.models import Project, User
from cohort.governance import selectors
from cohort.governance.models import Record
from cohort.governance.services import record_seal
from cohort.runs.models import Run
from tests import sealed_run

pytestmark = pytest.mark.django_db
ClientFor = Callable[[User], Client]


@pytest.fixture
def waiting(launch: Callable[..., Run]) -> Run:
    return launch(name="<b>bold</b> run")


@pytest.fixture
def sealed(waiting: Run) -> Record:
    return sealed_run.sealed(waiting)


def seal_of(record: Record) -> str:
    return str(json.loads(record.document)["seal"])


def test_owner_viewer_stranger_and_nobody(client_for: ClientFor, bob: User, charlie: User, sealed: Record) -> None:
    for path in ("records/", f"runs/{sealed.run_id}/record/", f"runs/{sealed.run_id}/record/card.zip"):
        assert client_for(bob).get(f"/p/ours/{path}").status_code == 200
        assert client_for(charlie).get(f"/p/ours/{path}").status_code == 404
        assert Client().get(f"/p/ours/{path}").status_code == 302
    # through a project of one's own there is no way to another's run either
    assert client_for(charlie).get(f"/p/theirs/runs/{sealed.run_id}/record/card.zip").status_code == 404
    assert client_for(bob).post(f"/p/ours/runs/{sealed.run_id}/record/").status_code == 405


def test_page_shows_seal_sections_and_what_is_not_stated(client_for: ClientFor, bob: User, sealed: Record) -> None:
    page = client_for(bob).get(f"/p/ours/runs/{sealed.run_id}/record/").content.decode()
    assert seal_of(sealed) in page
    assert sealed.digest not in page  # it does not cover card.html, so nobody is told to compare it
    for words in ("Where a value comes from", "recomputable", "can be computed again from the files in this card"):
        assert words in page
    assert f"{sealed.fields_stated} of {sealed.fields_total}" in page
    assert "&lt;b&gt;bold&lt;/b&gt; run" in page
    assert "<b>bold" not in page
    for words in ("What was trained, from what", "What was thrown away", "+50.0 [", "not evaluated", "cohort verify"):
        assert words in page
    assert "compliant" not in page


def test_page_costs_few_queries(
    client_for: ClientFor, bob: User, sealed: Record, django_assert_max_num_queries: Callable[[int], object]
) -> None:
    client = client_for(bob)
    with django_assert_max_num_queries(12):  # type: ignore[attr-defined]
        client.get(f"/p/ours/runs/{sealed.run_id}/record/")


def test_download_is_the_stored_card(client_for: ClientFor, bob: User, sealed: Record) -> None:
    client, path = client_for(bob), f"/p/ours/runs/{sealed.run_id}/record/card.zip"
    response = client.get(path)
    content = b"".join(response)  # type: ignore[arg-type]
    assert response["Content-Disposition"] == f'attachment; filename="card-run-{sealed.run_id}-b-bold-b-run.zip"'
    assert response["Content-Type"] == "application/zip"
    assert response["ETag"] == f'"{sealed.card_sha256}"'
    assert int(response["Content-Length"]) == len(content) == sealed.card_size
    assert zipfile.ZipFile(BytesIO(content)).read("record.json").decode() == sealed.document
    again = client.get(path, headers={"if-none-match": response["ETag"]})
    assert (again.status_code, again.content) == (304, b"")
    assert client.get(path, headers={"if-none-match": '"other"'}).status_code == 200


def test_unsealed_run_says_what_will_be_there(client_for: ClientFor, bob: User, waiting: Run) -> None:
    client = client_for(bob)
    page = client.get(f"/p/ours/runs/{waiting.pk}/record/").content.decode()
    assert "Sealed when the run ends" in page
    assert "The run is queued" in page
    assert client.get(f"/p/ours/runs/{waiting.pk}/record/card.zip").status_code == 404


def test_list_is_empty_then_shows_the_record(client_for: ClientFor, bob: User, ours: Project) -> None:
    page = client_for(bob).get("/p/ours/records/").content.decode()
    assert "No records yet" in page


def test_list_shows_one_line_a_record(client_for: ClientFor, bob: User, sealed: Record) -> None:
    page = client_for(bob).get("/p/ours/records/").content.decode()
    for words in ("1 sealed", "30.0 %", "80.0 %", "better", seal_of(sealed)[:8]):
        assert words in page


def test_list_pages_without_hiding_how_many_there_are(
    client_for: ClientFor,
    bob: User,
    sealed: Record,
    launch: Callable[..., Run],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    second = launch(name="second")
    record_seal(run=sealed_run.finish(sealed_run.claim(second), end="failed", code="x", message="no model"))
    monkeypatch.setattr(selectors, "PAGE", 1)
    client = client_for(bob)
    page = client.get("/p/ours/records/").content.decode()
    assert "showing 1 of 2" in page
    assert "second" in page
    older = client.get(f"/p/ours/records/?before={Record.objects.latest('pk').pk}").content.decode()
    assert "bold" in older
    assert "Older records" not in older
    assert client.get("/p/ours/records/?before=x").status_code == 200
