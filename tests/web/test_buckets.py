"""What a long chart is drawn from: steps joined by 16, 256 …, made as they arrive, the same however they arrived."""

from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from cohort.runs.models import Attempt, Bucket, Run
from cohort.web.runs.charts import MAX_POINTS, series, width_of
from cohort.web.runs.series import MOST_ROWS, pieces
from grpo_core.records import types as records
from tests.factories.worker import envelopes, phase
from tests.web.batches import attempt, follow, resumed, run, saved, send

__all__ = ["attempt", "run"]  # fixtures

pytestmark = pytest.mark.django_db


def numbered(number: int, **more: float) -> records.StepMetrics:
    """The reward is the step's number, so that every lowest, highest and last value is known."""
    return records.StepMetrics(step=number, metrics={"reward": float(number), **more}, seconds={"total": 1.0})


def steps_sent(attempt: Attempt, first: int, last: int, *, size: int = 1000, **more: float) -> None:
    for begin in range(first, last + 1, size):
        attempt.refresh_from_db()
        steps = [numbered(number, **more) for number in range(begin, min(begin + size, last + 1))]
        send(attempt, *envelopes(steps, first=attempt.acked_seq + 1))


def now(run: Run) -> Run:
    """As a page reads it."""
    return Run.objects.get(pk=run.pk)


def held(attempt: Attempt, width: int) -> dict[int, Any]:
    rows = Bucket.objects.filter(attempt=attempt, width=width).order_by("first_step")
    return {row.first_step: row.metrics for row in rows}


@pytest.mark.parametrize("size", [7, 300])
def test_buckets_are_the_same_however_the_steps_arrived(attempt: Attempt, size: int) -> None:
    steps_sent(attempt, 1, 270, size=size)
    narrow = {begin: {"reward": [begin, begin + 15, begin + 15, 16]} for begin in range(1, 257, 16)}
    assert held(attempt, 16) == narrow, "steps 257 to 270 complete none"
    assert held(attempt, 256) == {1: {"reward": [1, 256, 256, 256]}}
    assert not Bucket.objects.filter(width__gt=256).exists()


def test_a_metric_that_some_steps_lack_is_counted_where_it_is(attempt: Attempt) -> None:
    sent = [numbered(number, **({"kl": -number / 4} if number in (3, 9) else {})) for number in range(1, 17)]
    send(attempt, *envelopes([*sent, numbered(17)]))
    assert held(attempt, 16) == {1: {"reward": [1, 16, 16, 16], "kl": [-2.25, -0.75, -2.25, 2]}}


def test_a_short_run_is_drawn_step_by_step(attempt: Attempt, run: Run) -> None:
    steps_sent(attempt, 1, MOST_ROWS)
    after, parts = pieces(now(run))
    assert (after, len(parts)) == (0, MOST_ROWS)
    assert (width_of(parts[:MAX_POINTS]), width_of(parts)) == (1, 7), "2,000 steps as 286 stretches of seven"


def test_a_long_run_is_drawn_from_buckets_and_keeps_its_spikes(attempt: Attempt, run: Run) -> None:
    """5,003 steps: 312 buckets of 16 and 11 single steps. The spike of one step in the middle survives."""
    steps_sent(attempt, 1, 2_499, entropy=1.0)
    steps_sent(attempt, 2_500, 2_500, entropy=7.0)
    steps_sent(attempt, 2_501, 5_003, entropy=1.0)
    with CaptureQueriesContext(connection) as captured:
        after, parts = pieces(now(run))
    assert len(captured) <= 5
    assert (after, len(parts)) == (0, 312 + 11)
    assert [(piece.first, piece.last) for piece in parts[:2]] == [(1, 16), (17, 32)]
    assert [(piece.first, piece.last) for piece in parts[-2:]] == [(5_002, 5_002), (5_003, 5_003)]
    drawn = series(parts)
    assert 3 * len(drawn["step"]) <= MAX_POINTS + 3
    assert (drawn["low"]["reward"][0], drawn["high"]["reward"][-1]) == (1.0, 5_003.0)
    assert (drawn["step"][-1], drawn["metrics"]["reward"][-1]) == (5_003, 5_003.0)
    assert drawn["step"] == sorted(set(drawn["step"]))
    at = drawn["high"]["entropy"].index(7.0)
    assert 0 <= drawn["step"][at] - 2_500 < width_of(parts)
    assert set(drawn["metrics"]["entropy"]) == {1.0}, "as it last was"


def test_shares_of_a_whole_still_add_up(attempt: Attempt, run: Run) -> None:
    """Lowest shares do not add up to one, so shares are told as they last were."""
    for begin in range(1, 2_101, 700):
        sent = []
        for number in range(begin, begin + 700):
            mixed = (number % 4) / 4
            shares = {"groups/all_right": 1 - mixed, "groups/mixed": mixed, "groups/all_wrong": 0.0}
            sent.append(numbered(number, **shares))
        attempt.refresh_from_db()
        send(attempt, *envelopes(sent, first=attempt.acked_seq + 1))
    drawn = series(pieces(now(run))[1])["metrics"]
    shares = zip(*(drawn[f"groups/{name}"] for name in ("all_right", "mixed", "all_wrong")), strict=True)
    assert {sum(three) for three in shares} == {1.0}


def test_a_range_is_exact_where_it_fits_and_else_as_narrow_as_it_can_be(attempt: Attempt, run: Run) -> None:
    steps_sent(attempt, 1, 5_003)
    after, parts = pieces(now(run), after=2_499, through=2_999)
    assert (after, [piece.first for piece in parts]) == (2_499, list(range(2_500, 3_000)))
    assert width_of(parts) == 1
    assert series(parts)["metrics"]["reward"] == [float(step) for step in range(2_500, 3_000)]
    after, parts = pieces(now(run), after=1_009, through=4_000)
    assert (after, parts[0].first, parts[-1].last) == (1_008, 1_009, 4_000), "from the edge of a bucket"
    covered = [step for piece in parts for step in range(piece.first, piece.last + 1)]
    assert covered == list(range(1_009, 4_001))
    assert pieces(now(run), after=6_000, through=7_000) == (6_000, [])


def test_a_range_over_a_resume_holds_each_step_once(attempt: Attempt, run: Run) -> None:
    second = trained_and_resumed(attempt, run, saved_at=1_000, last=3_000)
    steps_sent(second, 1_001, 3_000, kl=0.5)
    after, parts = pieces(now(run), after=500, through=2_700)
    covered = [step for piece in parts for step in range(piece.first, piece.last + 1)]
    assert (after, covered) == (496, list(range(497, 2_701)))
    assert all(("kl" in piece.values) == (piece.first > 1_000) for piece in parts)


def trained_and_resumed(attempt: Attempt, run: Run, *, saved_at: int, last: int) -> Attempt:
    """The second attempt, which resumes from the checkpoint of a first one that had reached `last`."""
    send(attempt, *envelopes([phase("training", 9_000)]))
    steps_sent(attempt, 1, saved_at)
    attempt.refresh_from_db()
    send(attempt, *envelopes([saved(saved_at)], first=attempt.acked_seq + 1))
    steps_sent(attempt, saved_at + 1, last)
    second = follow(attempt, run)
    send(second, *envelopes([resumed(saved_at)]))
    return second


def test_what_a_resume_superseded_is_not_drawn(attempt: Attempt, run: Run) -> None:
    """The first attempt reached 3,000, its checkpoint was at 1,000: its bucket of 993 to 1,008 holds steps that no
    longer stand, so 993 to 1,000 come one by one, and the second attempt's part of that bucket after them."""
    second = trained_and_resumed(attempt, run, saved_at=1_000, last=3_000)
    steps_sent(second, 1_001, 3_000, kl=0.5)
    _, parts = pieces(now(run))
    covered = [step for piece in parts for step in range(piece.first, piece.last + 1)]
    assert covered == list(range(1, 3_001)), "every step once"
    assert all(("kl" in piece.values) == (piece.first > 1_000) for piece in parts)
    around = [(piece.first, piece.last) for piece in parts if 976 < piece.first < 1_020]
    assert around == [(977, 992), *((step, step) for step in range(993, 1_001)), (1_001, 1_008), (1_009, 1_024)]


def test_when_much_has_come_all_is_told_anew(attempt: Attempt, run: Run) -> None:
    """A page that slept: what it has drawn is replaced, because the two do not fit together."""
    steps_sent(attempt, 1, MOST_ROWS + 50)
    after, parts = pieces(now(run), after=10)
    assert (after, parts[0].first) == (0, 1)
    after, parts = pieces(now(run), after=60)
    assert (after, parts[0].first, len(parts)) == (60, 61, MOST_ROWS - 10)


def test_a_run_that_went_back_far_is_a_short_one_again(attempt: Attempt, run: Run) -> None:
    """Of 3,000 steps 100 stand, and 50 new ones came: they are drawn step by step, and only the newest are told."""
    second = trained_and_resumed(attempt, run, saved_at=100, last=3_000)
    steps_sent(second, 101, 150)
    after, parts = pieces(now(run))
    assert (after, [piece.first for piece in parts], width_of(parts)) == (0, list(range(1, 151)), 1)
    after, parts = pieces(now(run), after=140)
    assert (after, [piece.first for piece in parts]) == (140, list(range(141, 151)))
