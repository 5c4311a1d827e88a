"""Samples of a log of Inspect, `.eval` or its `.json` export: a sample's epochs are the completions of one group."""

from collections.abc import Iterator
from typing import Any

from cohort.evaluations.imports import inspect_log
from cohort.evaluations.imports.bounds import MAX_UPLOAD_BYTES, Archive, BadImport, count, document, facts_of, finite
from cohort.evaluations.imports.bounds import mapping as object_of
from cohort.review.imports.rows import Reading, Row, SourceFile, completion_of, name_of, text_of

STEP = 1
"""An evaluation has one."""
_FINISH = {"stop": "stop", "max_tokens": "length"}
_LETTERS = {"C": (1.0, True), "P": (0.5, None), "I": (0.0, False), "N": (0.0, False)}
"""As `inspect_log` counts them; the letters say right or wrong."""


def read(file: SourceFile, reading: Reading) -> Iterator[Row]:
    """Raises BadImport."""
    if file.path.stat().st_size > MAX_UPLOAD_BYTES:
        raise BadImport(
            f"{file.name} has more than {MAX_UPLOAD_BYTES:,} bytes; a log may have so many", code="too_large"
        )
    content = file.path.read_bytes()
    header, samples = _zip(content, file) if content.startswith(b"PK") else _json(content, file)
    about = object_of(header.get("eval"), f"eval in {file.name}")
    reading.facts |= facts_of(about, ("task", "model", "created", "task_version")) | facts_of(header, ("status",))
    rows: dict[str, list[tuple[int, Row]]] = {}
    for where, sample in samples:
        if sample.get("error"):
            reading.left_out["sample that ended with an error"] += 1
            continue
        row = _row(sample, where, reading)
        rows.setdefault(row.problem_id, []).append((count(sample.get("epoch")) or 0, row))
    for group in rows.values():
        yield from (row for _, row in sorted(group, key=lambda pair: pair[0]))


def _zip(content: bytes, file: SourceFile) -> tuple[dict[str, Any], Iterator[tuple[str, dict[str, Any]]]]:
    archive = Archive(content, file.name)
    if "header.json" not in archive:
        raise BadImport(f"{file.name} holds no header.json: the log was not finished, or is none", code="no_header")
    members = [name for name in archive.names() if name.startswith("samples/") and name.endswith(".json")]
    samples = ((f"{name} in {file.name}", document(archive.read(name), f"{name} in {file.name}")) for name in members)
    return _require_log(document(archive.read("header.json"), f"header.json in {file.name}"), file), samples


def _require_log(header: dict[str, Any], file: SourceFile) -> dict[str, Any]:
    if not inspect_log.is_log(header):
        raise BadImport(f"{file.name} is no log of Inspect: it has no eval and status", code="unknown_tool")
    return header


def _json(content: bytes, file: SourceFile) -> tuple[dict[str, Any], Iterator[tuple[str, dict[str, Any]]]]:
    log = _require_log(document(content, file.name), file)
    listed = log.get("samples")
    if not isinstance(listed, list):
        raise BadImport(f"{file.name} holds no samples. Export the log with its samples.", code="no_samples")
    named = ((f"sample {at} of {file.name}", sample) for at, sample in enumerate(listed, start=1))
    return log, ((where, object_of(sample, where)) for where, sample in named)


def _row(sample: dict[str, Any], where: str, reading: Reading) -> Row:
    output = object_of(sample.get("output"), f"output of {where}")
    choices = output.get("choices")
    choice = choices[0] if isinstance(choices, list) and choices and isinstance(choices[0], dict) else {}
    message = choice.get("message") if isinstance(choice.get("message"), dict) else None
    completion = output.get("completion")
    if not completion:
        completion = [message] if message and isinstance(message.get("role"), str) else ""
    usage = output.get("usage")
    tokens = count(usage.get("output_tokens")) if isinstance(usage, dict) else None
    finish = _FINISH.get(str(choice.get("stop_reason")), "")
    scores: dict[str, float | None] = {}
    passed: dict[str, bool] = {}
    for name, score in _scores(sample, where):
        if isinstance(score, str) and score in _LETTERS:
            scores[name], right = _LETTERS[score]
            if right is not None:
                passed[name] = right
        elif isinstance(score, bool):
            scores[name] = passed[name] = score
        elif (number := finite(score)) is not None:
            scores[name] = number
        else:
            scores[name] = None
            reading.left_out[f"score {name} that is no number"] += 1
    target = sample.get("target")
    stated = {"tokens": tokens is not None, "finish": bool(finish), "reference": target is not None}
    reading.states |= {name for name, known in stated.items() if known}
    return Row(
        step=STEP,
        problem_id=text_of(sample.get("id"), f"id of {where}")[:200],
        prompt=text_of(sample.get("input"), f"input of {where}"),
        answer="" if target is None else text_of(target, f"target of {where}"),
        completion=completion_of(completion, f"completion of {where}"),
        scores=scores,
        passed=passed,
        tokens=tokens,
        finish_reason=finish,
    )


def _scores(sample: dict[str, Any], where: str) -> Iterator[tuple[str, Any]]:
    """(name, value); a scorer that gives several has a name for each."""
    for scorer, score in object_of(sample.get("scores") or {}, f"scores of {where}").items():
        value = score.get("value") if isinstance(score, dict) else score
        if isinstance(value, dict):
            yield from ((name_of(f"{scorer}/{key}", where), inner) for key, inner in value.items())
        else:
            yield name_of(scorer, where), value
