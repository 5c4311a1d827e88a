"""Items of suites on their way into the database."""

import pytest

from cohort.runs.ingest import BadRecord
from cohort.runs.models import Attempt, EvalItem
from grpo_core import records
from tests.web.batches import attempt, run, send
from tests.worker.making import envelopes

__all__ = ["attempt", "run"]  # fixtures


def item(problem: str, **more: str) -> records.EvalItem:
    said = {"prompt": "p", "answer": "a", "completion": "c", "score": 1.0, "truncated": False, "tokens": 3}
    return records.EvalItem.model_validate({"phase": "before", "suite": "mgsm", "problem_id": problem, **said, **more})


def test_slice_and_cluster_are_stored(attempt: Attempt) -> None:
    send(attempt, *envelopes([item("de-1", slice="de", cluster="1"), item("plain")]))
    assert list(EvalItem.objects.order_by("seq").values_list("problem_id", "slice", "cluster")) == [
        ("de-1", "de", "1"),
        ("plain", "", ""),
    ]


def test_an_item_answered_twice_is_refused(attempt: Attempt) -> None:
    with pytest.raises(BadRecord, match="problem_id: the attempt has answered it before training in mgsm already"):
        send(attempt, *envelopes([item("de-1"), item("de-1")]))
    assert not EvalItem.objects.exists()


def test_a_slice_that_no_column_holds_is_refused(attempt: Attempt) -> None:
    with pytest.raises(BadRecord, match="slice: has 201 characters, at most 200"):
        send(attempt, *envelopes([item("de-1", slice="x" * 201)]))
