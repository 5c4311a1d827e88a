"""Stands in for `grpo train` where only what is around the trainer is tried: starts at once, writes a step every 50 ms.

Ends when SIGTERM asks it to, or after as many steps as its config says.
"""

import os
import signal
import sys
import time
from pathlib import Path
from types import FrameType

import yaml

from grpo_core.records import Manifest, Outcome, PhaseStarted, StepMetrics
from grpo_core.run_dir import RunDir

SECONDS = 0.05


def main(words: list[str]) -> None:
    folder = Path(words[words.index("--out") + 1])
    planned = int(yaml.safe_load((folder / "config.yaml").read_text(encoding="utf-8"))["optim"]["steps"])
    run = RunDir.create(folder, spool=True)
    run.append(
        Manifest(code={}, packages={}, platform={}, model={}, data={}, seeds={"seed": 0}, config_digest="ab" * 32)
    )
    run.append(PhaseStarted(phase="training", total=planned))
    done = 0

    def end(status: str, message: str) -> None:
        run.append(
            Outcome.model_validate({"status": status, "message": message, "steps_done": done, "steps_planned": planned})
        )
        run.close()

    def stop(number: int, frame: FrameType | None) -> None:
        end("stopped", f"Stopped after {done} steps")
        sys.stdout.flush()
        os._exit(75)  # this runs before Python counts as started, where SystemExit is a fault

    for number in range(1, planned + 1):
        run.append(StepMetrics(step=number, metrics={"reward": 0.5}, seconds={"total": SECONDS}))
        run.commit()
        done = number
        signal.signal(signal.SIGTERM, stop)  # between records: a signal in the middle of one would tear it
        time.sleep(SECONDS)
        signal.signal(signal.SIGTERM, _later)
        if _asked:
            stop(signal.SIGTERM, None)
    end("finished", f"Finished {planned} steps")


_asked: list[int] = []


def _later(number: int, frame: FrameType | None) -> None:
    _asked.append(number)
