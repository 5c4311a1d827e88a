"""What goes into a card beside the record: the run's data, one line a record, as bytes to be streamed. Of steps, groups
and evaluations those that stand; the record counts the superseded ones.

Rows are read in portions; nothing here holds a whole run in memory.
"""

import json
from collections.abc import Iterator
from typing import Any

from cohort.governance.facts import Facts, TracesInCard, eval_items, standing_groups, standing_steps
from cohort.governance.schema import json_schema
from cohort.review.models import Group
from cohort.runs.models import RunEvent

TRACE_STEPS_A_FILE = 100

Chunks = Iterator[bytes]


def small_files(facts: Facts) -> Iterator[tuple[str, Chunks]]:
    """(path, content) of everything but traces, sorted by path."""
    yield "config.yaml", iter([facts.config.to_yaml().encode()])
    for phase in ("after", "before"):
        if any(getattr(comparison, phase) is not None for comparison in facts.comparisons):
            yield f"evals/{phase}.jsonl", _eval_lines(facts, phase)
    yield "events.jsonl", _event_lines(facts)
    if facts.manifest is not None:
        yield "manifest.json", iter([_document(facts.manifest)])
    yield "metrics.jsonl", _metric_lines(facts)
    if facts.outcome is not None:
        yield "outcome.json", iter([_document(facts.outcome)])
    yield "record.schema.json", iter([_document(json_schema())])


class Traces:
    """The kept groups of a run, up to `most` bytes; `kept` counts those that `files` gave."""

    def __init__(self, facts: Facts, *, most: int, most_a_file: int) -> None:
        self._run, self._most, self._most_a_file = facts.run, most, most_a_file
        self.kept = TracesInCard(groups=0, samples=0, cut_at=None)

    def files(self) -> Iterator[tuple[str, Chunks]]:
        """(path, content): a hundred steps a file, and a further file for what is too large for one."""
        lines = self._lines()
        ahead = next(lines, None)
        block = part = -1
        while ahead is not None:
            part = part + 1 if ahead[0] == block else 1
            block = ahead[0]
            first, last = block * TRACE_STEPS_A_FILE + 1, (block + 1) * TRACE_STEPS_A_FILE

            def content(block: int = block) -> Chunks:
                nonlocal ahead
                size = 0
                while ahead is not None and ahead[0] == block and size < self._most_a_file:
                    size += len(ahead[1])
                    yield ahead[1]
                    ahead = next(lines, None)

            yield f"traces/steps-{first:06d}-{last:06d}{f'-{part}' if part > 1 else ''}.jsonl", content()

    def _lines(self) -> Iterator[tuple[int, bytes]]:
        """(block of a hundred steps, line) of each group, in order."""
        written = groups = samples = 0
        for group in standing_groups(self._run).prefetch_related("samples").iterator(chunk_size=50):
            line = _line(_group(group))
            written += len(line)
            if written > self._most:
                self.kept = TracesInCard(groups, samples, cut_at=group.step)
                return
            groups += 1
            samples += len(group.samples.all())
            yield (group.step - 1) // TRACE_STEPS_A_FILE, line
        self.kept = TracesInCard(groups, samples, cut_at=None)


def _group(group: Group) -> dict[str, Any]:
    return {
        "step": group.step,
        "index": group.index,
        "problem_id": group.problem_id,
        "prompt": group.prompt,
        "answer": group.answer,
        "reward_mean": group.reward_mean,
        "reward_std": group.reward_std,
        "signal": group.signal,
        "discarded": group.discarded or None,
        "sampled_at": group.sampled_at,
        "samples": [
            {
                "index": sample.index,
                "completion": sample.completion,
                "tokens": sample.tokens,
                "finish_reason": sample.finish_reason,
                "reward": sample.reward,
                "shaped_reward": sample.shaped_reward,
                "components": sample.components,
                "advantage": sample.advantage,
                "mask_cause": sample.mask_cause or None,
                "logprob_mean": sample.logprob_mean,
            }
            for sample in sorted(group.samples.all(), key=lambda sample: sample.index)
        ],
    }


def _eval_lines(facts: Facts, phase: str) -> Chunks:
    for item in eval_items(facts.run, phase):
        yield _line(
            {
                "suite": item.suite,
                "problem_id": item.problem_id,
                "prompt": item.prompt,
                "answer": item.answer,
                "completion": item.completion,
                "score": item.score,
                "truncated": item.truncated,
                "error": item.error or None,
                "tokens": item.tokens,
                "detail": item.detail,
            }
        )


def _event_lines(facts: Facts) -> Chunks:
    events = RunEvent.objects.filter(run=facts.run, pk__lte=facts.last_event).order_by("pk")
    for event in events.iterator(chunk_size=500):
        yield _line(
            {
                "at": event.at.isoformat(),
                "actor": event.actor,
                "kind": event.kind,
                "message": event.message,
                "data": event.data,
            }
        )


def _metric_lines(facts: Facts) -> Chunks:
    for row in standing_steps(facts.run).iterator(chunk_size=500):
        yield _line({"step": row.step, "at": row.at.isoformat(), "metrics": row.metrics, "seconds": row.seconds})


def _line(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False, sort_keys=True, separators=(",", ":")).encode() + b"\n"


def _document(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False, sort_keys=True, indent=2).encode() + b"\n"
