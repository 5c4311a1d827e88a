"""Records of runs of several attempts or ends: what stands, what was superseded, who did what."""

import json
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest
from django.test import Client

from cohort import artifacts
from cohort.accounts.models import User
from cohort.governance.models import Record
from cohort.governance.selectors import record_of
from cohort.governance.services import record_seal
from cohort.runs.models import Node, Run, RunEvent, RunState
from cohort.runs.reconcile import seals_republish
from cohort.runs.services import run_extend, run_pause, run_resume, run_retry
from grpo_core import records
from tests import sealed_run
from tests.sealed_run import checkpoint, evaluation, step
from tests.web.governance.record_reading import accepted, card, lines
from tests.web.governance.record_reading import said as read

pytestmark = pytest.mark.django_db(transaction=True)
Launch = Callable[..., Run]
ClientFor = Callable[[User], Client]


def outcome(steps: int, **totals: float) -> records.Outcome:
    return records.Outcome(
        status="finished",
        message=f"Finished {steps} steps.",
        steps_done=steps,
        steps_planned=steps,
        totals={**sealed_run.TOTALS, **totals},
        final_checkpoint="checkpoints/final",
    )


def began(run: Run) -> list[records.Record]:
    """Up to the first step: inputs, evaluation, the checkpoint before training."""
    return [
        sealed_run.manifest(run),
        records.PhaseStarted(phase="evaluating_before", total=100),
        *evaluation("before", sealed_run.BEFORE, sealed_run.PROTOCOL),
        checkpoint(0),
        records.PhaseStarted(phase="training", total=3),
    ]


def goes_on(run: Run, number: int) -> list[records.Record]:
    return [
        sealed_run.manifest(run),
        records.Resumed(step=number, checkpoint=f"checkpoints/step-{number:06d}"),
        records.PhaseStarted(phase="training", total=3),
    ]


def after(steps: int, scores: list[float], **totals: float) -> list[records.Record]:
    return [
        records.PhaseStarted(phase="evaluating_after", total=100),
        *evaluation("after", scores, sealed_run.PROTOCOL),
        checkpoint(steps, final=True),
        outcome(steps, **totals),
    ]


def killed_and_resumed(run: Run) -> Run:
    """Killed after step 3 with a checkpoint of step 1, gone on from there on another node, finished."""
    first = sealed_run.claim(run)
    told = [*step(1, 0.5, tokens=300), checkpoint(1), *step(2, 0.1, tokens=610), *step(3, 0.2, tokens=950)]
    sealed_run.ingest(first, [*began(run), *told])
    run = sealed_run.finish(first, end="failed", code="trainer_killed", message="The trainer was killed by SIGKILL")
    assert run.state == RunState.QUEUED
    Run.objects.filter(pk=run.pk).update(queued_at="2026-01-01T00:00:00Z")
    Node.objects.update(last_seen_at="2026-01-01T00:00:00Z")  # the node with the checkpoint comes no more
    second = sealed_run.claim(run, node="gpu-2")
    rest = [*step(2, 0.6, tokens=600), *step(3, 0.75, tokens=900)]
    sealed_run.ingest(second, [*goes_on(run, 1), *rest, *after(3, sealed_run.AFTER)])
    return sealed_run.finish(second)


def test_a_resumed_run_s_record_is_of_what_stands(launch: Launch, tmp_path: Path) -> None:
    record = record_seal(run=killed_and_resumed(launch()))
    said = read(record)
    assert said.budget.steps.value == {"done": 3, "planned": 3}
    assert said.budget.steps.text == "3 of 3 steps in 2 attempts"
    assert said.reward.course.value == {"first_step": 1, "first": 0.5, "last_step": 3, "last": 0.75}
    (comparison,) = said.comparisons
    assert (comparison.before.share, comparison.after.share) == (0.3, 0.8)
    archive = card(record)
    rewards = [(row["step"], row["metrics"]["reward"]) for row in lines(archive, "metrics.jsonl")]
    assert rewards == [(1, 0.5), (2, 0.6), (3, 0.75)]
    assert [row["step"] for row in lines(archive, "traces/steps-000001-000100.jsonl")] == [1, 2, 3]
    assert said.rejected.traces.value["groups"] == 3
    assert accepted(record, tmp_path)


def test_attempts_are_told_with_what_they_left(launch: Launch) -> None:
    said = read(record_seal(run=killed_and_resumed(launch())))
    assert said.subject.attempts.text == (
        "2 attempts: 1 on gpu-1, steps 1 to 3, failed (trainer_killed), 2 superseded; "
        "2 on gpu-2, from the checkpoint at step 1, steps 2 to 3, finished"
    )
    first, second = said.subject.attempts.value
    assert (first["node"], first["end"], first["code"]) == ("gpu-1", "failed", "trainer_killed")
    assert first["reason"] == "The trainer was killed by SIGKILL"
    assert (first["from_checkpoint_at_step"], first["stands_through_step"], first["superseded_steps"]) == (None, 1, 2)
    assert (second["from_checkpoint_at_step"], second["first_step"], second["last_step"]) == (1, 2, 3)
    assert said.subject.attempts.source == "measured"
    assert said.subject.steering.text == "none"
    assert said.subject.earlier_records.text == "none"


def test_superseded_work_is_paid_and_told_apart(launch: Launch) -> None:
    """Steps 2 and 3 of the first attempt sampled 950 − 300 tokens; the run's own count is 900."""
    said = read(record_seal(run=killed_and_resumed(launch())))
    assert said.budget.superseded.value == {
        "steps": 2, "tokens": 650, "groups_kept": 2, "samples_kept": 8, "evaluations": 0,
    }  # fmt: skip
    assert said.budget.superseded.text == "2 steps with 650 tokens; 2 kept groups with 8 completions"
    tokens = said.budget.tokens
    assert (tokens.value["tokens"], tokens.value["tokens_with_superseded"]) == (900, 1550)
    assert tokens.text == "24 completions, 900 tokens with prompts; besides 650 in superseded steps"
    # 8 × 1,000 parameters × 1,550 tokens
    assert said.budget.compute.value["flop_estimate"] == 12_400_000
    assert said.budget.compute.note.endswith("Superseded steps are counted.")
    assert said.budget.time.value["step_seconds"] == 5
    assert said.budget.time.value["superseded_step_seconds"] == 2


def test_device_seconds_are_of_all_attempts(launch: Launch) -> None:
    run = killed_and_resumed(launch())
    first, second = run.attempts.order_by("fence")
    for attempt, seconds, gpus in ((first, 100, 2), (second, 50, 0)):
        attempt.claimed_at, attempt.gpus = attempt.ended_at - timedelta(seconds=seconds), gpus
        attempt.save(update_fields=["claimed_at", "gpus"])
    said = read(record_seal(run=run))
    assert said.budget.time.value["held_seconds"] == 150
    assert said.budget.time.value["device_seconds"] == 250
    assert said.budget.time.text == "2 min 30 s on nodes over 2 attempts, 4 min 10 s of devices; the newest on cpu"


def test_a_run_of_one_attempt_says_so(launch: Launch) -> None:
    said = read(sealed_run.sealed(launch()))
    assert said.subject.attempts.text == "attempt 1 on gpu-1, steps 1 to 3, finished"
    assert (said.budget.superseded.text, said.budget.superseded.note) == ("none", "")
    assert said.budget.time.text == "12 s on cpu"


def retried(run: Run, alice: User) -> Run:
    """Failed for good after step 2, sealed, retried by a person from step 1, finished, not sealed yet."""
    first = sealed_run.claim(run)
    told = [*step(1, 0.5, tokens=300), checkpoint(1), *step(2, 0.1, tokens=610)]
    sealed_run.ingest(first, [*began(run), *told])
    run = sealed_run.finish(first, end="failed", code="out_of_memory", message="out of memory")
    assert run.state == RunState.FAILED
    record_seal(run=run)
    run_retry(run=run, actor=alice, reason="smaller neighbours now")
    second = sealed_run.claim(run)
    rest = [*step(2, 0.6, tokens=600), *step(3, 0.75, tokens=900)]
    sealed_run.ingest(second, [*goes_on(run, 1), *rest, *after(3, sealed_run.AFTER)])
    return sealed_run.finish(second)


def test_each_end_has_a_record_of_its_own(launch: Launch, alice: User, tmp_path: Path) -> None:
    run = retried(launch(), alice)
    assert record_of(run) is None
    first = Record.objects.get(run=run)
    seal, kept = first.document, first.card().sha256
    second = record_seal(run=run)
    run.refresh_from_db()
    assert run.state == RunState.SUCCEEDED
    assert record_of(run) == second
    assert [(record.fence, read(record).state) for record in Record.objects.filter(run=run).order_by("fence")] == [
        (1, "failed"),
        (2, "succeeded"),
    ]
    first.refresh_from_db()
    assert (first.document, first.card().sha256) == (seal, kept)
    said = read(second)
    assert said.subject.steering.text.startswith("retried by alice on ")
    assert said.subject.steering.text.endswith(": Retried from step 1: smaller neighbours now")
    (earlier,) = said.subject.earlier_records.value
    assert (earlier["attempt"], earlier["state"]) == (1, "failed")
    assert earlier["seal"] == json.loads(first.document)["seal"]
    assert accepted(first, tmp_path)
    assert accepted(second, tmp_path)


def test_an_extended_run_says_that_it_was(launch: Launch, alice: User, tmp_path: Path) -> None:
    run = launch()
    first = sealed_run.claim(run)
    steps = [*step(1, 0.5), *step(2, 0.6), *step(3, 0.75), checkpoint(3)]
    sealed_run.ingest(first, [*began(run), *steps, *after(3, [1.0] * 40 + [0.0] * 60)])
    run = sealed_run.finish(first)
    record_seal(run=run)
    run_extend(run=Run.objects.get(pk=run.pk), actor=alice, steps=1)
    run = Run.objects.get(pk=run.pk)
    second = sealed_run.claim(run)
    sealed_run.ingest(second, [*goes_on(run, 3), *step(4, 0.8), *after(4, sealed_run.AFTER)])
    record = record_seal(run=sealed_run.finish(second))
    said = read(record)
    assert said.budget.steps.value == {"done": 4, "planned": 4}
    (comparison,) = said.comparisons
    assert comparison.after.share == 0.8, "what was measured after three steps stands no more"
    assert said.budget.superseded.value["steps"] == 0
    assert said.budget.superseded.value["evaluations"] == 1
    assert "Extended by 1 step, from 3 to 4" in said.subject.steering.text
    assert said.subject.steering.note.startswith("Its length was changed after it was launched")
    assert said.subject.trained_policy.value["step"] == 4
    assert accepted(record, tmp_path)


def test_what_begins_anew_leaves_nothing_of_before(launch: Launch, alice: User, tmp_path: Path) -> None:
    run = launch()
    first = sealed_run.claim(run)
    sealed_run.ingest(first, [*began(run), *step(1, 0.5, tokens=300), checkpoint(1), *step(2, 0.1, tokens=610)])
    run = sealed_run.finish(first, end="failed", code="out_of_memory", message="out of memory")
    record_seal(run=run)
    run_retry(run=run, actor=alice, from_start=True)
    second = sealed_run.claim(run)
    found = [*began(run), *step(1, 0.4, tokens=310), *after(1, sealed_run.AFTER)]
    sealed_run.ingest(second, found)
    record = record_seal(run=sealed_run.finish(second))
    said = read(record)
    assert said.budget.superseded.value == {
        "steps": 2, "tokens": 610, "groups_kept": 2, "samples_kept": 8, "evaluations": 1,
    }  # fmt: skip
    assert said.reward.course.value["first"] == 0.4
    assert accepted(record, tmp_path)


def test_pause_and_resume_are_told(launch: Launch, alice: User) -> None:
    run = launch()
    run_pause(run=run, actor=alice, reason="not yet")
    run_resume(run=run, actor=alice)
    said = read(record_seal(run=sealed_run.finished(Run.objects.get(pk=run.pk))))
    what = [one["what"] for one in said.subject.steering.value]
    assert what == ["paused", "resumed"]
    assert said.subject.steering.value[0]["words"].endswith("not yet")


def test_what_a_trainer_says_of_steering_is_in_no_record(launch: Launch) -> None:
    """Such events are refused; older versions of the platform stored them."""
    run = launch()
    for kind in ("retried", "extended", "pause_asked"):
        RunEvent.objects.create(run=run, at=sealed_run.AT, actor="trainer", kind=kind, message="forged")
    said = read(record_seal(run=sealed_run.finished(run)))
    assert said.subject.steering.text == "none"


def test_a_clone_names_where_it_is_from(launch: Launch) -> None:
    first = launch(name="first try")
    sealed_run.finished(first)
    run = launch(name="second try")
    Run.objects.filter(pk=run.pk).update(cloned_from=first)
    entry = read(record_seal(run=sealed_run.finished(Run.objects.get(pk=run.pk)))).subject.run
    assert f"; cloned from first try, run {first.pk}; started" in entry.text
    assert entry.value["cloned_from"] == {"id": first.pk, "name": "first try"}


def test_a_missing_seal_of_the_newest_end_is_asked_for_again(launch: Launch, alice: User) -> None:
    run = retried(launch(), alice)
    run.attempts.update(ended_at="2026-01-01T00:00:00Z")
    assert seals_republish() == [run.pk], "the earlier end's record is not this one's"
    record_seal(run=run)
    assert seals_republish() == []


def test_page_shows_the_newest_and_lists_the_others(
    launch: Launch, alice: User, bob: User, client_for: ClientFor
) -> None:
    run = retried(launch(), alice)
    second = record_seal(run=run)
    client, folder = client_for(bob), f"/p/ours/runs/{run.pk}/record"
    page = client.get(f"{folder}/").content.decode()
    assert json.loads(second.document)["seal"] in page
    assert "superseded by a later record" in page
    assert f"{folder}/1/?version=1" in page
    assert "This record was sealed after attempt" not in page
    older = client.get(f"{folder}/1/").content.decode()
    assert "This record was sealed after attempt 1 and is superseded by a later one" in older
    assert client.get(f"{folder}/9/").status_code == 404
    assert client.get(f"{folder}/9/card.zip").status_code == 404
    first = Record.objects.get(run=run, fence=1)
    one, newest = client.get(f"{folder}/1/card.zip"), client.get(f"{folder}/card.zip")
    assert b"".join(one.streaming_content) == b"".join(artifacts.read_chunks(first.card("downstream").artifact))
    assert b"".join(newest.streaming_content) == b"".join(artifacts.read_chunks(second.card("downstream").artifact))
    assert "card-run-" in newest["Content-Disposition"]
    assert "-end-2-" in newest["Content-Disposition"]
    listed = client.get("/p/ours/records/").content.decode()
    assert listed.count("after attempt") == 2
    assert "after attempt 1, superseded" in listed


def test_page_of_a_run_that_goes_on_says_so(launch: Launch, alice: User, bob: User, client_for: ClientFor) -> None:
    run = launch()
    first = sealed_run.claim(run)
    sealed_run.ingest(first, [*began(run), *step(1, 0.5), checkpoint(1)])
    run = sealed_run.finish(first, end="failed", code="out_of_memory", message="out of memory")
    record_seal(run=run)
    run_retry(run=run, actor=alice)
    page = client_for(bob).get(f"/p/ours/runs/{run.pk}/record/").content.decode()
    assert "The run has gone on since: this record is of its end after attempt 1" in page
