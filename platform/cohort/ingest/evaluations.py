"""What an attempt may report of its evaluations: suites of its run, and results that agree with their items."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from django.db.models import Count, Q, Sum

from cohort.ingest.copy import BadRecord
from cohort.ingest.run_state import LockedAttempt
from cohort.runs.models import EvalItem, EvalResult, Run
from grpo_core.config.evaluation import HELDOUT
from grpo_core.records import types as records

Key = tuple[records.Phase, int, str]
"""Phase, step and suite."""


@dataclass
class _Items:
    """Sums over the items of one evaluation."""

    problems: int
    correct: float
    truncated: int
    errors: int


def require_evaluations(attempt: LockedAttempt, envelopes: Sequence[records.Envelope]) -> None:
    """Call before the batch is stored. Raises BadRecord for items or a result of a suite that the run does not have,
    items after their result, a second result, and one that its items do not give."""
    reported = [
        (envelope.seq, envelope.record)
        for envelope in envelopes
        if isinstance(envelope.record, records.EvalItem | records.EvalResult)
    ]
    if not reported:
        return
    config = Run.objects.values_list("config__eval__suites", flat=True).get(pk=attempt.run_id)
    suites = {HELDOUT, *(suite["name"] for suite in config or ())}
    results = EvalResult.objects.filter(attempt=attempt.attempt_id)
    over: set[tuple[str, int, str]] = set(results.values_list("phase", "step", "suite"))
    sums: dict[Key, _Items] = {}
    for seq, record in reported:
        key = record.phase, record.step, record.suite
        if record.suite not in suites:
            raise BadRecord.of(seq, f"suite: the run has no suite {record.suite!r}", "unknown_suite")
        if key in over:
            raise BadRecord.of(
                seq, f"suite: {record.suite} has its result {record.phase} training already", "result_before"
            )
        items = sums.get(key) or sums.setdefault(key, _stored(attempt, key))
        if isinstance(record, records.EvalItem):
            items.problems += 1
            items.correct += record.score
            items.truncated += record.truncated
            items.errors += bool(record.error)
            continue
        over.add(key)
        for name in ("problems", "truncated", "errors"):
            if getattr(record, name) != getattr(items, name):
                raise BadRecord.of(
                    seq, f"{name}: {getattr(record, name)}, and its items give {getattr(items, name)}", "other_sum"
                )
        if not math.isclose(record.correct, items.correct, rel_tol=1e-6, abs_tol=1e-6):
            raise BadRecord.of(
                seq, f"correct: {record.correct}, and the scores of its items give {items.correct}", "other_sum"
            )


def _stored(attempt: LockedAttempt, key: Key) -> _Items:
    rows = EvalItem.objects.filter(attempt=attempt.attempt_id, phase=key[0], step=key[1], suite=key[2])
    sums = rows.aggregate(
        problems=Count("pk"),
        correct=Sum("score", default=0.0),
        truncated=Count("pk", filter=Q(truncated=True)),
        errors=Count("pk", filter=~Q(error="")),
    )
    return _Items(**sums)
