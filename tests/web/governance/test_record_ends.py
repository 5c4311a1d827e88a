"""Which end a record is of, and whose work it tells: ends without an attempt, attempts that never got going, and a
person who has the run go on while its record is being made."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from django.db import connection
from django.db.migrations.executor import MigrationExecutor
from django.test import Client

from cohort.accounts.models import User
from cohort.environment import environment
from cohort.governance import services
from cohort.governance.cards.first import contents_of
from cohort.governance.cards.making import Contents
from cohort.governance.cards.pack import Pack
from cohort.governance.facts import Facts
from cohort.governance.models import Card, Record
from cohort.governance.selectors import record_of
from cohort.governance.services import NotEnded, record_seal, seal_failed
from cohort.runs.models import Attempt, Run, RunState
from cohort.runs.reconcile import seals_republish
from cohort.runs.services import NotPossible, run_cancel, run_extend, run_retry
from grpo_core import records
from grpo_core.metrics import Totals
from tests import sealed_run
from tests.sealed_run import checkpoint, step
from tests.web.control import waited_for_its_record
from tests.web.governance.record_reading import accepted, card
from tests.web.governance.record_reading import said as read
from tests.web.governance.test_record_history import began, goes_on, outcome, retried

pytestmark = pytest.mark.django_db(transaction=True)
Launch = Callable[..., Run]
ClientFor = Callable[[User], Client]

NOTHING = [{}, {**Totals().as_dict(), "seconds": 2.0}]
"""Totals of a trainer that ended before it had taken up what was done before it: of now, and of before."""


def failed_after_two_steps(run: Run, *more: records.Record, code: str = "out_of_memory") -> Run:
    """Two steps, 610 tokens, a checkpoint after the first; ended for good unless `code` is one that is tried again."""
    first = sealed_run.claim(run)
    told = [*step(1, 0.5, tokens=300), checkpoint(1), *step(2, 0.1, tokens=610)]
    sealed_run.ingest(first, [*began(run), *told, *more])
    return sealed_run.finish(first, end="failed", code=code, message="it broke")


def never_got_going(run: Run, totals: dict[str, float], *more: records.Record) -> Run:
    """Another attempt, which found other weights than those that the checkpoint was trained from, and refused."""
    attempt = sealed_run.claim(run)
    manifest = sealed_run.manifest(run)
    manifest.model["weights"] = {"model.safetensors": "f" * 64}
    refused = records.Outcome(
        status="failed",
        code="checkpoint_error",
        message="the base model's weights have changed",
        steps_done=0,
        steps_planned=3,
        totals=totals,
    )
    sealed_run.ingest(attempt, [manifest, *more, refused])
    return sealed_run.finish(attempt, end="failed", code="checkpoint_error", message=refused.message)


# ---------------------------------------------------------------------- whose work is told


@pytest.mark.parametrize("totals", NOTHING)
def test_an_attempt_that_never_got_going_says_nothing_of_the_work(
    launch: Launch, tmp_path: Path, totals: dict[str, float]
) -> None:
    run = failed_after_two_steps(launch(), code="trainer_killed")
    run = never_got_going(run, totals)
    assert run.state == RunState.FAILED
    record = record_seal(run=run)
    said = read(record)
    assert said.budget.steps.text == "2 of 3 steps in 2 attempts"
    assert said.budget.tokens.value == {
        "completions": None, "tokens": 610, "superseded_tokens": 0, "tokens_with_superseded": 610,
    }  # fmt: skip
    assert said.budget.tokens.text == "a number of completions not told, 610 tokens with prompts"
    # 8 × 1,000 parameters × 610 tokens
    assert said.budget.compute.value["flop_estimate"] == 4_880_000
    assert said.budget.time.text.endswith("; attempt 1 on cpu")
    for entry in (said.rejected.samples, said.rejected.groups, said.rejected.truncated):
        assert (entry.text, entry.value) == ("not measured", None)
    assert said.subject.base_model.note == "The weights are those that were registered."
    # how it ended is told all the same
    assert "the base model's weights have changed" in said.subject.outcome.text
    assert said.subject.outcome.value["message"] == "the base model's weights have changed"
    assert "2 on gpu-1, no step, failed (checkpoint_error)" in said.subject.attempts.text
    files = card(record)
    assert "outcome.json" not in files.namelist()
    assert json.loads(files.read("manifest.json"))["model"]["weights"] == sealed_run.manifest(run).model["weights"]
    assert accepted(record, tmp_path)


def test_totals_are_those_of_the_attempt_whose_work_stands(launch: Launch, alice: User) -> None:
    totals = {**sealed_run.TOTALS, "samples": 16.0, "tokens": 610.0, "groups": 4.0}
    ended = records.Outcome(
        status="failed", code="out_of_memory", message="no memory", steps_done=2, steps_planned=3, totals=totals
    )
    run = failed_after_two_steps(launch(), ended)
    record_seal(run=run)
    run_retry(run=run, actor=alice)
    record = record_seal(run=never_got_going(run, NOTHING[1]))
    said = read(record)
    assert said.budget.tokens.text == "16 completions, 610 tokens with prompts"
    assert said.rejected.samples.text == "1 of 16 (6.2 %) completions left out of the update"
    assert json.loads(card(record).read("outcome.json"))["message"] == "no memory"
    assert said.subject.outcome.value["message"] == "the base model's weights have changed"


@pytest.mark.parametrize("totals", NOTHING)
def test_one_that_fell_while_it_took_up_the_work_has_not_undone_it(launch: Launch, totals: dict[str, float]) -> None:
    run = failed_after_two_steps(launch(), code="trainer_killed")
    going_on = records.Resumed(step=1, checkpoint="checkpoints/step-000001")
    said = read(record_seal(run=never_got_going(run, totals, going_on)))
    assert said.budget.steps.value["done"] == 1
    assert (said.budget.tokens.value["tokens"], said.budget.tokens.value["superseded_tokens"]) == (300, 310)
    assert said.rejected.samples.text == "not measured"


def test_a_run_that_never_had_a_step_has_no_totals(launch: Launch) -> None:
    said = read(record_seal(run=never_got_going(launch(), {})))
    assert (said.budget.tokens.text, said.budget.compute.text) == ("not measured", "not measured")
    assert said.budget.steps.text == "0 of 3 steps in 1 attempt"


# ---------------------------------------------------------------------- ends


def test_an_end_without_an_attempt_has_a_record_of_its_own(
    launch: Launch, alice: User, bob: User, client_for: ClientFor, tmp_path: Path
) -> None:
    run = failed_after_two_steps(
        launch(), records.Outcome(status="failed", code="x", message="no memory", steps_done=2, steps_planned=3)
    )
    first = record_seal(run=run)
    assert record_of(run) == first
    run_retry(run=run, actor=alice, reason="once more")
    assert record_of(run) is None
    with pytest.raises(NotEnded):
        record_seal(run=run)
    run_cancel(run=run, actor=alice, reason="no, leave it")
    run = Run.objects.get(pk=run.pk)
    assert (run.state, run.fence, run.ends) == (RunState.CANCELLED, 1, 2)
    assert record_of(run) is None
    Attempt.objects.update(ended_at="2026-01-01T00:00:00Z")
    assert seals_republish() == [run.pk], "the record of the end before is not this one's"
    second = record_seal(run=run)
    assert seals_republish() == []
    assert record_of(run) == second
    assert [(one.end, one.fence, read(one).state) for one in Record.objects.order_by("end")] == [
        (1, 1, "failed"),
        (2, 1, "cancelled"),
    ]
    said = read(second)
    assert said.subject.steering.text.endswith(": Retried from step 1: once more")
    assert said.subject.outcome.text == "cancelled after 2 of 3 steps: Stopped by alice after 2 steps: no, leave it"
    assert said.subject.outcome.value["message"] == "", "the trainer's words were of the end before"
    (earlier,) = said.subject.earlier_records.value
    assert (earlier["end"], earlier["attempt"], earlier["state"]) == (1, 1, "failed")
    assert accepted(second, tmp_path)
    client, folder = client_for(bob), f"/p/ours/runs/{run.pk}/record"
    for record in (first, second):
        assert json.loads(record.document)["seal"] in client.get(f"{folder}/{record.end}/").content.decode()
        got = client.get(f"{folder}/{record.end}/card.zip")
        assert got["ETag"] == f'"{record.card("downstream").sha256}"', "the most that a viewer may take"
    assert '"card-run-' in got["Content-Disposition"]
    assert "-end-2-" in got["Content-Disposition"]


def test_waiting_for_its_record_and_having_it_is_one_end(launch: Launch, alice: User) -> None:
    run = retried(launch(), alice)
    assert (run.state, run.ends) == (RunState.SEALING, 2)
    record = record_seal(run=run)
    run.refresh_from_db()
    assert (run.state, run.ends, record.end) == (RunState.SUCCEEDED, 2, 2)
    assert record_of(run) == record


def test_ends_of_before_are_counted_from_the_events(launch: Launch, alice: User) -> None:
    run = retried(launch(), alice)
    sealed = list(record_seal(run=run).run.records.order_by("end").values_list("fence", "sealed_at"))
    waiting = launch(name="waits")
    with connection.cursor() as cursor:  # of today's records nothing goes back to the tables of before
        cursor.execute("TRUNCATE governance_record CASCADE")
    before = [("governance", "0002_record_per_end"), ("runs", "0004_indexes")]
    executor = MigrationExecutor(connection)
    executor.migrate(before)
    then = executor.loader.project_state(before).apps.get_model("governance", "Record")
    for fence, sealed_at in sealed:
        then.objects.create(
            run_id=run.pk,
            fence=fence,
            schema_version="cohort-record/1",
            digest="0" * 64,
            document='{"seal": ""}',
            card_artifact=f"cards/{fence}.zip",
            card_sha256="0" * 64,
            card_size=1,
            fields_stated=1,
            fields_total=2,
            sealed_at=sealed_at,
        )
    executor = MigrationExecutor(connection)
    executor.migrate(executor.loader.graph.leaf_nodes())
    assert [Run.objects.get(pk=one.pk).ends for one in (run, waiting)] == [2, 0]
    assert list(Record.objects.order_by("end").values_list("end", "fence")) == [(1, 1), (2, 2)]
    cards = Card.objects.order_by("record__end").values_list("audience", "issue", "artifact", "log_index")
    assert list(cards) == [("internal", 1, "cards/1.zip", None), ("internal", 1, "cards/2.zip", None)]


# ---------------------------------------------------------------------- going on while it is being made


def test_who_retries_or_extends_waits_for_the_record(launch: Launch, alice: User, client_for: ClientFor) -> None:
    run = failed_after_two_steps(launch())
    for ask in (lambda: run_retry(run=run, actor=alice), lambda: run_extend(run=run, actor=alice, steps=1)):
        with pytest.raises(NotPossible, match="its record is being made; try again in a moment"):
            ask()
    response = client_for(alice).post(f"/p/ours/runs/{run.pk}/retry/", {"from": "start"})
    assert response.status_code == 422
    assert "its record is being made; try again in a moment" in response.content.decode()
    record_seal(run=run)
    run_retry(run=run, actor=alice)
    assert Run.objects.get(pk=run.pk).state == RunState.QUEUED


def test_a_record_that_does_not_come_is_not_waited_for(launch: Launch, alice: User) -> None:
    run = waited_for_its_record(failed_after_two_steps(launch()))
    run_extend(run=run, actor=alice, steps=1)
    assert Run.objects.get(pk=run.pk).state == RunState.QUEUED


def test_a_record_that_a_person_gave_up_is_not_waited_for(launch: Launch, alice: User) -> None:
    run = launch()
    first = sealed_run.claim(run)
    sealed_run.ingest(first, [*began(run), *step(1, 0.5), checkpoint(1), outcome(1)])
    run = sealed_run.finish(first)
    seal_failed(run=run, reason="The record could not be sealed: the disk is full")
    run_cancel(run=run, actor=alice)
    assert (run.state, run.ends) == (RunState.FAILED, 1)
    run_retry(run=run, actor=alice)
    assert run.state == RunState.QUEUED


@pytest.mark.parametrize("then", ["claimed", "cancelled", "failed"])
def test_what_was_read_of_a_run_that_went_on_is_not_kept(
    launch: Launch, alice: User, monkeypatch: pytest.MonkeyPatch, then: str
) -> None:
    run = waited_for_its_record(failed_after_two_steps(launch()))

    def meanwhile(facts: Facts, pack: Pack, **more: Any) -> Contents:
        other = Run.objects.get(pk=run.pk)
        run_retry(run=other, actor=alice)
        if then == "cancelled":
            run_cancel(run=other, actor=alice)
        else:
            attempt = sealed_run.claim(other)
            sealed_run.ingest(attempt, [*goes_on(run, 1), *step(2, 0.6, tokens=600)])
            if then == "failed":
                sealed_run.finish(attempt, end="failed", code="out_of_memory", message="again")
        return contents_of(facts, pack, **more)

    monkeypatch.setattr(services, "contents_of", meanwhile)
    with pytest.raises(NotEnded, match="went on while its record was being made"):
        record_seal(run=run)
    assert not Record.objects.exists()
    folder = Path(environment().artifacts_url.removeprefix("file://")) / "cards"
    assert not list(folder.glob(f"{run.pk}-*"))
    monkeypatch.undo()
    if then != "claimed":
        assert (record_seal(run=run).end, Record.objects.count()) == (2, 1)
