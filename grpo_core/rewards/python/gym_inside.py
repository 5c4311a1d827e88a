"""What runs in the box of a reasoning_gym reward: the scorers of reasoning-gym's tasks.

This text runs in the sandbox, below session_inside.py. Some scorers read an answer by evaluating it, so each sample is
scored in a child of its own: whatever an answer does there ends with it, and meets no other sample.
"""

import json
import os
import signal
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from typing import Any

MAX_MESSAGE_CHARS = 500
DATASETS: dict[str, Any] = {}


def load(hello: dict[str, Any]) -> None:
    import reasoning_gym

    for name in hello["tasks"]:
        dataset_of(name, {})
    DATASETS["module"] = reasoning_gym


def dataset_of(name: str, params: dict[str, Any]) -> Any:
    import reasoning_gym

    key = json.dumps([name, params], sort_keys=True)
    if key not in DATASETS:
        DATASETS[key] = reasoning_gym.create_dataset(name, size=1, seed=0, **params)
    return DATASETS[key]


def answer(request: dict[str, Any]) -> dict[str, Any]:
    task = request["task"]
    try:
        dataset = dataset_of(task["name"], task.get("params") or {})
    except Exception as error:
        raise Trouble("sample", f"the task {task['name']} cannot be made: {error}") from error  # type: ignore[name-defined]  # noqa: F821
    ours, theirs = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(ours)
        with redirect_stdout(StringIO()), redirect_stderr(StringIO()):
            outcome = scored(dataset, request["answer"], task["entry"])
        os.write(theirs, json.dumps(outcome).encode())
        os._exit(0)
    os.close(theirs)
    with os.fdopen(ours, "rb") as handle:
        received = handle.read(64 * 1024)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    if not received:
        return {"value": 0.0, "detail": "the answer ended the task's scorer"}
    reply: dict[str, Any] = json.loads(received)
    return reply


def scored(dataset: Any, given: str | None, entry: dict[str, Any]) -> dict[str, Any]:
    """What the task's scorer gives. One that cannot read an answer raises: then the answer is wrong."""
    try:
        return {"value": float(dataset.score_answer(given, entry)), "detail": ""}
    except Exception as error:  # noqa: BLE001 - scorers raise whatever their parsing raises
        detail = f"the task's scorer could not read it: {type(error).__name__}: {error}"
        return {"value": 0.0, "detail": detail[:MAX_MESSAGE_CHARS]}
