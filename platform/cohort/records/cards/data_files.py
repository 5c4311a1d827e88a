"""The files that a record seals: the run's data, one line a record, as bytes to be streamed, each with its audience;
and their tables for people.

Only current steps and evaluations; the record counts the superseded ones. Rows are read in chunks; a run is never
whole in memory.
"""

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from django.db.models import Model, QuerySet

from cohort.catalog.run_inputs import dataset_problems
from cohort.evaluations.selectors import newest_results
from cohort.evidence.canonical import canonical
from cohort.evidence.judgements import write_judgements
from cohort.evidence.verify.opened import JUDGEMENTS
from cohort.evidence.zip_layout import MAX_ITEMS
from cohort.records.cards.markdown import escape
from cohort.records.cards.pack import CardTooLarge
from cohort.records.cards.reading import Reading, Series
from cohort.records.cards.topics import EU_FORM, EU_FORM_SHEET, NIST_RMF, NIST_SHEET, Sheet, Topic
from cohort.records.facts import Facts, eval_items
from cohort.records.fields import field_facts
from cohort.records.schema_types import Audience
from cohort.records.traces.tree import StepLeaves
from cohort.review.services import current_groups
from cohort.runs.models import Checkpoint, EvalItem, ImportedResult, RunEvent
from cohort.runs.transitions import current_rows, current_steps
from grpo_core.data.recorded import PROBLEMS, problem_line
from grpo_core.files.recorded_run import CHECKPOINTS

# sheets/*.md: topics of external documentation forms and the record fields that cover them. Rows show the field's text
# or "not stated" and do not judge whether it is enough.

SHEETS: dict[str, tuple[str, str, Sequence[Topic], Sheet]] = {
    "sheets/eu-documentation-form.md": (
        "What the EU's model documentation form asks, and what is found here",
        "the documentation form for providers of general-purpose AI models in the EU",
        EU_FORM,
        EU_FORM_SHEET,
    ),
    "sheets/nist-ai-rmf.md": (
        "What NIST's AI Risk Management Framework asks, and what is found here",
        "NIST's AI Risk Management Framework",
        NIST_RMF,
        NIST_SHEET,
    ),
}
"""Path in the card → (title, whose form it is, its topics, where they are from)."""
_TEXT = 600
"""Characters of a field; record.json has all of it."""

_CAUTION = (
    "This sheet says which fields of the record answer what {who} requires, and what they hold. It quotes no "
    "law and no standard: the topics are put in this project's own words and may miss what the text means. It judges "
    "nothing. Whether an answer is enough, true or owed at all is for the reader to decide, with the text at hand."
)


def sheet(reading: Reading, path: str) -> bytes:
    title, who, rows, source = SHEETS[path]
    answered = sum(any(reading.text(path) for path in topic.fields) for topic in rows)
    lines = [
        f"# {title}",
        "",
        _CAUTION.format(who=who),
        "",
        f"Source: {escape(source.source)}; as read on {source.read} in public copies. The official text decides.",
        "",
        *(f"- {escape(date)}" for date in source.dates),
        "",
        f"Record of {escape(reading.head['title'])}, run {reading.head['run']}; seal `{reading.seal}`. "
        f"This copy is for: {reading.audience}. {answered} of {len(rows)} topics find something here.",
        "",
        "| Asked (part: topic) | Found here |",
        "| --- | --- |",
        *(f"| {escape(topic.item)} | {_cell(reading, topic)} |" for topic in rows),
        "",
    ]
    return "\n".join(lines).encode()


def _cell(reading: Reading, topic: Topic) -> str:
    if not topic.fields:
        return "not stated (the record of a training run has no such field)"
    return "<br>".join(_answer(reading, path) for path in topic.fields)


def _answer(reading: Reading, path: str) -> str:
    label = f"**{escape(field_facts(path).label)}** (`{path}`)"
    if (audience := reading.withheld(path)) is not None:
        return f"{label}: in the card for {audience}"
    entry = reading.filled_entry(path)
    if entry is None:
        return f"{label}: not stated"
    text = entry["text"]
    cut = text if len(text) <= _TEXT else f"{text[:_TEXT]}… (cut; whole in record.json)"
    return f"{label}: {escape(cut)} ({escape(entry['source'])})"


Chunks = Iterator[bytes]
_CLASS = re.compile(r"[A-Za-z_][A-Za-z0-9_.]{0,99}")


@dataclass(frozen=True)
class DataFile:
    path: str
    audience: Audience
    content: Chunks


def data_files(facts: Facts, leaves: list[StepLeaves], series: Series) -> Iterator[DataFile]:
    """Every sealed file, to be written one after the other; `series` is filled on the way."""
    run = facts.run
    yield DataFile("config.yaml", "downstream", iter([facts.config.to_yaml().encode()]))
    if facts.manifest is not None:
        yield DataFile("manifest.json", "authority", iter([_document(facts.manifest)]))
    if facts.outcome is not None:
        yield DataFile("outcome.json", "authority", iter([_document(facts.outcome)]))
    yield DataFile("metrics.jsonl", "downstream", _metric_lines(facts, series))
    if problems := _problem_lines(facts):
        yield DataFile(PROBLEMS, "authority", iter(problems))
    if (checkpoints := current_rows(Checkpoint.objects.filter(run=run, final=False))).exists():
        yield DataFile(CHECKPOINTS, "downstream", _checkpoint_lines(checkpoints))
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
    if facts.judgements:
        yield DataFile(JUDGEMENTS, "downstream", write_judgements(facts.judgements))
    yield DataFile("commitments.jsonl", "public", (canonical(step.line()) + b"\n" for step in leaves))


def _score_lines(facts: Facts, phase: str) -> Chunks:
    """The public part of an item: enough to recompute every score, without its text."""
    for number, item in enumerate(eval_items(facts.run, phase), start=1):
        if number > MAX_ITEMS:
            raise CardTooLarge(f"a card takes at most {MAX_ITEMS:,} items evaluated {phase} training; there are more")
        fields = _fields(item, "suite", "problem_id", "slice", "cluster", "score", "truncated", "tokens")
        yield line({**fields, "error": _error_class(item)})


def _error_class(item: EvalItem) -> str | None:
    """The error's class without its message, which may quote the item."""
    if not item.error:
        return None
    name = item.error.partition(":")[0]
    return name if _CLASS.fullmatch(name) else "error"


def _text_lines(facts: Facts, phase: str, suites: set[str]) -> Chunks:
    for item in eval_items(facts.run, phase):
        if item.suite in suites:
            fields = _fields(item, "suite", "problem_id", "prompt", "answer", "completion", "detail")
            yield line({**fields, "error": item.error or None})


def _imported_lines(facts: Facts) -> Chunks:
    """Without the importing user, whom the audit log names."""
    rows = ImportedResult.objects.filter(run=facts.run, at__lte=facts.sealed_at).order_by("pk")
    for row in rows.iterator(chunk_size=500):
        fields = _fields(
            row,
            *("tool", "task", "phase", "metric", "value", "stderr", "n"),
            "facts",
            "file_name",
            "file_sha256",
            "samples",
        )
        yield line({**fields, "higher_is": row.higher_is or None, "at": row.at.isoformat()})


def _event_lines(facts: Facts) -> Chunks:
    events = RunEvent.objects.filter(run=facts.run, pk__lte=facts.last_event).order_by("pk")
    for event in events.iterator(chunk_size=500):
        yield line({**_fields(event, "actor", "kind", "message", "data"), "at": event.at.isoformat()})


_MOST_PROBLEM_BYTES = 256 * 1024**2


def _problem_lines(facts: Facts) -> list[bytes]:
    """The problems of the kept groups, as a verifier reads them, so that the kept completions can be scored again
    without the dataset. None where its file is no longer stored, or they take more than 256 MiB; docs/card.md says
    so."""
    kept = set(current_groups(facts.run).order_by().values_list("problem_id", flat=True).distinct())
    lines, size = list[bytes](), 0
    try:
        for problem in dataset_problems(facts.run.dataset) if kept else ():
            if problem.id in kept:
                lines.append(line(problem_line(problem)))
                if (size := size + len(lines[-1])) > _MOST_PROBLEM_BYTES:
                    return []
    except FileNotFoundError:
        return []
    return lines


def _checkpoint_lines(checkpoints: QuerySet[Checkpoint]) -> Chunks:
    """Size and SHA-256 of every file of every checkpoint of current steps, removed since or not: what a replay begins
    from, and what the weights after a step are compared with. Of two attempts that cut the same, the later."""
    rows = checkpoints.order_by("step", "-attempt__fence", "-seq").distinct("step")
    for attempt, step, files in rows.values_list("attempt__fence", "step", "files").iterator(chunk_size=500):
        yield line({"attempt": attempt, "step": step, "files": files})


def _metric_lines(facts: Facts, series: Series) -> Chunks:
    rows = current_steps(facts.run).values_list("step", "at", "metrics", "seconds")
    for step, at, stored, seconds in rows.iterator(chunk_size=500):
        metrics = {name: float(value) for name, value in stored.items()}  # 1e20 comes from the database as an integer
        series.add(step, metrics)
        yield line({"step": step, "at": at.isoformat(), "metrics": metrics, "seconds": seconds})


def _fields(row: Model, *names: str) -> dict[str, Any]:
    return {name: getattr(row, name) for name in names}


def line(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False, sort_keys=True, separators=(",", ":")).encode() + b"\n"


def _document(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False, sort_keys=True, indent=2).encode() + b"\n"
