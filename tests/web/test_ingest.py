"""From a batch of bytes to rows: once each, in order, all or nothing, whatever the bytes are."""

import json
import random
from typing import Any

import pytest
import zstandard
from django.db import IntegrityError, connection, transaction
from django.db.models import Model
from django.utils import timezone

from cohort.accounts.models import Project, User
from cohort.catalog.models import BaseModel, PromptDataset, VerifierVersion
from cohort.review.models import Group, Sample
from cohort.runs.attempts import StaleFence, attempt_claim, attempt_finish
from cohort.runs.ingest import MAX_BATCH_BYTES, BadRecord, records_ingest
from cohort.runs.models import Attempt, Checkpoint, EvalItem, EvalResult, Run, RunEvent, StepMetric
from cohort.runs.nodes import node_create
from cohort.runs.selectors.series import current_steps
from cohort.runs.services import run_launch
from grpo_core import records
from grpo_core.wire import Finish
from tests.worker.making import BEGAN, NODE, WHOLE_RUN, envelopes, group, manifest, packed, phase, step

pytestmark = pytest.mark.django_db

TABLES: tuple[type[Model], ...] = (StepMetric, Group, Sample, EvalItem, EvalResult, Checkpoint)


@pytest.fixture
def run(
    ours: Project, alice: User, base_model: BaseModel, dataset: PromptDataset, verifier_version: VerifierVersion
) -> Run:
    return run_launch(
        project=ours,
        actor=alice,
        name="first",
        base_model=base_model,
        dataset=dataset,
        verifier_version=verifier_version,
        settings={"eval": {"holdout": 5}, "optim": {"steps": 50}},
    )


@pytest.fixture
def attempt(run: Run) -> Attempt:
    node, _ = node_create(name="gpu-1")
    return attempt_claim(run_id=run.pk, node=node, info=NODE).attempt


def rows() -> dict[str, int]:
    counts = {table.__name__: table._default_manager.count() for table in TABLES}
    return {**counts, "trainer events": RunEvent.objects.exclude(attempt=None).count()}


def send(attempt: Attempt, *lines: records.Envelope | bytes) -> int:
    return records_ingest(attempt=attempt, fence=attempt.fence, body=packed(lines))


def test_every_kind_finds_its_table_and_the_run_follows(attempt: Attempt, run: Run) -> None:
    assert send(attempt, *envelopes(WHOLE_RUN)) == 17
    assert rows() == {
        "StepMetric": 2,
        "Group": 2,
        "Sample": 4,
        "EvalItem": 2,
        "EvalResult": 2,
        "Checkpoint": 1,
        "trainer events": 6,  # five phases and one event
    }
    run.refresh_from_db()
    assert (run.state, run.phase, run.step, run.steps_total) == ("evaluating", "saving", 2, 2)
    assert (run.first_metrics, run.latest_metrics) == ({"reward": 0.25}, {"reward": 0.75})
    assert run.seconds_per_step == 2.0  # median of 1 and 3
    moves = RunEvent.objects.filter(run=run, kind="state").values_list("data__to", "actor")
    assert list(moves)[2:] == [("evaluating", "trainer"), ("training", "trainer"), ("evaluating", "trainer")]
    attempt.refresh_from_db()
    assert attempt.manifest is not None
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
    run.refresh_from_db()
    assert (run.state, run.step, run.latest_metrics, run.seconds_per_step) == before
    assert (rows(), RunEvent.objects.count()) == (stored, events)


def test_the_database_itself_refuses_a_record_stored_twice(attempt: Attempt) -> None:
    """Were ingest ever to lose count: an acknowledgement cannot fall, and no seq has a second row."""
    batch = envelopes([phase("training", 5), step(1), group(1), step(2)])
    send(attempt, *batch)
    with pytest.raises(IntegrityError, match="acknowledged records stay so"), transaction.atomic():
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
    run.refresh_from_db()
    assert run.seconds_per_step == 100.0
    send(attempt, *envelopes(quick, first=32))
    run.refresh_from_db()
    assert (run.step, run.seconds_per_step) == (50, 2.0)


@pytest.mark.parametrize(
    ("line", "says"),
    [
        (b"{", "line 2 of the batch is not JSON"),
        (b"", "line 2 of the batch is not JSON"),
        (b"\xff\xfe", "line 2 of the batch is not JSON"),
        (b'{"seq": 2, "half": "\xed\xa0\x80"}', "line 2 of the batch is not JSON"),  # a surrogate as it is, not UTF-8
        ('{"seq": 2}'.encode("utf-16"), "line 2 of the batch is not JSON"),
        (envelopes([phase("training", 3_000_000_000)], first=2)[0].model_dump_json().encode(), "record 2.*steps_total"),
        (envelopes([phase("training", -1)], first=2)[0].model_dump_json().encode(), "record 2.*steps_total"),
        (b"[" * 100_000, "line 2 of the batch is not JSON"),
        (b'{"seq": 2, "at": "2026-11-21T12:00:00Z", "record": {"kind": "strange"}}', "record 2 is not valid"),
        (b'{"seq": 2, "at": "2026-11-21T12:00:00", "record": {"kind": "phase", "phase": "training"}}', "record 2"),
        (b'{"seq": 2, "at": "2026-11-21T12:00:00Z", "record": {"kind": "step", "step": 0, "metrics": {}}}', "step"),
        (
            b'{"seq": 2, "at": "2026-11-21T12:00:00Z", "record": {"kind": "step", "step": 1, "metrics": {"kl": NaN}}}',
            "NaN is not a finite number",
        ),
        (
            b'{"seq": 2, "at": "2026-11-21T12:00:00Z", "record": '
            b'{"kind": "event", "type": "x", "message": "", "data": {"a": 1e999}}}',
            "1e999 is not a finite number",
        ),
        (envelopes([step(2**40)], first=2)[0].model_dump_json().encode(), "record 2 is not valid: step"),
        (
            envelopes([records.Event(type="x" * 41, message="")], first=2)[0].model_dump_json().encode(),
            "record 2 is not valid: kind",
        ),
    ],
)
def test_one_bad_line_stores_nothing_of_the_batch(attempt: Attempt, line: bytes, says: str) -> None:
    with pytest.raises(BadRecord, match=says):
        send(attempt, envelopes([phase("training")])[0], line)
    attempt.refresh_from_db()
    assert attempt.acked_seq == 0
    assert rows()["trainer events"] == 0


def test_samples_are_checked_like_their_group(attempt: Attempt) -> None:
    good = group(1, completions=("yes", "no"))
    twice = good.model_copy(update={"samples": (good.samples[0], good.samples[0])})
    with pytest.raises(BadRecord, match="record 2 is not valid: samples: two of them have the same index"):
        send(attempt, *envelopes([phase("training", 9), twice]))
    large = good.model_copy(update={"samples": (good.samples[0].model_copy(update={"tokens": 2**31}),)})
    with pytest.raises(BadRecord, match="record 2 is not valid: tokens: 2147483648 is not from 0 to 2147483647"):
        send(attempt, *envelopes([phase("training", 9), large]))
    assert not any(rows().values())


def test_bytes_that_are_not_zstd(attempt: Attempt) -> None:
    with pytest.raises(BadRecord, match="not zstd"):
        records_ingest(attempt=attempt, fence=1, body=b"plain text")


def test_a_batch_that_was_cut(attempt: Attempt) -> None:
    """Incompressible text of some 800 kB, so that half of the bytes hold whole blocks and end inside a line."""
    noise = random.Random(0).choices("abcdefghijklmnopqrstuvwxyz0123456789", k=400_000)
    whole = packed(envelopes([records.Event(type="x", message="".join(noise)) for _ in range(2)]))
    with pytest.raises(BadRecord, match="cut on the way"):
        records_ingest(attempt=attempt, fence=1, body=whole[: len(whole) // 2])


def test_a_bomb_is_not_unpacked(attempt: Attempt) -> None:
    bomb = zstandard.ZstdCompressor().compress(b"\n" * (MAX_BATCH_BYTES + 1))
    assert len(bomb) < 10_000
    with pytest.raises(BadRecord, match="larger than"):
        records_ingest(attempt=attempt, fence=1, body=bomb)


def test_text_that_postgresql_cannot_hold_is_shown_as_replaced(attempt: Attempt) -> None:
    """NUL and half surrogate pairs become U+FFFD, in columns and in JSON; whole pairs stay what they are."""
    raw = json.loads(envelopes([group(1)])[0].model_dump_json())
    raw["record"]["samples"][0]["completion"] = "a\x00b\ud800c\udc00d\U0001f600e"
    raw["record"]["samples"][0]["components"]["answer"]["detail"] = "\x00"
    raw["record"]["prompt"] = r"\u0000 as six letters"
    event = json.loads(envelopes([records.Event(type="x", message="m")], first=2)[0].model_dump_json())
    event["record"]["data"] = {"k\x00": ["\udfff"]}
    assert send(attempt, json.dumps(raw).encode(), json.dumps(event).encode()) == 2
    sample = Sample.objects.get(index=0)
    assert sample.completion == "a�b�c�d\U0001f600e"
    assert sample.components["answer"]["detail"] == "�"
    assert Group.objects.get().prompt == r"\u0000 as six letters"
    assert RunEvent.objects.get(kind="x").data == {"k�": ["�"]}


def test_a_stale_fence_writes_nothing(attempt: Attempt, run: Run) -> None:
    batch = packed(envelopes(WHOLE_RUN))
    with pytest.raises(StaleFence):
        records_ingest(attempt=attempt, fence=attempt.fence + 1, body=batch)
    Run.objects.update(fence=2)  # as a newer attempt's claim does
    with pytest.raises(StaleFence):
        records_ingest(attempt=attempt, fence=attempt.fence, body=batch)
    assert not any(rows().values())


def test_an_ended_attempt_writes_nothing(attempt: Attempt) -> None:
    attempt_finish(attempt=attempt, finish=Finish(fence=1, end="failed", code="error", message="", last_seq=0))
    with pytest.raises(StaleFence):
        send(attempt, *envelopes(WHOLE_RUN))
    assert not any(rows().values())


def test_rows_and_count_go_together(attempt: Attempt, monkeypatch: Any) -> None:
    """A fault after the rows were written takes them back."""

    def fail(*_: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr("cohort.runs.rows._update_run", fail)
    with pytest.raises(ZeroDivisionError):
        send(attempt, *envelopes(WHOLE_RUN))
    monkeypatch.undo()
    assert not any(rows().values())
    assert send(attempt, *envelopes(WHOLE_RUN)) == 17


# ---------------------------------------------------------------------- going on from a checkpoint


@pytest.fixture
def second(attempt: Attempt, run: Run) -> Attempt:
    """The first attempt wrote a checkpoint at step 2, went on to step 4 and was lost; this one is running."""
    send(attempt, *envelopes([phase("training", 9), step(1, reward=0.1), step(2, reward=0.2), saved(2), group(3)]))
    send(attempt, *envelopes([step(3, reward=0.3), step(4, reward=0.4)], first=6))
    return follow(attempt, run)


def saved(number: int, *, best: bool = False) -> records.CheckpointManifest:
    entry = records.FileEntry(size=3, sha256="cd" * 32)
    return records.CheckpointManifest(
        step=number, path=f"checkpoints/step-{number:06d}", files={"state.json": entry}, best=best, seconds=0.5
    )


def resumed(number: int) -> records.Resumed:
    skipped = (records.SkippedCheckpoint(path="checkpoints/step-000003", reason="one byte is wrong"),)
    return records.Resumed(step=number, checkpoint=f"checkpoints/step-{number:06d}", skipped=skipped)


def follow(attempt: Attempt, run: Run) -> Attempt:
    """The attempt is lost and another one has claimed the run."""
    Attempt.objects.filter(pk=attempt.pk).update(state="lost")
    run.refresh_from_db()
    Run.objects.filter(pk=run.pk).update(state="queued")
    Run.objects.filter(pk=run.pk).update(state="starting", fence=run.fence + 1)
    now = timezone.now()
    return Attempt.objects.create(
        run=run,
        node=attempt.node,
        fence=run.fence + 1,
        token_digest=f"{run.fence + 1:064d}",
        claimed_at=now,
        lease_until=now,
    )


def test_what_came_after_the_checkpoint_is_superseded(attempt: Attempt, second: Attempt, run: Run) -> None:
    assert send(second, *envelopes([manifest(), resumed(2), phase("training", 9), step(3, reward=0.9)])) == 4
    attempt.refresh_from_db()
    second.refresh_from_db()
    run.refresh_from_db()
    assert (attempt.valid_through, second.resumed_step, second.valid_through) == (2, 2, None)
    assert (run.state, run.step) == ("training", 3)
    assert (run.first_metrics, run.latest_metrics) == ({"reward": 0.1}, {"reward": 0.9})
    assert [row.metrics["reward"] for row in current_steps(run)] == [0.1, 0.2, 0.9]
    assert StepMetric.objects.count() == 5, "nothing is deleted"
    told = RunEvent.objects.get(kind="resumed")
    assert (told.attempt, told.actor, told.data["step"]) == (second, "trainer", 2)
    assert told.message == (
        "Goes on from the checkpoint of step 2; checkpoints/step-000003 was passed over: one byte is wrong"
    )


def test_until_the_next_step_the_run_is_where_the_checkpoint_is(second: Attempt, run: Run) -> None:
    send(second, *envelopes([manifest(), resumed(2)]))
    run.refresh_from_db()
    assert (run.step, run.first_metrics, run.latest_metrics) == (2, {"reward": 0.1}, {"reward": 0.2})


def test_a_later_resume_from_further_back_takes_both_back(attempt: Attempt, second: Attempt, run: Run) -> None:
    """1 2 | 3 4 superseded; then 3 of the second is superseded by the third, which goes on from 2 as well."""
    send(second, *envelopes([resumed(2), phase("training", 9), step(3, reward=0.9), saved(3)]))
    third = follow(second, run)
    send(third, *envelopes([resumed(2), step(3, reward=0.7)]))
    run.refresh_from_db()
    assert list(Attempt.objects.order_by("fence").values_list("valid_through", flat=True)) == [2, 2, None]
    assert [row.metrics["reward"] for row in current_steps(run)] == [0.1, 0.2, 0.7]


def test_an_attempt_that_begins_anew_brings_its_own_first_numbers(second: Attempt, run: Run) -> None:
    """As its claim leaves the run when there is no checkpoint to offer."""
    Attempt.objects.filter(fence=1).update(valid_through=-1)
    Run.objects.filter(pk=run.pk).update(step=0)
    send(second, *envelopes([phase("training", 9), step(1, reward=0.6)]))
    run.refresh_from_db()
    assert (run.step, run.first_metrics, run.latest_metrics) == (1, {"reward": 0.6}, {"reward": 0.6})
    assert [row.metrics["reward"] for row in current_steps(run)] == [0.6]


@pytest.mark.parametrize(
    ("bodies", "says"),
    [
        ([resumed(3)], "record 1 is not valid: step: the run has no checkpoint of step 3"),
        ([resumed(2), resumed(2)], "record 2 is not valid: the attempt has begun or been resumed before"),
        ([step(5), resumed(2)], "record 2 is not valid: the attempt has trained a step before"),
        ([resumed(2), step(2)], "record 2 is not valid: step: 2 comes after step 2"),
        ([step(4)], "record 1 is not valid: step: 4 comes after step 4"),
    ],
)
def test_what_contradicts_the_run_is_refused(second: Attempt, run: Run, bodies: list[Any], says: str) -> None:
    """Of an attempt that only says that it went on, or begins where it should not, nothing is superseded."""
    with pytest.raises(BadRecord, match=says):
        send(second, *envelopes(bodies))
    run.refresh_from_db()
    assert run.step == 4
    assert set(Attempt.objects.values_list("resumed_step", "valid_through")) == {(None, None)}


def test_a_checkpoint_that_no_longer_stands_is_none_to_go_on_from(second: Attempt, run: Run) -> None:
    Attempt.objects.filter(fence=1).update(valid_through=1)
    with pytest.raises(BadRecord, match="no checkpoint of step 2"):
        send(second, *envelopes([resumed(2)]))


def test_one_checkpoint_is_the_best_and_one_that_made_room_says_so(attempt: Attempt, run: Run) -> None:
    gone = records.CheckpointRemoved(step=1, path="checkpoints/step-000001")
    send(attempt, *envelopes([phase("training", 9), step(1), saved(1, best=True), step(2), saved(2, best=True), gone]))
    found = {row.step: row for row in Checkpoint.objects.all()}
    assert {number: row.best for number, row in found.items()} == {1: False, 2: True}
    assert (found[1].removed_at is None, found[2].removed_at, found[2].seconds) == (False, None, 0.5)


def test_going_back_before_the_best_checkpoint_makes_the_one_before_it_the_best_again(
    attempt: Attempt, run: Run
) -> None:
    send(attempt, *envelopes([phase("training", 9), step(1), saved(1, best=True), step(2), saved(2), step(3)]))
    send(attempt, *envelopes([saved(3, best=True)], first=7))
    second = follow(attempt, run)
    back = records.Resumed(step=2, checkpoint="checkpoints/step-000002", best=1)
    send(second, *envelopes([back, phase("training", 9)]))
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


# ---------------------------------------------------------------------- what a batch costs


def test_a_batch_reads_no_more_of_a_long_run(attempt: Attempt, run: Run) -> None:
    """Rows that the database reads for one batch, by its own count: a few dozen with 40 steps stored and with 4,000.
    How many exactly is its planner's choice, which may read a table of a few rows from its beginning."""
    assert send(attempt, *envelopes([phase("training", 9_000)])) == 1

    def read_by(first: int, last: int) -> int:
        with connection.cursor() as cursor:
            counted = (
                "SELECT sum(seq_tup_read), sum(idx_tup_fetch) FROM pg_stat_xact_user_tables "
                "WHERE relname IN ('runs_stepmetric', 'runs_bucket', 'runs_run', 'runs_attempt', 'review_group')"
            )
            cursor.execute(counted)
            before = cursor.fetchone()
            send(attempt, *envelopes([step(number) for number in range(first, last + 1)], first=first + 1))
            cursor.execute(counted)
            after = cursor.fetchone()
        return int(sum(after) - sum(before))

    read_by(1, 40)
    short = read_by(41, 72)
    read_by(73, 4_008)
    assert 0 < short < 300
    assert 0 < read_by(4_009, 4_040) < 300


def test_what_is_held_is_not_even_read(attempt: Attempt) -> None:
    """A batch sent again is skipped line by line; were they read, the broken ones among them would be refused."""
    batch = [*envelopes([phase("training", 9), step(1)]), b'{"seq":3,"at":"2026-11-21T12:00:00Z","record":{}}']
    assert send(attempt, *batch[:2]) == 2
    broken = [b'{"seq":1,"at":"x"}', b'{"seq":2,']
    assert send(attempt, *broken, *envelopes([step(2)], first=3)) == 3
    with pytest.raises(BadRecord, match="line 1 of the batch is not JSON"):
        send(attempt, b'{ "seq":1,')
