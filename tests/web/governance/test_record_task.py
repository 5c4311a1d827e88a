"""Sealing as the platform worker does it: once, also when asked twice or cut short, and told when it cannot be done."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg
import pytest
from django.db import connection
from django.test import Client

from cohort import artifacts
from cohort.accounts.models import User
from cohort.environment import environment
from cohort.governance import services
from cohort.governance.cards import pack
from cohort.governance.facts import Facts, collect
from cohort.governance.models import Audience, Record
from cohort.governance.services import BeingSealed, record_seal
from cohort.governance.tasks import seal
from cohort.runs.models import Run, RunState
from tests import sealed_run
from tests.web.run_rows import put_in

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def finished(launch: Callable[..., Run]) -> Run:
    return sealed_run.finished(launch())


def kinds(run: Run) -> list[str]:
    return [event.kind for event in run.events.all()]


def cards(run: Run) -> list[str]:
    """Files of this run in the artifact store."""
    folder = Path(environment().artifacts_url.removeprefix("file://")) / "cards"
    return sorted(f"cards/{path.name}" for path in folder.glob(f"{run.pk}-*"))


def stored(record: Record) -> list[str]:
    """The artifacts of the record's cards, of which it has one for each audience."""
    found = sorted(record.cards.values_list("artifact", flat=True))
    assert len(found) == len(Audience)
    return found


def test_it_seals_once_and_the_run_has_succeeded(finished: Run) -> None:
    assert finished.state == RunState.SEALING
    seal(finished.pk)
    finished.refresh_from_db()
    assert finished.state == RunState.SUCCEEDED
    events = finished.events.count()
    seal(finished.pk)
    assert finished.events.count() == events
    assert Record.objects.filter(run=finished).count() == 1
    assert cards(finished) == stored(Record.objects.get(run=finished))


def test_a_run_that_was_not_told_of_its_record_is_told(finished: Run) -> None:
    record_seal(run=finished)
    put_in(finished, RunState.SEALING)
    seal(finished.pk)
    finished.refresh_from_db()
    assert finished.state == RunState.SUCCEEDED
    assert kinds(finished).count("sealed") == 1


def test_only_one_process_seals_a_run(finished: Run) -> None:
    to = connection.settings_dict
    with psycopg.connect(
        dbname=to["NAME"], user=to["USER"], password=to["PASSWORD"], host=to["HOST"], port=to["PORT"] or None
    ) as other:
        lock = [f"cohort seal {finished.pk}"]
        other.execute("SELECT pg_advisory_lock(hashtextextended(%s, 0))", lock)
        with pytest.raises(BeingSealed):
            record_seal(run=finished)
        seal(finished.pk)  # a doubled message is no fault
        assert not Record.objects.exists()
        assert "seal_failed" not in kinds(finished)
        # By word: a server process that loses its connection gives its locks back when it comes to it.
        other.execute("SELECT pg_advisory_unlock(hashtextextended(%s, 0))", lock)
    seal(finished.pk)
    assert Record.objects.filter(run=finished).count() == 1


def test_the_card_of_one_who_came_second_is_removed(finished: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """The lock is the session's own, so that the second, inside the first, passes it as if it had been lost."""

    def slowly(run: Run, *, state: Any) -> Facts:
        monkeypatch.setattr(services, "collect", collect)
        record_seal(run=run)
        return collect(run, state=state)

    monkeypatch.setattr(services, "collect", slowly)
    record = record_seal(run=finished)
    assert cards(finished) == stored(record)
    assert artifacts.exists(record.card().artifact)
    assert kinds(finished).count("sealed") == 1


def test_a_card_that_is_too_large_is_told_on_the_run(
    finished: Run, monkeypatch: pytest.MonkeyPatch, client_for: Callable[[User], Client], bob: User
) -> None:
    monkeypatch.setattr(pack, "most_bytes", lambda name: 1000 if name == "evals/after.jsonl" else 10**9)
    for _ in range(2):
        with pytest.raises(pack.CardTooLarge):
            seal(finished.pk)
    finished.refresh_from_db()
    assert finished.state == RunState.SEALING
    words = "The record could not be sealed: evals/after.jsonl would be larger than the 1,000 bytes"
    assert finished.reason.startswith(words)
    assert kinds(finished).count("seal_failed") == 1
    for page in ("", "record/"):
        assert words in client_for(bob).get(f"/p/ours/runs/{finished.pk}/{page}").content.decode()
    monkeypatch.undo()
    seal(finished.pk)
    finished.refresh_from_db()
    assert (finished.state, finished.reason) == (RunState.SUCCEEDED, "")


def test_a_store_that_takes_nothing_is_told_on_the_run(finished: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(key: str, chunks: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(artifacts, "put", full)
    with pytest.raises(OSError, match="No space"):
        seal(finished.pk)
    finished.refresh_from_db()
    assert "No space left on device" in finished.reason
    assert not Record.objects.exists()


def test_a_failed_run_keeps_the_reason_of_its_failure(
    launch: Callable[..., Run], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = launch()
    run = sealed_run.finish(sealed_run.claim(run), end="failed", code="model_error", message="no such model folder")
    reason = run.reason
    monkeypatch.setattr(pack, "most_bytes", lambda name: 10)
    with pytest.raises(pack.CardTooLarge):
        seal(run.pk)
    run.refresh_from_db()
    assert (run.state, run.reason) == (RunState.FAILED, reason)
    assert "seal_failed" in kinds(run)
