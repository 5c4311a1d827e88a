"""Rollouts as verl writes them into `trainer.rollout_data_dir` and `validation_data_dir`: <step>.jsonl with input,
output, gts (later versions), score, step, and whatever the reward function returned besides."""

from collections.abc import Iterator
from typing import Any

from cohort.evaluations.imports.bounds import MAX_LINE_BYTES, BadImport, mapping, parsed
from cohort.review.imports.rows import (
    MAX_COMPONENTS,
    Reading,
    Row,
    SourceFile,
    completion_of,
    name_of,
    score_of,
    step_of,
    text_of,
)

REQUIRED = ("input", "output", "score", "step")
_KNOWN = (*REQUIRED, "gts")


def read(file: SourceFile, reading: Reading) -> Iterator[Row]:
    """Raises BadImport."""
    number = 0
    with file.path.open("rb") as stream:
        while line := stream.readline(MAX_LINE_BYTES + 1):
            number += 1
            where = f"line {number:,} of {file.name}"
            if len(line) > MAX_LINE_BYTES:
                raise BadImport(f"{where} has more than {MAX_LINE_BYTES:,} bytes", code="line_too_long")
            if line.strip():
                yield _row(mapping(parsed(line, where), where), where, reading)


def _row(values: dict[str, Any], where: str, reading: Reading) -> Row:
    missing = [name for name in REQUIRED if name not in values]
    if missing:
        raise BadImport(
            f"{where} has no {', '.join(missing)}; verl writes input, output, score and step in each line",
            code="wrong_columns",
        )
    scores = {"score": score_of(values["score"], f"score in {where}")}
    for name, value in values.items():
        if name in _KNOWN:
            continue
        if value is None or isinstance(value, int | float):
            scores[name_of(name, where)] = score_of(value, f"{name} in {where}")
        else:
            reading.left_out[f"field {name_of(name, where)}"] += 1
    if len(scores) > MAX_COMPONENTS:
        raise BadImport(
            f"{where} has {len(scores)} numbers; at most {MAX_COMPONENTS} are taken", code="too_many_columns"
        )
    answer = values.get("gts")
    if answer is not None:
        reading.states.add("reference")
    return Row(
        step=step_of(values["step"], f"step in {where}"),
        prompt=text_of(values["input"], f"input in {where}"),
        completion=completion_of(values["output"], f"output in {where}"),
        answer="" if answer is None else text_of(answer, f"gts in {where}"),
        scores=scores,
    )
