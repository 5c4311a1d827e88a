"""Stands in for the trainer where a real one cannot be made to behave so: writes real records, then does as it is told.

`python child.py MODE FOLDER [CHECKPOINT…]`, with MODE one of: finish, die, obey, deaf, fail, silent-death,
wait-for-file, bad-record, checkpoints, fill-disk. Given checkpoints, it records that it goes on from the last of them.
"""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import FrameType

from grpo_core.checkpoint_files import file_entries, step_folder, verify_checkpoint, write_manifest
from grpo_core.records import CheckpointManifest, Resumed, SkippedCheckpoint
from grpo_core.run_dir import RunDir
from tests.factories.worker import WHOLE_RUN, group, manifest, outcome, phase, step


def main() -> None:
    mode, folder = sys.argv[1], Path(sys.argv[2])
    print(f"mode {mode}", flush=True)
    if mode == "silent-death":
        sys.exit(2)
    run = RunDir.create(folder, spool=True)
    done = 0
    if sys.argv[3:]:
        run.append(manifest())
        newest = verify_checkpoint(Path(sys.argv[-1]))
        done = newest.step
        skipped = tuple(SkippedCheckpoint(path=path, reason="not whole") for path in sys.argv[3:-1])
        run.append(Resumed(step=newest.step, checkpoint=newest.path, skipped=skipped))
    if mode == "finish":
        for record in WHOLE_RUN:
            run.append(record)
        run.close()
        return
    if mode in ("obey", "deaf", "checkpoints", "fill-disk"):
        # Its records are seen, and a stop may be asked for, before it has said how it takes one.
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    if mode == "deaf":  # before its steps are seen: from then on tests look for what it has started
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    run.append(phase("training", 100))
    for number in range(done + 1, done + 4):
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
            stop_when_asked(run)
            go_on()
        case "deaf":
            go_on()
        case "wait-for-file":
            while not (folder / "go").exists():
                time.sleep(0.05)
            run.append(outcome())
            run.close()
        case "checkpoints":
            for number in (done + 2, done + 3):
                run.append(checkpoint_of(run, number))
            run.commit()
            stop_when_asked(run)
            go_on()
        case "fill-disk":
            stop_when_asked(run)
            (folder / "ballast").write_bytes(bytes(int(os.environ["TORCH_BALLAST"])))
            go_on()
        case "bad-record":
            with next(run.spool_folder.glob("*.log")).open("ab") as segment:
                segment.write(b"not a frame, and longer than the head of one\n")
            go_on()


def stop_when_asked(run: RunDir) -> None:
    def stop(number: int, frame: FrameType | None) -> None:
        signal.signal(number, signal.SIG_IGN)
        run.append(outcome("stopped", code="interrupted", message="Stopped after 3 steps"))
        run.close()
        sys.exit(75)

    signal.signal(signal.SIGTERM, stop)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})


def checkpoint_of(run: RunDir, number: int) -> CheckpointManifest:
    """A whole checkpoint of two files; those of two steps share one of them."""
    folder = run.checkpoint_folder(step_folder(number))
    (folder / "sub").mkdir(parents=True)
    (folder / "sub" / "same.bin").write_bytes(b"same" * 1000)
    (folder / "weights.bin").write_bytes(bytes([number]) * 20_000)
    path = str(folder.relative_to(run.path))
    told = CheckpointManifest(step=number, path=path, files=file_entries(folder))
    write_manifest(folder, told)
    return told


def go_on() -> None:
    while True:
        time.sleep(0.1)


main()
