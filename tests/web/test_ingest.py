"""From a batch of bytes to rows: once each, in order, all or nothing, whatever the bytes are; and when an attempt goes
on from a checkpoint: what stands and what is superseded."""

import json
import random
from typing import Any

import pytest
import zstandard
from django.db import IntegrityError, connection, transaction

from cohort.ingest.batch import MAX_BATCH_BYTES
from cohort.ingest.copy import BadRecord
from cohort.nodes.leases import StaleFence
from cohort.review.models import Group, Sample
from cohort.runs.attempts import attempt_finish
from cohort.runs.models import Attempt, Checkpoint, Run, RunEvent, StepMetric
from cohort.runs.transitions import OWN_KINDS, current_steps
from grpo_core.protocol.messages import Finish
from grpo_core.records import types as records
from tests.factories.sealed_run import send_batch
from tests.factories.worker import BEGAN, WHOLE_RUN, envelopes, group, manifest, packed, phase, step
from tests.tables import cases
from tests.web.batches import attempt, follow, refused, resumed, rows, run, saved, send
from tests.web.control import fresh

__all__ = ["attempt", "run"]  # fixtures

pytestmark = pytest.mark.django_db


def test_every_kind_has_its_table_and_the_run_follows(attempt: Attempt, run: Run) -> None:
    assert send(attempt, *envelopes(WHOLE_RUN)) == 17
    assert rows() == [2, 2, 4, 2, 2, 1, 0, 6], "events: five phases and one of its own"
    assert (fresh(run).state, run.phase, run.step, run.steps_total) == ("evaluating", "saving", 2, 2)
    assert (run.first_metrics, run.latest_metrics) == ({"reward": 0.25}, {"reward": 0.75})
    assert run.seconds_per_step == 2.0, "the median of 1 and 3"
    moves = RunEvent.objects.filter(run=run, kind="state").values_list("data__to", "actor")
    assert list(moves)[2:] == [("evaluating", "trainer"), ("training", "trainer"), ("evaluating", "trainer")]
    assert fresh(attempt).manifest is not None
    assert attempt.manifest["packages"] == {"torch": "2.13.0"}
    assert attempt.outcome is not None
    assert attempt.outcome["status"] == "finished"
    metric = StepMetric.objects.get(step=1)
    assert (metric.seq, (metric.at - BEGAN).total_seconds()) == (8, 8.0)
    best = Sample.objects.get(group__step=2, index=0)
    assert (best.completion, best.reward, best.components["answer"]["passed"]) == ("yes", 1.0, True)


def test_a_batch_sent_again_changes_nothing(attempt: Attempt, run: Run) -> None:
    batch = envelopes(WHOLE_RUN)
    assert send(attempt, *batch[:10]) == 10
    assert send(attempt, *batch) == 17
    stored, events = rows(), RunEvent.objects.count()
    run.refresh_from_db()
    before = (run.state, run.step, run.latest_metrics, run.seconds_per_step)
    for again in (batch, batch[:3], batch[8:12]):
        assert send(attempt, *again) == 17
    assert (fresh(run).state, run.step, run.latest_metrics, run.seconds_per_step) == before
    assert (rows(), RunEvent.objects.count()) == (stored, events)


def test_the_database_itself_refuses_a_record_stored_twice(attempt: Attempt) -> None:
    """Were ingest ever to lose count: an acknowledgement cannot fall, and no seq has a second row."""
    send(attempt, *envelopes([phase("training", 5), step(1), group(1), step(2)]))
    with pytest.raises(IntegrityError, match="acknowledged"), transaction.atomic():
        Attempt.objects.update(acked_seq=0)
    held = StepMetric.objects.get(seq=2)
    with pytest.raises(IntegrityError, match="step_seq_once"), transaction.atomic():
        StepMetric.objects.create(attempt=attempt, run=attempt.run, seq=held.seq, step=9, at=held.at, metrics={})


def test_only_the_beginning_before_a_gap_is_stored(attempt: Attempt) -> None:
    batch = envelopes([phase("training", 9), *(step(number) for number in range(1, 8))])
    assert send(attempt, *batch[:3], *batch[4:]) == 3
    assert list(StepMetric.objects.values_list("step", flat=True)) == [1, 2]
    assert send(attempt, *batch[5:]) == 3
    assert send(attempt, *batch[3:]) == 8
    assert StepMetric.objects.count() == 7


def test_speed_is_the_median_of_the_newest_twenty(attempt: Attempt, run: Run) -> None:
    slow, quick = [step(n, seconds=100.0) for n in range(1, 31)], [step(n, seconds=2.0) for n in range(31, 51)]
    send(attempt, *envelopes([phase("training", 50), *slow]))
    assert fresh(run).seconds_per_step == 100.0
    send(attempt, *envelopes(quick, first=32))
    assert (fresh(run).step, run.seconds_per_step) == (50, 2.0)


@pytest.mark.parametrize(
    ("line", "hex_", "times", "code", "names"), cases("ingest/bad_lines", "line", "hex", "times", "code", "names")
)
def test_one_bad_line_stores_nothing_of_the_batch(
    attempt: Attempt, line: str | None, hex_: str | None, times: int | None, code: str, names: str | None
) -> None:
    content = bytes.fromhex(hex_) if hex_ else (line or "").encode() * (times or 1)
    error = refused(attempt, envelopes([phase("training")])[0], content)
    assert error.code == code
    assert (names or "line 2") in str(error)
    assert fresh(attempt).acked_seq == 0


@pytest.mark.parametrize("kind", sorted(OWN_KINDS | {"phase", "resumed", "sealed"}))
def test_a_trainer_writes_no_event_of_the_platform_s_own_kinds(attempt: Attempt, kind: str) -> None:
    forged = records.Event(type=kind, message="Extended by 5 steps", data={"to": "succeeded"})
    assert refused(attempt, *envelopes([phase("training"), forged])).code == "own_kind"


def test_samples_are_checked_like_their_group(attempt: Attempt) -> None:
    good = group(1)
    first = good.samples[0]
    for samples, code, names in (
        ((first, first), "same_index", "samples"),
        ((first.model_copy(update={"tokens": 2**31}),), "number_out_of_range", "tokens"),
        ((), "not_a_record", "samples"),
    ):
        error = refused(attempt, *envelopes([step(1), good.model_copy(update={"samples": samples})]))
        assert error.code == code
        assert f"record 2 is not valid: {names}" in str(error)


def noise() -> bytes:
    """A batch that cannot be compressed, some 800 kB, so that half of the bytes hold whole blocks and end in a line."""
    letters = random.Random(0).choices("abcdefghijklmnopqrstuvwxyz0123456789", k=400_000)
    return packed(envelopes([records.Event(type="x", message="".join(letters)) for _ in range(2)]))


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (lambda: b"plain text", "not_zstd"),
        (lambda: noise()[: len(noise()) // 2], "cut"),
        (lambda: zstandard.ZstdCompressor().compress(b"\n" * (MAX_BATCH_BYTES + 1)), "batch_too_large"),
    ],
    ids=["plain", "cut", "bomb"],
)
def test_a_body_that_is_no_batch(attempt: Attempt, body: Any, code: str) -> None:
    with pytest.raises(BadRecord) as caught:
        send_batch(attempt, body(), fence=1)
    assert caught.value.code == code


def test_text_that_postgresql_cannot_hold_is_shown_as_replaced(attempt: Attempt) -> None:
    """NUL and half surrogate pairs become U+FFFD, in columns and in JSON; whole pairs stay what they are."""
    raw = json.loads(envelopes([group(1)], first=2)[0].model_dump_json())
    raw["record"]["samples"][0]["completion"] = "a\x00b\ud800c\udc00d\U0001f600e"
    raw["record"]["samples"][0]["components"]["answer"]["detail"] = "\x00"
    raw["record"]["prompt"] = r"\u0000 as six letters"
    event = json.loads(envelopes([records.Event(type="x", message="m")], first=3)[0].model_dump_json())
    event["record"]["data"] = {"k\x00": ["\udfff"]}
    assert send(attempt, *envelopes([step(1)]), json.dumps(raw).encode(), json.dumps(event).encode()) == 3
    sample = Sample.objects.get(index=0)
    assert sample.completion == "a\ufffdb\ufffdc\ufffdd\U0001f600e"
    assert sample.components["answer"]["detail"] == "\ufffd"
    assert Group.objects.get().prompt == r"\u0000 as six letters"
    assert RunEvent.objects.get(kind="x").data == {"k\ufffd": ["\ufffd"]}


@pytest.mark.parametrize("ended", [True, False])
def test_a_stale_fence_or_an_ended_attempt_writes_nothing(attempt: Attempt, ended: bool) -> None:
    batch = packed(envelopes(WHOLE_RUN))
    with pytest.raises(StaleFence):
        send_batch(attempt, batch, fence=attempt.fence + 1)
    if ended:
        attempt_finish(attempt=attempt, finish=Finish(fence=1, end="failed", code="error", message="", last_seq=0))
    else:
        Run.objects.update(fence=2)  # as a newer attempt's claim does
    with pytest.raises(StaleFence):
        send_batch(attempt, batch)
    assert not any(rows())


def test_rows_and_count_go_together(attempt: Attempt, monkeypatch: Any) -> None:
    """A fault after the rows were written takes them back."""

    def fail(*_: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr("cohort.ingest.rows._update_run", fail)
    with pytest.raises(ZeroDivisionError):
        send(attempt, *envelopes(WHOLE_RUN))
    monkeypatch.undo()
    assert not any(rows())
    assert send(attempt, *envelopes(WHOLE_RUN)) == 17


def test_what_is_held_is_not_even_read(attempt: Attempt) -> None:
    """A batch sent again is skipped line by line; were they read, the broken ones among them would be refused."""
    assert send(attempt, *envelopes([phase("training", 9), step(1)])) == 2
    assert send(attempt, b'{"seq":1,"at":"x"}', b'{"seq":2,', *envelopes([step(2)], first=3)) == 3
    assert refused(attempt, b'{ "seq":1,').code == "not_json"


def test_a_batch_reads_no_more_of_a_long_run(attempt: Attempt) -> None:
    """Rows that the database reads for one batch, by its own count: a few dozen with 40 steps stored and with 2,000.
    How many exactly is its planner's choice, which may read a table of a few rows from its beginning."""
    assert send(attempt, *envelopes([phase("training", 9_000)])) == 1

    def read_by(first: int, last: int) -> int:
        counted = (
            "SELECT sum(seq_tup_read) + sum(idx_tup_fetch) FROM pg_stat_xact_user_tables "
            "WHERE relname IN ('runs_stepmetric', 'runs_bucket', 'runs_run', 'runs_attempt', 'review_group')"
        )
        with connection.cursor() as cursor:
            cursor.execute(counted)
            before = cursor.fetchone()[0]
            send(attempt, *envelopes([step(number) for number in range(first, last + 1)], first=first + 1))
            cursor.execute(counted)
            return int(cursor.fetchone()[0] - before)

    read_by(1, 40)
    assert 0 < read_by(41, 72) < 300
    read_by(73, 2_008)
    with connection.cursor() as cursor:  # as autovacuum does; a plan made when it found the table empty is made anew
        cursor.execute("ANALYZE runs_stepmetric, runs_bucket")
    assert 0 < read_by(2_009, 2_040) < 300


@pytest.fixture
def second(attempt: Attempt, run: Run) -> Attempt:
    """The first attempt wrote a checkpoint at step 2, continued to step 4 and was lost; this one is running."""
    send(attempt, *envelopes([phase("training", 9), step(1, reward=0.1), step(2, reward=0.2), saved(2), group(2)]))
    send(attempt, *envelopes([step(3, reward=0.3), step(4, reward=0.4)], first=6))
    return follow(attempt, run)


def rewards(run: Run) -> list[float]:
    return [row.metrics["reward"] for row in current_steps(run)]


def test_what_came_after_the_checkpoint_is_superseded(attempt: Attempt, second: Attempt, run: Run) -> None:
    assert send(second, *envelopes([manifest(), resumed(2)])) == 2
    assert (fresh(run).step, run.first_metrics, run.latest_metrics) == (2, {"reward": 0.1}, {"reward": 0.2})
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
    """1 2 | 3 4 superseded; then 3 of the second is superseded by the third, which resumes from 2 as well."""
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
    assert (fresh(run).step, run.first_metrics, run.latest_metrics) == (1, {"reward": 0.6}, {"reward": 0.6})
    assert rewards(run) == [0.6]


@pytest.mark.parametrize(
    ("bodies", "code", "names"),
    [
        ([resumed(3)], "no_such_checkpoint", "record 1"),
        ([resumed(2), resumed(2)], "begun_before", "record 2"),
        ([step(5), resumed(2)], "resumed_late", "record 2"),
        ([resumed(2), step(2)], "step_not_next", "record 2"),
        ([step(4)], "step_not_next", "record 1"),
    ],
)
def test_a_contradiction_is_refused(second: Attempt, run: Run, bodies: list[Any], code: str, names: str) -> None:
    """Of an attempt that only says that it continued, or begins where it should not, nothing is superseded."""
    with pytest.raises(BadRecord, match=names) as caught:
        send(second, *envelopes(bodies))
    assert caught.value.code == code
    assert fresh(run).step == 4
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


@pytest.mark.parametrize(("kept", "best", "pinned"), [(1, [1], [1]), (2, [2], [2]), (9, [2], [])])
def test_the_checkpoint_from_before_a_ruinous_update_is_pinned(
    attempt: Attempt, kept: int, best: list[int], pinned: list[int]
) -> None:
    """It is the best where a later one was; one that the run never had changes nothing."""
    ruined = records.Event(type="diagnosis", message="ruined", data={"cause": "ruined", "step": 3, "kept": kept})
    send(attempt, *envelopes([phase("training", 9), step(1), saved(1), step(2), saved(2, best=True), step(3), ruined]))
    checkpoints = Checkpoint.objects.order_by("step")
    assert [row.step for row in checkpoints if row.best] == best
    assert [row.step for row in checkpoints if row.pinned] == pinned


def test_going_back_before_the_best_makes_the_one_before_it_best(attempt: Attempt, run: Run) -> None:
    send(attempt, *envelopes([phase("training", 9), step(1), saved(1, best=True), step(2), saved(2), step(3)]))
    send(attempt, *envelopes([saved(3, best=True)], first=7))
    back = records.Resumed(step=2, checkpoint="checkpoints/step-000002", best=1)
    send(follow(attempt, run), *envelopes([back, phase("training", 9)]))
    assert [row.step for row in Checkpoint.objects.filter(best=True)] == [1]
