"""Groups against what their step committed to: no card could be verified with a completion that has another leaf."""

from collections.abc import Sequence

from cohort.ingest.copy import BadRecord
from cohort.ingest.run_state import LockedAttempt
from cohort.review.models import Group, StepCommitments
from grpo_core.records import types as records
from grpo_core.records.commitments import sample_content, unpack
from grpo_core.records.leaves import HASH_BYTES, leaf


class _Step:
    """The step that groups and commitments are of now."""

    def __init__(self, attempt: LockedAttempt | None) -> None:
        """What is stored of the attempt's newest step; of a step that begins, nothing."""
        self.leaves: list[bytes] | None = None
        """None: it has not committed to its completions."""
        self.groups: set[int] = set()
        """Indexes of those that came."""
        if attempt is None:
            return
        stored = {"attempt": attempt.attempt_id, "step": attempt.step}
        packed = StepCommitments.objects.filter(**stored).values_list("leaves", flat=True).first()
        if packed is not None:
            whole = bytes(packed)
            self.leaves = [whole[at : at + HASH_BYTES] for at in range(0, len(whole), HASH_BYTES)]
        self.groups.update(Group.objects.filter(**stored).values_list("index", flat=True))


def require_committed(attempt: LockedAttempt, envelopes: Sequence[records.Envelope]) -> None:
    """Call before the batch is stored. Raises BadRecord for a group that came before, one that comes before the
    commitments of its step, and one with a sample that its step has not committed to."""
    step: _Step | None = None
    for envelope in envelopes:
        match envelope.record:
            case records.StepMetrics():
                step = _Step(None)
            case records.Commitments() as committed:
                step = step or _Step(attempt)
                if step.leaves is None:
                    if step.groups:
                        raise BadRecord.of(envelope.seq, "step: it comes after a group of its step", "committed_late")
                    step.leaves = unpack(committed.leaves)
            case records.Group() as group:
                step = step or _Step(attempt)
                if group.index in step.groups:
                    raise BadRecord.of(envelope.seq, f"index: the step has a group {group.index} already", "same_group")
                step.groups.add(group.index)
                if step.leaves is not None:
                    _require_leaves(envelope.seq, group, step.leaves)
            case _:
                pass


def _require_leaves(seq: int, group: records.Group, leaves: Sequence[bytes]) -> None:
    first = group.index * len(group.samples)
    for at, sample in enumerate(group.samples):
        digest = leaf(bytes.fromhex(sample.salt), sample_content(group, sample)) if sample.salt else None
        if sample.index != at or leaves[first + at : first + at + 1] != [digest]:
            raise BadRecord.of(seq, f"samples.{at}: is not what the step has committed to", "not_committed")
