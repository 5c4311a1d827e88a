"""The files that a record seals: the run's data, one line a record, as bytes to be streamed, each with its audience.

Only standing steps and evaluations; the record counts the superseded ones. Rows are read in chunks; a run is never
whole in memory.
"""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from cohort.evaluations.selectors import newest_results
from cohort.evidence.canonical import canonical
from cohort.evidence.limits import MAX_ITEMS
from cohort.records.cards.pack import CardTooLarge
from cohort.records.cards.reading import Series
from cohort.records.facts import Facts, eval_items, standing_steps
from cohort.records.schema_types import Audience
from cohort.records.traces.tree import StepLeaves
from cohort.runs.models import EvalItem, ImportedResult, RunEvent

Chunks = Iterator[bytes]
_CLASS = re.compile(r"[A-Za-z_][A-Za-z0-9_.]{0,99}")
_CHARTED = ("reward", "frac_reward_zero_std")


@dataclass(frozen=True)
class DataFile:
    path: str
    audience: Audience
    content: Chunks


@dataclass
class Collected:
    """Series collected while the files are written."""

    steps: list[int] = field(default_factory=list)
    values: dict[str, list[float | None]] = field(default_factory=lambda: {name: [] for name in _CHARTED})

    @property
    def series(self) -> Series:
        return Series(self.steps, self.values)

    def step(self, number: int, metrics: dict[str, Any]) -> None:
        self.steps.append(number)
        for name, values in self.values.items():
            values.append(metrics.get(name))


def data_files(facts: Facts, leaves: list[StepLeaves], collected: Collected) -> Iterator[DataFile]:
    """Every sealed file, to be written one after the other; `collected` is filled on the way."""
    run = facts.run
    yield DataFile("config.yaml", "downstream", iter([facts.config.to_yaml().encode()]))
    if facts.manifest is not None:
        yield DataFile("manifest.json", "authority", iter([_document(facts.manifest)]))
    if facts.outcome is not None:
        yield DataFile("outcome.json", "authority", iter([_document(facts.outcome)]))
    yield DataFile("metrics.jsonl", "downstream", _metric_lines(facts, collected))
    yield DataFile("events.jsonl", "internal", _event_lines(facts))
    sensitive = {suite.name for suite in facts.config.eval.suites if suite.sensitive}
    for phase in ("after", "before"):
        suites = {result.suite for result in newest_results(run).filter(phase=phase)}
        if not suites:
            continue
        yield DataFile(f"evals/{phase}.jsonl", "public", _score_lines(facts, phase))
        if suites - sensitive:
            yield DataFile(f"evals/texts-{phase}.jsonl", "downstream", _text_lines(facts, phase, suites - sensitive))
        if suites & sensitive:
            yield DataFile(f"evals/sensitive-{phase}.jsonl", "authority", _text_lines(facts, phase, suites & sensitive))
    if ImportedResult.objects.filter(run=run).exists():
        yield DataFile("evals/imported.jsonl", "public", _imported_lines(facts))
    yield DataFile("commitments.jsonl", "public", (canonical(step.line()) + b"\n" for step in leaves))


def _score_lines(facts: Facts, phase: str) -> Chunks:
    """The public part of an item: enough to recompute every score, without its text."""
    for number, item in enumerate(eval_items(facts.run, phase), start=1):
        if number > MAX_ITEMS:
            raise CardTooLarge(f"a card takes at most {MAX_ITEMS:,} items evaluated {phase} training; there are more")
        yield line(
            {
                "suite": item.suite,
                "problem_id": item.problem_id,
                "slice": item.slice,
                "cluster": item.cluster,
                "score": item.score,
                "truncated": item.truncated,
                "error": _error_class(item),
                "tokens": item.tokens,
            }
        )


def _error_class(item: EvalItem) -> str | None:
    """The error's class without its message, which may quote the item."""
    if not item.error:
        return None
    name = item.error.partition(":")[0]
    return name if _CLASS.fullmatch(name) else "error"


def _text_lines(facts: Facts, phase: str, suites: set[str]) -> Chunks:
    for item in eval_items(facts.run, phase):
        if item.suite in suites:
            yield line(
                {
                    "suite": item.suite,
                    "problem_id": item.problem_id,
                    "prompt": item.prompt,
                    "answer": item.answer,
                    "completion": item.completion,
                    "detail": item.detail,
                    "error": item.error or None,
                }
            )


def _imported_lines(facts: Facts) -> Chunks:
    """Without the importing user, whom the audit log names."""
    rows = ImportedResult.objects.filter(run=facts.run, at__lte=facts.sealed_at).order_by("pk")
    for row in rows.iterator(chunk_size=500):
        yield line(
            {
                "tool": row.tool,
                "task": row.task,
                "phase": row.phase,
                "metric": row.metric,
                "value": row.value,
                "stderr": row.stderr,
                "n": row.n,
                "higher_is": row.higher_is or None,
                "facts": row.facts,
                "file_name": row.file_name,
                "file_sha256": row.file_sha256,
                "samples": row.samples,
                "at": row.at.isoformat(),
            }
        )


def _event_lines(facts: Facts) -> Chunks:
    events = RunEvent.objects.filter(run=facts.run, pk__lte=facts.last_event).order_by("pk")
    for event in events.iterator(chunk_size=500):
        yield line(
            {
                "at": event.at.isoformat(),
                "actor": event.actor,
                "kind": event.kind,
                "message": event.message,
                "data": event.data,
            }
        )


def _metric_lines(facts: Facts, collected: Collected) -> Chunks:
    rows = standing_steps(facts.run).values_list("step", "at", "metrics", "seconds")
    for step, at, metrics, seconds in rows.iterator(chunk_size=500):
        collected.step(step, metrics)
        yield line({"step": step, "at": at.isoformat(), "metrics": metrics, "seconds": seconds})


def line(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False, sort_keys=True, separators=(",", ":")).encode() + b"\n"


def _document(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False, sort_keys=True, indent=2).encode() + b"\n"
