"""Texts deleted while a card is being made, or by a process that was cut: none survives in a card."""

import logging
import threading
import zipfile
from collections.abc import Callable
from io import BytesIO

import pytest
from django.db import connection, transaction
from django.test import Client

from cohort import artifacts
from cohort.accounts.models import User
from cohort.governance.models import Card, Record
from cohort.governance.services import record_reissue
from cohort.governance.tasks import expire_traces
from cohort.governance.traces import redaction
from cohort.governance.traces.redaction import cards_renew, runs_to_renew, samples_redact
from cohort.review.models import Sample
from cohort.runs.models import Run
from tests import sealed_run

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def record(launch: Callable[..., Run]) -> Record:
    return sealed_run.sealed(launch())


def test_a_card_waits_for_a_redaction_that_has_begun(record: Record, alice: User) -> None:
    sample = Sample.objects.select_related("group").earliest("pk")
    begun, go = threading.Event(), threading.Event()

    def slow() -> None:
        try:
            with transaction.atomic():
                samples_redact(run=record.run, samples=[sample], actor=alice, reason="r")
                begun.set()
                assert go.wait(60)
        finally:
            connection.close()

    def issued() -> None:
        try:
            record_reissue(record=record, reason="meanwhile")
        finally:
            connection.close()

    deleting, issuing = threading.Thread(target=slow), threading.Thread(target=issued)
    deleting.start()
    assert begun.wait(60)
    issuing.start()
    issuing.join(2)
    assert issuing.is_alive(), "it would read a text whose deletion it cannot see"
    go.set()
    deleting.join()
    issuing.join()
    assert Card.objects.filter(record=record, audience="internal").count() == 2
    with zipfile.ZipFile(BytesIO(b"".join(artifacts.read_chunks(record.card().artifact)))) as card:
        traces = b"".join(card.read(name) for name in card.namelist() if name.startswith("traces/"))
    assert b'"redacted":true' in traces


def test_zips_that_a_cut_process_left_are_deleted_by_the_hourly_task(
    record: Record, alice: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    earlier = [card.artifact for card in Card.objects.all()]
    samples_redact(run=record.run, samples=[Sample.objects.earliest("pk")], actor=alice, reason="r")
    with monkeypatch.context() as cut:
        cut.setattr(redaction, "_earlier_zips", lambda _: [])
        assert cards_renew(run=record.run) == 1
    assert all(map(artifacts.exists, earlier))
    expire_traces()
    assert not any(map(artifacts.exists, earlier))
    assert Card.objects.filter(audience="internal").count() == 2, "nothing is issued once more"
    assert runs_to_renew() == []


def test_one_runs_card_that_is_lost_holds_up_no_other(
    launch: Callable[..., Run], alice: User, caplog: pytest.LogCaptureFixture
) -> None:
    first, second = (sealed_run.sealed(launch()) for _ in range(2))
    for one in (first, second):
        sample = Sample.objects.filter(group__run=one.run).earliest("pk")
        samples_redact(run=one.run, samples=[sample], actor=alice, reason="r")
    artifacts.remove(first.card().artifact)
    with (
        caplog.at_level(logging.ERROR),
        pytest.raises(RuntimeError, match=rf"still hold deleted texts: \[{first.run_id}\]"),
    ):
        expire_traces()
    assert "is no longer stored" in caplog.text
    assert second.card().issue == 2
    assert runs_to_renew() == [first.run_id]


def test_what_a_score_quotes_goes_with_the_text(record: Record, alice: User) -> None:
    sample = Sample.objects.earliest("pk")
    sample.components = {
        "answer": {"value": 1.0, "detail": "said Ada Lovelace", "error": None},
        "judge": {"value": None, "detail": "", "error": "ValueError: no number in 'Ada Lovelace'"},
    }
    sample.save(update_fields=["components"])
    samples_redact(run=record.run, samples=[sample], actor=alice, reason="names a person")
    sample.refresh_from_db()
    assert sample.components == {
        "answer": {"value": 1.0, "detail": "", "error": None},
        "judge": {"value": None, "detail": "", "error": "ValueError"},
    }


def test_a_card_that_cannot_be_issued_again_is_told_before_a_text_is_deleted(
    record: Record, alice: User, client_for: Callable[[User], Client]
) -> None:
    """Of the first schema: sealed before an upgrade, with texts in its one card."""
    group = Sample.objects.earliest("pk").group
    page = f"/p/ours/runs/{record.run_id}/groups/{group.pk}/redact/"
    assert "will keep the texts" not in client_for(alice).get(page).content.decode()
    Record.objects.create(
        run=record.run,
        end=record.end + 1,
        fence=1,
        schema_version="cohort-record/1",
        document="{}",
        seal="0" * 64,
        record_root="0" * 64,
        fields_stated=1,
        fields_total=1,
        sealed_at=record.sealed_at,
    )
    assert "Its card cannot be issued again and will keep the texts" in client_for(alice).get(page).content.decode()
    samples_redact(run=record.run, samples=[group.samples.earliest("pk")], actor=alice, reason="r")
    expire_traces()
    assert runs_to_renew() == []
    assert record.card().issue == 2, "the others are issued again all the same"
