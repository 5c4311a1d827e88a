"""Logs of Inspect (EvalLog, version 2): their parts, as `inspect_ai.log.read_eval_log` reads them. Whoever writes one
makes its header and its samples here."""

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from pydantic_core import to_json

from cohort import __version__


def log_header(
    *,
    name: str,
    task: str,
    model: str,
    dataset: Mapping[str, Any],
    started: str,
    completed: str,
    metadata: Mapping[str, Any],
    plan: str,
    results: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """All of a log but its samples. `started` and `completed` in ISO 8601."""
    return {
        "version": 2,
        "status": "success",
        "eval": {
            "eval_id": name,
            "run_id": name,
            "created": started,
            "task": task,
            "task_id": name,
            "dataset": dataset,
            "model": model,
            "config": {},
            "packages": {"cohort": __version__},
            "metadata": metadata,
        },
        "plan": {"name": plan, "steps": [], "config": {}},
        "results": results,
        "stats": {"started_at": started, "completed_at": completed},
    }


def log_sample(
    *,
    id: str,
    epoch: int,
    prompt: str,
    target: str,
    completion: str,
    model: str,
    stop_reason: str,
    tokens: int | None,
    scores: Mapping[str, Mapping[str, Any]],
    metadata: Mapping[str, Any],
) -> dict[str, Any]:
    answer = {"role": "assistant", "content": completion, "source": "generate"}
    return {
        "id": id,
        "epoch": epoch,
        "input": prompt,
        "target": target,
        "messages": [{"role": "user", "content": prompt, "source": "input"}, answer],
        "output": {
            "model": model,
            "choices": [{"message": answer, "stop_reason": stop_reason}],
            "completion": completion,
            "usage": None if tokens is None else {"output_tokens": tokens, "total_tokens": tokens},
        },
        "scores": scores,
        "metadata": metadata,
    }


def written(header: Mapping[str, Any], samples: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    """The log's JSON, a sample at a time."""
    yield json.dumps(header, ensure_ascii=False)[:-1] + ', "samples": [\n'
    before = ""
    for sample in samples:
        yield before + to_json(sample).decode()
        before = ",\n"
    yield "\n]}\n"
