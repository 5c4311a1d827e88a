"""What a trainer reports agrees with itself: groups with the commitments of their step, results with their items."""

from typing import Any

import pytest

from cohort.review.models import Sample, StepCommitments
from cohort.runs.models import Attempt, EvalItem
from grpo_core.records import types as records
from grpo_core.records.commitments import commit, sample_content
from grpo_core.records.leaves import leaf
from tests.factories.worker import WHOLE_RUN, envelopes, group, outcome, step
from tests.web.batches import attempt, refused, run, send

__all__ = ["attempt", "run"]  # fixtures

pytestmark = pytest.mark.django_db


def committed(number: int) -> list[records.Record]:
    """A step, its commitments and its one group."""
    salted, commitments = commit([group(number)])
    return [step(number), commitments, *salted]


def test_stored_leaves_are_those_of_what_is_read_back(attempt: Attempt) -> None:
    salted, commitments = commit([group(1)])
    send(attempt, *envelopes([*WHOLE_RUN[:7], step(1), commitments, *salted]))
    stored = StepCommitments.objects.get()
    assert (stored.attempt_id, stored.step, stored.count) == (attempt.pk, 1, 2)
    for sample in Sample.objects.all():
        opened = salted[0].samples[sample.index].model_copy(update={"completion": sample.completion})
        digest = leaf(bytes.fromhex(sample.salt), sample_content(salted[0], opened))
        assert digest == bytes(stored.leaves)[32 * sample.index : 32 * sample.index + 32]


def test_a_step_is_committed_to_once_and_after_it(attempt: Attempt) -> None:
    first, second = committed(1), committed(2)
    assert refused(attempt, *envelopes([*WHOLE_RUN[:7], first[0], second[1]])).code == "other_step"
    batch = envelopes([*WHOLE_RUN[:7], *first, first[1]])
    send(attempt, *batch[:10])
    assert refused(attempt, batch[10]).code == "committed_before"


def test_a_group_holds_what_its_step_committed_to(attempt: Attempt) -> None:
    """Once each, and after the commitments; else no card of the run could be verified."""
    first, committed_to, kept = committed(1)
    assert isinstance(kept, records.Group)
    changed = kept.samples[0].model_copy(update={"completion": "another"})
    unsalted = kept.samples[1].model_copy(update={"salt": None})
    for samples in ((changed, kept.samples[1]), (kept.samples[0], unsalted), kept.samples[::-1], kept.samples[:1]):
        forged = kept.model_copy(update={"samples": samples, "index": 0 if len(samples) > 1 else 5})
        assert refused(attempt, *envelopes([first, committed_to, forged])).code == "not_committed"
    assert refused(attempt, *envelopes([first, kept, committed_to])).code == "committed_late"
    batch = envelopes([first, committed_to, kept, kept])
    send(attempt, *batch[:2])
    assert refused(attempt, *batch[2:]).code == "same_group"
    send(attempt, batch[2])
    assert refused(attempt, batch[3]).code == "same_group"


def test_nothing_comes_after_the_outcome(attempt: Attempt) -> None:
    batch = envelopes([step(1), outcome(), step(2)])
    assert refused(attempt, *batch).code == "after_the_end"
    send(attempt, *batch[:2])
    assert refused(attempt, batch[2]).code == "after_the_end"


@pytest.mark.parametrize(
    ("changed", "names"),
    [
        ({"problems": 2}, "problems"),
        ({"correct": 0.5}, "correct"),
        ({"truncated": 1}, "truncated"),
        ({"errors": 1}, "errors"),
    ],
)
def test_a_result_agrees_with_its_items(attempt: Attempt, changed: dict[str, Any], names: str) -> None:
    result = next(record for record in WHOLE_RUN if isinstance(record, records.EvalResult))
    batch = envelopes([item("a"), result.model_copy(update=changed), item("b"), result])
    error = refused(attempt, *batch[:2])
    assert (error.code, f"record 2 is not valid: {names}" in str(error)) == ("other_sum", True)
    good = envelopes([item("a"), result, item("b")])
    assert refused(attempt, *good).code == "result_before"
    send(attempt, *good[:2])
    assert refused(attempt, good[2]).code == "result_before"


def item(problem: str, **more: str) -> records.EvalItem:
    answered = {"prompt": "p", "answer": "a", "completion": "c", "score": 1.0, "truncated": False, "tokens": 3}
    fields = {"phase": "before", "suite": "heldout", "problem_id": problem, **answered, **more}
    return records.EvalItem.model_validate(fields)


def test_items_of_suites_keep_slice_and_cluster(attempt: Attempt) -> None:
    assert refused(attempt, *envelopes([item("de-1"), item("de-1")])).code == "answered_before"
    assert refused(attempt, *envelopes([item("de-1", slice="x" * 201)])).code == "text_too_long"
    send(attempt, *envelopes([item("de-1", slice="de", cluster="1"), item("plain")]))
    stored = EvalItem.objects.order_by("seq").values_list("problem_id", "slice", "cluster")
    assert list(stored) == [("de-1", "de", "1"), ("plain", "", "")]
