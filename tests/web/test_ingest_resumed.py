"""From a batch to rows when an attempt goes on from a checkpoint: what stands, what is superseded, what is refused."""

from typing import Any

import pytest
from django.utils import timezone

from cohort.runs.ingest import BadRecord
from cohort.runs.models import Attempt, Checkpoint, Run, RunEvent, StepMetric
from cohort.runs.selectors.series import current_steps
from grpo_core import records
from tests.web.batches import attempt, follow, resumed, run, saved, send
from tests.worker.making import envelopes, group, manifest, phase, step

__all__ = ["attempt", "run"]  # fixtures

pytestmark = pytest.mark.django_db


@pytest.fixture
def second(attempt: Attempt, run: Run) -> Attempt:
    """The first attempt wrote a checkpoint at step 2, went on to step 4 and was lost; this one is running."""
    send(attempt, *envelopes([phase("training", 9), step(1, reward=0.1), step(2, reward=0.2), saved(2), group(3)]))
    send(attempt, *envelopes([step(3, reward=0.3), step(4, reward=0.4)], first=6))
    return follow(attempt, run)


def rewards(run: Run) -> list[float]:
    return [row.metrics["reward"] for row in current_steps(run)]


def test_what_came_after_the_checkpoint_is_superseded(attempt: Attempt, second: Attempt, run: Run) -> None:
    assert send(second, *envelopes([manifest(), resumed(2)])) == 2
    run.refresh_from_db()
    assert (run.step, run.first_metrics, run.latest_metrics) == (2, {"reward": 0.1}, {"reward": 0.2})
    assert send(second, *envelopes([phase("training", 9), step(3, reward=0.9)], first=3)) == 4
    for row in (attempt, second, run):
        row.refresh_from_db()
    assert (attempt.valid_through, second.resumed_step, second.valid_through) == (2, 2, None)
    assert (run.state, run.step) == ("training", 3)
    assert (run.first_metrics, run.latest_metrics) == ({"reward": 0.1}, {"reward": 0.9})
    assert rewards(run) == [0.1, 0.2, 0.9]
    assert StepMetric.objects.count() == 5, "nothing is deleted"
    event = RunEvent.objects.get(kind="resumed")
    assert (event.attempt, event.actor, event.data["step"]) == (second, "trainer", 2)
    assert "checkpoints/step-000003 was passed over: one byte is wrong" in event.message


def test_a_later_resume_from_further_back_takes_both_back(second: Attempt, run: Run) -> None:
    """1 2 | 3 4 superseded; then 3 of the second is superseded by the third, which goes on from 2 as well."""
    send(second, *envelopes([resumed(2), phase("training", 9), step(3, reward=0.9), saved(3)]))
    third = follow(second, run)
    send(third, *envelopes([resumed(2), step(3, reward=0.7)]))
    run.refresh_from_db()
    assert list(Attempt.objects.order_by("fence").values_list("valid_through", flat=True)) == [2, 2, None]
    assert rewards(run) == [0.1, 0.2, 0.7]


def test_an_attempt_that_begins_anew_brings_its_own_first_numbers(second: Attempt, run: Run) -> None:
    """As its claim leaves the run when there is no checkpoint to offer."""
    Attempt.objects.filter(fence=1).update(valid_through=-1)
    Run.objects.filter(pk=run.pk).update(step=0)
    send(second, *envelopes([phase("training", 9), step(1, reward=0.6)]))
    run.refresh_from_db()
    assert (run.step, run.first_metrics, run.latest_metrics) == (1, {"reward": 0.6}, {"reward": 0.6})
    assert rewards(run) == [0.6]


@pytest.mark.parametrize(
    ("bodies", "code", "names"),
    [
        ([resumed(3)], "no_such_checkpoint", "record 1"),
        ([resumed(2), resumed(2)], "begun_before", "record 2"),
        ([step(5), resumed(2)], "resumed_late", "record 2"),
        ([resumed(2), step(2)], "step_not_newer", "record 2"),
        ([step(4)], "step_not_newer", "record 1"),
    ],
)
def test_what_contradicts_the_run_is_refused(
    second: Attempt, run: Run, bodies: list[Any], code: str, names: str
) -> None:
    """Of an attempt that only says that it went on, or begins where it should not, nothing is superseded."""
    with pytest.raises(BadRecord, match=names) as caught:
        send(second, *envelopes(bodies))
    assert caught.value.code == code
    run.refresh_from_db()
    assert run.step == 4
    assert set(Attempt.objects.values_list("resumed_step", "valid_through")) == {(None, None)}


def test_a_checkpoint_that_no_longer_stands_is_none_to_go_on_from(second: Attempt) -> None:
    Attempt.objects.filter(fence=1).update(valid_through=1)
    with pytest.raises(BadRecord) as caught:
        send(second, *envelopes([resumed(2)]))
    assert caught.value.code == "no_such_checkpoint"


def test_one_checkpoint_is_the_best_and_one_that_made_room_says_so(attempt: Attempt) -> None:
    gone = records.CheckpointRemoved(step=1, path="checkpoints/step-000001")
    send(attempt, *envelopes([phase("training", 9), step(1), saved(1, best=True), step(2), saved(2, best=True), gone]))
    stored = {row.step: row for row in Checkpoint.objects.all()}
    assert {number: row.best for number, row in stored.items()} == {1: False, 2: True}
    assert (stored[1].removed_at is None, stored[2].removed_at, stored[2].seconds) == (False, None, 0.5)


def test_going_back_before_the_best_checkpoint_makes_the_one_before_it_the_best_again(
    attempt: Attempt, run: Run
) -> None:
    send(attempt, *envelopes([phase("training", 9), step(1), saved(1, best=True), step(2), saved(2), step(3)]))
    send(attempt, *envelopes([saved(3, best=True)], first=7))
    back = records.Resumed(step=2, checkpoint="checkpoints/step-000002", best=1)
    send(follow(attempt, run), *envelopes([back, phase("training", 9)]))
    assert [row.step for row in Checkpoint.objects.filter(best=True)] == [1]


def test_records_are_progress(attempt: Attempt, run: Run) -> None:
    """Any record says that something moves; so a stall that was seen before is over."""
    for bodies, first in (([records.Event(type="x", message="")], 1), ([phase("training", 9), step(1)], 2)):
        Attempt.objects.filter(pk=attempt.pk).update(progress_at=None)
        Run.objects.filter(pk=run.pk).update(stalled_at=timezone.now())
        send(attempt, *envelopes(bodies, first=first))
        attempt.refresh_from_db()
        run.refresh_from_db()
        assert attempt.progress_at is not None
        assert run.stalled_at is None
