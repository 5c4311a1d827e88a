"""From a batch of bytes to rows: once each, in order, all or nothing, whatever the bytes are."""

import json
import random
import re
from pathlib import Path
from typing import Any

import pytest
import zstandard
from django.db import IntegrityError, connection, transaction
from django.db.models import Model

from cohort.review.models import Group, Sample
from cohort.runs import transitions
from cohort.runs.attempts import StaleFence, attempt_finish
from cohort.runs.ingest import MAX_BATCH_BYTES, BadRecord, records_ingest
from cohort.runs.models import Attempt, Checkpoint, EvalItem, EvalResult, Run, RunEvent, StepMetric
from cohort.runs.transitions import OWN_KINDS
from grpo_core import records
from grpo_core.wire import Finish
from tests.web.batches import attempt, run, send
from tests.worker.making import BEGAN, WHOLE_RUN, envelopes, group, packed, phase, step

__all__ = ["attempt", "run"]  # fixtures

pytestmark = pytest.mark.django_db

TABLES: tuple[type[Model], ...] = (StepMetric, Group, Sample, EvalItem, EvalResult, Checkpoint)


def rows() -> dict[str, int]:
    counts = {table.__name__: table._default_manager.count() for table in TABLES}
    return {**counts, "trainer events": RunEvent.objects.exclude(attempt=None).count()}


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


@pytest.mark.parametrize("kind", sorted(OWN_KINDS))
def test_a_trainer_writes_no_event_of_the_platform_s_own_kinds(attempt: Attempt, kind: str) -> None:
    forged = records.Event(type=kind, message="Extended by 5 steps", data={"to": "succeeded"})
    with pytest.raises(BadRecord, match=f"record 2 is not valid: type: '{kind}' is of the platform's own events"):
        send(attempt, *envelopes([phase("training"), forged]))
    assert rows()["trainer events"] == 0


def test_the_kinds_of_the_platform_s_own_events_are_all_listed() -> None:
    """By the code that writes them: a kind in quotes, as an argument or in steering's table of what is asked."""
    platform = Path(transitions.__file__).parents[1]
    files = [*(platform / "runs").rglob("*.py"), *(platform / "governance").rglob("*.py")]
    text = "".join(file.read_text() for file in files)
    calls = "".join(re.findall(r"(?:run_event|RunEvent\.objects\.create)\((?:[^()]|\([^()]*\))*\)", text))
    written = set(re.findall(r'kind="(\w+)"', calls)) | set(re.findall(r'"(\w+_asked)"', text))
    written |= {"checkpoint_pinned", "checkpoint_unpinned"} | set(re.findall(r'_event\(place, envelope, "(\w+)"', text))
    assert written == OWN_KINDS


def test_what_trainers_tell_today_is_taken(attempt: Attempt) -> None:
    told = [records.Event(type=kind, message="m") for kind in ("loaded", "data", "warning", "samples_dropped")]
    assert send(attempt, *envelopes(told)) == 4
    assert set(RunEvent.objects.filter(attempt=attempt).values_list("actor", flat=True)) == {"trainer"}


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
    with connection.cursor() as cursor:  # as autovacuum does; a plan made when it found the table empty is made anew
        cursor.execute("ANALYZE runs_stepmetric, runs_bucket")
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
