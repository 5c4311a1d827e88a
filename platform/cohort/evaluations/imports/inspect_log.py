"""Logs of Inspect: the `.json` export, or `.eval`, which is a zip of JSON. Only metrics over all samples are taken,
and of each sample its scores, to check whether they give the same mean."""

import math
from collections.abc import Mapping
from typing import Any

from cohort.evaluations.imports.bounds import (
    Archive,
    BadImport,
    ToolResult,
    count,
    document,
    facts_of,
    finite,
    mapping,
    name,
    number,
    parsed,
    shown,
)

TOOL = "inspect"
VERSIONS = (1, 2)
_STDERRS = ("stderr", "bootstrap_stderr")
_MEANS = ("accuracy", "mean")
"""The metrics that a standard error in the same list is of."""
_LETTERS = {"C": 1.0, "P": 0.5, "I": 0.0, "N": 0.0}
"""Inspect's words for correct, partial, incorrect and no answer, and the numbers that it counts them as."""
_OF_THE_TASK = ("task_version", "task_id", "eval_id", "run_id", "model", "created", "solver", "task_file")


def is_log(data: Mapping[str, Any]) -> bool:
    return "eval" in data and "status" in data


def read_zip(content: bytes, source: str) -> list[ToolResult]:
    """Raises BadImport."""
    archive = Archive(content, source)
    if "header.json" not in archive:
        what = "the log was not finished" if "_journal/start.json" in archive else "it is no log of Inspect"
        raise BadImport(f"{source} holds no header.json: {what}", code="no_header")
    header = document(archive.read("header.json"), f"header.json in {source}")
    summaries = None
    if "summaries.json" in archive:
        summaries = parsed(archive.read("summaries.json"), f"summaries.json in {source}")
    return read(header, source, samples=summaries)


def read(data: Mapping[str, Any], source: str, *, samples: Any = None) -> list[ToolResult]:
    """Every metric of every score. `samples`: their summaries, where they are a separate file. Raises BadImport."""
    version = data.get("version", 1)
    if version not in VERSIONS or isinstance(version, bool):
        raise BadImport(
            f"{source} is of version {shown(version)} of Inspect's log; versions 1 and 2 are known here",
            code="unknown_version",
        )
    if data.get("status") != "success":
        status = shown(data.get("status"))
        raise BadImport(
            f"{source} is of an evaluation that did not succeed: its status is {status}", code="not_successful"
        )
    about = mapping(data.get("eval"), f"eval in {source}")
    results = mapping(data.get("results"), f"results in {source}")
    scores = results.get("scores")
    if not isinstance(scores, list) or not scores:
        raise BadImport(f"{source} holds no scores", code="no_scores")
    task = name(about.get("task"), f"eval.task in {source}")
    facts = _facts(about)
    items = _items(data.get("samples") if samples is None else samples)
    numbers = []
    for index, score in enumerate(scores):
        where = f"results.scores.{index} in {source}"
        scored = mapping(score, where)
        label = name(scored.get("name"), f"the name of {where}")
        n = count(scored.get("scored_samples")) or count(results.get("completed_samples"))
        own = facts | facts_of(scored, ("scorer", "reducer"))
        metrics = mapping(scored.get("metrics"), f"metrics of {where}")
        stderr = _stderr(metrics)
        for key, metric in metrics.items():
            if key in _STDERRS:
                continue
            name(f"{label}/{key}", f"a metric of {where}")
            value = number(mapping(metric, f"{key} of {where}").get("value"), f"{key} of {where}")
            is_mean = key in _MEANS
            seen = _seen(items, label) if is_mean and facts.get("epochs", 1) == 1 else None
            higher = "better" if key == "accuracy" else ""
            numbers.append(
                ToolResult(TOOL, task, f"{label}/{key}", value, stderr if is_mean else None, n, higher, own, seen)
            )
    if not numbers:
        raise BadImport(f"{source} holds no metric", code="no_metrics")
    return numbers


def _facts(about: Mapping[str, Any]) -> dict[str, Any]:
    facts = facts_of(about, _OF_THE_TASK)
    for part, keys in (("packages", ("inspect_ai",)), ("revision", ("origin", "commit", "dirty"))):
        if isinstance(inner := about.get(part), dict):
            facts |= facts_of(inner, keys)
    if isinstance(dataset := about.get("dataset"), dict):
        facts |= {f"dataset_{key}": value for key, value in facts_of(dataset, ("name", "samples", "shuffled")).items()}
    if isinstance(config := about.get("config"), dict):
        facts |= facts_of(config, ("limit", "epochs"))
    return facts


def _stderr(metrics: Mapping[str, Any]) -> float | None:
    for key in _STDERRS:
        stated = metrics.get(key)
        if isinstance(stated, dict) and (value := finite(stated.get("value"))) is not None:
            return value
    return None


def _items(samples: Any) -> list[dict[str, Any]]:
    """The scores of each sample; empty where none came along."""
    if not isinstance(samples, list):
        return []
    scores = [sample.get("scores") for sample in samples if isinstance(sample, dict)]
    return [entry for entry in scores if isinstance(entry, dict)]


def _seen(items: list[dict[str, Any]], label: str) -> dict[str, Any] | None:
    """{n, mean} of the samples' own scores; None where one of them is no number."""
    values = []
    for scores in items:
        score = scores.get(label)
        value = score.get("value") if isinstance(score, dict) else None
        if isinstance(value, str):
            value = _LETTERS.get(value)
        if (finite_value := finite(value)) is None:
            return None
        values.append(finite_value)
    return {"n": len(values), "mean": math.fsum(values) / len(values), "sha256": None} if values else None
