"""Sealing: once for each end of a run, and nothing half done. Further versions are in test_versions.py."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
import rfc8785
from django.db import connection

from cohort.audit import services as audit
from cohort.background.reconcile import seals_republish
from cohort.background.tasks import seal
from cohort.base import artifacts
from cohort.records import services
from cohort.records.cards import data_files, issue, pack
from cohort.records.cards.issue import KeysChanged, read_contents
from cohort.records.facts import collect
from cohort.records.models import Card, Record
from cohort.records.services import BeingSealed, NotEnded, record_seal, seal_failed
from cohort.runs.models import Run, RunState, RunValue
from cohort.runs.run_values import VERDICT
from cohort.runs.services import NotPossible, run_cancel, run_extend, run_retry
from cohort.web.records.listing import record_of
from grpo_core.errors import DiskFullError
from tests.factories import sealed_run
from tests.factories.runs import put_in
from tests.factories.sealed_run import attempted, checkpoint, ended, step
from tests.web.records.attempts import (
    began,
    cancelled_before_its_second_attempt,
    failed_after_two_steps,
    resumed,
    retried,
)
from tests.web.records.conftest import World
from tests.web.records.records import accepted, entry, logged, stored
from tests.web.records.scenarios import never_began

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("quick_pdf")]
LONG_AGO = "2026-01-01T00:00:00Z"


def after_sealing(run: Run) -> Run:
    """After the task that seals."""
    seal(run.pk)
    run.refresh_from_db()
    return run


def kinds(run: Run) -> list[str]:
    return [event.kind for event in run.events.all()]


def waited(run: Run) -> Run:
    """It ended so long ago that its record is waited for no more."""
    Run.objects.filter(pk=run.pk).update(ended_at=LONG_AGO)
    return Run.objects.get(pk=run.pk)


# ---------------------------------------------------------------------- once


def test_seals_once_and_the_run_has_succeeded(finished: Run) -> None:
    assert finished.state == RunState.SEALING
    assert after_sealing(finished).state == RunState.SUCCEEDED
    events = kinds(finished)
    seal(finished.pk)
    record = Record.objects.get(run=finished)
    assert record_seal(run=finished) == record
    assert kinds(finished) == events
    assert stored(finished.pk) == sorted(record.cards.values_list("artifact", flat=True))
    assert rfc8785.dumps(json.loads(record.document)) == record.document.encode()
    verdicts = RunValue.objects.filter(run=finished, key__startswith=VERDICT).values_list("key", "text")
    compared = json.loads(record.document)["sections"]["behaviour"]["performance"]["value"]
    assert {key: text.partition(";")[0] for key, text in verdicts} == {
        VERDICT + each["suite"]: each["verdict"] for each in compared
    }
    assert len(compared) > 0
    put_in(finished, RunState.SEALING)  # as if the run had not been told of its record
    assert after_sealing(finished).state == RunState.SUCCEEDED
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

    def slowly(run: Run, *, state: Any) -> Any:
        monkeypatch.setattr(services, "collect", collect)
        record_seal(run=run)
        return collect(run, state=state)

    monkeypatch.setattr(services, "collect", slowly)
    record = record_seal(run=finished)
    assert stored(finished.pk) == sorted(record.cards.values_list("artifact", flat=True))
    assert artifacts.exists(record.card().artifact)
    assert kinds(finished).count("sealed") == 1


def test_a_live_run_is_not_sealed(world: World) -> None:
    run = world.launch()
    sealed_run.claim(run)
    with pytest.raises(NotEnded):
        record_seal(run=run)
    assert not Record.objects.exists()


# ---------------------------------------------------------------------- failures


STEPS: list[tuple[Any, str]] = [
    *((services, name) for name in ("collect", "read_contents", "issue_cards", "_store", "_card_rows", "run_sealed")),
    *((issue.markdown, "card_markdown"), (issue, "_statement"), (issue.audit, "prove"), (issue, "_logged")),
    (issue.artifacts, "put"),
]


def test_failure_at_any_step_leaves_nothing_and_the_next_try_seals(
    finished: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module, name in STEPS:
        with monkeypatch.context() as broken:
            broken.setattr(module, name, lambda *_, **__: 1 / 0)
            with pytest.raises(ZeroDivisionError):
                record_seal(run=finished)
        finished.refresh_from_db()
        assert not Record.objects.exists(), name
        assert not Card.objects.exists(), name
        assert stored(finished.pk) == [], name
        assert finished.state == RunState.SEALING, name
    record = record_seal(run=finished)
    assert record.cards.count() == len(stored(finished.pk)) == 4


@pytest.mark.parametrize("cards_before", [1, 3])
def test_a_store_that_is_full_half_way_keeps_none_of_the_cards(
    finished: Run, monkeypatch: pytest.MonkeyPatch, cards_before: int
) -> None:
    real, calls = artifacts.put, []

    def until_full(key: str, chunks: Iterator[bytes], **how: bool) -> artifacts.Stored:
        calls.append(key)

        def cut() -> Iterator[bytes]:
            yield next(iter(chunks))
            raise OSError(28, "No space left on device")

        return real(key, cut() if len(calls) > cards_before else chunks, **how)

    monkeypatch.setattr(artifacts, "put", until_full)
    with pytest.raises(DiskFullError):
        seal(finished.pk)
    finished.refresh_from_db()
    assert (stored(finished.pk), "disk is full" in finished.reason) == ([], True)


def test_a_card_that_is_too_large_is_told_on_the_run(finished: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(pack, "most_bytes", lambda name: 1000 if name == "evals/after.jsonl" else 10**9)
        for _ in range(2):
            seal(finished.pk)
    finished.refresh_from_db()
    assert (finished.state, "evals/after.jsonl" in finished.reason) == (RunState.SEALING, True)
    assert kinds(finished).count("seal_failed") == 1
    with monkeypatch.context() as patched:
        patched.setattr(data_files, "MAX_ITEMS", 1)  # of items, more than a check takes
        with pytest.raises(pack.CardTooLarge):
            record_seal(run=finished)
    assert stored(finished.pk) == []
    after_sealing(finished)
    assert (finished.state, finished.reason) == (RunState.SUCCEEDED, "")


def test_a_failed_run_keeps_the_reason_of_its_failure(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    run = never_began(world.launch())
    reason = run.reason
    monkeypatch.setattr(pack, "most_bytes", lambda name: 10)
    seal(run.pk)
    run.refresh_from_db()
    assert (run.state, run.reason) == (RunState.FAILED, reason)
    assert "seal_failed" in kinds(run)


def test_a_key_that_is_replaced_meanwhile(finished: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    keys = [(["a"], []), (["a", "b"], ["a to b"])]
    monkeypatch.setattr(audit, "public_keys", lambda: keys.pop(0) if len(keys) > 1 else keys[0])
    monkeypatch.setattr(audit, "checkpoint", lambda: None)
    monkeypatch.setattr(audit, "prove", lambda entry: audit.Proof(b"", 0, [], "", 1))
    with pytest.raises(KeysChanged):
        record_seal(run=finished)
    assert stored(finished.pk) == []


def test_a_run_that_went_on_before_its_rows_keeps_no_card(finished: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    real = services.issue_cards

    def and_go_on(*given: Any) -> Any:
        Run.objects.filter(pk=finished.pk).update(fence=finished.fence + 1)
        return real(*given)

    monkeypatch.setattr(services, "issue_cards", and_go_on)
    with pytest.raises(NotEnded):
        record_seal(run=finished)
    assert stored(finished.pk) == []
    assert len(logged("record_sealed")) == 1  # said in docs/card.md: it belongs to no record


@pytest.mark.parametrize("then", ["claimed", "cancelled", "failed"])
def test_what_was_read_of_a_run_that_went_on_is_not_kept(
    world: World, monkeypatch: pytest.MonkeyPatch, then: str
) -> None:
    run = waited(failed_after_two_steps(world.launch()))

    def meanwhile(*given: Any, **more: Any) -> Any:
        other = Run.objects.get(pk=run.pk)
        run_retry(run=other, actor=world.alice)
        if then == "cancelled":
            run_cancel(run=other, actor=world.alice)
        elif then == "failed":
            reported = [*resumed(run, 1), *step(2, 0.6, tokens=600)]
            attempted(other, reported, end="failed", code="out_of_memory", message="again")
        else:
            sealed_run.claim(other)
        return read_contents(*given, **more)

    with monkeypatch.context() as patched:
        patched.setattr(services, "read_contents", meanwhile)
        with pytest.raises(NotEnded):
            record_seal(run=run)
    assert not Record.objects.exists()
    assert stored(run.pk) == []
    if then != "claimed":
        assert (record_seal(run=run).end, Record.objects.count()) == (2, 1)


# ---------------------------------------------------------------------- ends


def test_each_end_has_a_record_of_its_own(world: World, tmp_path: Path) -> None:
    run = retried(world)
    assert (run.state, run.ends, record_of(run)) == (RunState.SEALING, 2, None)
    first = Record.objects.get(run=run)
    was = (first.document, first.card().sha256)
    run.attempts.update(ended_at=LONG_AGO)
    assert seals_republish() == [run.pk], "the earlier end's record is not this one's"
    second = record_seal(run=run)
    assert seals_republish() == []
    run.refresh_from_db()
    assert (run.state, run.ends, record_of(run)) == (RunState.SUCCEEDED, 2, second)
    first.refresh_from_db()
    assert (first.document, first.card().sha256) == was
    ends = [(record.end, record.fence, entry(record, "subject.outcome").value["state"]) for record in (first, second)]
    assert ends == [(1, 1, "failed"), (2, 2, "succeeded")]
    (earlier,) = entry(second, "subject.earlier_records").value
    assert (earlier["attempt"], earlier["state"], earlier["seal"]) == (1, "failed", first.seal)
    assert accepted(first.card(), tmp_path)


def test_an_end_without_an_attempt_has_a_record_of_its_own(world: World) -> None:
    run = cancelled_before_its_second_attempt(world)
    assert (run.state, run.fence, run.ends) == (RunState.CANCELLED, 1, 2)
    first = Record.objects.get(run=run)
    run.attempts.update(ended_at=LONG_AGO)
    assert seals_republish() == [run.pk]
    second = record_seal(run=run)
    assert seals_republish() == []
    assert (record_of(run), second.end, second.fence) == (second, 2, 1)
    (earlier,) = entry(second, "subject.earlier_records").value
    assert (earlier["end"], earlier["attempt"], earlier["seal"]) == (1, 1, first.seal)


def test_who_retries_or_extends_waits_for_a_record_that_comes(world: World) -> None:
    run, actor = failed_after_two_steps(world.launch()), world.alice
    for ask in (lambda: run_retry(run=run, actor=actor), lambda: run_extend(run=run, actor=actor, steps=1)):
        with pytest.raises(NotPossible, match="record"):
            ask()
    record_seal(run=run)
    run_retry(run=run, actor=actor)
    assert run.state == RunState.QUEUED
    run_cancel(run=run, actor=actor)
    another = waited(failed_after_two_steps(world.launch()))
    run_extend(run=another, actor=actor, steps=1)
    assert another.state == RunState.QUEUED


def test_a_record_that_a_person_gave_up_is_not_waited_for(world: World) -> None:
    run, actor = world.launch(), world.alice
    run = attempted(run, [*began(run), *step(1, 0.5), checkpoint(1), *ended(1, sealed_run.AFTER)])
    seal_failed(run=run, reason="the disk is full")
    run_cancel(run=run, actor=actor)
    assert (run.state, run.ends) == (RunState.FAILED, 1)
    run_retry(run=run, actor=actor)
    assert run.state == RunState.QUEUED
