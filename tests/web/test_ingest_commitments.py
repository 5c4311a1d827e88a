"""A step's commitments on their way from the trainer into the database."""

import pytest

from cohort.review.models import Group, Sample, StepCommitments
from cohort.runs.ingest import BadRecord
from cohort.runs.models import Attempt, Run
from grpo_core import records
from grpo_core.commitments import commit, sample_content
from grpo_core.leaves import leaf
from tests.web.batches import attempt, run, send
from tests.worker.making import WHOLE_RUN, envelopes, group, step

__all__ = ["attempt", "run"]  # fixtures

pytestmark = pytest.mark.django_db


def committed(number: int) -> list[records.Record]:
    """A step, its commitments and its one group."""
    salted, told = commit([group(number)])
    return [step(number), told, *salted]


def test_leaves_and_salts_are_stored_and_fit_what_is_read_back(attempt: Attempt, run: Run) -> None:
    told = [*WHOLE_RUN[:7], *committed(1)]
    send(attempt, *envelopes(told))
    stored = StepCommitments.objects.get(run=run)
    assert (stored.attempt_id, stored.step, stored.count) == (attempt.pk, 1, 2)
    row = Group.objects.get(run=run)
    for sample in Sample.objects.filter(group=row):
        read = records.Group.model_validate(
            {
                "step": row.step,
                "index": row.index,
                "problem_id": row.problem_id,
                "prompt": row.prompt,
                "answer": row.answer,
                "reward_mean": None,
                "reward_std": None,
                "signal": row.signal,
                "samples": [
                    {
                        "index": sample.index,
                        "completion": sample.completion,
                        "tokens": sample.tokens,
                        "finish_reason": sample.finish_reason,
                        "reward": sample.reward,
                        "components": {},
                        "advantage": sample.advantage,
                    }
                ],
            }
        )
        at = 32 * sample.index
        found = leaf(bytes.fromhex(sample.salt), sample_content(read, read.samples[0]))
        assert found == bytes(stored.leaves)[at : at + 32]


def test_commitments_of_another_step_are_refused_and_nothing_is_stored(attempt: Attempt) -> None:
    first, second = committed(1), committed(2)
    with pytest.raises(BadRecord, match="step: 2 is committed to after step 1"):
        send(attempt, *envelopes([*WHOLE_RUN[:7], first[0], second[1]]))
    assert not StepCommitments.objects.exists()


def test_a_step_is_committed_to_once(attempt: Attempt) -> None:
    first = committed(1)
    told = envelopes([*WHOLE_RUN[:7], *first, first[1]])
    send(attempt, *told[:10])
    with pytest.raises(BadRecord, match="has committed to step 1 before"):
        send(attempt, told[10])
    assert StepCommitments.objects.count() == 1
