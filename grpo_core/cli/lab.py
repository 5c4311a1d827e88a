"""`grpo lab`: runs one job of the reward lab and writes its result. Workers run it, and it needs no platform.

In DIR: progress.json while it runs, then result.json, or error.json with the error's code and message; of a chat, turns
and answers in turns/ (`grpo_core.lab.chat.Exchange`); of a re-score, pages and their scores in samples/.
Imports what is heavy only when it runs.
"""

import argparse
import json
from contextlib import closing
from pathlib import Path
from typing import Any

from grpo_core.errors import GrpoError
from grpo_core.runtime.signals import Stop
from grpo_core.text import format_bytes, format_duration

RESULT, ERROR, PROGRESS = "result.json", "error.json", "progress.json"


def add(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the subcommand `lab`."""
    parser = commands.add_parser(
        "lab",
        help="try or probe a reward as a job file says",
        description="Try a reward on given answers, on a dataset's rows or on samples of a base model, or probe it; "
        "evaluate a model, or let it answer.",
    )
    parser.add_argument("job", type=Path, metavar="JOB", help="YAML or JSON file: kind, reward, options, data, model")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="folder for result.json")
    parser.set_defaults(handler=_lab)


def _lab(options: argparse.Namespace) -> int:
    from grpo_core.runtime.progress import Progress

    options.out.mkdir(parents=True, exist_ok=True)
    for name in (RESULT, ERROR):
        (options.out / name).unlink(missing_ok=True)
    try:
        with Stop() as stop, closing(Progress(file=options.out / PROGRESS)) as progress:
            from grpo_core.lab import rescore
            from grpo_core.lab.chat import FOLDER
            from grpo_core.lab.job import Job
            from grpo_core.lab.run import run_job

            job = Job.from_file(options.job)
            result = run_job(
                job,
                base=options.job.resolve().parent,
                progress=progress,
                check=stop.raise_if_requested,
                turns=options.out / FOLDER,
                pages=options.out / rescore.FOLDER,
            )
    except GrpoError as error:
        _write(options.out / ERROR, {"code": error.code, "message": str(error)})
        raise
    _write(options.out / RESULT, result)
    print(f"{options.out / RESULT}: {_words(result)}")
    return 0


def _evaluated(result: dict[str, Any]) -> str:
    unscored = f", {result['errors']} unscored" if result["errors"] else ""
    return f"{result['suite']} {result['correct']:g} of {result['problems'] - result['errors']}{unscored}"


def _words(result: dict[str, Any]) -> str:
    if "verdict" in result:
        return f"verdict {result['verdict']}"
    if "seconds_per_step" in result:
        return f"{format_duration(result['seconds_per_step'])} a step, {format_bytes(result['peak_memory_bytes'])}"
    if "findings" in result:
        return f"{len(result['findings'])} findings"
    if "results" in result:
        return "; ".join(map(_evaluated, result["results"]))
    if "answers" in result:
        return f"{result['answers']} answers"
    if result.get("kind") == "best_of_n":
        return f"{len(result['scores'])} problems, {result['parting']['outcome']}"
    if result.get("kind") == "rescore":
        return f"{result['samples']:,} samples scored again"
    if "rows" in result:
        return f"{len(result['rows'])} of {result['problems']:,} prompts"
    rewards = result["rewards"]
    mean = "none could be scored" if rewards["mean"] is None else f"mean reward {rewards['mean']:.3f}"
    equal = result["no_signal"]
    signal = f", {equal['groups']} of {equal['of']} groups carry no signal" if equal else ""
    return f"{len(result['samples'])} answers, {mean}{signal}"


def _write(path: Path, content: dict[str, Any]) -> None:
    """Atomic: written to a temporary file and renamed."""
    temporary = path.with_name(f"{path.name}.part")
    temporary.write_text(json.dumps(content, ensure_ascii=False, allow_nan=False), encoding="utf-8")
    temporary.replace(path)
