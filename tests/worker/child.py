"""Stands in for the trainer where a real one cannot be made to behave so: writes real records, then does as it is told.

`python child.py MODE FOLDER`, with MODE one of: finish, die, obey, deaf, fail, silent-death, wait-for-file, bad-record.
"""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import FrameType

from grpo_core.run_dir import RunDir
from tests.worker.making import WHOLE_RUN, group, outcome, phase, step


def main() -> None:
    mode, folder = sys.argv[1], Path(sys.argv[2])
    print(f"mode {mode}", flush=True)
    if mode == "silent-death":
        sys.exit(2)
    run = RunDir.create(folder, spool=True)
    if mode == "finish":
        for record in WHOLE_RUN:
            run.append(record)
        run.close()
        return
    run.append(phase("training", 100))
    for number in range(1, 4):
        run.append(step(number))
        run.append(group(number))
    run.commit()
    print("three steps done", flush=True)
    match mode:
        case "die":
            run.append(step(4))  # never committed: the kill tears it
            os.kill(os.getpid(), signal.SIGKILL)
        case "fail":
            run.append(outcome("failed", code="training_error", message="the loss is not a number"))
            sys.exit(8)
        case "obey":

            def stop(number: int, frame: FrameType | None) -> None:
                run.append(outcome("cancelled", code="interrupted", message="Stopped after 3 steps"))
                run.close()
                sys.exit(75)

            signal.signal(signal.SIGTERM, stop)
            go_on()
        case "deaf":
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
            go_on()
        case "wait-for-file":
            while not (folder / "go").exists():
                time.sleep(0.05)
            run.append(outcome())
            run.close()
        case "bad-record":
            with next(run.spool_folder.glob("*.log")).open("ab") as segment:
                segment.write(b"not a frame, and longer than the head of one\n")
            go_on()


def go_on() -> None:
    while True:
        time.sleep(0.1)


main()
