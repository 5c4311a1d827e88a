"""Pages of records and the card's download: who sees them, and what they show."""

import json
from collections.abc import Callable

import pytest
from django.test import Client
from django.utils.html import escape

from cohort import artifacts
from cohort.accounts.models import User
from cohort.governance.fields import FIELDS
from cohort.governance.models import Card, Record
from cohort.governance.services import record_seal
from cohort.governance.statements.services import statement_make
from cohort.runs.models import Run
from cohort.runs.services import run_cancel
from tests import sealed_run

pytestmark = pytest.mark.django_db(transaction=True)
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
    assert sealed.short_digest in page
    for words in ("Where a value comes from", "recomputable", "can be computed again from the sealed files"):
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
    with django_assert_max_num_queries(32):  # type: ignore[attr-defined]
        client.get(f"/p/ours/runs/{sealed.run_id}/record/")


def test_unsealed_run_says_what_will_be_there(client_for: ClientFor, bob: User, waiting: Run) -> None:
    client = client_for(bob)
    page = client.get(f"/p/ours/runs/{waiting.pk}/record/").content.decode()
    assert "Sealed when the run ends" in page
    assert "The run is queued" in page
    assert client.get(f"/p/ours/runs/{waiting.pk}/record/card.zip").status_code == 404


def test_what_is_not_stated_leads_to_its_question(client_for: ClientFor, rita: User, sealed: Record) -> None:
    page = client_for(rita).get(f"/p/ours/runs/{sealed.run_id}/record/").content.decode()
    asked = f"/p/ours/runs/{sealed.run_id}/statements/#reward-domain"
    assert f'<span class="suspect">not stated</span> <a class="small" href="{asked}">state it</a>' in page
    assert client_for(rita).get(asked).status_code == 200


def test_who_may_state_nothing_is_not_asked_to(client_for: ClientFor, bob: User, sealed: Record) -> None:
    page = client_for(bob).get(f"/p/ours/runs/{sealed.run_id}/record/").content.decode()
    assert '<span class="suspect">not stated</span>' in page
    assert ">state it</a>" not in page


def test_a_run_that_no_worker_ever_had_has_no_record_to_wait_for(
    client_for: ClientFor, alice: User, bob: User, waiting: Run
) -> None:
    run_cancel(run=waiting, actor=alice)
    page = client_for(bob).get(f"/p/ours/runs/{waiting.pk}/record/").content.decode()
    assert "This run ended before a worker had it, so there is nothing to record." in page
    assert "<h2>No record</h2>" in page


def test_values_carry_source_evidence_and_audience(client_for: ClientFor, bob: User, sealed: Record) -> None:
    page = client_for(bob).get(f"/p/ours/runs/{sealed.run_id}/record/").content.decode()
    assert "<span>measured, recomputable</span></dd>" in page, "a public field carries no mark of its audience"
    assert '<span>measured, reported</span> <span class="tag">authority</span>' in page
    assert "<span>stated by alice</span>" in page
    for section, fields in FIELDS.items():
        assert f'id="{section}"' in page
        assert all(f"<dt>{escape(facts.label)}</dt>" in page for facts in fields.values())


def test_suites_stand_by_category_with_their_parts(
    client_for: ClientFor, bob: User, launch: Callable[..., Run]
) -> None:
    run = launch(suites=["harmful_capability", "multilingual"])
    scores = {"harmful_capability": [0.0] * 30, "multilingual": [1.0, 0.0] * 15}
    told = sealed_run.with_suites(
        run,
        scores,
        {"harmful_capability": [1.0] * 10 + [0.0] * 20, "multilingual": [1.0] * 30},
        slices={"multilingual": ["de", "sw"]},
        overlap={"multilingual": sealed_run.touched("multilingual-1", items=30)},
    )
    record_seal(run=sealed_run.finished(run, told))
    page = client_for(bob).get(f"/p/ours/runs/{run.pk}/record/").content.decode()
    for category in ("performance", "harmful capability", "multilingual"):
        assert f'<th scope="rowgroup" colspan="7">{category}</th>' in page
    regressed = page.split('<span class="badge is-wrong">regressed</span>')
    assert len(regressed) == 2, "a higher score is worse there"
    assert regressed[1].startswith(' <span class="muted small nowrap">margin 5</span></td>'), "beside the verdict"
    assert '<th scope="row">de</th><td class="num">15</td>' in page
    assert "without the 1 items found in the training file" in page
    assert "3 parts, and how it was counted" in page


def test_page_of_an_earlier_version_says_so(client_for: ClientFor, rita: User, alice: User, sealed: Record) -> None:
    client, place = client_for(rita), f"/p/ours/runs/{sealed.run_id}/record"
    statement_make(run=sealed.run, actor=alice, field="method.rationale", text="it is the demo's")
    page = client.get(f"{place}/").content.decode()
    assert "1 statement of this run is newer than this record and not in it." in page
    assert "Seal version 2" in page
    second = record_seal(run=sealed.run, reason="the rationale was stated", actor=rita)
    page = client.get(f"{place}/").content.decode()
    assert seal_of(second) in page
    assert "it is the demo&#x27;s" in page
    assert "newer than this record" not in page
    assert f"{place}/1/?version=1" in page
    first = client.get(f"{place}/1/?version=1").content.decode()
    assert seal_of(sealed) in first
    assert "is superseded by a later one" in first
    assert "it is the demo&#x27;s" not in first
    assert client.get(f"{place}/1/?version=3").status_code == 404


def test_record_of_the_first_schema_is_not_shown_but_its_card_is_offered(
    client_for: ClientFor, bob: User, waiting: Run
) -> None:
    Run.objects.filter(pk=waiting.pk).update(state="failed", ends=1, ended_at="2026-01-01T00:00:00Z")
    body = {"record": {"state": "failed"}, "seal": "7" * 64}
    record = Record.objects.create(
        run=waiting,
        end=1,
        fence=1,
        schema_version="cohort-record/1",
        document=json.dumps(body),
        seal="7" * 64,
        record_root="8" * 64,
        fields_stated=30,
        fields_total=60,
        sealed_at="2026-01-01T00:00:00Z",
    )
    stored = artifacts.put(f"cards/{waiting.pk}-old.zip", iter([b"PK"]))
    Card.objects.create(
        record=record,
        audience="internal",
        artifact=stored.key,
        sha256=stored.sha256,
        size=stored.size,
        issued_at=record.sealed_at,
    )
    page = client_for(bob).get(f"/p/ours/runs/{waiting.pk}/record/").content.decode()
    assert "This record has the first schema, cohort-record/1." in page
    assert f"/p/ours/runs/{waiting.pk}/record/1/card.zip" in page
    assert "7777 7777 7777 7777" in page
    assert "What was trained, from what" not in page
