"""The problems of a run as its card holds them, and whether a file of problems is the one that a run was trained on.
Loads no torch."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from grpo_core.data.fingerprint import file_sha256
from grpo_core.data.problem import Problem
from grpo_core.errors import RecordsError

PROBLEMS = "problems.jsonl"
"""Of a card: the problems of the kept groups, so that their completions can be scored again."""


def problem_line(problem: Problem) -> dict[str, Any]:
    """As JSON: what a verifier reads of it. Messages are left out, which none reads."""
    return {
        "id": problem.id,
        "prompt": problem.prompt,
        "answer": problem.answer,
        "other_answers": list(problem.other_answers),
        "meta": problem.meta,
    }


def read_problems(folder: Path) -> dict[str, Problem] | None:
    """By id, of an unpacked card; None where it holds none. Raises RecordsError."""
    path = folder / PROBLEMS
    if not path.is_file():
        return None
    problems = {}
    with path.open(encoding="utf-8") as handle:
        for number, line in enumerate(handle, start=1):
            try:
                value = json.loads(line)
                value["other_answers"] = tuple(value["other_answers"])
                problem = Problem(**value)
            except (ValueError, TypeError, KeyError, RecursionError):
                raise RecordsError(f"{path}, line {number} is no problem") from None
            problems[problem.id] = problem
    return problems


def check_files(files: Sequence[Path], facts: Mapping[str, Any]) -> bool:
    """Whether the records say which files these must be. `facts`: of a manifest, or what of one a card shows. Raises
    RecordsError that names the file that is another, or the one that is missing."""
    train = facts.get("data", {}).get("train", {})
    recorded = train.get("files") or ({train.get("path"): train["sha256"]} if "sha256" in train else {})
    if not recorded:
        return False
    if missing := [path for path in files if not path.is_file()]:
        raise RecordsError(f"{missing[0]} is not there. Give the run's problems by --data FILE")
    there = {path: file_sha256(path) for path in files}
    for path, digest in there.items():
        if digest not in recorded.values():
            raise RecordsError(
                f"{path} is not the file that the run was trained on: its SHA-256 is {digest}, recorded "
                f"{'is' if len(recorded) == 1 else 'are'} {', '.join(sorted(map(str, recorded.values())))}. "
                "Give the run's own by --data FILE"
            )
    if lacking := [name for name, digest in recorded.items() if digest not in there.values()]:
        raise RecordsError(f"{lacking[0]}, which the run was trained on too, is not among {', '.join(map(str, files))}")
    return True
