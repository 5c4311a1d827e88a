"""Further versions of a record: what was stated since the seal, at a person's request."""

from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.core.exceptions import ValidationError

from cohort.accounts.models import User
from cohort.background import reconcile
from cohort.background.reconcile import seals_republish
from cohort.background.tasks import seal
from cohort.evidence.verify import verify_card
from cohort.records import services
from cohort.records.cards.issue import read_contents
from cohort.records.models import Record
from cohort.records.services import NothingNew, record_seal, version_request
from cohort.records.statements.services import statement_make, statements_since
from cohort.runs.models import Run
from tests.web.records.conftest import World
from tests.web.records.records import entry, logged, platform_keys, saved

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("quick_pdf")]


def state(run: Run, actor: User) -> None:
    statement_make(run=run, actor=actor, field="handling.monitoring", text="monthly")


def test_what_was_stated_after_the_seal_stands_in_the_next_version(
    sealed: Record, world: World, tmp_path: Path
) -> None:
    run, was = sealed.run, sealed.document
    with pytest.raises(NothingNew):
        record_seal(run=run, reason="again")
    state(run, world.rita)
    assert record_seal(run=run) == sealed  # without a reason nothing is made
    second = record_seal(run=run, reason="the plan was stated", actor=world.rita)
    assert (second.end, second.version, second.supersedes, sealed.version) == (sealed.end, 2, sealed, 1)
    statement = entry(second, "handling.monitoring")
    assert (statement.text, statement.source) == ("monthly", "stated by rita")
    (earlier,) = entry(second, "subject.earlier_records").value
    assert (earlier["version"], earlier["seal"]) == (1, sealed.seal)
    sealed.refresh_from_db()
    assert sealed.document == was
    assert second.seal != sealed.seal
    assert second.cards.count() == sealed.cards.count() == 4
    body = logged("record_sealed")[-1]
    assert (body["actor"], body["reason"], body["data"]["version"]) == ("user:rita", "the plan was stated", 2)
    with saved(sealed.card(), tmp_path).open("rb") as older:
        report = verify_card(saved(second.card(), tmp_path), replace(platform_keys(), older=older, older_name="first"))
    assert report.accepted
    assert any(check.name == "older card" for check in report.checks)


def test_a_statement_made_while_the_record_is_read_is_news_afterwards(
    finished: Run, rita: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    def and_state(*given: Any, **named: Any) -> Any:
        contents = read_contents(*given, **named)
        state(finished, rita)
        return contents

    with monkeypatch.context() as patched:
        patched.setattr(services, "read_contents", and_state)
        first = record_seal(run=finished)
    assert entry(first, "handling.monitoring").text == "not stated"
    assert statements_since(first).exists()
    assert not statements_since(record_seal(run=finished, reason="now with it")).exists()


def test_a_version_is_asked_for_and_made_by_the_task_even_if_a_message_is_lost(
    finished: Run, rita: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = {"run": finished, "actor": rita, "reason": "the plan was stated"}

    def refused(words: str, **changed: str) -> None:
        with pytest.raises(ValidationError, match=words):
            version_request(**{**asked, **changed})

    refused("no record")
    seal(finished.pk)
    refused("Nothing that the record holds")
    state(finished, rita)
    refused("Say why", reason="  ")
    monkeypatch.setattr(reconcile, "UNSEALED", timedelta(seconds=-1))
    assert seals_republish() == []  # nobody asked
    version_request(**asked)
    assert services.version_pending(finished) == services.VersionRequest(rita, "the plan was stated")
    with monkeypatch.context() as patched:
        patched.setattr(reconcile, "UNSEALED", timedelta(seconds=60))
        assert seals_republish() == []  # the message is on its way
    assert seals_republish() == [finished.pk]
    seal(finished.pk)
    assert seals_republish() == []
    seal(finished.pk)  # a doubled message makes no third
    assert [record.version for record in Record.objects.filter(run=finished).order_by("version")] == [1, 2]
    assert services.version_pending(finished) is None
