"""`grpo train` as it is, with a clock around what it writes: python watched_trainer.py CONFIG OUT [--spool]

Prints one JSON line: seconds spent in RunDir.append and RunDir.commit between the steps' metrics, step by step, and the
seconds from one step's metrics to the next.
"""

import json
import sys
import time
from collections.abc import Callable
from itertools import pairwise
from typing import Any

from grpo_core.cli.main import main
from grpo_core.files.run_folder import RunDir
from grpo_core.records import types as records

spent, steps = 0.0, []


def timed(method: Callable[..., Any]) -> Callable[..., Any]:
    def call(self: RunDir, *given: Any) -> Any:
        global spent
        began = time.perf_counter()
        try:
            return method(self, *given)
        finally:
            ended = time.perf_counter()
            spent += ended - began
            if method.__name__ == "commit":
                steps.append((ended, spent))

    return call


def counted(self: RunDir, record: records.Record) -> int:
    if isinstance(record, records.StepMetrics):
        marks.append(len(steps))
    return append(self, record)


marks: list[int] = []
append = timed(RunDir.append)
RunDir.append, RunDir.commit = counted, timed(RunDir.commit)  # type: ignore[method-assign]
status = main(["train", sys.argv[1], "--out", sys.argv[2], *sys.argv[3:]])
# The first commit after a step's metrics makes that step durable: there one step ends and the next begins.
ends = [steps[mark] for mark in marks if mark < len(steps)]
whole = [after[0] - before[0] for before, after in pairwise(ends)]
writing = [after[1] - before[1] for before, after in pairwise(ends)]
print(json.dumps({"step": whole, "writing": writing}))
sys.exit(status)
