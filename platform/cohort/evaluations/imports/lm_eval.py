"""Results of lm-evaluation-harness: `results_<date>.json`, and `samples_<task>_<date>.jsonl` where they were logged.

A metric is stored under the name that the file gives it, filter and all: `exact_match,strict-match`.
"""

import hashlib
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from cohort.evaluations.imports.bounds import (
    MAX_LINE_BYTES,
    BadImport,
    ToolResult,
    count,
    facts_of,
    finite,
    mapping,
    name,
    number,
    parsed,
)

TOOL = "lm-evaluation-harness"
_NOTHING = ("", " ", "N/A")
"""What the harness writes where a group has no such metric."""
_STDERR = "_stderr"
_OF_THE_WHOLE = (
    *("lm_eval_version", "git_hash", "transformers_version", "model_name", "model_source", "date", "max_length"),
    *("chat_template_sha", "system_instruction_sha", "fewshot_as_multiturn"),
)
_OF_ITS_CONFIG = ("model", "model_args", "model_revision", "model_sha", "batch_size", "limit", "random_seed")


def is_results(data: Mapping[str, Any]) -> bool:
    return "results" in data and bool({"versions", "configs", "n-shot", "task_hashes"} & set(data))


def read(data: Mapping[str, Any], source: str) -> list[ToolResult]:
    """Every metric of every task. Raises BadImport."""
    facts = facts_of(data, _OF_THE_WHOLE) | facts_of(_part(data, "config", source), _OF_ITS_CONFIG)
    by_task = {
        what: _part(data, key, source)
        for what, key in (("version", "versions"), ("task_hash", "task_hashes"), ("n_shot", "n-shot"))
    }
    samples, better = _part(data, "n-samples", source), _part(data, "higher_is_better", source)
    numbers = []
    for task, metrics in mapping(data["results"], f"results in {source}").items():
        name(task, f"a task in {source}")
        where = f"results.{task} in {source}"
        own = facts | facts_of({what: part.get(task) for what, part in by_task.items()}, by_task)
        sizes = samples.get(task)
        n = count(sizes.get("effective")) if isinstance(sizes, dict) else None
        raised = better.get(task)
        for metric, value, stderr in _metrics(mapping(metrics, where), where):
            plain = metric.partition(",")[0]
            says = raised.get(plain) if isinstance(raised, dict) else None
            higher_is = {True: "better", False: "worse"}.get(says, "") if isinstance(says, bool) else ""
            numbers.append(ToolResult(TOOL, task, metric, value, stderr, n, higher_is, own))
    if not numbers:
        raise BadImport(f"{source} holds no metric", code="no_metrics")
    return numbers


def _metrics(metrics: Mapping[str, Any], where: str) -> Iterator[tuple[str, float, float | None]]:
    for key, value in metrics.items():
        plain, comma, kind = key.partition(",")
        if not comma or plain.endswith(_STDERR) or value in _NOTHING:
            continue
        name(key, f"a metric of {where}")
        error = metrics.get(f"{plain}{_STDERR},{kind}")
        yield key, number(value, f"{key} of {where}"), None if isinstance(error, bool) else finite(error)


def _part(data: Mapping[str, Any], key: str, source: str) -> dict[str, Any]:
    value = data.get(key)
    return {} if value is None else mapping(value, f"{key} in {source}")


def is_samples(file_name: str) -> bool:
    return file_name.startswith("samples_") and file_name.endswith(".jsonl")


def with_samples(numbers: Sequence[ToolResult], file_name: str, content: bytes) -> list[ToolResult]:
    """The results with what the file of samples gives for those of its task. Raises BadImport for a file of no task
    of theirs, one that is no list of samples, and one whose number of items is another than the results state."""
    stem = file_name.removeprefix("samples_").removesuffix(".jsonl")
    tasks = {stated.task for stated in numbers if stem == stated.task or stem.startswith(f"{stated.task}_")}
    if not tasks:
        raise BadImport(
            f"{file_name} is of no task in the results; there are {', '.join(sorted({f.task for f in numbers}))}",
            code="other_task",
        )
    task = max(tasks, key=len)
    values, items = _sampled(content, file_name)
    sha256 = hashlib.sha256(content).hexdigest()
    joined = []
    for stated in numbers:
        if stated.task != task:
            joined.append(stated)
            continue
        plain, _, kind = stated.metric.partition(",")
        n = items.get(kind, 0)
        if stated.n is not None and n != stated.n:
            raise BadImport(
                f"{file_name} holds {n:,} items of filter {kind}; the results state {stated.n:,} for {task}",
                code="other_count",
            )
        of_it = values.get((kind, plain), [])
        mean = math.fsum(of_it) / n if of_it and len(of_it) == n else None
        joined.append(replace(stated, samples={"sha256": sha256, "n": n, "mean": mean}))
    return joined


def _sampled(content: bytes, source: str) -> tuple[dict[tuple[str, str], list[float]], dict[str, int]]:
    """({(filter, metric): its values, item by item}, {filter: number of items})."""
    values: dict[tuple[str, str], list[float]] = {}
    items: dict[str, int] = {}
    for line_number, line in enumerate(content.splitlines(), start=1):
        if not line.strip():
            continue
        where = f"{source}, line {line_number}"
        if len(line) > MAX_LINE_BYTES:
            raise BadImport(f"{where} is longer than {MAX_LINE_BYTES:,} bytes", code="line_too_long")
        sample = mapping(parsed(line, where), where)
        if "doc_id" not in sample:
            raise BadImport(f"{where} has no doc_id, so it is no sample of lm-evaluation-harness", code="not_a_sample")
        kind = sample.get("filter", "none")
        name(kind, f"filter in {where}")
        items[kind] = items.get(kind, 0) + 1
        for key, value in sample.items():
            if key != "doc_id" and (finite_value := finite(value)) is not None:
                values.setdefault((kind, key), []).append(finite_value)
    return values, items
